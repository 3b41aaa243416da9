#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/memory/ledger.h"
#include "tessera/train/config.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// One rank of a training run: model, data and engine put together. It prints nothing. All ranks of
// the world make the same calls.
class Trainer {
 public:
  // Collective. Installs the counting allocator; what the calling thread allocates is charged to
  // the trainer's ledger while a call runs.
  Trainer(TrainConfig config, comm::Group world);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // One optimizer step. Throws Error for gradients that are not finite, unless the configuration
  // says skip.
  StepMetrics step();
  // The same in two halves. launch() returns when the step's work is under way on the device (on
  // the CPU: done); finish() waits until at most so many launched steps are, puts the others into
  // history(), and throws for gradients as step() does. One step under way keeps a GPU busy; calls
  // that need to know more finish all of them.
  void launch();
  void finish(std::size_t under_way_at_most = 0);
  std::int64_t steps_done() const;  // launched; those before a resumption too
  // To the end of the run, those before a resumption too.
  std::int64_t steps_in_all() const;

  // Collective: goes on where --resume says; the folder, or nothing for a fresh start. `notes` gets
  // what was passed over, and why.
  std::optional<std::string> resume(std::vector<std::string>& notes);
  // Collective: back to the newest checkpoint, and on with the data after that of the last step;
  // the folder. Throws Error if there is none, or if that does not help either.
  std::string roll_back();
  // Collective: a checkpoint of what is now, under --save. How long that held training up is noted
  // with the last step.
  void save();
  // Collective: waits for the last one to be published, or to have failed for good.
  LastSave finish_saving();

  // Where this rank is: the last call along each axis. From any thread.
  std::string whereabouts() const;

  // Collective: the largest of what the ranks say. They tell each other the times of their last
  // step in the same call, so that knowing all of them costs no waiting of its own.
  int agree(int wish);
  // Adds what the ranks told of their last steps to one that is to be written: at most once a
  // second, which many ranks and quick steps would fill files with.
  void put_ranks(StepMetrics& step);

  // Is there data to validate on?
  bool validates() const;
  // Collective: the loss on it, by --eval-batches. Training goes on as if nothing had been; the
  // result is noted with the last step.
  Evaluation evaluate();

  // Collective: answers of the model to questions of the data, a line each.
  std::vector<std::string> answers(std::int64_t count);
  // What is predicted, and the memory so far: a summary's beginning, which no other rank is asked
  // for.
  Summary expected() const;
  // Collective: what was predicted, and what came.
  Summary summary();
  // Collective: writes the file that the configuration asks for, if it does.
  void write_trace() const;

  const TrainConfig& config() const;
  memory::Ledger& ledger() const;  // what this rank holds
  const Resolved& resolved() const;
  std::vector<std::string> data_notes() const;  // what of the data is left out or cut
  std::string describe() const;                 // a few lines: what is going to be trained, and how
  // On a GPU, a line: whether steps ran as a CUDA graph, and if not, why. "" on the CPU.
  std::string graph_note() const;
  const std::vector<StepMetrics>& history() const;  // of the steps that are finished

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::train
