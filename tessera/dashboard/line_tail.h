#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/core/fd.h"

namespace tessera::dashboard {

// [Note: files that grow] Reads the lines of a file that somebody else writes, as they come. Half a
// line waits for its rest. A file that was moved away is read to its end before the new one of its
// name is begun; one that became shorter is begun again.
class LineTail {
 public:
  explicit LineTail(std::string path) : path_(std::move(path)) {}

  struct Listener {
    std::function<void(std::string_view line)> line;  // without its newline
    std::function<void()> anew;                       // all lines from here on are of a new file
  };
  // Reads what is there, at most about `most` bytes. Returns whether there is more already.
  bool read(std::size_t most, const Listener& listener);

  const std::string& path() const { return path_; }
  double changed() const { return changed_; }  // when it was last, in seconds since 1970; 0: never

 private:
  bool open();
  bool read_some(std::size_t most, const Listener& listener, std::size_t& taken);

  std::string path_;
  Fd file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::int64_t at_ = 0;
  std::string half_;       // a line whose end is still to come
  bool skipping_ = false;  // the rest of a line that is too long
  double changed_ = 0;
};

}  // namespace tessera::dashboard
