#pragma once

#include <poll.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/core/fd.h"

namespace tessera::process {

// Rank 0 reads our standard input. A file or a pipe it simply inherits; a terminal it may not read,
// since its process group is never in the foreground (the kernel would stop it): there the launcher
// reads, and hands on through a pipe.
class StdinPump {
 public:
  // The descriptor that rank 0 is to read from; none when it can inherit `in`.
  Fd attach(int in);

  // Adds what is to be waited for, and acts on what has happened to it.
  void add_to(std::vector<pollfd>& polls);
  void act_on(const std::vector<pollfd>& polls);

 private:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  int terminal_ = -1;
  Fd pipe_;
  std::string pending_;
  std::size_t polled_at_ = kNowhere;
};

}  // namespace tessera::process
