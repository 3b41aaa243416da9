// Compares reading a Hugging Face folder with a plain read of its file: load_folder_bench DIR [GB].
// Creates folders of GB gigabytes (default 1) in DIR, a Llama in bf16 and a GPT-2 (whose linears
// are transposed) in fp32, and reads each completely, in turns with the plain read, warm (from the
// page cache) and cold (after the pages were dropped).

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/core/fd.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/model_folder.h"

namespace tessera::huggingface {
namespace {

constexpr int kRounds = 5;

double seconds_of(const auto& body) {
  const auto began = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

ModelShape shape_with(bool llama, double bytes) {
  ModelShape shape = find_model_shape(llama ? "llama3.2-1b" : "gpt2-xl");
  shape.name.clear();
  shape.vocab = 32000;
  shape.layers = 1;
  const int size = llama ? 2 : 4;
  while (static_cast<double>(shape.params()) * size < bytes) ++shape.layers;
  return shape;
}

void make_folder(const std::string& path, const ModelShape& shape, DType dtype) {
  const auto files = checkpoint::local_files();
  files->make_folder(path);
  for (const char* const name : {kModelName, kConfigName}) files->remove(path + "/" + name);
  std::vector<std::byte> noise(checkpoint::kWriteBytes);
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<std::byte>(i * 31 % 61);
  std::vector<checkpoint::Outgoing> tensors;
  for (const ParamPieces& param : pieces_of(shape)) {
    for (const Piece& piece : param.pieces) {
      checkpoint::Outgoing& out = tensors.emplace_back();
      out.entry.name = piece.tensor;
      out.entry.shape = piece.shape;
      out.entry.dtype = dtype;
      out.source = [&noise](std::int64_t, std::int64_t, std::byte*) { return noise.data(); };
    }
  }
  checkpoint::write_safetensors(*files, path + "/" + kModelName, tensors, {});
  checkpoint::write_text(*files, path + "/" + kConfigName, config_json(shape, "float32"));
}

void drop_cache(const std::string& path) {
  const Fd fd(::open((path + "/" + kModelName).c_str(), O_RDONLY));
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

// Reads into memory that is already allocated, like the memory of a model.
double read_plainly(const std::string& path, std::vector<std::byte>& into) {
  return seconds_of([&] {
    const Fd fd(::open((path + "/" + kModelName).c_str(), O_RDONLY));
    constexpr std::size_t kStep = std::size_t{8} << 20;
    std::size_t at = 0;
    for (ssize_t n = 1; n > 0; at += static_cast<std::size_t>(n)) {
      n = ::pread(fd.get(), into.data() + at % (into.size() - kStep), kStep,
                  static_cast<off_t>(at));
    }
  });
}

double read_folder(const std::string& path, DType as, std::vector<std::byte>& into) {
  return seconds_of([&] {
    const Folder folder(path);
    for (const ParamPieces& param : pieces_of(folder.shape())) {
      std::int64_t count = 1;
      for (const std::int64_t size : param.shape) count *= size;
      folder.read(param.param, {{0, 0, count}}, as, into.data());
    }
  });
}

void measure(const std::string& what, const std::string& path, DType as, bool cold,
             std::vector<std::byte>& into) {
  const auto bytes = static_cast<double>(Folder(path).bytes());
  std::vector<double> plain, ours;
  for (int round = 0; round < kRounds; ++round) {
    if (cold) drop_cache(path);
    plain.push_back(read_plainly(path, into));
    if (cold) drop_cache(path);
    ours.push_back(read_folder(path, as, into));
  }
  std::sort(plain.begin(), plain.end());
  std::sort(ours.begin(), ours.end());
  const double p = plain[kRounds / 2], o = ours[kRounds / 2];
  std::cout << what << (cold ? ", cold" : ", warm") << ": " << fixed(bytes / p / 1e9, 2)
            << " GB/s plain, " << fixed(bytes / o / 1e9, 2) << " GB/s as a model, "
            << fixed(100 * p / o, 0) << "%" << std::endl;
}

}  // namespace
}  // namespace tessera::huggingface

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::huggingface;
  if (argc < 2) {
    std::cerr << "usage: load_folder_bench DIR [GB]\n";
    return 2;
  }
  const double bytes = (argc > 2 ? std::atof(argv[2]) : 1.0) * 1e9;
  const std::string llama = std::string(argv[1]) + "/llama", gpt = std::string(argv[1]) + "/gpt2";
  make_folder(llama, shape_with(true, bytes), DType::bf16);
  make_folder(gpt, shape_with(false, bytes), DType::f32);
  std::vector<std::byte> into(std::size_t{640} << 20, std::byte{1});
  for (const bool cold : {false, true}) {
    measure("Llama bf16 as bf16", llama, DType::bf16, cold, into);
    measure("Llama bf16 as fp32", llama, DType::f32, cold, into);
    measure("GPT-2 fp32 as fp32", gpt, DType::f32, cold, into);
  }
  return 0;
}
