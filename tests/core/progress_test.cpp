#include "tessera/core/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tessera {
namespace {

// An in-memory file to draw into, and a clock that is advanced by hand.
class ProgressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fd_ = memfd_create("progress", MFD_CLOEXEC);
    ASSERT_GE(fd_, 0);
  }
  void TearDown() override { close(fd_); }

  ProgressOptions options(ProgressMode mode) {
    ProgressOptions result;
    result.mode = mode;
    result.fd = fd_;
    result.columns = 100;
    result.clock = [this] { return now_; };
    return result;
  }

  std::string output() const {
    std::string text(static_cast<std::size_t>(lseek(fd_, 0, SEEK_END)), '\0');
    EXPECT_EQ(pread(fd_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }

  std::vector<std::string> lines() const {
    std::vector<std::string> result;
    std::string text = output();
    for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      result.push_back(text.substr(0, end));
    }
    EXPECT_EQ(text, "") << "the output must end with a whole line";
    return result;
  }

  int fd_ = -1;
  double now_ = 1000;
};

TEST_F(ProgressTest, TerminalRedrawsOneLine) {
  ProgressOptions o = options(ProgressMode::kTerminal);
  o.label = "training";
  o.unit = "step";
  Progress progress(1000, o);
  for (int step = 1; step <= 1000; ++step) {
    now_ += 0.1;
    progress.update(step, "loss 2.31");
    if (step == 420) {
      const std::string text = output();
      const std::string line = text.substr(text.rfind('\r'));
      for (const char* part : {"training", "42%", "420/1,000 step", "10 step/s", "ETA 58 s",
                               "loss 2.31", "█", "\x1b[K"}) {
        EXPECT_NE(line.find(part), std::string::npos) << part << " not in " << line;
      }
    }
  }
  progress.finish();
  progress.finish();
  const std::string text = output();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_NE(text.find("100%"), std::string::npos);
  EXPECT_NE(text.find("in 1 min 40 s"), std::string::npos);
}

TEST_F(ProgressTest, TerminalDoesNotDrawTooOften) {
  Progress progress(1000000, options(ProgressMode::kTerminal));
  for (int i = 0; i < 100000; ++i) {
    now_ += 1e-5;
    progress.add();
  }
  const std::string text = output();
  EXPECT_LE(std::count(text.begin(), text.end(), '\r'), 12);
}

TEST_F(ProgressTest, NoLineIsWiderThanTheTerminal) {
  for (int columns : {1, 10, 20, 40, 80}) {
    ASSERT_EQ(ftruncate(fd_, 0), 0);
    ASSERT_EQ(lseek(fd_, 0, SEEK_SET), 0);
    ProgressOptions o = options(ProgressMode::kTerminal);
    o.label = "a rather long label";
    o.columns = columns;
    Progress progress(10, o);
    progress.update(5, "µµµµµµµµµµ and\nmore text that does not fit");
    std::string text = output();
    EXPECT_EQ(text.find('\n'), std::string::npos);
    text = text.substr(1, text.find('\x1b') - 1);
    const auto characters =
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
    EXPECT_LT(characters, std::max(columns, 2));
  }
}

TEST_F(ProgressTest, UnfinishedBarEndsItsLine) {
  { Progress(10, options(ProgressMode::kTerminal)).update(3); }
  EXPECT_EQ(output().back(), '\n');
}

TEST_F(ProgressTest, PlainPrintsALineAtEachTenth) {
  ProgressOptions o = options(ProgressMode::kPlain);
  o.label = "copying";
  Progress progress(1000, o);
  for (int i = 1; i <= 1000; ++i) {
    now_ += 0.05;
    progress.update(i);
  }
  progress.finish("done");
  const std::vector<std::string> all = lines();
  ASSERT_EQ(all.size(), 10u);
  EXPECT_EQ(all[0].substr(0, 22), "copying: 10% 100/1,000");
  EXPECT_NE(all[9].find("100% 1,000/1,000"), std::string::npos);
  EXPECT_NE(all[9].find("done"), std::string::npos);
  EXPECT_EQ(output().find('\r'), std::string::npos);
  EXPECT_EQ(output().find('\x1b'), std::string::npos);
}

TEST_F(ProgressTest, PlainPrintsOneLineForAFastLoop) {
  Progress progress(1000, options(ProgressMode::kPlain));
  for (int i = 1; i <= 1000; ++i) {
    now_ += 1e-6;
    progress.update(i);
  }
  progress.finish();
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(ProgressTest, PlainPrintsLinesOfASlowLoopByTime) {
  Progress progress(1000000, options(ProgressMode::kPlain));
  for (int i = 1; i <= 100; ++i) {
    now_ += 10;
    progress.update(i);
  }
  EXPECT_EQ(lines().size(), 33u);
  EXPECT_NE(lines()[0].find("10 s/it"), std::string::npos);
}

TEST_F(ProgressTest, RateExcludesTheInitialCount) {
  ProgressOptions o = options(ProgressMode::kPlain);
  o.unit = "step";
  o.before = 600;
  Progress progress(1000, o);
  for (int step = 601; step <= 1000; ++step) {
    now_ += 0.5;
    progress.update(step);
    if (step == 700) {
      EXPECT_NE(output().find("2 step/s"), std::string::npos) << output();
    }
  }
  progress.finish();
  EXPECT_NE(lines().back().find("1,000/1,000 step  2 step/s"), std::string::npos) << lines().back();
}

TEST_F(ProgressTest, UnknownTotalHasNoPercentAndNoEta) {
  Progress progress(0, options(ProgressMode::kPlain));
  now_ += 40;
  progress.update(80);
  progress.finish();
  const std::string text = output();
  EXPECT_EQ(text.find('%'), std::string::npos);
  EXPECT_EQ(text.find("ETA"), std::string::npos);
  EXPECT_NE(text.find("2 it/s"), std::string::npos);
}

TEST_F(ProgressTest, AcceptsMoreThanTheTotal) {
  Progress progress(1, options(ProgressMode::kPlain));
  now_ += 100;
  progress.update(std::int64_t{1} << 60);
  progress.finish();
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(ProgressTest, SilentWritesNothing) {
  {
    Progress progress(10, options(ProgressMode::kSilent));
    progress.update(5);
    EXPECT_EQ(progress.done(), 5);
    progress.finish("done");
  }
  EXPECT_EQ(output(), "");
}

TEST_F(ProgressTest, AutoIsPlainOnAFileAndABarOnATerminal) {
  EXPECT_EQ(Progress(10, options(ProgressMode::kAuto)).mode(), ProgressMode::kPlain);
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) GTEST_SKIP() << "needs pseudo-terminals";
  ProgressOptions o = options(ProgressMode::kAuto);
  o.fd = terminal;
  EXPECT_EQ(Progress(10, o).mode(), ProgressMode::kTerminal);
  close(terminal);
}

}  // namespace
}  // namespace tessera
