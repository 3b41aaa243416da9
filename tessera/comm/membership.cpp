#include "tessera/comm/membership.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDeathDelay{500};     // for the last messages of a rank that has died
constexpr milliseconds kLeaveDelay{10'000};  // more than a rank takes to leave
constexpr milliseconds kWatchedDelay{500};   // for the report that a rank which refuses has left
constexpr milliseconds kRefusalDelay{1000};  // the same for a rank that is not awaited
// Connections are repaired after a pause without reports, because at the end of a job all ranks
// leave.
constexpr milliseconds kRepairPause{20};
constexpr milliseconds kLongestPause{100};
constexpr milliseconds kSlowDial{300};  // then the next successor is dialed too
constexpr int kSuccessors = 2;          // so that the end of one leaves a connection
constexpr std::size_t kFactsPerText = 4000;
constexpr char kLeft = 'L', kDead = 'D';  // kinds of facts in a text

}  // namespace

Membership::Membership(int rank, int size)
    : rank_(rank), size_(size), members_(static_cast<std::size_t>(size)) {}

PeerState Membership::state(int rank) const { return member(rank).state.load(); }

std::shared_ptr<Link> Membership::connection_to(int rank) {
  Member& m = member(rank);
  if (m.out || m.state.load() != PeerState::alive) return m.out;
  if (!m.links.empty()) return m.out = m.links.front();
  if (m.heard != PeerState::alive || refused_.contains(rank)) return nullptr;
  m.out = std::make_shared<Link>(++links_made_);
  m.dialed = Clock::now();
  dialing_.insert(rank);
  to_dial_.push_back(rank);
  return m.out;
}

std::vector<int> Membership::take_dials() {
  std::vector<int> ranks = std::exchange(to_dial_, {});
  std::erase_if(ranks, [&](int rank) { return !dialing_.contains(rank); });
  return ranks;
}

std::shared_ptr<Link> Membership::add(int rank, Fd socket, Fd process, bool dialed) {
  Member& m = member(rank);
  if (dialed) dialing_.erase(rank);
  if (m.state.load() != PeerState::alive) return nullptr;
  const bool is_out = dialed && m.out && !m.out->socket.open();
  const std::shared_ptr<Link> link = is_out ? m.out : std::make_shared<Link>(++links_made_);
  link->connect(std::move(socket));
  link->process = std::move(process);
  m.links.push_back(link);
  m.was_connected = true;
  linked_.insert(rank);
  refused_.erase(rank);
  return link;
}

void Membership::unreachable(int rank) {
  Member& m = member(rank);
  dialing_.erase(rank);
  if (m.out && !m.out->socket.open()) m.out.reset();
  if (m.heard != PeerState::alive || !m.links.empty()) return;
  m.refused = Clock::now();
  refused_.insert(rank);
  schedule_repair();
}

std::vector<std::shared_ptr<Link>> Membership::remove(int rank, const std::shared_ptr<Link>& link) {
  Member& m = member(rank);
  std::erase(m.links, link);
  if (m.out == link) m.out.reset();
  if (m.links.empty()) linked_.erase(rank);
  return m.links;
}

bool Membership::watch(int rank) {
  Member& m = member(rank);
  if (m.is_watched || m.heard != PeerState::alive || !m.links.empty()) return false;
  m.is_watched = true;
  connection_to(rank);
  return true;
}

void Membership::leave() {
  is_leaving_ = true;
  facts_.push_back({rank_, PeerState::left, 0});
}

void Membership::take_facts(int from, Link& link, const std::string& text) {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    const char kind = *at;
    int rank = -1;
    const auto [rest, error] = std::from_chars(at + 1, end, rank);
    if ((kind != kLeft && kind != kDead) || error != std::errc() || rank < 0 || rank >= size_) {
      return;  // no rank of this version sends it
    }
    at = rest + 1;  // skips the blank
    if (rank == from) link.has_ended = true;
    if (rank == rank_ && kind == kDead) is_believed_dead_ = true;
    learn(rank, kind == kLeft ? PeerState::left : PeerState::dead, link.id);
  }
}

