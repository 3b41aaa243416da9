#pragma once

#include <poll.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/core/fd.h"

namespace tessera::process {

// Passes the launcher's standard input to rank 0. Rank 0 inherits a file or pipe. It cannot read a
// terminal, because its process group is never in the foreground and the kernel would stop it:
// there the launcher reads and forwards through a pipe.
class StdinPump {
 public:
  // Returns the descriptor for rank 0 to read from; closed if rank 0 can inherit `in`.
  Fd attach(int in);

  // Adds the descriptors to poll, and handles the events on them.
  void add_to(std::vector<pollfd>& polls);
  void act_on(const std::vector<pollfd>& polls);

 private:
  static constexpr std::size_t kNotPolled = static_cast<std::size_t>(-1);

  int terminal_ = -1;
  Fd pipe_;
  std::string pending_;
  std::size_t polled_at_ = kNotPolled;
};

}  // namespace tessera::process
