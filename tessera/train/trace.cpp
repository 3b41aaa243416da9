#include "tessera/train/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::train {
namespace {

double microseconds(Trace::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

void Trace::span(const char* name, Clock::time_point begin, Clock::time_point end,
                 std::int64_t step) {
  if (enabled_) spans_.push_back({name, begin, end, step});
}

std::string Trace::events() const {
  if (!enabled_) return "";
  std::string out = str(R"({"name":"process_name","ph":"M","pid":)", rank_,
                        R"(,"args":{"name":"rank )", rank_, R"("}})");
  char line[256];
  for (const Span& each : spans_) {
    std::snprintf(line, sizeof line,
                  ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,"
                  "\"args\":{\"step\":%lld}}",
                  each.name, rank_, microseconds(each.begin.time_since_epoch()),
                  microseconds(each.end - each.begin), static_cast<long long>(each.step));
    out += line;
  }
  return out;
}

void check_writable(const std::string& path, const std::string& flag) {
  const std::string folder = folder_of(path);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    throw UsageError(str(flag, ": cannot write ", quote(path), ": ", std::strerror(errno),
                         "; wanted a file in a folder that is there"));
  }
}

void write_trace(const std::string& path, const std::vector<std::string>& events_of_ranks) {
  const std::string draft = str(path, ".", ::getpid(), ".part");
  const auto fail = [&](const char* what) {
    const int reason = errno;
    ::unlink(draft.c_str());
    throw Error(str("--trace: cannot ", what, " ", quote(path), ": ", std::strerror(reason)));
  };
  {
    const Fd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!file.open()) fail("write");
    const std::string text = str("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                                 join(events_of_ranks, ",\n"), "\n]}\n");
    if (!write_all(file.get(), text)) fail("write");
  }
  if (std::rename(draft.c_str(), path.c_str()) != 0) fail("rename to");
}

}  // namespace tessera::train
