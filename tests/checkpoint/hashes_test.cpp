#include "tessera/checkpoint/hashes.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "tessera/core/errors.h"
#include "tests/checkpoint/hostile.h"
#include "tests/checkpoint/ranks.h"

namespace tessera::checkpoint {
namespace {

class Hashes : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = save_model(small_model(), dir_ / "run", 3, "dp=2", true); }
  std::vector<FileHash> hashes() const { return hash_files(Checkpoint(folder_), *local_files()); }
  std::vector<std::string> differences(const std::string& list) const {
    return compare_hashes(hashes(), parse_hashes(list, "list"), folder_, "list");
  }
  TemporaryFolder dir_;
  std::string folder_;
};

TEST_F(Hashes, ListsAreCompatibleWithSha256sum) {
  if (::system("sha256sum --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "needs sha256sum";
  const std::string list = dir_ / "list";
  std::ofstream(list) << to_text(hashes());
  const std::string check = "cd " + folder_ + " && sha256sum --strict -c " + list + " > /dev/null";
  EXPECT_EQ(::system(check.c_str()), 0);
  const std::string make = "cd " + dir_.path + "/run && sha256sum step-*/* > " + list;
  ASSERT_EQ(::system(make.c_str()), 0);
  EXPECT_EQ(differences(read_text(*local_files(), list, 1 << 20)), std::vector<std::string>{});
}

TEST_F(Hashes, DetectForgeryThatChecksumsMiss) {
  const std::string before = to_text(hashes());
  EXPECT_EQ(differences(before), std::vector<std::string>{});
  // Another layout with the right checksum: verify cannot detect it.
  std::string body = manifest_body(folder_);
  body.replace(body.find("\"bf16\""), 6, "\"fp32\"");
  write_manifest(folder_, sealed(body));
  EXPECT_EQ(Checkpoint(folder_).verify(), std::vector<std::string>{});
  const std::vector<std::string> found = differences(before);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("manifest.json was changed"), std::string::npos) << found[0];
}

TEST_F(Hashes, NameFilesMissingOnEitherSide) {
  const std::string list = to_text(hashes());
  const std::size_t second = list.find('\n') + 1;
  const auto without_first = differences(list.substr(second));
  ASSERT_EQ(without_first.size(), 1u);
  EXPECT_NE(without_first[0].find("manifest.json is not in list"), std::string::npos);
  const auto one_more = differences(list + std::string(64, '0') + "  rank-00009.safetensors\n");
  ASSERT_EQ(one_more.size(), 1u);
  EXPECT_NE(one_more[0].find("rank-00009.safetensors is in list"), std::string::npos);
  // Lines of other checkpoints are ignored.
  const std::string other = std::string(64, '0') + "  step-00000009/manifest.json\n";
  EXPECT_EQ(differences(list + other), std::vector<std::string>{});
  EXPECT_NE(differences(other)[0].find("another checkpoint"), std::string::npos);
}

TEST_F(Hashes, RejectInvalidListsWithTheLine) {
  const std::string hash(64, 'a');
  for (const std::string& text :
       {std::string("x"), hash, hash + " x", hash + "  ", std::string(64, 'A') + "  x",
        hash + "  x\n" + hash + "  ./x", std::string(63, 'a') + "   x"}) {
    EXPECT_THROW(parse_hashes(text, "list"), DataError) << text;
  }
  EXPECT_EQ(parse_hashes(hash + " *a\r\n\n" + hash + "  b c", "list")[1].path, "b c");
}

}  // namespace
}  // namespace tessera::checkpoint
