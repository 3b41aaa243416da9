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
#include "tessera/core/experts.h"
#include "tessera/core/fd.h"
#include "tessera/core/memory_category.h"
#include "tessera/process/nvml.h"

namespace tessera::train {

// Result of an evaluation on validation data.
struct Evaluation {
  double loss_sum = 0;      // sum of the cross entropies, in nats
  std::int64_t tokens = 0;  // number of predicted tokens
  double bytes = 0;         // bytes of text that the tokens encode; 0: unknown
  double seconds = 0;       // duration of the evaluation

  double loss() const { return tokens > 0 ? loss_sum / static_cast<double>(tokens) : 0; }
  double perplexity() const { return std::exp(loss()); }
  double bits_per_byte() const { return bytes > 0 ? loss_sum / bytes / std::log(2.0) : 0; }
};
std::string to_json(const Evaluation& evaluation);
// Returns "loss 3.2871, perplexity 26.77, 1.012 bits per byte (12,288 tokens)".
std::string describe(const Evaluation& evaluation);

// Phases of a rank's step, in seconds. On the CPU the bubble is part of the exposed communication.
// If a step is one CUDA graph, only the duration of the graph is known.
inline constexpr std::array<std::string_view, 8> kPhaseNames = {
    "step_s", "forward_s",      "backward_s", "optimizer_s",
    "data_s", "comm_exposed_s", "bubble_s",   "graph_s"};
using RankPhases = std::array<double, kPhaseNames.size()>;

// Rank that computes slower than the others.
struct SlowRank {
  int rank = 0;
  std::string phase;
  double factor = 1;  // time of the phase over the median of the ranks
};
inline constexpr double kSlow = 1.25;  // ranks above this factor are slow

// Measurements of one optimizer step on rank 0. Loss and norm are those of all ranks.
struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;  // of all ranks in this step
  double step_s = 0;
  double forward_s = 0;       // without waits
  double backward_s = 0;      // without waits
  double comm_s = 0;          // calls under way, hidden or not, including waits for late ranks
  double comm_exposed_s = 0;  // part of comm_s: waiting for communication
  double optimizer_s = 0;
  double data_s = 0;                // waiting for data
  double data_prepare_s = 0;        // preparing data, in a background thread
  double bubble_s = 0;              // part of comm_exposed_s: waiting for other pipeline stages
  double passes_s = 0;              // from the first forward to the last backward
  double graph_s = 0;               // on a GPU, if the step is one CUDA graph: all of it
  std::int64_t mem_bytes = 0;       // at the end of the step
  std::int64_t mem_peak_bytes = 0;  // maximum during the step
  std::int64_t sent_bytes = 0;
  std::int64_t control_bytes = 0;
  bool skipped = false;
  // Description of the first layer or tensor that was not finite, if the step broke(). If such
  // steps are skipped, only the first of them has it.
  std::string non_finite = {};
  double loss_scale = 1;  // layout fp16: factor of the loss
  // Read when the step was launched; nullopt without NVML.
  std::optional<process::GpuReading> gpu;
  std::optional<double> save_exposed_s;  // delay of training by a save after this step
  std::optional<Evaluation> evaluation;  // on the validation data, after this step
  // Use of the experts since the last step that has it, by layer; empty without experts.
  std::vector<ExpertLoad> experts = {};
  // Means of the last steps, by rank; only in steps whose line is to have them.
  std::vector<RankPhases> ranks;
  std::vector<SlowRank> slow_ranks;  // by these means

  // Returns true if the step was skipped because of non-finite numbers. A loss scale of fp16 that
  // was too large does not count: it decreases by itself.
  bool broke() const { return skipped && !(loss_scale > 1 && std::isfinite(loss)); }
  double tokens_per_s() const { return step_s > 0 ? static_cast<double>(tokens) / step_s : 0; }
};

// Bytes by name of the category; only known ones.
using MemoryBytes = std::map<std::string, std::int64_t>;

// Bytes that a rank sends per step along each axis of the mesh.
using SentBytes = PerAxis<std::int64_t>;

// Predicted or measured figures of a run.
struct Outcome {
  MemoryBytes memory;
  std::optional<double> step_s;
  std::optional<SentBytes> sent;
};

// Results of a run, for its end.
struct Summary {
  Outcome predicted, measured;
  // Idle fraction of the passes of a pipeline, over all ranks: predicted by the schedule for equal
  // stages, and measured. nullopt without a pipeline.
  std::optional<double> predicted_bubble, bubble;
  std::vector<RankPhases> ranks;  // means of all steps but the first; empty for one rank
  std::vector<SlowRank> slow_ranks;
  std::string params_hash;
  double tokens_per_s = 0;                // median over steps
  double step_s = 0;                      // median over steps
  double data_s = 0, data_prepare_s = 0;  // medians over steps
  double first_loss = 0, last_loss = 0;
  std::int64_t steps = 0;    // taken in this run
  std::int64_t skipped = 0;  // steps skipped because gradients were not finite
  std::int64_t saves = 0;
  double save_exposed_s = 0;  // mean of the saves
  bool interrupted = false;
  std::optional<Evaluation> evaluation;  // the last one

  // Returns the speed of data preparation relative to training.
  double data_rate() const { return data_prepare_s > 0 ? step_s / data_prepare_s : 0; }
  double save_exposed_percent() const { return step_s > 0 ? 100 * save_exposed_s / step_s : 0; }
  std::map<std::string, std::string> run;  // model, stage, layout, … for the reader
};

// Result of the last save of a run.
struct LastSave {
  std::string folder;     // published checkpoint; "" if none was
  std::string failure;    // reason of a failure with --on-save-error warn; otherwise ""
  std::string last_good;  // after a failure, on rank 0: the newest good checkpoint; "" for none
};

// Return a JSON text without a newline. Numbers that are not finite become null.
std::string to_json(const StepMetrics& step);
std::string to_json(const Summary& summary);
// Returns the first line that a session writes. It also has `start`, with the run, the predictions
// for it, the memory so far, the number of its last step, its trace and its start time. Readers
// detect restarts by it.
std::string first_line(const StepMetrics& step, const Summary& expected, std::int64_t steps,
                       const std::string& trace, double unix_seconds);

// Appends {"end": {"state": "failed", "reason": …, "time": …}} to the metrics of a run whose ranks
// failed, unless they had written the summary. Does nothing if `path` is not a regular file.
void write_failure(const std::string& path, const std::string& reason);

// Throws UsageError if LineFile could not write to `path`. Changes nothing. Keep the returned file
// open until the end of the run: otherwise the reader of a pipe sees its end.
[[nodiscard]] Fd check_lines(const std::string& path, std::string_view flag);

// Returns the last step in a file of metrics; 0 if there is none, or if it is not a regular file.
std::int64_t last_step_in(const std::string& path);

// File of lines, each written in one call, so that a reader never sees half of one. It may be a
// device, or a pipe that has a reader.
class LineFile {
 public:
  // `goes_on`: append to existing lines. Throws UsageError.
  LineFile(const std::string& path, std::string_view flag, bool goes_on = false);
  // Throws DataError, and then leaves no part of the line in the file.
  void write(const std::string& line);

 private:
  Fd file_;
  std::string path_;
};

}  // namespace tessera::train
