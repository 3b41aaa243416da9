#include "benchmarks/roofline.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "tessera/core/errors.h"

namespace tessera::roofline {
namespace {

constexpr std::size_t kFlush = std::size_t{256} << 20;  // larger than any L2 cache
constexpr int kWarmUp = 3, kRuns = 20;

void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

Roofline::Roofline() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    throw Error("cuda_roofline: no GPU was found; run it on a machine with a GPU");
  }
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  stream_ = stream;
  must(cudaMalloc(&flush_, kFlush), "memory");
  constexpr std::size_t kCopied = std::size_t{1} << 30;
  void* from = memory(kCopied);
  void* to = memory(kCopied);
  const double seconds = median_seconds([&](Stream s) {
    must(cudaMemcpyAsync(to, from, kCopied, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(s)),
         "copy");
  });
  copy_ = 2.0 * kCopied / seconds;
  forget();
}

Roofline::~Roofline() {
  for (void* memory : memory_) cudaFree(memory);
  cudaFree(flush_);
  cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

void* Roofline::memory(std::size_t bytes, bool zeros) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, std::max<std::size_t>(bytes, 16)), "memory");
  memory_.push_back(memory);
  must(cudaMemset(memory, zeros ? 0 : 0x3c, bytes), "memory");  // 0x3c3c is 0.011 or 1.06
  return memory;
}

void Roofline::forget() {
  must(cudaDeviceSynchronize(), "kernels");
  for (void* memory : memory_) cudaFree(memory);
  memory_.clear();
}

double Roofline::median_seconds(const std::function<void(Stream)>& run) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  cudaEvent_t begin = nullptr, end = nullptr;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + kRuns; ++i) {
    must(cudaMemsetAsync(flush_, i, kFlush, stream), "flush");
    must(cudaEventRecord(begin, stream), "event");
    run(stream);
    must(cudaEventRecord(end, stream), "event");
    must(cudaEventSynchronize(end), "kernel");
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    if (i >= kWarmUp) times.push_back(milliseconds / 1e3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

void Roofline::measure(const std::string& kernel, const std::string& size, double bytes,
                       double flops, const std::function<void(Stream)>& run) {
  all_.push_back({kernel, size, bytes, flops, median_seconds(run)});
}

std::string Roofline::device() const {
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0), "device");
  return properties.name;
}

}  // namespace tessera::roofline
