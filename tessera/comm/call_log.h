#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/peers.h"
#include "tessera/comm/record.h"

namespace tessera::comm {

// Calls of one rank in a group, compared with those of other ranks. For calls that are not compared
// one by one before they run.
//
// [Note: call log] Every rank keeps its last calls and a hash of all its calls. After every kEvery
// calls it sends the hash to the others, which compare it with their own hash of the same number of
// calls. If a rank is stuck or a hash differs, it sends its last calls, and a rank that receives
// them replies with its own. So calls that differ are an error that names them on both sides, even
// if they do not hang, and the last call of a late rank is available. Everything is sent as notes,
// so no rank waits. In a group of more than kAllCompared ranks, each compares with its neighbors in
// the [Note: control graph] only: if calls differ, two neighbors find it, because the graph is
// connected.
class CallLog {
 public:
  static constexpr std::uint64_t kEvery = 64;
  static constexpr std::size_t kKept = 128;
  static constexpr int kAllCompared = 32;

  // Collectives must be equal in every respect, the two sides of a message in their buffer.
  enum class Kind { collectives, messages };
  // `members` are ranks of the job. `topic` is new, and the same on all of them.
  CallLog(std::shared_ptr<Peers> peers, std::vector<int> members, std::string topic,
          std::string group, Kind kind);

  // Adds a call that has started. Ranks add the same calls with the same numbers in the same order.
  void add(std::uint64_t number, const Record& call);
  // Sets the call that waits for other ranks to make it too, until expect_nothing() or add().
  void expect(std::uint64_t number, const Record& call);
  void expect_nothing();

  // Sends what is due, receives, and compares. `stuck` requests the last calls of other ranks. One
  // thread only.
  std::optional<Failure> look(bool stuck);

  // A rank that has made fewer calls than this one; -1 if none is known.
  struct Late {
    int rank = -1;
    std::string text;
  };
  Late late() const;

  // Returns a hash that is equal for equal calls of different ranks.
  static std::uint64_t key(const Record& call, Kind kind);

 private:
  struct Entry {
    std::uint64_t number = 0;
    Record call;
  };
  // Last calls of a rank, and the one that waits, if any.
  struct Page {
    std::uint64_t count = 0;
    std::deque<Entry> last;
    std::optional<Entry> waiting;
  };
  struct Other {
    int rank = 0;
    std::map<std::uint64_t, std::uint64_t> hashes;  // by count, not compared yet
    std::uint64_t differs_at = 0;                   // count at which the hashes did
    std::optional<Page> page;
  };

  void send_hash(std::uint64_t count, std::uint64_t hash);
  void send_page();
  bool take_in(Other& other);  // returns whether it sent a page
  std::optional<Failure> compare(const Other& other) const;
  Failure disagree(std::uint64_t number, const Record& own, const Other& other,
                   const Record& theirs) const;

  const std::shared_ptr<Peers> peers_;
  const std::string topic_;
  const std::string group_;
  const Kind kind_;
  mutable std::mutex mutex_;
  Page own_;
  std::uint64_t hash_ = 0;
  std::map<std::uint64_t, std::uint64_t> hashes_;  // own, by count
  std::uint64_t hash_sent_ = 0;                    // count
  std::vector<Other> others_;
  bool changed_ = true;  // since the page was sent
  std::optional<std::chrono::steady_clock::time_point> page_sent_;
};

}  // namespace tessera::comm
