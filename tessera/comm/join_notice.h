#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::comm {

// Formats ranks, given in ascending order: "0 to 3, 5"; "none" if there are none.
inline std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i > 2) {
      parts.push_back(str(ranks[i], " to ", ranks[end - 1]));
    } else {
      end = i + 1;
      parts.push_back(str(ranks[i]));
    }
    i = end;
  }
  return parts.empty() ? "none" : join(parts, ", ");
}

// Reports on stderr that a rank waits for others to join: after `first`, and then each time the
// wait has doubled.
class JoinNotice {
 public:
  static constexpr std::chrono::milliseconds kFirst{15'000};

  explicit JoinNotice(std::chrono::milliseconds first) : next_(begun_ + first) {}

  // Returns the time to the next report, at least 1 ms.
  std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(1),
                    std::chrono::duration_cast<std::chrono::milliseconds>(next_ - Clock::now()));
  }
  // Returns true once for each report that is due.
  bool is_due() {
    const auto now = Clock::now();
    if (now < next_) return false;
    next_ = now + (now - begun_);
    return true;
  }
  // Writes "tessera: rank R has waited S s" and `text`.
  void report(int rank, const std::string& text) const {
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begun_);
    write_all(2, str("tessera: rank ", rank, " has waited ", waited.count(), " s ", text, "\n"));
  }
  // Reports which ranks have joined and which are missing. `more`: later ranks were not looked up.
  void report_missing(int rank, int size, const std::vector<int>& joined,
                      const std::vector<int>& missing, bool more = false) const {
    report(rank, str("for other ranks to join. Of ", size, ", joined: ", ranks_text(joined),
                     "; missing: ", ranks_text(missing), more ? ", …" : "",
                     ". Start the missing ranks, or correct ",
                     "the number of ranks (WORLD_SIZE where no launcher sets it)."));
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begun_ = Clock::now();
  Clock::time_point next_;
};

}  // namespace tessera::comm
