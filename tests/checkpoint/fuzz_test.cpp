// Damaged and forged files cause an error or load the right data, never a crash or wrong data.

#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "tessera/core/errors.h"
#include "tests/checkpoint/fuzz.h"
#include "tests/checkpoint/ranks.h"
#include "tests/sanitized.h"
#include "tests/text.h"

namespace tessera::checkpoint {
namespace {

TEST(Damage, VerifyFindsEveryChangedByte) {
  const Model model = tiny_model();
  const TemporaryFolder dir;
  const std::string folder = save_model(model, dir.path, 1, "dp=2", true);
  int flips = 0, refused = 0;
  for (const std::string& name : local_files()->list(folder)) {
    const std::string path = folder + "/" + name;
    const std::string good = read_all(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (std::size_t at = 0; at < good.size(); at += tessera::testing::kSanitized ? 5 : 1) {
      const auto put = [&](char c) {
        file.seekp(static_cast<std::streamoff>(at));
        file.put(c);
        file.flush();
      };
      put(static_cast<char>(good[at] ^ (1 << at % 8)));
      ++flips;
      try {
        Checkpoint checkpoint(folder);
        const bool found = !checkpoint.verify().empty();
        ASSERT_TRUE(found) << name << " byte " << at << ": verify found nothing";
        ASSERT_EQ(load_and_compare(model, checkpoint, "dp=1", true), "") << name << " " << at;
      } catch (const DataError& error) {
        ++refused;
        ASSERT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
      put(good[at]);
    }
  }
  std::cout << flips << " bytes flipped, " << refused << " refused by load, all by verify\n";
  EXPECT_EQ(load_and_compare(model, *std::make_unique<Checkpoint>(folder), "dp=1", true), "");
}

// Sanitizers make each input much slower, so they run fewer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kShare = 10;
#else
constexpr int kShare = 1;
#endif

TEST(Fuzz, HeadersNeverCrash) { fuzz_headers(100'000 / kShare, 1); }
TEST(Fuzz, ManifestsNeverCrash) { fuzz_manifests(10'000 / kShare, 2); }

}  // namespace
}  // namespace tessera::checkpoint
