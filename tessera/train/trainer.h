#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/memory/ledger.h"
#include "tessera/train/config.h"
#include "tessera/train/kept_state.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// One rank of a training run: model, data and engine. It prints nothing. All ranks of the world
// must make the same calls.
class Trainer {
 public:
  // Collective. Installs the counting allocator. Allocations of the calling thread are charged to
  // the trainer's ledger during each call.
  Trainer(RunConfig config, comm::Group world);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Makes one optimizer step. Throws Error if gradients are not finite, with --on-nan stop.
  StepMetrics step();
  // launch() and finish() are the two halves of step(). launch() returns when the work of the step
  // is enqueued on the device (on the CPU: done). finish() waits until at most `under_way_at_most`
  // launched steps are unfinished, moves the others into history(), and throws as step() does. One
  // step in flight keeps a GPU busy. Other calls that need results finish all steps.
  void launch();
  void finish(std::size_t under_way_at_most = 0);
  std::int64_t steps_done() const;  // launched steps, including those before a resumption
  // Number of steps of the whole run, including those before a resumption.
  std::int64_t steps_in_all() const;

  // Collective. Loads the checkpoint of --resume. Returns its folder; nullopt for a fresh start.
  // `notes` gets notes for the user, such as skipped checkpoints with the reason.
  std::optional<std::string> resume(std::vector<std::string>& notes);
  // Collective. Loads the newest checkpoint, and continues with the data after the last step.
  // Returns its folder. Throws Error if there is none, or after too many rollbacks.
  std::string roll_back();
  // Collective. Saves a checkpoint in --save. The metrics of the last step get the time that this
  // delayed training.
  void save();
  // Collective. Waits until the last save is published or has finally failed.
  LastSave finish_saving();

  // For [Note: recovery]; these work after a call has failed because another rank was lost.
  // Returns the progress of this rank.
  StepStatus status() const;
  // Returns the state after the last finished step, in memory of its own. `outcome`: makes the
  // update of a step that waits for it, first. Afterwards the trainer may only be destroyed.
  KeptState keep(const std::optional<zero::StepOutcome>& outcome);
  // Collective, instead of resume(). Continues from the state of another trainer with the same
  // shards. `sends`: some replicas have no shards and get those of replica `source`.
  void take(const KeptState& state, int source, bool sends);

  // Describes the last call of this rank along each axis. Thread-safe.
  std::string last_calls() const;

  // Collective. Returns the maximum of the requests of all ranks. The same call exchanges the times
  // of their last steps, which costs no additional synchronization.
  int agree(int request);
  // Adds the exchanged times of all ranks to a step that will be written: at most once per second,
  // because many ranks and short steps would make the file large.
  void put_ranks(StepMetrics& step);

  // Returns true if there is validation data.
  bool validates() const;
  // Collective. Evaluates on --eval-batches of the validation data. Does not affect training. The
  // metrics of the last step get the result.
  Evaluation evaluate();

  // Collective. Returns the answers of the model to questions of the data, a line each.
  std::vector<std::string> answers(std::int64_t count);
  // Returns a summary with only the predictions and the memory so far. Not collective.
  Summary expected() const;
  // Collective. Returns predictions and measurements.
  Summary summary();
  // Collective. Writes the file of --trace, if given.
  void write_trace() const;

  const RunConfig& config() const;
  memory::Ledger& ledger() const;  // memory of this rank
  const Resolved& resolved() const;
  std::vector<std::string> data_notes() const;  // omitted or truncated parts of the data
  std::string describe() const;                 // a few lines about the model and the run
  // Returns a line that states if steps ran as a CUDA graph, or the reason they did not. "" on the
  // CPU.
  std::string graph_note() const;
  const std::vector<StepMetrics>& history() const;  // finished steps

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::train
