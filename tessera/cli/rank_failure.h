#pragma once

#include <exception>
#include <functional>

#include "tessera/comm/launch.h"
#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/process/failure_notes.h"

namespace tessera::cli {

// Runs the work of a rank. A failure is reported to the command that started the rank, which prints
// it once for all ranks. Under another launcher the exception is rethrown.
inline int report_to_launcher(const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const bool own = dynamic_cast<const PeerError*>(&error) == nullptr;
    if (!process::note_failure(comm::detect_launch().rank, -1, message_of(error), own)) throw;
    return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
  }
}

}  // namespace tessera::cli
