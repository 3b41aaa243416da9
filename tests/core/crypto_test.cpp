#include "tessera/core/crypto.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace tessera {
namespace {

TEST(Sha256, MatchesThePublishedDigests) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesAreSplit) {
  for (std::size_t length = 0; length < 200; ++length) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>(i * 7 + length);
    Sha256 pieces;
    for (std::size_t at = 0, step = 1; at < length; at += step, step = step % 67 + 1) {
      pieces.add(std::string_view(text).substr(at, step));
    }
    EXPECT_EQ(to_hex(pieces.finish()), to_hex(sha256(text))) << length;
  }
}

// RFC 4231: a short key, a text longer than a block, and a key longer than a block.
TEST(Hmac, MatchesThePublishedCodes) {
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(131, '\xaa'),
                               "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(RandomBytes, DifferBetweenCallsAndAfterFork) {
  EXPECT_EQ(random_bytes(0), "");
  const std::string first = random_bytes(32), second = random_bytes(32);
  EXPECT_EQ(first.size(), 32u);
  EXPECT_NE(first, second);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string bytes = random_bytes(32);
    _exit(write(ends[1], bytes.data(), bytes.size()) == 32 ? 0 : 1);
  }
  std::string of_child(32, '\0');
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_EQ(read(ends[0], of_child.data(), of_child.size()), 32);
  EXPECT_NE(of_child, random_bytes(32));
  close(ends[0]);
  close(ends[1]);
}

TEST(Hmac, DetectsAnyChangedBit) {
  const Digest right = hmac_sha256("key", "text");
  EXPECT_TRUE(equal_in_constant_time(right, hmac_sha256("key", "text")));
  for (std::size_t bit = 0; bit < 256; ++bit) {
    Digest wrong = right;
    wrong[bit / 8] = static_cast<std::uint8_t>(wrong[bit / 8] ^ 1u << bit % 8);
    EXPECT_FALSE(equal_in_constant_time(right, wrong)) << bit;
  }
}

}  // namespace
}  // namespace tessera
