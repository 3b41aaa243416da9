#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/axis.h"
#include "tessera/core/fd.h"
#include "tessera/core/memory_category.h"
#include "tessera/process/nvml.h"
#include "tessera/train/evaluation.h"

namespace tessera::train {

// Where a rank's time of a step goes, in seconds. On the CPU the bubble is part of the exposed
// communication; of a step that is one CUDA graph only that whole is known.
inline constexpr std::array<std::string_view, 8> kPhaseNames = {
    "step_s", "forward_s",      "backward_s", "optimizer_s",
    "data_s", "comm_exposed_s", "bubble_s",   "graph_s"};
using RankPhases = std::array<double, kPhaseNames.size()>;

// A rank that takes longer than others to compute, and where: by this factor of the median.
struct SlowRank {
  int rank = 0;
  std::string phase;
  double factor = 1;
};
inline constexpr double kSlow = 1.25;  // what counts as slow

// One optimizer step, as rank 0 saw it; loss and norm are those of all ranks.
struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;  // of all ranks in this step
  double step_s = 0;
  double forward_s = 0;       // without waiting
  double backward_s = 0;      // likewise
  double comm_s = 0;          // in the loops of collectives, hidden or not
  double comm_exposed_s = 0;  // waiting for communication
  double optimizer_s = 0;
  double data_s = 0;                // waiting for data
  double data_prepare_s = 0;        // what a thread beside the training took to prepare it
  double bubble_s = 0;              // of the exposed: waiting for other stages of a pipeline
  double passes_s = 0;              // from the first forward to the last backward
  double graph_s = 0;               // on a GPU, of a step that is one CUDA graph: all of it
  std::int64_t mem_bytes = 0;       // at the end of the step
  std::int64_t mem_peak_bytes = 0;  // the most within it
  std::int64_t sent_bytes = 0;
  std::int64_t control_bytes = 0;
  bool skipped = false;
  // The first layer or tensor that was not finite, in words; of a step that broke(), the first one
  // alone where such steps are skipped.
  std::string non_finite = {};
  double loss_scale = 1;  // layout fp16: what the loss was multiplied by
  std::optional<process::GpuReading>
      gpu;                               // while it was launched; no value where NVML is not there
  std::optional<double> save_exposed_s;  // that a save after it held training up
  std::optional<Evaluation> evaluation;  // after it, on the validation data
  // Of all ranks, means of the last steps; only where a line is to have them.
  std::vector<RankPhases> ranks;
  std::vector<SlowRank> slow_ranks;  // by those

  // Skipped for numbers that were none: not for a scale of fp16 that was too large, which falls by
  // itself.
  bool broke() const { return skipped && !(loss_scale > 1 && std::isfinite(loss)); }
  double tokens_per_s() const { return step_s > 0 ? static_cast<double>(tokens) / step_s : 0; }
};

// Bytes by the name of the category; only those that are known.
using MemoryBytes = std::map<std::string, std::int64_t>;

// Bytes that a rank sends per step along each axis of the mesh.
using SentBytes = PerAxis<std::int64_t>;

struct Outcome {
  MemoryBytes memory;
  std::optional<double> step_s;
  std::optional<SentBytes> sent;
};

struct Summary {
  Outcome predicted, measured;
  // Idle share of the passes of a pipeline, over all ranks: as its schedule has it for equal
  // stages, and as it came. Nothing without a pipeline.
  std::optional<double> predicted_bubble, bubble;
  std::vector<RankPhases> ranks;  // means of all steps but the first; empty for one rank
  std::vector<SlowRank> slow_ranks;
  std::string params_hash;
  double tokens_per_s = 0;                // median over steps
  double step_s = 0;                      // likewise
  double data_s = 0, data_prepare_s = 0;  // likewise
  double first_loss = 0, last_loss = 0;
  std::int64_t steps = 0;    // taken in this run
  std::int64_t skipped = 0;  // of them, for gradients that were not finite
  std::int64_t saves = 0;
  double save_exposed_s = 0;  // mean of the saves
  bool interrupted = false;
  std::optional<Evaluation> evaluation;  // the last one

  // How many times faster data is prepared than it is trained on.
  double data_rate() const { return data_prepare_s > 0 ? step_s / data_prepare_s : 0; }
  double save_exposed_percent() const { return step_s > 0 ? 100 * save_exposed_s / step_s : 0; }
  std::map<std::string, std::string> run;  // model, stage, layout, … for the reader
};

// How the last save of a run went.
struct LastSave {
  std::string folder;     // that was published; "" if none was
  std::string failure;    // why not, with --on-save-error warn
  std::string last_good;  // then, on rank 0: the newest good checkpoint, "" for none
};

// One JSON text each, without a newline. What is not finite is null.
std::string to_json(const StepMetrics& step);
std::string to_json(const Summary& summary);
// The first line that a session writes has more: `start`, with the run, what is predicted for it,
// the memory so far, its last step, its trace and when it began. A reader sees by it that a run was
// started again.
std::string first_line(const StepMetrics& step, const Summary& expected, std::int64_t steps,
                       const std::string& trace, double unix_seconds);

// Throws UsageError for what LineFile could not write to, and changes nothing. What it returns is
// to be held until the run is over: the reader of a pipe takes it for ended otherwise.
[[nodiscard]] Fd check_lines(const std::string& path, std::string_view flag);

// Lines of a file, each written at once, so that a reader never sees half of one. It may be a
// device, or a pipe that somebody reads.
class LineFile {
 public:
  // `goes_on`: after the lines that are there. Throws UsageError.
  LineFile(const std::string& path, std::string_view flag, bool goes_on = false);
  // Throws DataError; of a line that did not fit, nothing stays.
  void write(const std::string& line);

 private:
  Fd file_;
  std::string path_;
};

}  // namespace tessera::train
