#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tessera/core/text.h"

namespace tessera {

// Returns an explanation of `error`, the errno of a failed fork or thread creation.
inline std::string start_failure_text(int error) {
  if (error != EAGAIN) return std::strerror(error);
  rlimit limit{};
  const bool bounded = ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return str("the limit on processes and threads was reached (ulimit -u is ",
             bounded ? str(limit.rlim_cur) : "unlimited", "). Raise it with ulimit -u, or, in a ",
             "container or systemd unit, its limit on tasks; or start fewer ranks and threads");
}

}  // namespace tessera
