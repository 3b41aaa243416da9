// Watchdog of calls on the GPU, and handling of failures. See [Note: report first].

#include <utility>

#include "tessera/comm/capture.h"
#include "tessera/comm/nccl/progress_state.h"
#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"

namespace tessera::comm::nccl {

using namespace std::chrono_literals;

namespace {

constexpr auto kTick = 10ms;  // interval of checks of the GPU and the peers
constexpr auto kGrace = 1s;   // for the control plane to detect a failure that NCCL noticed first
constexpr auto kSlow = 2s;    // duration of a call after which the ranks compare their calls

}  // namespace

std::optional<Failure> NcclProgress::State::look_at_peers(const std::string& doing,
                                                          bool left_counts) const {
  if (auto heard = context.peers->failure()) return heard;
  for (const int member : context.members) {
    const PeerState state = context.peers->state(member);
    if (state == PeerState::alive || (state == PeerState::left && !left_counts)) continue;
    const bool died = state == PeerState::dead;
    return Failure{Failure::Kind::peer, member, own_rank(),
                   str("rank ", member,
                       died ? " died (its connection closed)" : " left (its group was destroyed)",
                       " while rank ", own_rank(), " waited for it in ", doing)};
  }
  return std::nullopt;
}

// Reports an error of NCCL or CUDA on this rank to the other ranks. NCCL often notices the death of
// a peer before the control plane does, but cannot identify the rank, so this waits briefly for the
// control plane.
void NcclProgress::State::broke(const std::string& doing, const std::exception& problem) {
  std::optional<Failure> found;
  for (const auto end = Clock::now() + kGrace; context.members.size() > 1 && !found;) {
    found = look_at_peers(doing, Clock::now() > end);
    if (Clock::now() > end) break;
    std::this_thread::sleep_for(kTick);
  }
  std::exception_ptr error;
  if (found) {
    context.peers->report(*found);
    error = retold(*found);
  } else {
    const std::string text =
        str("rank ", own_rank(), " failed in ", doing, ": ", message_of(problem));
    context.peers->report({Failure::Kind::peer, own_rank(), own_rank(), text});
    error = std::make_exception_ptr(Error(text));
  }
  fail(error);
  std::rethrow_exception(error);
}

std::optional<Failure> NcclProgress::State::look() {
  std::string doing;
  std::optional<Clock::time_point> since;
  std::shared_ptr<CallLog> log;  // of the channel with the oldest call
  Result result = Result::success;
  bool pending = false;
  {
    std::lock_guard lock(mutex);
    const auto consider = [&](Clock::time_point began, const Channel& channel,
                              const Submission* what) {
      if (since && *since <= began) return;
      since = began;
      doing = describe(what);
      log = channel.log;
    };
    for (const Channel& channel : channels) {
      pending = pending || !channel.pending.empty();
      if (channel.inside) consider(*channel.inside, channel, channel.doing);
      if (channel.in_flight.empty()) continue;
      const Item& first = *channel.in_flight.front();
      consider(first.since, channel, &first.submission);
      if (!channel.inside && channel.comm != nullptr && result == Result::success) {
        api.comm_get_async_error(channel.comm, &result);
      }
    }
  }
  // A pending call usually fails together with the call that it waits for, unless that belongs to
  // another group.
  if (!pending || !context.peers->failure()) failed_since.reset();
  if (pending && context.peers->failure() && !failed_since) failed_since = Clock::now();
  if (failed_since && Clock::now() - *failed_since > kGrace) return context.peers->failure();
  if (!since) return std::nullopt;
  // A rank that left had completed its calls, so ours end soon, unless it abandoned them.
  bool left = false;
  for (const int member : context.members) {
    left = left || context.peers->state(member) == PeerState::left;
  }
  if (!left) left_since.reset();
  if (left && !left_since) left_since = Clock::now();
  if (auto found = look_at_peers(doing, left && Clock::now() - *left_since > 2 * kGrace)) {
    return found;
  }
  if (result != Result::success && result != Result::in_progress) {
    broke(doing, Error(str("NCCL reports: ", api.get_error_string(result))));
  }
  if (Clock::now() - *since < context.timeout) return std::nullopt;
  const CallLog::Late late = log ? log->late() : CallLog::Late{};
  return Failure{
      Failure::Kind::peer, late.rank, own_rank(),
      str(doing, " did not end within ", context.timeout.count() / 1000.0,
          " s of its start on the GPU of rank ", own_rank(), ", and no rank has died: ",
          late.rank < 0 ? "one may be busy or stuck, or may not have made the call" : late.text)};
}

// Compares, at intervals, the calls that were launched without an agreement ([Note: agreement]).
std::optional<Failure> NcclProgress::State::compare_logs() {
  std::vector<std::pair<std::shared_ptr<CallLog>, bool>> logs;  // with "its oldest call is slow"
  {
    std::lock_guard lock(mutex);
    for (const Channel& channel : channels) {
      if (!channel.log) continue;
      const bool slow =
          !channel.in_flight.empty() && Clock::now() - channel.in_flight.front()->since > kSlow;
      logs.emplace_back(channel.log, slow);
    }
  }
  for (const auto& [log, slow] : logs) {
    if (auto found = log->look(slow)) return found;
  }
  return std::nullopt;
}

void NcclProgress::State::run_watchdog() {
  guard.setDevice(context.device);
  ignore_captures_of_other_threads();
  const bool alone = context.members.size() == 1;
  std::unique_lock lock(mutex);
  while (!stopping && !failure) {
    if (idle()) {
      watchdog_sleeps = true;
      // Not forever, because another rank may ask for this rank's calls.
      alone ? watchdog_woken.wait(lock) : (void)watchdog_woken.wait_for(lock, kGrace);
      watchdog_sleeps = false;
      if (stopping || failure || alone) continue;
    } else {
      watchdog_woken.wait_for(lock, kTick);
    }
    Dropped dropped;
    std::exception_ptr broken;
    try {
      reap(dropped);
    } catch (...) {
      broken = std::current_exception();
    }
    lock.unlock();
    dropped.let_go();
    try {
      if (broken) std::rethrow_exception(broken);
      auto found = look();
      if (!found) found = compare_logs();
      if (found) {
        context.peers->report(*found);
        fail(retold(*found));
      }
    } catch (const std::exception& error) {
      try {
        broke("the watchdog", error);
      } catch (...) {  // broke() always throws
      }
    }
    lock.lock();
  }
  watchdog_ended = true;
  changed.notify_all();
}

std::exception_ptr NcclProgress::State::retold(const Failure& failure) const {
  try {
    if (failure.reporter == own_rank()) raise(failure);
    Failure heard = failure;
    heard.text = str("rank ", own_rank(), ": group ", context.group, " cannot continue; rank ",
                     failure.reporter, " reported: ", failure.text);
    raise(heard);
  } catch (...) {
    return std::current_exception();
  }
}

void NcclProgress::State::fail(std::exception_ptr error) {
  Dropped dropped;
  std::vector<Comm> doomed;
  {
    std::unique_lock lock(mutex);
    if (failure) return;
    failure = error;
    failed.store(true);
    try {
      reap(dropped);
    } catch (...) {  // CUDA is broken: nothing has ended
    }
    for (Channel& channel : channels) {
      for (auto* queue : {&channel.in_flight, &channel.pending}) {
        for (const auto& each : *queue) end(*each, error, dropped);
        queue->clear();
      }
    }
    changed.notify_all();
    // A communicator that a thread is using cannot be aborted; it stays until the process ends.
    for (Channel& channel : channels) {
      if (changed.wait_for(lock, kGrace, [&] { return !channel.inside; })) {
        if (channel.comm != nullptr) doomed.push_back(std::exchange(channel.comm, nullptr));
      }
    }
  }
  dropped.let_go();
  for (const Comm comm : doomed) api.comm_abort(comm);
}

}  // namespace tessera::comm::nccl
