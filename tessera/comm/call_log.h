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

// What one rank has called in a group, and whether the others have called the same: for calls that
// are not compared one by one before they run.
//
// [Note: call log] Every rank keeps its last calls and a hash of all of them. After every
// kEvery-th it sends the others that hash; each compares it with its own of the same time. And when
// a rank is stuck, or a hash differed, it sends its last calls themselves, and whoever hears them
// answers with its own. So calls that differ are an error that names them on both sides, soon even
// if they only gave wrong values, and at once if they hang; and of a rank that does not come it is
// known what it did last. All goes through notes between ranks, which nobody waits for.
class CallLog {
 public:
  static constexpr std::uint64_t kEvery = 64;
  static constexpr std::size_t kKept = 128;

  // Collectives must be the same in everything, the two sides of a message in their buffer.
  enum class Kind { collectives, messages };
  // `members` are ranks of the job. `topic` is new, and the same on all of them.
  CallLog(std::shared_ptr<Peers> peers, std::vector<int> members, std::string topic,
          std::string group, Kind kind);

  // A call that is on its way. Ranks add the same calls with the same numbers in the same order.
  void add(std::uint64_t number, const Record& call);
  // A call that waits for the other ranks to make it too; until that, or the next add().
  void expect(std::uint64_t number, const Record& call);
  void expect_nothing();

  // Sends what is due, takes in what has come, and compares. `stuck`: a call takes long, and the
  // others should tell what they do. From one thread.
  std::optional<Failure> look(bool stuck);

  // Who has not come as far as this rank, as far as known; rank -1 if nobody.
  struct Late {
    int rank = -1;
    std::string text;
  };
  Late late() const;

  // The same for the same call, whoever makes it.
  static std::uint64_t key(const Record& call, Kind kind);

 private:
  struct Entry {
    std::uint64_t number = 0;
    Record call;
  };
  // A rank's calls as of some time: the last ones, and perhaps one that waits.
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
  bool take_in(Other& other);  // whether it sent a page
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
