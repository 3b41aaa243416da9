#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/comm/connection.h"
#include "tessera/comm/peers.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// Connection to one rank. Two ranks that dial each other at the same time have two.
struct Link : Connection {
  explicit Link(std::uint64_t number) : id(number) {}

  const std::uint64_t id;
  std::size_t facts_sent = 0;
  bool has_failure = false;  // the failure of the job went over it, in either direction
  bool has_ended = false;    // the rank announced over it that it leaves
};

// State of all ranks of a job as known to one rank, and the connections of that rank.
//
// [Note: facts] That a rank has left or died is a fact. A rank sends every fact once over
// each of its connections, including facts received from others; a new connection starts with all
// of them. Facts reach all ranks because each keeps connections to its next two living successors.
// A rank that leaves waits until its peers have received its facts.
//
// A fact takes effect when no connection to that rank is open any more, since messages that the
// rank sent before its end may still arrive over one. A rank leaves only after the connections for
// its messages are open.
//
// Not synchronized except for state(). The caller dials take_dials() and reports the
// results with add() or unreachable().
class Membership {
 public:
  Membership(int rank, int size);

  PeerState state(int rank) const;  // thread-safe
  // Number of ranks whose state has changed.
  std::uint64_t gone() const { return gone_; }
  bool was_connected(int rank) const { return member(rank).was_connected; }

  // Returns the connection for all messages of this rank to another, so that they arrive in order.
  // It may have to be dialed first. Null if the rank is gone.
  std::shared_ptr<Link> connection_to(int rank);
  // Ranks to dial, each once.
  std::vector<int> take_dials();
  // Adds an open connection. Returns null if the rank is gone.
  std::shared_ptr<Link> add(int rank, Fd socket, Fd process, bool dialed);
  // The rank could not be dialed because no process listens there. Unless a fact follows, it counts
  // as dead if it is watched, and otherwise as left: it may have left together with all ranks that
  // it was connected to, so that the fact was lost. A rank that dies while all these leave is
  // therefore reported as left.
  void unreachable(int rank);
  // Removes a connection that has closed, and returns the others to that rank.
  std::vector<std::shared_ptr<Link>> remove(int rank, const std::shared_ptr<Link>& link);
  // A connection to the rank has closed: unless the rank has left, it has died.
  void lost(int rank) { learn(rank, PeerState::dead, 0); }
  // Returns whether the caller must call take_dials() and apply_due().
  bool watch(int rank);

  // This rank leaves.
  void leave();
  // Reads facts that rank `from` has sent over a connection.
  void take_facts(int from, Link& link, const std::string& text);
  // Returns whether another rank reported that this one died.
  bool is_believed_dead() const { return is_believed_dead_; }
  // Returns texts for take_facts() with the facts that the connection was not sent.
  std::vector<std::string> unsent_facts(Link& link) const;

  // Applies facts that are due. Returns the ranks whose state changed: they are no longer dialed.
  std::vector<int> apply_due();
  // Returns whether apply_due() must be called again soon.
  bool is_waiting() const;
  bool is_dialing() const { return !dialing_.empty(); }
  // Gives up the dials for which no message waits, if `may_cancel` allows it.
  void cancel_idle_dials(const std::function<bool(int rank)>& may_cancel);

  std::vector<std::shared_ptr<Link>> links() const;
  void for_each_link(
      const std::function<void(int rank, const std::shared_ptr<Link>&)>& action) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Member {
    std::atomic<PeerState> state{PeerState::alive};
    PeerState heard = PeerState::alive;  // the known fact, which may not have taken effect yet
    Clock::time_point effect{};          // when it does at the latest
    std::shared_ptr<Link> out;
    std::vector<std::shared_ptr<Link>> links;
    Clock::time_point dialed{};
    Clock::time_point refused{};
    bool was_connected = false;
    bool is_watched = false;
  };
  struct Fact {
    int rank = 0;
    PeerState state = PeerState::left;
    std::uint64_t via = 0;  // id of the connection that brought it; 0 if none did
  };

  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  const Member& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  void learn(int rank, PeerState state, std::uint64_t via);
  void schedule_repair();
  void keep_successors();

  const int rank_;
  const int size_;
  std::vector<Member> members_;
  std::vector<Fact> facts_;
  std::uint64_t links_made_ = 0;
  std::uint64_t gone_ = 0;
  std::vector<int> to_dial_;
  std::set<int> linked_;   // ranks with open connections
  std::set<int> dialing_;  // ranks that are dialed, or will be
  std::set<int> ending_;   // ranks with a fact that has not taken effect
  std::set<int> refused_;  // unreachable ranks without a fact
  bool is_leaving_ = false;
  bool is_believed_dead_ = false;
  std::optional<Clock::time_point> repair_at_;
  std::optional<Clock::time_point> repair_by_;
};

}  // namespace tessera::comm
