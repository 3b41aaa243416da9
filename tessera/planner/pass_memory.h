#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/placed_params.h"
#include "tessera/planner/run_config.h"
#include "tessera/schedule/schedule.h"

// Memory of a rank in the passes of a step.
namespace tessera::planner {

struct Programs;

// Moment in the backward of a model chunk: bytes in addition to state, activations and buffers,
// bytes of activations that are freed by then, and the layer in whose backward it is.
struct Moment {
  std::int64_t temporary = 0, gone = 0;
  std::int64_t layer = 0;  // kTable: the embedding; the number of layers: the head
};
inline constexpr std::int64_t kTable = -1;

// [Note: a run's temporary] Moments in the backward of a part: the loss, each layer from the last,
// and the embedding. Each also holds the workspace and the batch, the incoming gradient, recomputed
// activations, a pending gradient of a table (a tied table waits for its other half; if gradients
// are reduced every micro-batch, the head's waits for its bucket, which is the last), and gradients
// that wait until their bucket is full. The first moment is the end of forward. Before a layer is
// recomputed there is a moment that never is the peak.
std::vector<Moment> moments_of_part(const RunConfig& run, const Programs& programs,
                                    const std::vector<Placed>& params, int model_chunk,
                                    const ModelPart& part);

// Return bytes of a rank: of ids and targets; of the output that it sends to another stage (0
// without one); and of the input of another micro-batch that arrives while the most are in flight.
std::int64_t batch_bytes(const RunConfig& run);
std::int64_t sent_bytes(const RunConfig& run, const Coordinate& at);
std::int64_t arriving_bytes(const RunConfig& run, const Coordinate& at);

// Schedule of a run, made when it is first needed.
class LazySchedule {
 public:
  // `run` must outlive this object.
  explicit LazySchedule(const RunConfig& run) : run_(run) {}
  const schedule::Schedule& get();

 private:
  const RunConfig& run_;
  std::optional<schedule::Schedule> made_;
};

// Bytes of one micro-batch on a model chunk: activations from its forward to the end of its
// backward, and the largest sum of temporaries less activations freed by then.
struct ChunkLoad {
  double kept = 0, most = 0;
};
// Bytes of a rank: most activations kept for backward, and the largest sum of temporaries less
// activations that are not kept then.
struct PassPeak {
  double kept = 0, temporary = 0;
};
// Returns the peak over the passes of a rank, in the order of its schedule. `always`: temporaries
// that are allocated throughout. Schedules with more than a million passes use an upper bound.
PassPeak peak_of_passes(const RunConfig& run, int rank, const std::vector<ChunkLoad>& chunks,
                        double always, LazySchedule& schedule);

// [Note: memory of a pass] Bytes of a rank in the course of the passes of one micro-batch over a
// model chunk. Forward keeps the activations of a layer when the layer ends. Backward has the
// points of [Note: a run's temporary], each with its temporaries and with the activations freed by
// then; for other software than Tessera, those of [Note: temporary]. The largest sum is therefore
// the plan's. A layer frees at most what it keeps; bytes that the plan counts as freed beyond that
// reduce the temporaries. Parts of the model divide a pass by their floating-point operations, and
// the points of a part are evenly spaced. With full recomputation the first third of a layer's
// backward repeats its forward.
//
// The temporaries of a forward pass are left out: they never are the peak.
struct PassPoint {
  double done = 0;         // fraction of the pass, 0 to 1
  double activations = 0;  // kept bytes of the micro-batch; in backward, with the output to send
  double temporary = 0;
};
struct ChunkPasses {
  std::vector<PassPoint> forward, backward;  // the first points are at 0, the last ones at 1
  double most = 0;                           // as in ChunkLoad

  double kept() const { return forward.back().activations; }
};
struct PassMemory {
  std::vector<ChunkPasses> chunks;  // of the rank
  double always = 0;                // temporaries that are allocated throughout the step
  double sent = 0;                  // output of a pass, until it is sent
  double arriving = 0;              // input of the next micro-batch, while there is one
  double update = 0;                // temporaries of the optimizer, less the buffers freed for it
};

// Returns the memory of a rank in its passes.
PassMemory pass_memory(const RunConfig& resolved, const Coordinate& at = {});
// As above, with precomputed programs, as run_memory() takes them.
PassMemory pass_memory(const RunConfig& resolved, const Coordinate& at, const Programs& programs);

}  // namespace tessera::planner
