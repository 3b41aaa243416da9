#include "tessera/core/log.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace tessera {

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd wait{fd, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::string_view name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kError: return "error";
    case LogLevel::kWarn: return "warn";
    case LogLevel::kInfo: return "info";
    case LogLevel::kDebug: return "debug";
  }
  return "?";
}

LogSink fd_sink(int fd) {
  return [fd](std::string_view text) { write_all(fd, text); };
}

void Logger::write(LogLevel severity, std::string_view message) const {
  if (!enabled(severity) || !sink) return;
  std::string prefix = world > 1 ? str("[rank ", rank, "] ") : std::string();
  // Info messages have no tag: they are the normal output.
  if (severity != LogLevel::kInfo) prefix += str(name_of(severity), ": ");
  while (!message.empty() && message.back() == '\n') message.remove_suffix(1);
  std::string out;
  while (true) {
    const std::size_t end = message.find('\n');
    out += prefix;
    out += message.substr(0, end);
    out += '\n';
    if (end == std::string_view::npos) break;
    message.remove_prefix(end + 1);
  }
  sink(out);
}

}  // namespace tessera
