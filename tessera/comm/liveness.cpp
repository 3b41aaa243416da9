#include "tessera/comm/liveness.h"

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds kWatchAfter{500};

}  // namespace

void raise(const Failure& failure) {
  const std::string text = failure.text;
  if (failure.kind == Failure::Kind::usage) throw UsageError(text);
  throw PeerError(text, failure.rank);
}

Liveness::Liveness(std::shared_ptr<Peers> peers, std::vector<int> members, std::string group,
                   std::chrono::milliseconds timeout)
    : peers_(std::move(peers)),
      members_(std::move(members)),
      group_(std::move(group)),
      timeout_(timeout) {}

void Liveness::fail(Failure::Kind kind, int culprit, const std::string& text) const {
  const Failure failure{kind, culprit, peers_->rank(), text};
  peers_->report(failure);
  raise(failure);
}

void Liveness::check_failure(const std::function<std::string()>& doing) const {
  if (abandoned_.load()) {
    throw Error(str("rank ", peers_->rank(), ": ", doing(), " of group ", group_,
                    " was given up because the group was destroyed"));
  }
  const auto failure = peers_->failure();
  if (!failure) return;
  if (failure->reporter == peers_->rank()) raise(*failure);
  Failure heard = *failure;
  heard.text = str("rank ", peers_->rank(), ": ", doing(), " of group ", group_,
                   " cannot finish; rank ", failure->reporter, " reported: ", failure->text);
  raise(heard);
}

// [Note: watching] If a rank and all its neighbors end at once, no rank reports it. So the members
// nearest to an awaited rank connect to it: if that is refused, the rank is dead. Not all members
// do so, because a rank that only takes long would get a connection from each of them.
bool Liveness::is_near(int awaited) const {
  constexpr int kNearest = 4;  // on either side
  const int count = static_cast<int>(members_.size());
  for (const int direction : {1, count - 1}) {
    int alive = 0;
    for (int i = 1, r = awaited; i < count && alive < kNearest; ++i) {
      r = (r + direction) % count;
      const int world = members_[static_cast<std::size_t>(r)];
      if (world == peers_->rank()) return true;
      alive += peers_->state(world) == PeerState::alive;
    }
  }
  return false;
}

void Liveness::check(int awaited, Clock::time_point since,
                     const std::function<std::string()>& doing,
                     const std::function<bool()>& arrived, std::chrono::milliseconds extra) const {
  const auto here = [&] {
    return str("rank ", peers_->rank(), " waited for it in ", doing(), " of group ", group_);
  };
  check_failure(doing);  // first: a rank that failed may have left, and its report has the reason
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const int world = members_[r];
    const PeerState state = peers_->state(world);
    const bool matters =
        state == PeerState::dead || (state == PeerState::left && static_cast<int>(r) == awaited);
    if (!matters) continue;
    if (arrived()) return;
    fail(Failure::Kind::peer, world,
         state == PeerState::dead
             ? str("rank ", world, " died (its connection closed) while ", here())
             : str("rank ", world, " left (its group was destroyed) while ", here()));
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since);
  const int world = members_[static_cast<std::size_t>(awaited)];
  if (waited > kWatchAfter && is_near(awaited)) peers_->watch(world);
  const auto limit = timeout_ + extra;
  if (waited < limit || arrived()) return;
  fail(Failure::Kind::peer, world,
       str("rank ", world, " is alive but did not come within ", limit.count() / 1000.0,
           " s while ", here(), "; it may be stopped, slow, or waiting for something else"));
}

}  // namespace tessera::comm
