// Writers of a folder: locking, the trial before a run, and retries after a failure.

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "tessera/checkpoint/async.h"
#include "tessera/checkpoint/lock.h"
#include "tessera/checkpoint/reshard.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/checkpoint/faults.h"
#include "tests/checkpoint/ranks.h"
#include "tests/text.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

Model one_tensor() {
  Model model;
  model.params = {{"w", {30}}};
  model.states = {{"param", DType::f32}};
  return model;
}

TEST(FolderLock, AllowsOneWriterAndNamesItToOthers) {
  const TemporaryFolder dir;
  int started[2];
  ASSERT_EQ(::pipe(started), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(dir / "run", "the first");
    (void)!::write(started[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char got = 0;
  ASSERT_EQ(::read(started[0], &got, 1), 1);
  const std::string error = error_of([&] { FolderLock(dir / "run", "the second"); });
  EXPECT_TRUE(contains(error, str("the first (pid ", child, " on "))) << error;
  EXPECT_NO_THROW(FolderLock(dir / "another", "the second"));
  // The kernel releases the lock however the process ended.
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  {
    const FolderLock lock(dir / "run", "the second");
    EXPECT_EQ(lock.missing(), "");
    EXPECT_TRUE(contains(error_of([&] { FolderLock(dir / "run", "the third"); }), "the second"));
  }
  EXPECT_NO_THROW(FolderLock(dir / "run", "the third"));
  ::close(started[0]);
  ::close(started[1]);
}

TEST(FolderLock, RejectsLockFilesThatAreNotRegularFiles) {
  const TemporaryFolder dir;
  ASSERT_EQ(::mkfifo((dir / ".lock").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of([&] { FolderLock(dir.path, "x"); }), "is not a regular file"));
  fs::remove(dir / ".lock");
  fs::create_symlink("/dev/null", dir / ".lock");
  EXPECT_NE(error_of([&] { FolderLock(dir.path, "x"); }), "");
}

TEST(TryFolder, FailsWhereASaveWouldAndLeavesNothing) {
  bool struck = true;
  int failures = 0;
  for (int at = 1; struck; ++at) {
    const TemporaryFolder dir;
    const auto files = std::make_shared<FaultyFiles>(Fault{Fault::Kind::error, at});
    const std::string error = error_of([&] { try_folder(*files, dir.path); });
    struck = files->struck();
    EXPECT_EQ(error.empty(), !struck) << at;
    failures += struck ? 1 : 0;
    if (at < 8) {
      EXPECT_TRUE(fs::is_empty(dir.path)) << at << ": " << error;
    }
  }
  EXPECT_EQ(failures, 8);  // make, remove, create, write, sync, rename, sync, remove
  EXPECT_NE(error_of([] { try_folder(*local_files(), "/proc/nothing/here"); }), "");
  const TemporaryFolder dir;
  EXPECT_NO_THROW(try_folder(*local_files(), dir / "new/folder"));
  EXPECT_TRUE(fs::is_empty(dir / "new/folder"));
}

// Three ranks save, and the second one fails the given number of times.
struct Attempts {
  std::vector<std::string> errors, warnings;
  std::vector<Saved> saved;
};
Attempts save_on_three(const TemporaryFolder& dir, int failing, SaveOptions options) {
  Attempts out;
  out.saved.resize(3);
  Ranks ranks(3);
  class Failing : public FaultyFiles {
   public:
    explicit Failing(int left) : FaultyFiles(Fault{}), left_(left) {}
    std::unique_ptr<File> create(const std::string& path, std::int64_t bytes) override {
      if (left_-- > 0) throw DataError("cannot create it: No space left on device");
      return FaultyFiles::create(path, bytes);
    }

   private:
    int left_;
  };
  out.errors = ranks.run([&](const Team& team) {
    const Axes mesh("dp=3");
    const RankState state = make_rank(one_tensor(), mesh, team.rank, true, Copies::counted, true);
    SaveOptions own = options;
    own.warn = [&](const std::string& text) { out.warnings.push_back(text); };
    if (team.rank == 1) own.files = std::make_shared<Failing>(failing);
    out.saved[static_cast<std::size_t>(team.rank)] =
        save(dir.path, describe_model(one_tensor(), 5, mesh, 2), state.shards, team, own);
  });
  return out;
}

TEST(Retries, SucceedAfterATemporarilyFullDisk) {
  const TemporaryFolder dir;
  SaveOptions options;
  options.retries = 2;
  options.retry_seconds = 0.001;
  const Attempts twice = save_on_three(dir, 2, options);
  for (const std::string& error : twice.errors) EXPECT_EQ(error, "");
  ASSERT_EQ(twice.warnings.size(), 2u);  // only from rank 0
  EXPECT_TRUE(contains(twice.warnings[0], "step 5 is not saved yet: rank 1 cannot save"))
      << twice.warnings[0];
  EXPECT_TRUE(contains(twice.warnings[1], "(2 of 2)")) << twice.warnings[1];
  Checkpoint checkpoint(dir / "step-00000005");
  EXPECT_EQ(load_and_compare(one_tensor(), checkpoint, "dp=1", true), "");
  const Attempts thrice = save_on_three(dir, 3, options);
  for (const std::string& error : thrice.errors) EXPECT_TRUE(contains(error, "No space")) << error;
  EXPECT_TRUE(contains(thrice.errors[1], "DataError")) << thrice.errors[1];
  EXPECT_TRUE(contains(thrice.errors[2], "PeerError 1")) << thrice.errors[2];
}

TEST(Retries, ReturnedFailuresAreEqualOnAllRanks) {
  const TemporaryFolder dir;
  SaveOptions options;
  options.return_failures = true;
  const Attempts once = save_on_three(dir, 1, options);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(once.errors[static_cast<std::size_t>(rank)], "");
    EXPECT_EQ(once.saved[static_cast<std::size_t>(rank)].folder, "");
    EXPECT_TRUE(contains(once.saved[static_cast<std::size_t>(rank)].failure, "No space left"));
  }
  ASSERT_EQ(once.warnings.size(), 1u);
  EXPECT_TRUE(contains(once.warnings[0], "step 5 is NOT SAVED")) << once.warnings[0];
  // An error of the caller is not retried.
  std::vector<float> values(30);
  Description about;
  about.params = {{"v", {30}}};
  const std::vector<Shard> shards = {
      {"w", "param", DType::f32, {{0, 0, 30}}, reinterpret_cast<std::byte*>(values.data())}};
  options.retries = 3;
  options.retry_seconds = 1000;  // a retry would exceed the time limit
  EXPECT_THROW(save(dir.path, about, shards, {}, options), UsageError);
}

TEST(AsyncSaver, IgnoresExceptionsOfWarnInTheDestructor) {
  const TemporaryFolder dir;
  std::vector<float> values(30);
  const std::vector<Shard> shards = {
      {"w", "param", DType::f32, {{0, 0, 30}}, reinterpret_cast<std::byte*>(values.data())}};
  int warnings = 0;
  {
    SaveOptions options;
    options.warn = [&](const std::string&) {
      ++warnings;
      throw std::runtime_error("from warn");
    };
    AsyncSaver saver(dir.path, {}, options);
    saver.start({}, shards);  // fails: the description lacks the parameter
  }
  EXPECT_EQ(warnings, 1);  // and the program continues
}

// As if the limit on threads was reached: here no thread can get a stack.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_getattr_default_np(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 50);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(AsyncSaver, ReportsAThreadThatCannotStartAndStaysUsable) {
  const TemporaryFolder dir;
  std::vector<float> values(30);
  const std::vector<Shard> shards = {
      {"w", "param", DType::f32, {{0, 0, 30}}, reinterpret_cast<std::byte*>(values.data())}};
  Description about;
  about.params = {{"w", {30}}};
  AsyncSaver saver(dir.path, {});
  {
    const NoMoreThreads none;
    EXPECT_TRUE(contains(error_of([&] { saver.start(about, shards); }), "cannot start the thread"));
  }
  EXPECT_FALSE(saver.busy());
  saver.start(about, shards);
  EXPECT_EQ(saver.wait().folder, dir / "step-00000000");
}

TEST(Export, RejectsPipesAndKeepsLinks) {
  const TemporaryFolder dir;
  Checkpoint from(save_model(one_tensor(), dir / "run", 1, "dp=1", true));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(export_model(from, dir / "pipe"), UsageError);
  EXPECT_TRUE(fs::is_fifo(dir / "pipe")) << "a file has replaced it";
  fs::create_symlink("real", dir / "link");
  export_model(from, dir / "link");
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(dir / "real")));
  const Axes mesh = {{Axis::dp_shard, 1 << 20}, {Axis::tp, 1 << 20}};
  EXPECT_THROW(reshard(from, dir / "wide", mesh), UsageError);
}

}  // namespace
}  // namespace tessera::checkpoint
