// tessera dashboard and tessera train --dashboard as programs.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tessera/core/fd.h"
#include "tests/dashboard/client.h"
#include "tests/processes.h"
#include "tests/text.h"

namespace tessera::dashboard {
namespace {

// Returns the port of the printed address; 0 while there is none.
int port_in(const std::string& text) {
  const std::string before = "Tessera's dashboard: http://127.0.0.1:";
  const std::size_t at = text.find(before);
  if (at == std::string::npos || text.find('\n', at) == std::string::npos) return 0;
  return std::atoi(text.c_str() + at + before.size());
}

bool listens(int port) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

TEST(DashboardProgram, ServesUntilASignal) {
  const Capture out, err;
  Child server([&] {
    ::dup2(out.fd(), 1);
    ::dup2(err.fd(), 2);
    ::execl(TESSERA_PROGRAM, TESSERA_PROGRAM, "dashboard", nullptr);
    return 127;
  });
  ASSERT_TRUE(wait_until([&] { return port_in(out.text()) > 0; })) << err.text();
  EXPECT_EQ(get(port_in(out.text()), "/api/about").status, 200);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << err.text();
}

TEST(DashboardProgram, RefusesPublicAddressesWithoutAToken) {
  Capture out, err;
  EXPECT_EQ(execute({TESSERA_PROGRAM, "dashboard", "--address", "0.0.0.0"}, out, err), 2);
  EXPECT_TRUE(contains(err.text(), "--token")) << err.text();
  EXPECT_EQ(execute({TESSERA_PROGRAM, "dashboard", "--token", "short"}, out, err), 2);
  EXPECT_EQ(execute({TESSERA_PROGRAM, "dashboard", "--runs", "/dev/null"}, out, err), 2);
}

TEST(DashboardProgram, DashboardOfARunEndsWithTheRun) {
  if (!TESSERA_WITH_TORCH) GTEST_SKIP() << "built without torch";
  const Capture out, err;
  Child run([&] {
    ::dup2(out.fd(), 1);
    ::dup2(err.fd(), 2);
    ::execl(TESSERA_PROGRAM, TESSERA_PROGRAM, "train", "--dashboard", "--ranks", "1", "--steps",
            "1000000", "--micro-batch", "1", "--samples", "0", nullptr);
    return 127;
  });
  ASSERT_TRUE(wait_until([&] { return port_in(err.text()) > 0; })) << err.text();
  const int port = port_in(err.text());
  const auto runs = [&] { return get(port, "/api/runs").body; };
  EXPECT_TRUE(wait_until([&] { return contains(runs(), "\"state\":\"running\""); })) << runs();
  EXPECT_TRUE(contains(runs(), "\"model\":\"gpt-tiny\"")) << "what run it is, from its first line";
  run.signal(SIGKILL);
  run.wait();
  EXPECT_TRUE(wait_until([&] { return !listens(port); })) << "it is still there";
}

}  // namespace
}  // namespace tessera::dashboard