std::vector<std::string> Membership::unsent_facts(Link& link) const {
  std::vector<std::string> texts;
  std::size_t in_text = kFactsPerText;
  for (; link.facts_sent < facts_.size(); ++link.facts_sent) {
    const Fact& fact = facts_[link.facts_sent];
    if (fact.via == link.id) continue;
    if (in_text++ == kFactsPerText) {
      texts.emplace_back();
      in_text = 1;
    }
    texts.back() += str(fact.state == PeerState::left ? kLeft : kDead, fact.rank, ' ');
  }
  return texts;
}

void Membership::learn(int rank, PeerState state, std::uint64_t via) {
  Member& m = member(rank);
  if (rank == rank_ || m.heard != PeerState::alive) return;
  m.heard = state;
  m.effect = Clock::now() + (state == PeerState::left ? kLeaveDelay : kDeathDelay);
  facts_.push_back({rank, state, via});
  refused_.erase(rank);
  ending_.insert(rank);
  schedule_repair();
}

void Membership::schedule_repair() {
  const auto now = Clock::now();
  if (!repair_by_) repair_by_ = now + kLongestPause;
  const auto alive = std::count_if(linked_.begin(), linked_.end(), [&](int rank) {
    return member(rank).heard == PeerState::alive;
  });
  repair_at_ = alive < kSuccessors ? now : std::min(now + kRepairPause, *repair_by_);
}

// Looks for the next successors that are alive, and dials those that are not connected.
void Membership::keep_successors() {
  const auto now = Clock::now();
  repair_at_.reset();
  repair_by_.reset();
  int kept = 0;
  for (int step = 1; step < size_ && kept < kSuccessors; ++step) {
    const int rank = static_cast<int>((static_cast<std::int64_t>(rank_) + step) % size_);
    Member& m = member(rank);
    if (m.heard != PeerState::alive || refused_.contains(rank)) continue;
    if (m.links.empty()) {
      connection_to(rank);
      repair_at_ = now + kSlowDial;
    }
    kept += !m.links.empty() || now - m.dialed < kSlowDial;
  }
}

std::vector<int> Membership::apply_due() {
  const auto now = Clock::now();
  const std::set<int> refused = refused_;
  for (const int rank : refused) {
    const bool awaited = member(rank).is_watched;
    if (now < member(rank).refused + (awaited ? kWatchedDelay : kRefusalDelay)) continue;
    learn(rank, awaited ? PeerState::dead : PeerState::left, 0);
  }
  if (repair_at_ && now >= *repair_at_ && !is_leaving_) keep_successors();
  std::vector<int> changed;
  for (const int rank : ending_) {
    Member& m = member(rank);
    const bool open = !m.links.empty() || dialing_.contains(rank);
    if (open && now < m.effect) continue;
    m.state.store(m.heard);
    m.out.reset();
    m.links.clear();
    linked_.erase(rank);
    dialing_.erase(rank);
    ++gone_;
    changed.push_back(rank);
  }
  for (const int rank : changed) ending_.erase(rank);
  return changed;
}

bool Membership::is_waiting() const { return repair_at_ || !ending_.empty() || !refused_.empty(); }

void Membership::cancel_idle_dials(const std::function<bool(int rank)>& may_cancel) {
  std::erase_if(dialing_, [&](int rank) {
    Member& m = member(rank);
    if ((m.out && m.out->has_unsent()) || !may_cancel(rank)) return false;
    if (m.out && !m.out->socket.open()) m.out.reset();
    return true;
  });
}

std::vector<std::shared_ptr<Link>> Membership::links() const {
  std::vector<std::shared_ptr<Link>> all;
  for_each_link([&](int, const std::shared_ptr<Link>& link) { all.push_back(link); });
  return all;
}

void Membership::for_each_link(
    const std::function<void(int rank, const std::shared_ptr<Link>&)>& action) const {
  for (const int rank : linked_) {
    for (const auto& link : member(rank).links) action(rank, link);
  }
}

}  // namespace tessera::comm
