#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tessera/core/text.h"

namespace tessera {

// Writes all of `text`, in one write(2) whenever the kernel takes it whole, so that the lines of
// several processes do not mix. Returns false when the descriptor is closed or broken.
bool write_all(int fd, std::string_view text);

enum class LogLevel { kError, kWarn, kInfo, kDebug };

std::string_view name_of(LogLevel level);

// Takes complete text: one or more whole lines, each with its newline.
using LogSink = std::function<void(std::string_view)>;
LogSink fd_sink(int fd);

// A logger is a value: hand it to whoever should write. With several ranks every line starts with
// "[rank 2] ", also each line of a message of several lines.
struct Logger {
  int rank = 0;
  int world = 1;
  LogLevel level = LogLevel::kInfo;
  LogSink sink = fd_sink(2);

  bool enabled(LogLevel wanted) const { return wanted <= level; }
  void write(LogLevel severity, std::string_view message) const;

  // The arguments are put together as by str(), and only when the level is enabled.
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
