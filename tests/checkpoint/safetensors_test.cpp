#include "tessera/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/core/errors.h"
#include "tests/checkpoint/memory_file.h"
#include "tests/checkpoint/ranks.h"

namespace tessera::checkpoint {
namespace {

Header parsed(const std::string& json, std::int64_t data) { return parse_header(json, data, "f"); }

std::string refusal(const std::string& json, std::int64_t data) {
  try {
    parsed(json, data);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(Safetensors, ReadsEverythingTheFormatAllows) {
  const Header header = parsed(
      R"({"__metadata__":{"a":"b"},"y":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("x":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},)"
      R"("e":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}}   )",
      16);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0], (TensorEntry{"x", DType::f32, {}, 0, 4}));
  EXPECT_EQ(header.tensors[1], (TensorEntry{"e", DType::i64, {0, 7}, 4, 4}));
  EXPECT_EQ(header.tensors[2], (TensorEntry{"y", DType::bf16, {2, 3}, 4, 16}));
  EXPECT_EQ(header.metadata.at("a"), "b");
  EXPECT_EQ(header.find("y"), &header.tensors[2]);
  EXPECT_EQ(header.find("z"), nullptr);
  EXPECT_TRUE(parsed("{}", 0).tensors.empty());
}

TEST(Safetensors, RejectsInvalidHeaders) {
  const std::vector<std::tuple<std::string, std::int64_t, std::string>> cases = {
      {"", 0, "begin with {"},
      {" {}", 0, "begin with {"},
      {"[]", 0, "begin with {"},
      {"{", 0, "not valid JSON"},
      {"{}{}", 0, "not valid JSON"},
      {"{}", 1, "the tensors take 0 bytes"},
      {R"({"x":1})", 0, "must be described by an object"},
      {R"({"x":{}})", 0, "no dtype"},
      {R"({"x":{"dtype":"F32","shape":[1]}})", 4, "no data_offsets"},
      {R"({"x":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "dtype"},
      {R"({"x":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4, "dtype"},
      {R"({"x":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype"},
      {R"({"x":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "shape"},
      {R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "whole number"},
      {R"({"x":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "whole number"},
      {R"({"x":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4, "whole"},
      {R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "hold"},
      {R"({"x":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0, "hold"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4, "two numbers"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "take 4"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8, "take 4"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "gap"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "the file has 8"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4, "\"more\""},
      {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "overlap"},
      {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "twice"},
      {R"({"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "twice"},
      {"{\"x\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "UTF-8"},
      {R"({"__metadata__":3})", 0, "not an object"},
      {R"({"__metadata__":{"a":3}})", 0, "not a string"},
      {R"({"x":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "deeply"},
      {std::string(100000, '{'), 0, "not valid JSON"}};
  for (const auto& [json, data, wanted] : cases) {
    const std::string got = refusal(json, data);
    EXPECT_NE(got.find(wanted), std::string::npos) << json.substr(0, 200) << "\n gave: " << got;
  }
  std::string deep = "{\"x\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  EXPECT_NE(refusal(deep, 0).find("deeply"), std::string::npos);
}

TEST(Safetensors, RejectsLengthsThatDoNotFitTheFile) {
  const std::string good = header_bytes({{"x", DType::u8, {3}, 0, 3}}, {}) + "abc";
  MemoryFile file(good);
  EXPECT_EQ(read_header(file, "f").file_bytes(), static_cast<std::int64_t>(good.size()));
  for (std::size_t size = 0; size < good.size(); ++size) {
    MemoryFile cut_short(good.substr(0, size));
    EXPECT_THROW(read_header(cut_short, "f"), DataError) << size;
  }
  MemoryFile longer(good + "d");
  EXPECT_THROW(read_header(longer, "f"), DataError);
  for (int byte = 0; byte < 8; ++byte) {
    std::string changed = good;
    changed[static_cast<std::size_t>(byte)] = '\x7f';
    MemoryFile wrong(changed);
    EXPECT_THROW(read_header(wrong, "f"), DataError) << byte;
  }
}

TEST(Safetensors, WritesAndReadsManyShapes) {
  const TemporaryFolder dir;
  const auto files = local_files();
  std::vector<Outgoing> tensors;
  std::vector<std::string> contents;
  const std::vector<DType> types = {DType::u8, DType::f32, DType::bf16, DType::f64};
  for (std::size_t n = 0; n < 40; ++n) {
    const DType dtype = types[n % types.size()];
    // Also around the sizes of blocks and writes.
    const std::int64_t elements = n < 30 ? static_cast<std::int64_t>(n * n)
                                         : (std::int64_t{1} << (n - 12) % 24) + (n % 3) - 1;
    std::string bytes(static_cast<std::size_t>(elements * bytes_of(dtype)), '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + n);
    contents.push_back(bytes);
  }
  for (std::size_t n = 0; n < contents.size(); ++n) {
    const DType dtype = types[n % types.size()];
    Outgoing& out = tensors.emplace_back();
    out.entry.name = "t" + std::to_string(n);
    out.entry.dtype = dtype;
    out.entry.shape = {1, static_cast<std::int64_t>(contents[n].size()) / bytes_of(dtype)};
    const std::string* text = &contents[n];
    out.source = [text](std::int64_t offset, std::int64_t, std::byte*) {
      return reinterpret_cast<const std::byte*>(text->data()) + offset;
    };
  }
  const WrittenFile written =
      write_safetensors(*files, dir / "m.safetensors", tensors, {{"k", "ü\n\""}});
  const auto file = files->open(dir / "m.safetensors");
  EXPECT_EQ(file->size(), written.bytes);
  const Header header = read_header(*file, "m");
  EXPECT_EQ(header.metadata.at("k"), "ü\n\"");
  EXPECT_EQ(header.data_begin % kDataAlign, 0);
  ASSERT_EQ(header.tensors.size(), contents.size());
  for (const TensorEntry& tensor : header.tensors) {
    EXPECT_EQ(tensor.begin % bytes_of(tensor.dtype), 0) << "aligned";
    const std::string& wanted = contents[std::stoul(tensor.name.substr(1))];
    std::string got(static_cast<std::size_t>(tensor.bytes()), '\0');
    file->read(header.data_begin + tensor.begin, reinterpret_cast<std::byte*>(got.data()),
               tensor.bytes());
    ASSERT_TRUE(got == wanted) << tensor.name;
  }
  EXPECT_THROW(header_bytes({{"\xff", DType::u8, {0}, 0, 0}}, {}), UsageError);
}

}  // namespace
}  // namespace tessera::checkpoint
