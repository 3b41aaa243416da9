#pragma once

#include <cerrno>
#include <exception>
#include <string>
#include <system_error>

#include "tessera/core/start_failure.h"

namespace tessera {

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

}  // namespace tessera
