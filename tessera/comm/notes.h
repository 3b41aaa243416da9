#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tessera/comm/peers.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {

inline void check_note(const std::string& topic, const std::string& bytes) {
  if (topic.size() <= 1024 && topic.find('\0') == std::string::npos &&
      bytes.size() <= kLongestNote) {
    return;
  }
  throw UsageError(str("note ", quote(topic), " of ", bytes.size(), " bytes: must have at most ",
                       kLongestNote,
                       " bytes and a topic of at most 1024 bytes without null characters"));
}

// Received notes that were not taken yet ([Note: notes]).
class NoteBox {
 public:
  void keep(int from, std::string topic, std::string bytes) {
    waiting_[{from, std::move(topic)}].push_back(std::move(bytes));
    ++heard_;
  }
  std::optional<std::string> take(int from, const std::string& topic) {
    const auto found = waiting_.find({from, topic});
    if (found == waiting_.end()) return std::nullopt;
    std::string bytes = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) waiting_.erase(found);
    return bytes;
  }
  std::uint64_t heard() const { return heard_; }

 private:
  std::map<std::pair<int, std::string>, std::deque<std::string>> waiting_;
  std::uint64_t heard_ = 0;
};

}  // namespace tessera::comm
