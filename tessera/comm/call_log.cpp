#include "tessera/comm/call_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/comm/control_graph.h"
#include "tessera/core/hash.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kAskAgain = std::chrono::seconds(5);
constexpr std::size_t kHashesKept = 256;

// Header of a note. `entries` calls follow; the last one waits if `waits` is set.
struct NoteHead {
  std::uint64_t count = 0;
  std::uint64_t hash = 0;  // of all calls, if no page follows
  std::uint32_t entries = 0;
  std::uint16_t page = 0;
  std::uint16_t waits = 0;
};
static_assert(sizeof(NoteHead) == 24, "no padding: it travels between processes");

struct NoteEntry {
  std::uint64_t number = 0;
  Record call;
};
static_assert(sizeof(NoteEntry) == 88, "no padding: it travels between processes");
static_assert(sizeof(NoteHead) + (CallLog::kKept + 1) * sizeof(NoteEntry) <= kLongestNote);

template <typename Value>
void append_bytes_of(std::string& bytes, const Value& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Returns the ranks to compare with: all others in a small group.
std::vector<int> call_log_neighbors(int rank, int size) {
  if (size > CallLog::kAllCompared) return control_neighbors(rank, size);
  std::vector<int> others;
  for (int r = 0; r < size; ++r) {
    if (r != rank) others.push_back(r);
  }
  return others;
}

void forget_oldest(std::map<std::uint64_t, std::uint64_t>& hashes) {
  while (hashes.size() > kHashesKept) hashes.erase(hashes.begin());
}

}  // namespace

CallLog::CallLog(std::shared_ptr<Peers> peers, std::vector<int> members, std::string topic,
                 std::string group, Kind kind)
    : peers_(std::move(peers)), topic_(std::move(topic)), group_(std::move(group)), kind_(kind) {
  const auto own = std::find(members.begin(), members.end(), peers_->rank()) - members.begin();
  const int size = static_cast<int>(members.size());
  for (const int neighbor : call_log_neighbors(static_cast<int>(own), size)) {
    others_.emplace_back();
    others_.back().rank = members[static_cast<std::size_t>(neighbor)];
  }
}

std::uint64_t CallLog::key(const Record& call, Kind kind) {
  std::uint64_t hash = mix(kHashStart, has_unequal_counts(call) ? 0 : call.count);
  hash = mix(hash, static_cast<std::uint64_t>(call.dtype));
  hash = mix(hash, call.label_hash);
  if (kind == Kind::messages) return hash;
  hash = mix(hash, static_cast<std::uint64_t>(call.op));
  hash = mix(hash, static_cast<std::uint64_t>(call.peer) + 1);
  hash = mix(hash, call.form);
  hash = mix(hash, call.parts_hash);
  return is_reduction(call.op) ? mix(hash, static_cast<std::uint64_t>(call.reduce) + 1) : hash;
}

void CallLog::add(std::uint64_t number, const Record& call) {
  std::lock_guard lock(mutex_);
  ++own_.count;
  own_.last.push_back({number, call});
  if (own_.last.size() > kKept) own_.last.pop_front();
  own_.waiting.reset();
  hash_ = mix(mix(hash_, number), key(call, kind_));
  changed_ = true;
  if (own_.count % kEvery != 0) return;
  hashes_[own_.count] = hash_;
  forget_oldest(hashes_);
}

void CallLog::expect(std::uint64_t number, const Record& call) {
  std::lock_guard lock(mutex_);
  own_.waiting = Entry{number, call};
  changed_ = true;
}

void CallLog::expect_nothing() {
  std::lock_guard lock(mutex_);
  own_.waiting.reset();
  changed_ = true;
}

void CallLog::send_hash(std::uint64_t count, std::uint64_t hash) {
  std::string bytes;
  append_bytes_of(bytes, NoteHead{count, hash, 0, 0, 0});
  for (const Other& other : others_) peers_->send_note(other.rank, topic_, bytes);
}

void CallLog::send_page() {
  std::string bytes;
  const std::size_t entries = own_.last.size() + own_.waiting.has_value();
  append_bytes_of(bytes, NoteHead{own_.count, 0, static_cast<std::uint32_t>(entries), 1,
                                  static_cast<std::uint16_t>(own_.waiting.has_value())});
  for (const Entry& entry : own_.last) append_bytes_of(bytes, NoteEntry{entry.number, entry.call});
  if (own_.waiting) append_bytes_of(bytes, NoteEntry{own_.waiting->number, own_.waiting->call});
  for (const Other& other : others_) peers_->send_note(other.rank, topic_, bytes);
  changed_ = false;
  page_sent_ = Clock::now();
}

