// The Python package safetensors reads our files, and we read its files.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "tessera/checkpoint/reshard.h"
#include "tessera/checkpoint/safetensors_writer.h"
#include "tests/checkpoint/ranks.h"

namespace tessera::checkpoint {
namespace {

constexpr const char* kPython = TESSERA_VENV_PYTHON;

// Returns the output of a shell command and its success.
bool shell(const std::string& command, const std::string& log, std::string& text) {
  const int status = ::system((command + " >" + log + " 2>&1").c_str());
  std::ifstream in(log);
  std::ostringstream all;
  all << in.rdbuf();
  text = all.str();
  return status == 0;
}

using Contents = std::map<std::string, std::pair<TensorEntry, std::string>>;
Contents contents_of(const std::string& path) {
  Contents out;
  const auto file = local_files()->open(path);
  const Header header = read_header(*file, path);
  for (TensorEntry entry : header.tensors) {
    std::string data(static_cast<std::size_t>(entry.bytes()), '\0');
    file->read(header.data_begin + entry.begin, reinterpret_cast<std::byte*>(data.data()),
               entry.bytes());
    entry.end -= entry.begin;
    entry.begin = 0;
    out[entry.name] = {entry, data};
  }
  return out;
}

class Peer : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    if (!shell(std::string(kPython) + " -c 'import safetensors'", dir_ / "log", text)) {
      GTEST_SKIP() << "needs the package safetensors in .venv (scripts/setup.sh installs it): "
                   << text;
    }
  }
  // Through the package and back.
  void expect_same(const std::string& path) {
    std::string text;
    ASSERT_TRUE(shell(std::string(kPython) + " " + TESSERA_PEER_SCRIPT + " '" + path + "' '" +
                          (dir_ / "back") + "'",
                      dir_ / "log", text))
        << text;
    std::cout << text;
    const Contents ours = contents_of(path), theirs = contents_of(dir_ / "back");
    EXPECT_EQ(ours.size(), theirs.size());
    EXPECT_TRUE(ours == theirs);
  }
  TemporaryFolder dir_;
};

TEST_F(Peer, ReadsEveryTypeAndManyShapes) {
  std::vector<Outgoing> tensors;
  const std::string noise(100'000, 'n');
  for (const char* type : {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16",
                           "I8", "U64", "U32", "U16", "U8", "BOOL"}) {
    for (const std::vector<std::int64_t>& shape :
         std::vector<std::vector<std::int64_t>>{{}, {1}, {0}, {3, 5}, {2, 0, 4}, {7, 1, 2, 3}}) {
      Outgoing& out = tensors.emplace_back();
      out.entry.name = std::string(type) + "." + std::to_string(tensors.size()) + ".größe \"x\"";
      out.entry.dtype = parse_dtype(type);
      out.entry.shape = shape;
      const std::byte* data = reinterpret_cast<const std::byte*>(noise.data()) + tensors.size() * 7;
      out.source = [data](std::int64_t offset, std::int64_t, std::byte*) { return data + offset; };
    }
  }
  write_safetensors(*local_files(), dir_ / "all", tensors, {{"key", "värde"}});
  expect_same(dir_ / "all");
}

TEST_F(Peer, ReadsShardsAndExports) {
  const Model model = small_model();
  Checkpoint checkpoint(save_model(model, dir_.path, 1, "dp=2,tp=2", true));
  for (const StoredFile& file : checkpoint.manifest().files) {
    expect_same(checkpoint.folder() + "/" + file.name);
  }
  export_model(checkpoint, dir_ / "model.safetensors");
  expect_same(dir_ / "model.safetensors");
  // The export equals the model.
  const Contents exported = contents_of(dir_ / "model.safetensors");
  EXPECT_EQ(exported.size(), model.params.size());
  for (const ParamSpec& spec : model.params) {
    const auto& [entry, data] = exported.at(spec.name);
    EXPECT_EQ(entry.shape, spec.shape);
    EXPECT_EQ(entry.dtype, DType::f32);
    const std::vector<std::byte> whole = model.whole(spec, "param");
    EXPECT_TRUE(
        std::equal(whole.begin(), whole.end(), reinterpret_cast<const std::byte*>(data.data())));
  }
}

}  // namespace
}  // namespace tessera::checkpoint
