#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "tessera/comm/group.h"
#include "tessera/comm/threads.h"

namespace tessera {

// Runs `body` on `ranks` ranks, which are threads of this process. The timeout is long enough for
// slow machines.
inline void over(int ranks, const std::function<void(const comm::Group&)>& body) {
  comm::GroupOptions options;
  options.timeout = std::chrono::seconds(120);
  comm::run_threads(
      ranks, [&](std::shared_ptr<comm::Backend> backend) { body(comm::Group(std::move(backend))); },
      options);
}

}  // namespace tessera
