// Sources of a job's secret, and the addresses at which a job listens.

#include "tessera/comm/secret.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tessera/comm/address.h"
#include "tessera/comm/store_client.h"
#include "tests/comm/strangers.h"
#include "tests/temporary_folder.h"

namespace tessera::comm {
namespace {

using namespace testing;

class Folder : public TemporaryFolder {
 public:
  std::string file(const std::string& name, const std::string& text, mode_t mode) const {
    std::ofstream(*this / name, std::ios::binary) << text;
    chmod((*this / name).c_str(), mode);
    return *this / name;
  }
};

TEST(Secret, IsPassedInASealedDescriptor) {
  const std::string secret = random_secret();
  EXPECT_EQ(secret.size(), 32u);
  EXPECT_NE(secret, random_secret());
  const Fd fd = secret_descriptor(secret);
  EXPECT_GT(fd.get(), 2);
  fcntl(fd.get(), F_SETFD, 0);  // inheritable, as the launcher passes it
  EXPECT_EQ(read_secret_descriptor(fd.get()), secret);
  EXPECT_EQ(read_secret_descriptor(fd.get()), secret) << "init() may be called again";
  EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC)
      << "programs that the rank starts must not inherit it";
  EXPECT_LT(pwrite(fd.get(), "x", 1, 0), 0);
  EXPECT_LT(ftruncate(fd.get(), 0), 0);
  struct stat info {};
  fstat(fd.get(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0400u);
}

TEST(Secret, RejectsADescriptorWithoutASecret) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const Fd read_end(pipe_ends[0]), write_end(pipe_ends[1]);
  const Fd small = secret_descriptor("too short");
  for (const int fd : {read_end.get(), small.get(), 987'654}) {
    const std::string text = message_of<UsageError>([&] { read_secret_descriptor(fd); });
    EXPECT_TRUE(contains(text, "TESSERA_SECRET_FD is " + std::to_string(fd))) << text;
  }
}

TEST(Secret, RejectsUnsafeFiles) {
  const Folder folder;
  const std::string bytes(16, '\0');
  EXPECT_EQ(read_secret_file(folder.file("good", bytes, 0600)), bytes);
  EXPECT_EQ(read_secret_file(folder.file("stricter", bytes, 0400)), bytes);
  mkfifo((folder / "fifo").c_str(), 0600);
  std::vector<std::pair<std::string, std::string>> cases = {
      {folder.file("open", bytes, 0644), "has mode 0644; must be 0600"},
      {folder.file("group", bytes, 0620), "has mode 0620"},
      {folder.file("short", bytes.substr(1), 0600), "has 15 bytes; must be 16"},
      {folder.file("long", std::string(5000, 'x'), 0600), "has 5000 bytes"},
      {folder.path, "is not a regular file"},
      {folder / "fifo", "is not a regular file"},
      {folder / "absent", "cannot be read: No such file"}};
  if (geteuid() == 0) {
    const std::string other = folder.file("other", bytes, 0600);
    ASSERT_EQ(chown(other.c_str(), kNobody, kNobody), 0);
    cases.emplace_back(other, "belongs to user 65534; must belong to user 0");
  }
  for (const auto& [path, why] : cases) {
    const std::string text = message_of<UsageError>([&] { read_secret_file(path); });
    EXPECT_TRUE(contains(text, why)) << text;
    EXPECT_TRUE(contains(text, "head -c 32 /dev/urandom > ")) << text;
  }
}

TEST(Secret, IsSharedOnlyByRanksOfOneUser) {
  const std::string name = "tessera-test-" + random_token();
  std::vector<std::future<std::string>> ranks;
  const auto start = [&](int rank) {
    ranks.push_back(std::async(std::launch::async,
                               [&name, rank] { return agree_on_secret(name, rank, 3, kHang); }));
  };
  start(0);
  const Fd silent = call_unix(name);
  start(1);  // rank 2 has not started yet, so rank 0 still listens
  if (geteuid() == 0) {
    const int heard = as_nobody([&] {
      const Fd socket = call_unix(name);
      const std::int32_t rank_and_size[] = {2, 3};
      send_all(socket, rank_and_size, sizeof(rank_and_size));
      char byte = 0;
      return receive_all(socket, &byte, 1, hang()) ? 1 : 0;
    });
    EXPECT_EQ(heard, 0);
  }
  start(2);
  const std::string secret = ranks[0].get();
  EXPECT_EQ(secret.size(), kSecretBytes);
  EXPECT_EQ(ranks[1].get(), secret);
  EXPECT_EQ(ranks[2].get(), secret);
}

TEST(Secret, NamesRanksThatDoNotFetchTheSecret) {
  const std::string text =
      message_of<PeerError>([] { agree_on_secret("tessera-test-" + random_token(), 0, 3, 1ms); });
  EXPECT_TRUE(contains(text, "rank 1, 2")) << text;
  const std::string other =
      message_of<PeerError>([] { agree_on_secret("tessera-test-" + random_token(), 1, 3, 1ms); });
  EXPECT_TRUE(contains(other, "from rank 0")) << other;
}

TEST(Secret, ReportsDuplicateRanksAndDifferentSizes) {
  const std::string name = "tessera-test-" + random_token();
  auto first =
      std::async(std::launch::async, [&name] { return agree_on_secret(name, 0, 3, kHang); });
  auto second =
      std::async(std::launch::async, [&name] { return agree_on_secret(name, 1, 3, kHang); });
  const std::string secret = second.get();
  const std::string taken = message_of<UsageError>([&] { agree_on_secret(name, 1, 3, kHang); });
  EXPECT_TRUE(contains(taken, "another process of this job is rank 1 already")) << taken;
  const std::string zero = message_of<UsageError>([&] { agree_on_secret(name, 0, 3, kHang); });
  EXPECT_TRUE(contains(zero, "rank 0 of this job runs already")) << zero;
  const std::string size = message_of<UsageError>([&] { agree_on_secret(name, 3, 4, kHang); });
  EXPECT_TRUE(contains(size, "WORLD_SIZE 4 and rank 0 with 3")) << size;
  EXPECT_EQ(agree_on_secret(name, 2, 3, kHang), secret);
  EXPECT_EQ(first.get(), secret);
}

// Returns the text that `body` writes to stderr.
std::string reported(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

TEST(JoinNotice, ListsJoinedAndMissingRanks) {
  EXPECT_EQ(ranks_text({}), "none");
  EXPECT_EQ(ranks_text({0, 1, 3, 4, 5, 9}), "0, 1, 3 to 5, 9");
  const std::string name = "tessera-test-" + random_token();
  const std::string zero = reported([&] {
    auto other = std::async(std::launch::async, [&] { agree_on_secret(name, 1, 4, kHang); });
    message_of<PeerError>([&] { agree_on_secret(name, 0, 4, 3s, 300ms); });
    other.get();
  });
  EXPECT_TRUE(contains(zero, "tessera: rank 0 has waited ")) << zero;
  EXPECT_TRUE(contains(zero, "Of 4, joined: 0, 1; missing: 2, 3. Start the missing ranks")) << zero;
  const std::string one =
      reported([&] { message_of<PeerError>([&] { agree_on_secret(name, 1, 4, 300ms, 100ms); }); });
  EXPECT_TRUE(contains(one, "for rank 0, which has not started")) << one;
}

TEST(JoinNotice, IsReportedByTheLowestWaitingRank) {
  MemoryStore store;
  PeersOptions options;
  options.timeout = 3s;
  options.notice = 300ms;
  const std::string text = reported([&] {
    auto second = start_rank(store, 1, 6, options);
    store.get("peers/1", kHang);
    auto fourth = start_rank(store, 3, 6, options);
    message_of<Error>([&] { second.get(); });
    message_of<Error>([&] { fourth.get(); });
  });
  EXPECT_TRUE(contains(text, "tessera: rank 1 has waited ")) << text;
  EXPECT_TRUE(contains(text, "Of 6, joined: 1, 3; missing: 0, 2, 4, 5.")) << text;
  EXPECT_FALSE(contains(text, "rank 3 has waited")) << text;
}

TEST(JoinNotice, ReportsAnUnreachableStore) {
  std::uint16_t port = 0;
  { const Fd listener = listen_tcp("127.0.0.1", port); }  // now closed
  StoreClientOptions options{{"127.0.0.1"}, port, "secret", "run", 2, 3, 500ms, 100ms};
  const std::string text = reported([&] { message_of<Error>([&] { connect_store(options); }); });
  EXPECT_TRUE(contains(text, " for the rendezvous store at 127.0.0.1 port ")) << text;
}

TEST(Secret, IsNotAcceptedFromAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string name = "tessera-test-" + random_token();
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t pid = fork();
  if (pid == 0) {  // another user listens in rank 0's place
    if (setuid(kNobody) != 0) _exit(1);
    const Fd listener = listen_unix(name, 4);
    char byte = 0;
    close(done[1]);
    _exit(write(ready[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(done[0]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const std::string text = message_of<Error>([&] { agree_on_secret(name, 1, 2, kHang); });
  EXPECT_TRUE(contains(text, "another user")) << text;
  close(done[1]);
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(Address, ResolvesInterfacesAndRoutes) {
  EXPECT_EQ(interface_address("lo"), "127.0.0.1");
  EXPECT_EQ(interface_address("192.0.2.7"), "192.0.2.7");
  const std::string text = message_of<UsageError>([] { interface_address("lol"); });
  EXPECT_TRUE(contains(text, "available: ") && contains(text, "lo")) << text;
  EXPECT_EQ(address_towards("127.0.0.1"), "127.0.0.1");
  message_of<UsageError>([] { address_towards("nonsense"); });
  message_of<UsageError>([] { resolve("no such host"); });
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("192.0.2.1"));
  EXPECT_FALSE(is_loopback(""));
}

TEST(Address, StoreAddressIsReachableByOtherHosts) {
  EXPECT_EQ(store_address("127.0.0.1", "", false), "127.0.0.1");
  EXPECT_EQ(store_address("127.0.0.1", "", true), "127.0.0.1")
      << "an explicit loopback address is accepted";
  EXPECT_EQ(store_address("192.0.2.9", "", true), "192.0.2.9");
  EXPECT_EQ(store_address("no such host", "lo", true), "127.0.0.1")
      << "the interface takes precedence";
}

}  // namespace
}  // namespace tessera::comm
