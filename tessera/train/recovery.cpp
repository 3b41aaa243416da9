#include "tessera/train/recovery.h"

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/generation.h"
#include "tessera/comm/launch.h"
#include "tessera/comm/store.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tessera/parallel/gather_texts.h"

namespace tessera::train {
namespace {

using std::chrono::milliseconds;

// Index of the replica of a coordinate.
int replica_of(const RunConfig& config, const Coordinate& at) {
  return at[config.zero == 0 ? Axis::dp_shard : Axis::dp_replicate];
}

// Progress of all members, by rank.
struct MemberProgress {
  std::vector<std::optional<StepStatus>> ranks;  // nullopt: without state
  bool was_interrupted = false;

  // Returns the replicas of which all ranks have state.
  std::vector<int> replicas(const RunConfig& config, const Axes& axes) const {
    const auto count = axes.size(config.zero == 0 ? Axis::dp_shard : Axis::dp_replicate);
    std::vector<bool> has(as_size(count), true);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const int replica = replica_of(config, axes.coordinate_of(static_cast<std::int64_t>(r)));
      if (!ranks[r]) has[as_size(replica)] = false;
    }
    std::vector<int> found;
    for (int i = 0; i < count; ++i) {
      if (has[as_size(i)]) found.push_back(i);
    }
    return found;
  }

  // Returns the outcome of a step, from a rank that has it.
  std::optional<zero::StepOutcome> outcome(const Axes& axes, int own_rank,
                                           std::int64_t step) const {
    const Coordinate own = axes.coordinate_of(own_rank);
    std::optional<zero::StepOutcome> found;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (!ranks[r] || !ranks[r]->outcome || ranks[r]->outcome->step != step) continue;
      const Coordinate at = axes.coordinate_of(static_cast<std::int64_t>(r));
      if (at.tp() == own.tp() && at.pp() == own.pp()) return ranks[r]->outcome;
      found = ranks[r]->outcome;
      found->used.clear();  // it has other parameters
    }
    return found;
  }
};

MemberProgress exchange_progress(const comm::Group& world, const std::optional<StepStatus>& own,
                                 bool is_interrupted) {
  MemberProgress progress;
  const std::string mine = str(is_interrupted ? "!" : " ", own ? own->text() : std::string());
  for (const std::string& text : parallel::gather_texts(world, mine, "progress of the ranks")) {
    progress.was_interrupted = progress.was_interrupted || text.starts_with('!');
    progress.ranks.push_back(text.size() > 1 ? std::optional(StepStatus::parse(text.substr(1)))
                                             : std::nullopt);
  }
  return progress;
}

}  // namespace

RunConfig with_replicas(const RunConfig& config, const Resolved& resolved, int replicas) {
  RunConfig now = config;
  const int shards = config.zero == 0 ? 1 : resolved.axes.size(Axis::dp_shard);
  now.axes.set_given(Axis::dp_shard, replicas * shards);
  now.axes.set_given(Axis::dp_replicate, config.zero == 0 ? 1 : replicas);
  now.ranks = replicas * shards * config.axes.model_ranks();
  now.grad_accum = 0;
  now.global_batch = resolved.global_batch;
  now.recover = now.spares = 0;  // their checks, and that of elastic, concern the start of the run
  now.elastic.clear();
  now.max_restarts = 0;  // ranks do not abort steps that hang: --peer-timeout ends the wait
  return now;
}

bool HandOver::prepare(const RunConfig& config, const Resolved& resolved, const comm::Group& world,
                       bool trained) {
  std::optional<StepStatus> own;
  if (is_established) {
    own = trainer->status();
  } else if (holds_state_) {
    own = StepStatus{kept_->steps};
  }
  const MemberProgress progress = exchange_progress(world, own, is_interrupted);
  was_interrupted_ = progress.was_interrupted;
  const std::vector<int> sources = progress.replicas(config, resolved.axes);
  if (sources.empty()) {
    if (trained) throw Error("No replica has the state of the run. Restart from a checkpoint.");
    drop();
    return false;
  }
  source_ = sources.front();
  sends_ = static_cast<int>(sources.size()) <
           resolved.axes.size(config.zero == 0 ? Axis::dp_shard : Axis::dp_replicate);
  std::int64_t steps = 0;  // after the last step that some rank has decided
  std::optional<zero::StepOutcome> outcome;
  for (std::size_t r = 0; r < progress.ranks.size(); ++r) {
    const Coordinate at = resolved.axes.coordinate_of(static_cast<std::int64_t>(r));
    if (std::find(sources.begin(), sources.end(), replica_of(config, at)) == sources.end()) {
      continue;
    }
    const StepStatus& status = *progress.ranks[r];
    steps = std::max({steps, status.steps, status.outcome ? status.outcome->step : 0});
  }
  const bool has_state =
      std::find(sources.begin(), sources.end(),
                replica_of(config, resolved.axes.coordinate_of(world.rank()))) != sources.end();
  holds_state_ = has_state;
  if (!has_state) {
    drop();
  } else if (is_established) {
    if (own->steps < steps) outcome = progress.outcome(resolved.axes, world.rank(), steps);
    kept_ = trainer->keep(outcome);
    is_established = false;
    trainer.reset();
  }
  if (has_state && kept_->steps != steps) {
    throw Error(str("Rank ", world.rank(), " has finished ", kept_->steps,
                    " steps and another rank ", steps, ". Restart from a checkpoint."));
  }
  trainer.reset();
  if (!sends_) return true;
  const std::vector<std::string> numbers = parallel::gather_texts(
      world, has_state ? kept_->numbers() : std::string(), "numbers of the state");
  if (has_state) return true;
  Coordinate from = resolved.axes.coordinate_of(world.rank());
  from.set(config.zero == 0 ? Axis::dp_shard : Axis::dp_replicate, source_);
  kept_ = KeptState::from_numbers(nth(numbers, resolved.axes.rank_of(from)));
  return true;
}

