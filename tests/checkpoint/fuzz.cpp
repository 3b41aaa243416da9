#include "tests/checkpoint/fuzz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tests/checkpoint/memory_file.h"
#include "tests/checkpoint/ranks.h"

namespace tessera::checkpoint {
namespace {

// Mutational fuzzer: changes, moves and repeats bytes, numbers and words of the format.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed, 5) {}
  std::uint32_t below(std::size_t n) {
    return n == 0 ? 0 : random_.bits(counter_++) % static_cast<std::uint32_t>(n);
  }
  std::string mutate(std::string text) {
    static const std::vector<std::string> words = {"0",
                                                   "1",
                                                   "-1",
                                                   "4",
                                                   "8",
                                                   "16",
                                                   "9223372036854775807",
                                                   "9223372036854775808",
                                                   "18446744073709551615",
                                                   "18446744073709551616",
                                                   "1e3",
                                                   "1.5",
                                                   "4294967296",
                                                   "null",
                                                   "true",
                                                   "{}",
                                                   "[]",
                                                   "[[]]",
                                                   "\"\"",
                                                   "\"F32\"",
                                                   "\"BF16\"",
                                                   "\"shape\"",
                                                   "\"dtype\"",
                                                   "\"data_offsets\"",
                                                   "\"__metadata__\"",
                                                   "\"cuts\"",
                                                   "\"axis\"",
                                                   "\"tp\"",
                                                   "\"pp\"",
                                                   "\"dp\"",
                                                   "\"ep\"",
                                                   "\"tp_dim\"",
                                                   "\xff",
                                                   "\xc3\x28",
                                                   "\\u0000",
                                                   "\\ud800",
                                                   "{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   " ",
                                                   "\n",
                                                   std::string(1, '\0')};
    const std::uint32_t rounds = 1 + below(4);
    for (std::uint32_t i = 0; i < rounds; ++i) {
      const std::size_t at = below(text.size() + 1);
      const std::size_t size = std::min<std::size_t>(below(12), text.size() - at);
      switch (below(7)) {
        case 0:
          if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 1:
          if (at < text.size()) text[at] = static_cast<char>(below(256));
          break;
        case 2: text.erase(at, size); break;
        case 3: text.insert(at, words[below(words.size())]); break;
        case 4: text.insert(at, text.substr(below(text.size() + 1), below(80))); break;
        case 5: {  // replaces a number
          const std::size_t digit = text.find_first_of("0123456789", at);
          if (digit == std::string::npos) break;
          const std::size_t end = text.find_first_not_of("0123456789", digit);
          text.replace(digit, end == std::string::npos ? end : end - digit, words[below(13)]);
          break;
        }
        default: {  // replaces a word
          const std::size_t begin = text.find('"', at);
          if (begin == std::string::npos) break;
          const std::size_t end = text.find('"', begin + 1);
          if (end != std::string::npos) {
            text.replace(begin, end + 1 - begin, words[below(words.size())]);
          }
        }
      }
    }
    return text;
  }

 private:
  Philox random_;
  std::uint64_t counter_ = 0;
};

// Checks the consistency of an accepted header.
void expect_sound(const Header& header, std::int64_t data_bytes) {
  std::int64_t at = 0;
  for (const TensorEntry& tensor : header.tensors) {
    ASSERT_EQ(tensor.begin, at);
    ASSERT_GE(tensor.end, tensor.begin);
    ASSERT_EQ(tensor.bytes(), elements_of(tensor.shape) * bytes_of(tensor.dtype));
    at = tensor.end;
  }
  ASSERT_EQ(at, data_bytes);
}

}  // namespace

void fuzz_headers(int count, std::uint64_t seed) {
  const std::vector<std::string> seeds = {
      header_bytes({{"a", DType::f32, {2, 2}, 0, 16}, {"b", DType::bf16, {}, 16, 18}},
                   {{"k", "v"}}),
      header_bytes({{"x", DType::u8, {0}, 0, 0}}, {}), header_bytes({}, {{"a", ""}})};
  const std::vector<std::int64_t> data = {18, 0, 0};
  Mutator mutator(seed);
  int accepted = 0;
  for (int i = 0; i < count; ++i) {
    const std::size_t which = mutator.below(seeds.size());
    // Without most of the padding, which is not interesting; with a right or wrong length.
    std::string json = seeds[which].substr(8);
    json.resize(json.find_last_not_of(' ') + 1);
    json = mutator.mutate(json);
    std::string file(8, '\0');
    std::uint64_t length = json.size();
    if (mutator.below(16) == 0) length ^= std::uint64_t{1} << mutator.below(64);
    std::memcpy(file.data(), &length, 8);
    file += json;
    file.append(static_cast<std::size_t>(data[which]), 'd');
    MemoryFile memory(file);
    try {
      const Header header = read_header(memory, "f");
      ++accepted;
      expect_sound(header, memory.size() - header.data_begin);
      if (::testing::Test::HasFatalFailure()) FAIL() << file;
    } catch (const DataError&) {
    }
  }
  std::cout << count << " headers, " << accepted << " accepted\n";
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, count / 2);
}

// Manifests with a correct checksum, so that the rest is parsed.
void fuzz_manifests(int count, std::uint64_t seed) {
  const Model model = tiny_model();
  const TemporaryFolder dir;
  const std::string folder = save_model(model, dir.path, 1, "dp=2", true);
  const std::string path = folder + "/manifest.json";
  const std::string good = read_text(*local_files(), path, 1 << 20);
  const std::size_t begin = kChecksumBefore.size() + kChecksumDigits + kChecksumAfter.size();
  // The same in the format of version 1.
  std::string old = good.substr(begin);
  for (const auto& [now, before] :
       {std::pair<std::string, std::string>{"\"version\": 2", "\"version\": 1"},
        {R"("cuts":[{"axis":"tp","dim":0,"segments":[[4,2],[2,1]]}])",
         R"("tp_dim":0,"segments":[[4,2],[2,1]])"}}) {
    ASSERT_NE(old.find(now), std::string::npos) << now;
    old.replace(old.find(now), now.size(), before);
  }
  Mutator mutator(seed);
  int accepted = 0, loaded = 0;
  for (int i = 0; i < count; ++i) {
    const std::string body = mutator.mutate(i % 4 == 0 ? old : good.substr(begin));
    const std::string text = str(kChecksumBefore, to_hex({crc32c(body)}), kChecksumAfter, body);
    try {
      const Manifest manifest = parse_manifest(text, "m");
      ++accepted;
      for (const StoredFile& file : manifest.files) {
        for (const StoredTensor& tensor : file.tensors) {
          ASSERT_LE(tensor.elements() * bytes_of(tensor.dtype), file.bytes);
        }
      }
      check_complete(manifest, "m");
      if (accepted % 5 != 0) continue;
      // Whatever the manifest contains, loading fails or reads bytes with correct checksums.
      write_text(*local_files(), path + ".new", text);
      local_files()->rename(path + ".new", path);
      Checkpoint checkpoint(folder);
      load_and_compare(model, checkpoint, "dp=1", true);
      ++loaded;
    } catch (const DataError&) {
    }
  }
  std::cout << count << " manifests, " << accepted << " accepted, " << loaded << " loaded\n";
  EXPECT_GT(accepted, 0);
}

}  // namespace tessera::checkpoint
