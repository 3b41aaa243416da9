#include "tessera/dashboard/guard.h"

#include <gtest/gtest.h>

namespace tessera::dashboard {
namespace {

TEST(Guard, HostOfRemovesThePort) {
  EXPECT_EQ(host_of("localhost:80"), "localhost");
  EXPECT_EQ(host_of("LocalHost."), "localhost");
  EXPECT_EQ(host_of("[::1]:80"), "::1");
  EXPECT_EQ(host_of("[::1]x"), "");
  for (const char* none :
       {"::1", "", "127.0.0.1:80.evil", "127.0.0.1:evil", "127.0.0.1:", "127.0.0.1:-1", "a:65536",
        "a:80:80", "[localhost]", "[127.0.0.1]:80", "[::1]:evil", "[::1", "localhost/evil",
        "user@localhost", "localhost evil", "a,localhost"}) {
    EXPECT_EQ(host_of(none), "") << none;
  }
}

TEST(Guard, RecognizesLoopbackAddresses) {
  for (const char* here : {"127.0.0.1", "127.9.9.9", "::1"}) EXPECT_TRUE(is_loopback(here)) << here;
  for (const char* elsewhere : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost", ""}) {
    EXPECT_FALSE(is_loopback(elsewhere)) << elsewhere;
  }
}

TEST(Guard, AcceptsAnyNumericHostWhenListeningOnAllAddresses) {
  GuardOptions options;
  options.any_number = true;
  options.hosts = {"named.example"};
  Request head;
  for (const char* good : {"192.168.1.2:80", "[fe80::1]:80", "named.example"}) {
    head.headers["host"] = good;
    EXPECT_FALSE(refuse_stranger(options, head)) << good;
  }
  for (const char* bad : {"evil.example", "1.2.3.4.evil.example", ""}) {
    head.headers["host"] = bad;
    EXPECT_TRUE(refuse_stranger(options, head)) << bad;
  }
}

}  // namespace
}  // namespace tessera::dashboard
