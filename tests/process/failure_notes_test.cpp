#include "tessera/process/failure_notes.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

namespace tessera::process {
namespace {

// Makes this process one whose failures are collected, like a rank.
class Collected {
 public:
  Collected() {
    const std::string entry = notes.environment();
    const std::size_t equals = entry.find('=');
    name_ = entry.substr(0, equals);
    ::setenv(name_.c_str(), entry.c_str() + equals + 1, 1);
  }
  ~Collected() { ::unsetenv(name_.c_str()); }

  FailureNotes notes;

 private:
  std::string name_;
};

TEST(FailureNotes, MergesEqualMessages) {
  const Collected job;
  for (const int rank : {2, 0, 1}) {
    EXPECT_TRUE(note_failure(rank, 10 + rank, "rank " + std::to_string(rank) + ": no room"));
  }
  EXPECT_TRUE(note_failure(3, -1, "rank 1 has gone"));
  const FailureNotes::Report report = job.notes.read();
  EXPECT_EQ(report.text, "  ranks 0, 1, 2: no room\n  rank 3: rank 1 has gone\n");
  EXPECT_EQ(report.last_step, 12);
}

TEST(FailureNotes, PrintsSharedAdviceOnce) {
  const Collected job;
  EXPECT_TRUE(note_failure(0, 1, "rank 0: out of memory.\n  total 17 MiB\nWhat helps: less"));
  EXPECT_TRUE(note_failure(1, 1, "rank 1: out of memory.\n  total 18 MiB\nWhat helps: less"));
  EXPECT_TRUE(note_failure(2, 1, "rank 0 has gone"));
  EXPECT_EQ(job.notes.read().text,
            "  rank 0: out of memory.\n    total 17 MiB\n"
            "  rank 1: out of memory.\n    total 18 MiB\n"
            "    What helps: less\n"
            "  rank 2: rank 0 has gone\n");
}

// The rank that failed on its own is listed first, whichever exited first.
TEST(FailureNotes, ListsTheCauseBeforeItsConsequences) {
  const Collected job;
  EXPECT_TRUE(note_failure(0, 4, "rank 2 has gone", false));
  EXPECT_TRUE(note_failure(3, 4, "rank 2 has gone", false));
  EXPECT_TRUE(note_failure(2, 4, "rank 2: a bad file"));
  EXPECT_TRUE(note_failure(1, 4, "rank 1: out of memory"));
  const FailureNotes::Report report = job.notes.read();
  EXPECT_EQ(report.text,
            "  rank 1: out of memory\n  rank 2: a bad file\n  ranks 0, 3: rank 2 has gone\n");
  EXPECT_EQ(report.own, (std::vector<int>{2, 1}));
  EXPECT_EQ(report.others, (std::vector<int>{0, 3}));
}

TEST(FailureNotes, ReturnsFalseWithoutALauncher) { EXPECT_FALSE(note_failure(0, 1, "alone")); }

}  // namespace
}  // namespace tessera::process
