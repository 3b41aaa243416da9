#include "tessera/comm/liveness.h"

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {

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

void Liveness::check(int awaited, Clock::time_point since,
                     const std::function<std::string()>& doing,
                     const std::function<bool()>& arrived) const {
  const auto here = [&] {
    return str("rank ", peers_->rank(), " waited for it in ", doing(), " of group ", group_);
  };
  check_failure(doing);  // first: who failed may have left since, and its report says more
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
  if (waited < timeout_ || arrived()) return;
  const int world = members_[static_cast<std::size_t>(awaited)];
  fail(Failure::Kind::peer, world,
       str("rank ", world, " is alive but did not come within ", timeout_.count() / 1000.0,
           " s while ", here(), "; it may be stopped, slow, or waiting for something else"));
}

}  // namespace tessera::comm
