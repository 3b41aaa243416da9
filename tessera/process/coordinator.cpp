#include "tessera/process/coordinator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/core/index.h"

namespace tessera::process {

int RecoveryOptions::processes() const {
  int count = spares;
  for (const auto& replica : replicas) count += static_cast<int>(replica.size());
  return count;
}

Coordinator::Coordinator(RecoveryOptions options)
    : options_(std::move(options)),
      seats_(options_.replicas),
      places_(as_size(options_.processes()), Place::absent),
      has_state_(places_.size(), false),
      order_(seats_.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  for (const auto& replica : seats_) {
    for (const int process : replica) places_[as_size(process)] = Place::member;
  }
  current_ = {1, replicas(), false, false, options_.by_rank(seats_)};
}

bool Coordinator::is_all(int replica, Place place) const {
  const auto& seats = nth(seats_, replica);
  return std::all_of(seats.begin(), seats.end(),
                     [&](int process) { return nth(places_, process) == place; });
}

bool Coordinator::has_state(int replica) const {
  const auto& seats = nth(seats_, replica);
  return std::all_of(seats.begin(), seats.end(),
                     [&](int process) { return has_state_[as_size(process)]; });
}

// The members of a replica that is not in the next generation report when they are ready.
void Coordinator::dismiss(int replica) {
  for (const int process : nth(seats_, replica)) {
    if (nth(places_, process) == Place::member) places_[as_size(process)] = Place::absent;
    has_state_[as_size(process)] = false;
  }
}

Coordinator::Change Coordinator::lost(int process) {
  if (current_.over) return Change::none;
  if (++losses_ > options_.most) return Change::failed;
  places_[as_size(process)] = Place::absent;
  has_state_[as_size(process)] = false;
  for (std::size_t r = 0; r < seats_.size(); ++r) {
    const auto seat = std::find(seats_[r].begin(), seats_[r].end(), process);
    if (seat == seats_[r].end()) continue;
    const auto replica = static_cast<int>(r);
    const bool was_member = std::find(order_.begin(), order_.end(), replica) != order_.end();
    if (was_member) dismiss(replica);
    for (std::size_t p = 0; p < places_.size(); ++p) {  // a spare takes the seat
      const auto is_seated = [&](const auto& seats) {
        return std::find(seats.begin(), seats.end(), static_cast<int>(p)) != seats.end();
      };
      if (places_[p] != Place::ready || std::any_of(seats_.begin(), seats_.end(), is_seated)) {
        continue;
      }
      *seat = static_cast<int>(p);
      break;
    }
    return regroup(was_member);
  }
  return Change::none;
}

Coordinator::Change Coordinator::ready(int process) {
  if (current_.over || nth(places_, process) == Place::member) return Change::none;
  places_[as_size(process)] = Place::ready;
  return regroup(false);
}

Coordinator::Change Coordinator::established(int process, std::int64_t generation) {
  if (current_.over || generation != current_.number) return Change::none;
  established_.insert(process);
  has_state_[as_size(process)] = true;
  trained_ = true;
  return regroup(false);
}

Coordinator::Change Coordinator::finish() {
  if (current_.over) return Change::none;
  current_ = {current_.number + 1, 0, trained_, true, {}};
  return Change::next;
}

// Forms the next generation of the whole replicas. Without `is_forced` only if it has more.
Coordinator::Change Coordinator::regroup(bool is_forced) {
  const bool is_forming = established_.size() < current_.members.size();
  if (!is_forced && is_forming) return Change::none;
  std::vector<int> whole;
  for (const int replica : order_) {
    if (is_all(replica, Place::member)) whole.push_back(replica);
  }
  for (int replica = 0; replica < replicas(); ++replica) {
    if (is_all(replica, Place::ready)) whole.push_back(replica);
  }
  std::stable_partition(whole.begin(), whole.end(), [&](int r) { return has_state(r); });
  const int count = whole.empty() ? 0 : options_.fit(static_cast<int>(whole.size()));
  if (!is_forced && count <= static_cast<int>(order_.size())) return Change::none;
  if (count == 0 || (trained_ && !has_state(whole.front()))) return Change::failed;
  whole.resize(as_size(count));
  std::vector<std::vector<int>> seats;
  for (const int replica : order_) {
    if (std::find(whole.begin(), whole.end(), replica) == whole.end()) dismiss(replica);
  }
  for (const int replica : whole) {
    for (const int process : nth(seats_, replica)) places_[as_size(process)] = Place::member;
    seats.push_back(nth(seats_, replica));
  }
  order_ = whole;
  established_.clear();
  current_ = {current_.number + 1, count, trained_, false, options_.by_rank(seats)};
  return Change::next;
}

}  // namespace tessera::process