bool CallLog::take_in(Other& other) {
  bool asked = false;
  while (const auto note = peers_->take_note(other.rank, topic_)) {
    NoteHead head;
    if (note->size() < sizeof(head)) continue;
    std::memcpy(&head, note->data(), sizeof(head));
    if (note->size() != sizeof(head) + head.entries * sizeof(NoteEntry)) continue;
    if (head.page == 0) {
      other.hashes[head.count] = head.hash;
      forget_oldest(other.hashes);
      continue;
    }
    Page page;
    page.count = head.count;
    for (std::size_t i = 0; i < head.entries; ++i) {
      NoteEntry entry;
      std::memcpy(&entry, note->data() + sizeof(head) + i * sizeof(entry), sizeof(entry));
      entry.call.label[sizeof(entry.call.label) - 1] = '\0';
      if (head.waits != 0 && i + 1 == head.entries) {
        page.waiting = Entry{entry.number, entry.call};
      } else {
        page.last.push_back({entry.number, entry.call});
      }
    }
    other.page = std::move(page);
    asked = true;
  }
  return asked;
}

std::optional<Failure> CallLog::look(bool stuck) {
  std::lock_guard lock(mutex_);
  if (!hashes_.empty() && hashes_.rbegin()->first > hash_sent_) {
    hash_sent_ = hashes_.rbegin()->first;
    send_hash(hash_sent_, hashes_.rbegin()->second);
  }
  bool asked = false, differs = false;
  for (Other& other : others_) {
    asked = take_in(other) || asked;
    while (!other.hashes.empty() && other.hashes.begin()->first <= own_.count) {
      const auto [count, hash] = *other.hashes.begin();
      other.hashes.erase(other.hashes.begin());
      const auto own = hashes_.find(count);
      if (own != hashes_.end() && own->second != hash) other.differs_at = count;
    }
    differs = differs || other.differs_at > 0;
  }
  const bool long_ago = !page_sent_ || Clock::now() - *page_sent_ > kAskAgain;
  if ((asked && changed_) || ((stuck || differs) && (long_ago || !page_sent_))) send_page();
  for (const Other& other : others_) {
    if (auto found = compare(other)) return found;
  }
  return std::nullopt;
}

Failure CallLog::disagree(std::uint64_t number, const Record& own, const Other& other,
                          const Record& theirs) const {
  return {Failure::Kind::usage, -1, peers_->rank(),
          str("the ranks disagree in call #", number, " of group ", group_, ": rank ",
              peers_->rank(), " called ", describe(own), "; rank ", other.rank, " called ",
              describe(theirs), ". All ranks must make the same calls in the same order")};
}

std::optional<Failure> CallLog::compare(const Other& other) const {
  if (!other.page) return std::nullopt;
  const auto first = [](const Page& page) { return page.count - page.last.size(); };
  const Page& theirs = *other.page;
  const std::uint64_t begin = std::max(first(own_), first(theirs));
  const std::uint64_t end = std::min(own_.count, theirs.count);
  const auto at = [&](const Page& page, std::uint64_t index) -> const Entry& {
    return page.last[index - first(page)];
  };
  for (std::uint64_t i = begin; i < end; ++i) {
    const Entry &own = at(own_, i), &their = at(theirs, i);
    if (own.number == their.number && key(own.call, kind_) == key(their.call, kind_)) continue;
    return disagree(own.number, own.call, other, their.call);
  }
  // One rank waits, and the other has run another call instead. Two ranks that both wait compare
  // their calls themselves.
  const auto instead = [&](const Page& waits, const Page& ran) {
    return waits.waiting && ran.count > waits.count && waits.count >= first(ran) &&
           at(ran, waits.count).number == waits.waiting->number &&
           key(at(ran, waits.count).call, kind_) != key(waits.waiting->call, kind_);
  };
  if (instead(own_, theirs)) {
    return disagree(own_.waiting->number, own_.waiting->call, other, at(theirs, own_.count).call);
  }
  if (instead(theirs, own_)) {
    return disagree(theirs.waiting->number, at(own_, theirs.count).call, other,
                    theirs.waiting->call);
  }
  if (other.differs_at == 0 || begin == 0 || theirs.count < other.differs_at) return std::nullopt;
  return Failure{Failure::Kind::usage, -1, peers_->rank(),
                 str("rank ", peers_->rank(), " and rank ", other.rank,
                     " have made different calls in group ", group_, ", more than ", kKept,
                     " calls ago; their last calls are equal. All ranks must make the same "
                     "calls in the same order")};
}

CallLog::Late CallLog::late() const {
  std::lock_guard lock(mutex_);
  const Other* behind = nullptr;
  for (const Other& other : others_) {
    if (!other.page) {
      return {other.rank,
              str("rank ", other.rank, " has not reported its calls; it may be stopped")};
    }
    if (other.page->count >= own_.count) continue;
    if (behind == nullptr || other.page->count < behind->page->count) behind = &other;
  }
  if (behind == nullptr) return {};
  const Page& page = *behind->page;
  const std::string last = page.last.empty() ? std::string("it has made none in this group")
                                             : str("its last was #", page.last.back().number, " ",
                                                   describe(page.last.back().call));
  return {behind->rank, str("rank ", behind->rank, " has not made the call; ", last)};
}

}  // namespace tessera::comm
