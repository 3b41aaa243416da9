#include "tessera/parallel/save.h"

#include <utility>

#include "tessera/checkpoint/async.h"
#include "tessera/checkpoint/lock.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/parallel/frozen.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/state_shards.h"
#include "tessera/zero/engine_of_part.h"

namespace tessera {
namespace {

checkpoint::SaveOptions options_of(const SaveOptions& options, const zero::Engine& engine) {
  checkpoint::SaveOptions out;
  out.retention = {options.keep_last, options.keep_every};
  out.retries = options.retries;
  out.retry_seconds = options.retry_seconds;
  out.return_failures = options.return_failures;
  out.warn = options.warn ? options.warn : [](const std::string& text) { Logger().warn(text); };
  out.charge = parallel::charge_of(engine);
  return out;
}

// `frozen`: fingerprint of the omitted parameters; "" if none are omitted.
checkpoint::Description describe(const Checkpointable& what, const Extra& extra,
                                 const RunFacts& facts, std::vector<ParamSpec> specs,
                                 const std::string& frozen) {
  checkpoint::Description about;
  about.step = facts.step < 0 ? what.engine.steps() : facts.step;
  about.samples = facts.samples;
  about.seed = facts.seed;
  about.mesh = what.axes;
  about.stage = what.engine.options().stage;
  about.layout = what.engine.options().layout.name;
  about.model = facts.model;
  about.extra = extra;
  parallel::put_counts(about.extra, what.engine.progress());
  if (!frozen.empty()) about.extra[parallel::kFrozen] = frozen;
  about.params = std::move(specs);
  return about;
}

// Collective. Locks the folder on the first rank.
std::unique_ptr<checkpoint::FolderLock> lock_folder(const checkpoint::Team& team,
                                                    const std::string& dir,
                                                    const SaveOptions& options) {
  std::unique_ptr<checkpoint::FolderLock> lock;
  if (!options.lock) return lock;
  std::string problem;
  if (team.rank == 0) {
    try {
      lock = std::make_unique<checkpoint::FolderLock>(dir, "tessera::save");
    } catch (const Error& error) {
      problem = error.what();
    }
    if (lock && !lock->missing().empty()) Logger().warn(lock->missing());
  }
  problem = team.broadcast(problem);
  if (!problem.empty()) throw UsageError(problem);
  return lock;
}

Saved to_saved(const checkpoint::Saved& saved) {
  return {saved.folder, saved.bytes, saved.seconds, saved.failure};
}

}  // namespace

Checkpointable::Checkpointable(zero::Engine& e) : engine(e), world(e.group()) {
  const zero::DataGroups& groups = e.data_groups();
  axes = {{Axis::dp_shard, groups.shard.size()}, {Axis::dp_replicate, groups.replicate.size()}};
  coordinate = {{Axis::dp_shard, groups.shard.rank()},
                {Axis::dp_replicate, groups.replicate.rank()}};
  if (e.model_axes().group.size() > 1) {
    throw UsageError(
        "This engine trains one part of a model that is cut over ranks, and does not know the "
        "whole model. Pass the ParallelModel, or Checkpointable(engine, mesh, specs)");
  }
}

Checkpointable::Checkpointable(ParallelModel& model)
    : Checkpointable(model.engine(), model.mesh(), model.specs(),
                     [&model](const std::string& param) { return model.counted(param); }) {}

Checkpointable::Checkpointable(zero::Engine& e, const comm::Mesh& mesh, std::vector<ParamSpec> list,
                               Counted which)
    : engine(e),
      world(mesh.world()),
      axes(mesh.axes()),
      coordinate(mesh.coordinate()),
      specs(std::move(list)),
      counted(std::move(which)) {}

Saved save(const Checkpointable& what, const std::string& dir, const Extra& extra,
           const SaveOptions& options, const RunFacts& facts) {
  parallel::check_keys(extra);
  const checkpoint::Team team = parallel::team_of(what.world);
  const auto lock = lock_folder(team, dir, options);
  parallel::StateToSave state = parallel::state_to_save(what, options.frozen);
  const std::string frozen = options.frozen ? "" : parallel::fingerprint_of_frozen(what);
  return to_saved(checkpoint::save(dir,
                                   describe(what, extra, facts, std::move(state.specs), frozen),
                                   state.shards, team, options_of(options, what.engine)));
}

struct AsyncSave::Impl {
  Impl(const Checkpointable& what, const std::string& dir, const SaveOptions& options)
      : team(parallel::team_of(what.world.size() == 1
                                   ? comm::Group()
                                   : what.world.split(0, what.world.rank(), "checkpoint"))),
        lock(lock_folder(team, dir, options)),
        frozen(options.frozen ? std::string() : parallel::fingerprint_of_frozen(what)),
        saves_frozen(options.frozen),
        saver(dir, team, options_of(options, what.engine)) {}

  checkpoint::Description about(const Checkpointable& what, const Extra& extra,
                                const RunFacts& facts, parallel::StateToSave& state) const {
    return describe(what, extra, facts, std::move(state.specs), frozen);
  }

  const checkpoint::Team team;
  const std::unique_ptr<checkpoint::FolderLock> lock;  // released after the saver has ended
  const std::string frozen;                            // fingerprint, which does not change
  const bool saves_frozen;
  checkpoint::AsyncSaver saver;
};

AsyncSave::AsyncSave(const Checkpointable& what, std::string dir, const SaveOptions& options)
    : impl_(std::make_unique<Impl>(what, dir, options)) {}
AsyncSave::~AsyncSave() = default;
AsyncSave::AsyncSave(AsyncSave&&) noexcept = default;
AsyncSave& AsyncSave::operator=(AsyncSave&&) noexcept = default;

void AsyncSave::start(const Checkpointable& what, const Extra& extra, const RunFacts& facts) {
  parallel::check_keys(extra);
  parallel::StateToSave state = parallel::state_to_save(what, impl_->saves_frozen);
  impl_->saver.start(impl_->about(what, extra, facts, state), state.shards);
}

Saved AsyncSave::save_now(const Checkpointable& what, const Extra& extra, const RunFacts& facts) {
  parallel::check_keys(extra);
  parallel::StateToSave state = parallel::state_to_save(what, impl_->saves_frozen);
  return to_saved(impl_->saver.save_now(impl_->about(what, extra, facts, state), state.shards));
}

Saved AsyncSave::wait() { return to_saved(impl_->saver.wait()); }

}  // namespace tessera
