// Published files appear complete or not at all, and never replace a device.

#include "tessera/core/publish.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tests/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class Publish : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(at(name), std::ios::binary) << text;
  }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static std::string error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path;
};

TEST_F(Publish, CreatesOrReplacesAFileAndKeepsItsMode) {
  publish(at("new"), "first");
  EXPECT_EQ(read(at("new")), "first");
  ::chmod(at("new").c_str(), 0640);
  publish(at("new"), "second");
  EXPECT_EQ(read(at("new")), "second");
  struct stat info {};
  ASSERT_EQ(::stat(at("new").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Publish, ReplacesTheTargetOfALink) {
  fs::create_directory(at("far"));
  fs::create_symlink("far/target", at("link"));  // its target does not exist yet
  fs::create_symlink("link", at("link-to-link"));
  publish(at("link-to-link"), "text");
  EXPECT_TRUE(fs::is_symlink(at("link")) && fs::is_symlink(at("link-to-link")));
  EXPECT_EQ(read(at("far/target")), "text");
  fs::create_symlink("loop", at("loop"));
  EXPECT_NE(error_of([&] { publish(at("loop"), "x"); }).find("too many"), std::string::npos);
}

// A private device node: root could replace it, so the test must not use the one in /dev.
std::string own_device(const std::string& path, unsigned minor_number) {
  if (::mknod(path.c_str(), S_IFCHR | 0666, makedev(1, minor_number)) != 0) return "";
  return Fd(::open(path.c_str(), O_WRONLY)).open() ? path : "";
}

TEST_F(Publish, WritesToDevicesWithoutReplacingThem) {
  const std::string full = own_device(at("full"), 7), null = own_device(at("null"), 3);
  if (full.empty() || null.empty()) GTEST_SKIP() << "needs permission to create devices";
  const std::string error = error_of([&] { publish(full, "12345"); });
  EXPECT_NE(error.find("5 bytes"), std::string::npos) << error;
  EXPECT_NE(error.find("No space left"), std::string::npos) << error;
  EXPECT_NE(error.find("free some space"), std::string::npos) << error;
  EXPECT_NO_THROW(publish(null, "gone"));
  EXPECT_NO_THROW(check_publishable(null, "--trace"));
  EXPECT_NE(error_of([&] { check_publishable(full, "--trace"); }).find("No space left"),
            std::string::npos);
  for (const std::string& path : {full, null}) {
    EXPECT_TRUE(fs::is_character_file(path)) << "a file has replaced " << path;
  }
}

TEST_F(Publish, WritesToPipesWithoutReplacingThem) {
  struct stat info {};
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  const std::string alone = error_of([&] { publish(at("pipe"), "x"); });  // and does not block
  EXPECT_NE(alone.find("no process reads"), std::string::npos) << alone;
  const Fd reader(::open(at("pipe").c_str(), O_RDONLY | O_NONBLOCK));
  ASSERT_TRUE(reader.open());
  fs::create_symlink("pipe", at("link"));
  publish(at("link"), "through");
  char got[16] = {};
  EXPECT_EQ(::read(reader.get(), got, sizeof got), 7);
  EXPECT_STREQ(got, "through");
  ASSERT_EQ(::lstat(at("pipe").c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
}

TEST_F(Publish, WritesToAnOpenDescriptorAtItsPosition) {
  const Fd file(::open(at("out").c_str(), O_WRONLY | O_CREAT, 0600));
  ASSERT_EQ(::write(file.get(), "before ", 7), 7);
  publish("/dev/fd/" + std::to_string(file.get()), "between");
  ASSERT_EQ(::write(file.get(), " after", 6), 6);
  EXPECT_EQ(read(at("out")), "before between after");
}

TEST_F(Publish, RejectsFoldersAndInvalidPaths) {
  EXPECT_NE(error_of([&] { publish(folder_.string(), "x"); }).find("is a folder"),
            std::string::npos);
  EXPECT_NE(error_of([&] { publish(at("no/file"), "x"); }).find("the folder must exist"),
            std::string::npos);
  EXPECT_NE(error_of([&] { publish("", "x"); }).find("must not be empty"), std::string::npos);
  EXPECT_NE(error_of([&] { check_publishable(at("no/file"), "--trace"); }).find("--trace: "),
            std::string::npos);
  // A folder in which no file can be created, whatever its mode is.
  EXPECT_NE(error_of([&] { check_publishable("/proc/here", "--trace"); }).find("--trace: "),
            std::string::npos);
  EXPECT_NO_THROW(check_publishable(at("file"), "--trace"));
  EXPECT_TRUE(fs::is_empty(folder_)) << "the check left a file behind";
}

TEST_F(Publish, AFileSizeLimitLeavesTheOldFileAndNoDraft) {
  write("file", "old");
  const pid_t child = ::fork();
  if (child == 0) {  // the limit applies to the process
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { publish(at("file"), std::string(5000, 'x')); });
    ::_exit(error.find("cannot write 5000 bytes") != std::string::npos &&
                    error.find("ulimit -f") != std::string::npos
                ? 0
                : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(at("file")), "old");
  EXPECT_EQ(entries(), 1u);
}

}  // namespace
}  // namespace tessera
