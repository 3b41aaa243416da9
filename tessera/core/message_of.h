#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>

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

// Returns the message of an exception for users. Removes the C++ stack that LibTorch appends to its
// messages after "Exception raised from". Explains the "Resource temporarily unavailable" of a
// thread that could not be started.
inline std::string message_of(const std::exception& error) {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return "cannot start a thread: " + start_failure_text(EAGAIN);
  }
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from "));
}

// Returns the message of an nlohmann::json exception without its "[json.exception.parse_error.101]
// " prefix, which does not help the author of the file.
inline std::string json_error_text(std::string_view what) {
  const std::size_t end = what.starts_with("[json.exception.") ? what.find("] ") : what.npos;
  return std::string(end == what.npos ? what : what.substr(end + 2));
}

}  // namespace tessera
