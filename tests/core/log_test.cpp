#include "tessera/core/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace tessera {
namespace {

struct Captured {
  std::vector<std::string> writes;
  LogSink sink() {
    return [this](std::string_view text) { writes.emplace_back(text); };
  }
};

TEST(Log, PrefixesTheRank) {
  Captured captured;
  const Logger logger{2, 4, LogLevel::kDebug, captured.sink()};
  logger.info("loss ", 2.5);
  logger.warn("slow");
  logger.error("lost\n");
  logger.debug("detail");
  EXPECT_EQ(captured.writes,
            (std::vector<std::string>{"[rank 2] loss 2.5\n", "[rank 2] warn: slow\n",
                                      "[rank 2] error: lost\n", "[rank 2] debug: detail\n"}));
}

TEST(Log, OneRankHasNoPrefix) {
  Captured captured;
  Logger{0, 1, LogLevel::kInfo, captured.sink()}.info("alone");
  EXPECT_EQ(captured.writes, std::vector<std::string>{"alone\n"});
}

TEST(Log, EveryLineIsPrefixedInOneWrite) {
  Captured captured;
  Logger{1, 2, LogLevel::kInfo, captured.sink()}.info("a\n\nb");
  EXPECT_EQ(captured.writes, std::vector<std::string>{"[rank 1] a\n[rank 1] \n[rank 1] b\n"});
}

TEST(Log, FiltersByLevel) {
  Captured captured;
  const Logger logger{0, 1, LogLevel::kWarn, captured.sink()};
  logger.info("no");
  logger.debug("no");
  logger.warn("yes");
  logger.error("yes");
  EXPECT_EQ(captured.writes.size(), 2u);
  EXPECT_TRUE(logger.enabled(LogLevel::kError));
  EXPECT_FALSE(logger.enabled(LogLevel::kInfo));
}

TEST(Log, LinesOfSeveralProcessesDoNotInterleave) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  constexpr int kProcesses = 4, kLines = 200;
  for (int rank = 0; rank < kProcesses; ++rank) {
    if (fork() == 0) {
      const Logger logger{rank, kProcesses, LogLevel::kInfo, fd_sink(fds[1])};
      for (int i = 0; i < kLines; ++i) {
        logger.info(std::string(50, static_cast<char>('a' + rank)));
      }
      _exit(0);
    }
  }
  close(fds[1]);
  std::string all;
  char buffer[4096];
  for (ssize_t n; (n = read(fds[0], buffer, sizeof buffer)) > 0;) all.append(buffer, n);
  close(fds[0]);
  for (int rank = 0; rank < kProcesses; ++rank) wait(nullptr);
  int lines = 0;
  std::size_t start = 0;
  for (std::size_t end; (end = all.find('\n', start)) != std::string::npos; start = end + 1) {
    const std::string line = all.substr(start, end - start);
    ASSERT_EQ(line.substr(0, 6), "[rank ") << line;
    const int rank = line[6] - '0';
    ASSERT_EQ(line.substr(9), std::string(50, static_cast<char>('a' + rank)));
    ++lines;
  }
  EXPECT_EQ(lines, kProcesses * kLines);
}

TEST(Log, WriteAllReturnsFalseForABrokenDescriptor) { EXPECT_FALSE(write_all(-1, "lost")); }

}  // namespace
}  // namespace tessera
