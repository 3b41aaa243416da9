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

// What is saved and loaded together: the state of an engine, and where it belongs in the whole
// model. It is made where it is wanted, by save(engine, …) or save(model, …), and not kept.
struct Checkpointable {
  Checkpointable(zero::Engine& engine);  // of a model that is whole on every rank
  // Of a model that is cut over a mesh by layers.
  Checkpointable(ParallelModel& model);
  // The elements of a parameter that no rank before this one has too.
  using Counted = std::function<std::vector<Run>(const std::string& param)>;
  // Of a model that is cut over a mesh in some other way. `specs`: this rank's parameters; one that
  // is not among them is whole. `counted`: of one of these; null: counted_runs() of its spec.
  Checkpointable(zero::Engine& engine, const comm::Mesh& mesh, std::vector<ParamSpec> specs,
                 Counted counted = nullptr);

  zero::Engine& engine;
  comm::Group world;  // all ranks that have some of it
  Axes axes;
  Coordinate place;
  std::vector<ParamSpec> specs;
  Counted counted;
};

// A program's own counters and settings, which load() gives back. UTF-8; "updates" and what begins
// with "updates/" are ours. Where ranks give different ones, all are saved; where they give
// different values for one, the first rank's.
using Extra = std::map<std::string, std::string>;

// What is kept, and what happens when a save fails.
struct SaveOptions {
  int keep_last = 0;            // older checkpoints than the newest so many are removed; 0: none
  std::int64_t keep_every = 0;  // but not those whose step is a multiple; 0: no exception
  // What the file system could not do (a full disk, say) is tried again so often, all ranks
  // together, after pauses of retry_seconds, twice that … up to a minute.
  int retries = 0;
  double retry_seconds = 1;
  // Then what still fails so is returned as Saved::failure on all ranks instead of thrown.
  bool return_failures = false;
  // Told, on the first rank, of failures that are tried again or returned. Null: the log.
  std::function<void(const std::string&)> warn = nullptr;
  // Parameters that are not trained too. False: the checkpoint has their fingerprint alone, and who
  // loads it has them already: [Note: frozen parameters in checkpoints] in frozen.h.
  bool frozen = true;
  // Nobody else may save into the folder meanwhile. False: the caller has seen to that.
  bool lock = true;
};

// What a checkpoint tells people besides; loading needs none of it.
struct RunFacts {
  std::int64_t step = -1;  // names the folder; -1: the steps of the engine
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  std::string model = "{}";  // a JSON object
};

// What became of a save.
struct Saved {
  std::string folder;
  std::int64_t bytes = 0;  // that this rank wrote
  double seconds = 0;
  std::string failure;  // see SaveOptions::return_failures
};

// Collective. Saves parameters, buffers (which tensor-parallel ranks have alike), the optimizer's
// state and the counts of steps as dir/step-…, which appears when all of it is written, checksums
// included, and not before. Between two steps. What fails on one rank fails on all, and leaves
// older checkpoints as they were.
Saved save(const Checkpointable& what, const std::string& dir, const Extra& extra = {},
           const SaveOptions& options = {}, const RunFacts& facts = {});

// What a checkpoint says of the run that made it.
struct Loaded {
  std::string folder;
  std::int64_t step = 0;
  Extra extra;
  std::int64_t samples = 0;
  std::uint64_t seed = 0;
  std::string model;
  std::string layout;
  Axes axes;                         // of the mesh that saved it
  std::vector<std::string> skipped;  // newer ones that could not be read, and why
  std::vector<std::string> notes;    // what it has and this rank cannot take
};

// How much is taken, and who may refuse it.
struct LoadOptions {
  // Of the parameters and buffers alone: the optimizer stays as it is. For fine-tuning.
  bool params_only = false;
  // Called on every rank before anything is changed. UsageError refuses the checkpoint, DataError
  // passes it over.
  std::function<void(const Loaded&)> check = nullptr;
  // Takes a checkpoint although other parameters were trained when it was saved. A parameter that
  // was frozen then and is trained now starts without updates, with the optimizer state that the
  // engine has; the state of one that is frozen now is left out. For freezing and unfreezing.
  bool other_trainable = false;
};

// Collective. Loads what save() saved, on any number of ranks, any mesh and any stage: from `dir`
// if it is a checkpoint itself, else from the newest one in it that can be read. Every byte that is
// read is verified. Of a checkpoint without frozen parameters the engine's own must be the same.
// Throws UsageError if there is none, or if it is of another model or optimizer, and DataError if
// it is damaged: then the engine holds nothing of use.
Loaded load(const Checkpointable& what, const std::string& dir, const LoadOptions& options = {});
// The same, but nothing if `dir` has no checkpoint, or is not there yet.
[[nodiscard]] std::optional<Loaded> load_if_any(const Checkpointable& what, const std::string& dir,
                                                const LoadOptions& options = {});

// Saves while training goes on: start() copies the state, and a thread writes and publishes it. One
// save at a time: a second start() first waits for the first.
//   AsyncSave saver(engine, "runs/a", {.keep_last = 3});
//   saver.start(engine, {{"epoch", "7"}});
//   …                 // further steps
//   saver.wait();     // throws what went wrong
class AsyncSave {
 public:
  // Collective: the ranks get a way of their own to talk, which training does not share.
  AsyncSave(const Checkpointable& what, std::string dir, const SaveOptions& options = {});
  // Waits. An error that nobody asked for goes to SaveOptions::warn.
  ~AsyncSave();
  AsyncSave(AsyncSave&&) noexcept;
  AsyncSave& operator=(AsyncSave&&) noexcept;

  // Collective. Throws what the save before failed with, if wait() was not called for it.
  void start(const Checkpointable& what, const Extra& extra = {}, const RunFacts& facts = {});
  // The same in the foreground, without a copy.
  Saved save_now(const Checkpointable& what, const Extra& extra = {}, const RunFacts& facts = {});
  // Until the save is done. Throws what it failed with, once. Empty if none was started.
  Saved wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
