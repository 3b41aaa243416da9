#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/core/fd.h"

namespace tessera::dashboard {

// [Note: files that grow] Reads the lines of a file while another process writes it. An incomplete
// line is kept until its end arrives. A file that was renamed is read to its end before the new
// file of that name is opened; a file that was truncated is read again from the start.
class LineTail {
 public:
  explicit LineTail(std::string path) : path_(std::move(path)) {}

  struct Listener {
    std::function<void(std::string_view line)> line;  // without its newline
    std::function<void()> reset;                      // the following lines are of a new file
  };
  // Reads available lines, at most about `most` bytes. Returns true if there is more.
  bool read(std::size_t most, const Listener& listener);

  const std::string& path() const { return path_; }
  double changed() const { return changed_; }  // last modification, seconds since 1970; 0: never

 private:
  bool open();
  bool read_some(std::size_t most, const Listener& listener, std::size_t& taken);

  std::string path_;
  Fd file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::int64_t at_ = 0;
  std::string half_;       // incomplete line
  bool skipping_ = false;  // skips the rest of a line that is too long
  double changed_ = 0;
};

}  // namespace tessera::dashboard
