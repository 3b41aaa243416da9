// --resume on every hostile checkpoint: an error with the reason, or a correct start.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/train/trainer.h"
#include "tests/checkpoint/hostile.h"
#include "tests/temporary_folder.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// Limits the memory of the process to the current use plus a margin, while it exists.
class MemoryBound {
 public:
  explicit MemoryBound(rlim_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + bytes;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryBound() { ::setrlimit(RLIMIT_AS, &before_); }
  MemoryBound(const MemoryBound&) = delete;
  MemoryBound& operator=(const MemoryBound&) = delete;

 private:
  rlimit before_{};
};

RunConfig small_config() {
  RunConfig config;
  config.layers = 1;
  config.hidden = 16;
  config.heads = 2;
  config.vocab = 32;
  config.seq = 8;
  config.steps = 4;
  config.global_batch = 2;
  config.micro_batch = 1;
  config.ranks = 1;
  config.axes.set_dp(1);
  return config;
}

// Result of a start: its error or "", and the number of steps done before it.
struct Start {
  std::string error;
  std::int64_t steps = 0;
};
Start start(const RunConfig& config) {
  Start out;
  comm::run_threads(1, [&](std::shared_ptr<comm::Backend> backend) {
    try {
      Trainer trainer(config, comm::Group(std::move(backend)));
      std::vector<std::string> notes;
      trainer.resume(notes);
      out.steps = trainer.steps_done();
      trainer.step();
    } catch (const Error& error) {
      out.error = error.what();
    }
  });
  return out;
}

TEST(HostileResume, ReportsAnErrorOrStartsCorrectly) {
  const TemporaryFolder made;
  const fs::path folder = made.path;
  RunConfig config = small_config();
  config.save = (folder / "run").string();
  comm::run_threads(1, [&](std::shared_ptr<comm::Backend> backend) {
    Trainer trainer(config, comm::Group(std::move(backend)));
    for (int step = 0; step < 2; ++step) {
      trainer.step();
      trainer.save();
      trainer.finish_saving();
    }
  });
  const fs::path newest = folder / "run" / "step-00000002", good = folder / "good";
  fs::rename(newest, good);
  std::vector<checkpoint::Hostile> all = checkpoint::hostile_checkpoints();
  for (const char* const updates :
       {"9223372036854775807", "99999999999999999999", "-1", "2x", ""}) {
    all.push_back({std::string("updates = ") + updates, true, [updates](const std::string& at) {
                     std::string body = checkpoint::manifest_body(at);
                     const std::string before = "\"updates\":\"2\"";
                     ASSERT_NE(body.find(before), std::string::npos);
                     body.replace(body.find(before), before.size(),
                                  std::string("\"updates\":\"") + updates + "\"");
                     checkpoint::write_manifest(at, checkpoint::sealed(body));
                   }});
  }
  // A valid count that overflows with this batch.
  all.push_back({"more steps than samples can be counted", true, [](const std::string& at) {
                   std::string body = checkpoint::manifest_body(at);
                   const std::string before = "\"step\": 2,";
                   body.replace(body.find(before), before.size(), "\"step\": 9007199254740992,");
                   checkpoint::write_manifest(at, checkpoint::sealed(body));
                 }});
  config.save = "";
  config.resume = newest.string();
  RunConfig automatic = small_config();
  automatic.save = (folder / "run").string();
  automatic.resume = "auto";
  const MemoryBound bound(rlim_t{3} << 30);
  int refused = 0, autos = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const checkpoint::Hostile& hostile = all[i];
    fs::remove_all(newest);
    fs::remove(newest.string() + "-elsewhere");
    fs::copy(good, newest);
    hostile.spoil(newest.string());
    const Start got = start(config);
    refused += got.error.empty() ? 0 : 1;
    EXPECT_FALSE(hostile.refused && got.error.empty()) << hostile.name << ": was resumed from";
    if (got.error.empty()) {
      EXPECT_EQ(got.steps, 2) << hostile.name;
    } else {
      EXPECT_GT(got.error.size(), 20u) << hostile.name << ": " << got.error;
    }
    if (!hostile.refused || i % 7 != 0) continue;
    const Start passed = start(automatic);  // takes the one before
    EXPECT_EQ(passed.error, "") << hostile.name;
    EXPECT_EQ(passed.steps, 1) << hostile.name;
    ++autos;
  }
  std::cout << all.size() << " checkpoints, " << refused << " refused, " << autos
            << " passed over\n";
}

}  // namespace
}  // namespace tessera::train