void HandOver::give_to(Trainer& to, const comm::Group& world) {
  to.take(*kept_, source_, sends_);
  world.barrier();
  is_established = true;
  holds_state_ = false;
  kept_.reset();
}

void HandOver::drop() {
  trainer.reset();
  kept_.reset();
  holds_state_ = is_established = is_interrupted = false;
  last_step_.reset();
}

std::optional<double> HandOver::pause() const {
  if (!last_step_) return std::nullopt;
  return std::chrono::duration<double>(Clock::now() - *last_step_).count();
}

namespace {

// This process as a possible member of generations.
class Member {
 public:
  explicit Member(std::chrono::milliseconds timeout)
      : process_(comm::detect_launch().rank),
        timeout_(timeout),
        store_(comm::connect_launcher_store(timeout)) {}

  // Returns the generation after `last` that has this process; nullopt if training is over, or a
  // stop is requested while this process is not a member. `cause`: error that ended the last
  // generation, which is thrown if the launcher gives up or does not respond; may be null.
  std::optional<comm::Generation> next(std::int64_t last, std::exception_ptr cause, HandOver& state,
                                       const std::function<void()>& waits,
                                       const RunRequests& requests) {
    const auto end = Clock::now() + kDecision;
    bool is_outside = false;
    for (;;) {
      comm::Generation generation;
      try {
        generation = current();
      } catch (const Error&) {  // the launcher gave up, or ended
        if (cause) std::rethrow_exception(cause);
        throw;
      }
      if (generation.number > last) {
        if (generation.over) return std::nullopt;
        if (generation.rank_of(process_) >= 0) return generation;
        if (!std::exchange(is_outside, true)) {
          cause = nullptr;
          state.drop();
          waits();
          report(comm::MemberReport::Kind::ready, generation.number);
        }
      }
      if (is_outside && requests() == RunRequest::stop) return std::nullopt;
      if (!is_outside && cause && Clock::now() > end) std::rethrow_exception(cause);
      std::this_thread::sleep_for(kPause);
    }
  }

  bool is_superseded(std::int64_t number) {
    const comm::Generation now = current();
    return now.number > number && !now.over;
  }

  void report(comm::MemberReport::Kind kind, std::int64_t generation, int culprit = -1,
              const std::string& text = "") {
    const comm::MemberReport report{kind, process_, generation, culprit, text};
    store_->set(comm::report_key(report), comm::to_text(report));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kDecision{30};  // of the launcher after a failure
  static constexpr milliseconds kPause{3};

  comm::Generation current() {
    return comm::parse_generation(store_->get(comm::kGenerationKey, timeout_));
  }

  const int process_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<comm::Store> store_;
};

}  // namespace

Ended run_recoverable(const RunConfig& config, const Resolved& resolved, comm::InitOptions init,
                      const std::function<void()>& joined, const RunRequests& requests,
                      const SessionNotes& notes) {
  using Kind = comm::MemberReport::Kind;
  Member member(init.comm.timeout);
  HandOver state;
  std::exception_ptr cause;
  for (std::int64_t last = 0;;) {
    const auto generation = member.next(last, cause, state, joined, requests);
    if (!generation) return Ended::done;
    last = generation->number;
    cause = nullptr;
    try {
      init.generation = std::make_shared<const comm::Generation>(*generation);
      // The members of the first generation are being started; those of others exist.
      if (last > 1) init.join_timeout = init.comm.timeout;
      const comm::Group world = comm::init(init);
      joined();
      SessionRecovery recovery{state, *generation, [&] { member.report(Kind::established, last); },
                               [&] { return member.is_superseded(last); }};
      const Ended ended = run_session(with_replicas(config, resolved, generation->replicas), world,
                                      requests, notes, &recovery);
      state.is_interrupted = false;
      if (ended == Ended::regrouped) continue;
      member.report(Kind::finished, last);
      state.drop();
      return ended;
    } catch (const PeerError& error) {
      cause = std::current_exception();
      const bool known = error.rank() >= 0 && error.rank() < std::ssize(generation->members);
      try {
        member.report(Kind::lost, last, known ? nth(generation->members, error.rank()) : -1,
                      error.what());
      } catch (const Error&) {
        std::rethrow_exception(cause);  // the launcher gave up
      }
    } catch (const UsageError&) {
      throw;
    } catch (const DataError&) {
      throw;
    } catch (const comm::StoreTimeout& error) {  // a member did not connect
      cause = std::current_exception();
      member.report(Kind::lost, last, -1, error.what());
    } catch (const Error&) {
      // The members may have changed while this process connected to them.
      if (!member.is_superseded(last)) throw;
      cause = std::current_exception();
    }
    state.is_interrupted = true;
  }
}

}  // namespace tessera::train
