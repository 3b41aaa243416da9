#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/core/axes.h"
#include "tessera/core/param_spec.h"
#include "tessera/zero/engine.h"

namespace tessera {

class ParallelModel;

// State that is saved and loaded together: that of an engine, with its position in the whole model.
// Implicit conversions make it for save(engine, …) and save(model, …); do not store it.
struct Checkpointable {
  Checkpointable(zero::Engine& engine);  // for a model that is whole on every rank
  // For a model that is cut over a mesh by layers.
  Checkpointable(ParallelModel& model);
  // Function that returns the elements of a parameter that no earlier rank has.
  using Counted = std::function<std::vector<Run>(const std::string& param)>;
  // For a model that is cut over a mesh in another way. `specs`: this rank's parameters; a
  // parameter without a spec is whole. `counted`: null uses counted_runs() of the spec.
  Checkpointable(zero::Engine& engine, const comm::Mesh& mesh, std::vector<ParamSpec> specs,
                 Counted counted = nullptr);

  zero::Engine& engine;
  comm::Group world;  // all ranks that hold a part of the model
  Axes axes;
  Coordinate coordinate;
  std::vector<ParamSpec> specs;
  Counted counted;
};

// Counters and settings of the program, which load() returns. UTF-8; "updates" and keys that begin
// with "updates/" are reserved. The keys of all ranks are saved; if ranks pass different values for
// a key, that of the first rank is saved.
using Extra = std::map<std::string, std::string>;

// Retention of checkpoints, and handling of failures.
struct SaveOptions {
  int keep_last = 0;            // number of newest checkpoints to keep; 0 keeps all
  std::int64_t keep_every = 0;  // also keep steps that are a multiple of this; 0: none
  // Number of retries, by all ranks together, after failures of the file system (such as a full
  // disk), with pauses of retry_seconds, twice that … up to a minute.
  int retries = 0;
  double retry_seconds = 1;
  // Return a remaining failure as Saved::failure on all ranks instead of throwing.
  bool return_failures = false;
  // Called on the first rank for failures that are retried or returned. Null: the log.
  std::function<void(const std::string&)> warn = nullptr;
  // Save frozen parameters too. False: the checkpoint has only their fingerprint, and a program
  // that loads it must already have them: [Note: frozen parameters in checkpoints] in frozen.h.
  bool frozen = true;
  // Lock the folder against other writers. False: the caller ensures that there are none.
  bool lock = true;
};

// Information about the run that is saved for people; loading does not need it.
struct RunFacts {
  std::int64_t step = -1;  // names the folder; -1: number of steps of the engine
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  std::string model = "{}";  // a JSON object
};

// Result of a save.
struct Saved {
  std::string folder;
  std::int64_t bytes = 0;  // written by this rank
  double seconds = 0;
  std::string failure;  // see SaveOptions::return_failures
};

// Collective, between two steps. Saves parameters, buffers (which must be equal on tensor-parallel
// ranks), optimizer state and step counts as dir/step-…, which appears only after everything,
// including checksums, is written. A failure on one rank fails on all, and leaves older checkpoints
// unchanged.
Saved save(const Checkpointable& what, const std::string& dir, const Extra& extra = {},
           const SaveOptions& options = {}, const RunFacts& facts = {});

// Contents of a loaded checkpoint, and information about the run that saved it.
struct Loaded {
  std::string folder;
  std::int64_t step = 0;
  Extra extra;
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  std::string model;
  std::string layout;
  Axes axes;                         // of the mesh that saved it
  std::vector<std::string> skipped;  // newer checkpoints that could not be read, with the reason
  std::vector<std::string> notes;    // parts of the checkpoint that this rank could not use
};

// Options for loading.
struct LoadOptions {
  // Load only parameters and buffers, and keep the state of the optimizer. For fine-tuning.
  bool params_only = false;
  // Called on every rank before anything is changed. It may throw UsageError to reject the
  // checkpoint, or DataError to skip it.
  std::function<void(const Loaded&)> check = nullptr;
  // Accept a checkpoint in which other parameters were trained. A parameter that was frozen then
  // and is trained now starts with 0 updates and the engine's optimizer state; the saved state of
  // one that is frozen now is ignored. For freezing and unfreezing.
  bool other_trainable = false;
  // Accept moments that were saved with another zero::Options::optimizer_state. They are rounded to
  // nearest; to fp32 the conversion is exact.
  bool convert_optimizer_state = false;
};

// Collective. Loads a checkpoint of save(), on any number of ranks, any mesh and any stage: `dir`
// if it is a checkpoint, otherwise the newest one in it that can be read. Every byte read is
// verified. If the checkpoint omits frozen parameters, those of the engine must be equal. Throws
// UsageError if there is no checkpoint, or if it is of another model or optimizer. Throws DataError
// if it is damaged; the state of the engine is then invalid.
Loaded load(const Checkpointable& what, const std::string& dir, const LoadOptions& options = {});
// The same, but returns nullopt if `dir` has no checkpoint, or does not exist.
[[nodiscard]] std::optional<Loaded> load_if_any(const Checkpointable& what, const std::string& dir,
                                                const LoadOptions& options = {});

// Asynchronous saving: start() copies the state, and a thread writes and publishes it while
// training continues. One save at a time: a second start() first waits for the first. Not
// thread-safe: call it from the thread that trains.
//   AsyncSave saver(engine, "runs/a", {.keep_last = 3});
//   saver.start(engine, {{"epoch", "7"}});
//   …                 // further steps
//   saver.wait();     // throws the error of a failed save
class AsyncSave {
 public:
  // Collective. Makes a group for the saves that is separate from those of training.
  AsyncSave(const Checkpointable& what, std::string dir, const SaveOptions& options = {});
  // Waits. Passes an error that wait() has not thrown to SaveOptions::warn.
  ~AsyncSave();
  AsyncSave(AsyncSave&&) noexcept;
  AsyncSave& operator=(AsyncSave&&) noexcept;

  // Collective. Throws the error of the previous save if wait() was not called for it.
  void start(const Checkpointable& what, const Extra& extra = {}, const RunFacts& facts = {});
  // Saves synchronously, without a copy.
  Saved save_now(const Checkpointable& what, const Extra& extra = {}, const RunFacts& facts = {});
  // Waits for the save. Throws its error, once. Returns an empty result if none was started.
  Saved wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
