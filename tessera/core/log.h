#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tessera/core/text.h"

namespace tessera {

// Writes all of `text`, in one write(2) if the kernel accepts it all, so that lines of several
// processes do not interleave. Returns false if the descriptor is closed or broken.
bool write_all(int fd, std::string_view text);

enum class LogLevel { kError, kWarn, kInfo, kDebug };

std::string_view name_of(LogLevel level);

// Receives one or more complete lines, each with its newline.
using LogSink = std::function<void(std::string_view)>;
LogSink fd_sink(int fd);

// Logger, passed by value. With several ranks every line starts with "[rank 2] ", including each
// line of a multi-line message.
struct Logger {
  int rank = 0;
  int world = 1;
  LogLevel level = LogLevel::kInfo;
  LogSink sink = fd_sink(2);

  bool enabled(LogLevel wanted) const { return wanted <= level; }
  void write(LogLevel severity, std::string_view message) const;

  // Concatenates the arguments with str(), only if the level is enabled.
  template <typename... Args>
  void error(const Args&... args) const {
    if (enabled(LogLevel::kError)) write(LogLevel::kError, str(args...));
  }
  template <typename... Args>
  void warn(const Args&... args) const {
    if (enabled(LogLevel::kWarn)) write(LogLevel::kWarn, str(args...));
  }
  template <typename... Args>
  void info(const Args&... args) const {
    if (enabled(LogLevel::kInfo)) write(LogLevel::kInfo, str(args...));
  }
  template <typename... Args>
  void debug(const Args&... args) const {
    if (enabled(LogLevel::kDebug)) write(LogLevel::kDebug, str(args...));
  }
};

}  // namespace tessera
