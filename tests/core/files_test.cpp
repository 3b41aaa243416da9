#include "tessera/core/files.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tessera/core/errors.h"
#include "tests/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string refusal(const std::string& path) {
    try {
      open_regular(path, "a small wish");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path;
};

TEST_F(Files, ReadsTheWholeText) {
  const std::string text("a\0b\n\xff and more", 13);
  EXPECT_EQ(read_small_file(file("some", text), 100), text);
  EXPECT_EQ(read_small_file(file("none", ""), 0), "");
  const std::string long_text(200'000, 'x');  // more than one read
  EXPECT_EQ(read_small_file(file("long", long_text), 200'000), long_text);
}

TEST_F(Files, ReadsFilesThatReportSizeZero) {
  if (kind_of_file("/proc/self/status") == "nothing") GTEST_SKIP() << "needs /proc";
  EXPECT_NE(read_small_file("/proc/self/status", 1 << 20).find("Pid:"), std::string::npos);
  EXPECT_THROW(read_small_file("/proc/self/status", 10), DataError);
}

TEST_F(Files, ReportsTheSizeAndTheLimitOfALongFile) {
  const std::string name = file("big", std::string(4097, 'x'));
  try {
    read_small_file(name, 4096, "a TOML file");
    FAIL() << "4097 bytes were read";
  } catch (const DataError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("4097 bytes"), std::string::npos) << what;
    EXPECT_NE(what.find("a TOML file of at most 4 KiB"), std::string::npos) << what;
  }
  // Nothing is read, however large the file is.
  fs::resize_file(name, std::uintmax_t{1} << 40);
  EXPECT_THROW(read_small_file(name, 4096), DataError);
}

TEST_F(Files, RejectsOtherKindsOfFilesWithoutBlocking) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path("sock").copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  fs::create_symlink(folder_, path("link"));

  const auto refused_as = [&](const std::string& name, const std::string& kind) {
    EXPECT_EQ(kind_of_file(name), kind);
    const std::string what = refusal(name);
    EXPECT_NE(what.find(" is " + kind + "; must be a small wish"), std::string::npos) << what;
  };
  refused_as(path("pipe"), "a pipe");
  refused_as(folder_, "a folder");
  refused_as(path("link"), "a folder");
  refused_as(path("sock"), "a socket");
  refused_as("/dev/null", "a character device");
}

TEST_F(Files, ReportsMissingFiles) {
  EXPECT_EQ(kind_of_file(path("gone")), "nothing");
  EXPECT_NE(refusal(path("gone")).find("No such file"), std::string::npos);
  EXPECT_NE(refusal("").find("No such file"), std::string::npos);
  EXPECT_NE(refusal(file("plain", "x") + "/below").find("Not a directory"), std::string::npos);
  EXPECT_EQ(refusal(file("plain", "x")), "");
}

}  // namespace
}  // namespace tessera
