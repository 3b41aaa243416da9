#include "tests/kernels/device.h"

#include <string>

#include "tessera/core/errors.h"

#if TESSERA_CUDA_KERNELS
#include <cuda_runtime_api.h>
#endif

namespace tessera::kernels::cuda {

#if TESSERA_CUDA_KERNELS
namespace {

void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Error(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

const char* gpu_problem() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count > 0 ? nullptr : "no GPU found";
}

DeviceArray::~DeviceArray() { cudaFree(device_); }

void DeviceArray::upload() {
  if (device_ == nullptr) {
    void* memory = nullptr;
    must(cudaMalloc(&memory, bytes_.size()), "cudaMalloc");
    device_ = static_cast<unsigned char*>(memory);
  }
  must(cudaMemcpy(device_, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice), "upload");
}

void DeviceArray::download() {
  must(cudaMemcpy(bytes_.data(), device_, bytes_.size(), cudaMemcpyDeviceToHost), "download");
}

void synchronize() { must(cudaDeviceSynchronize(), "kernels"); }

void through_graph(const std::function<void(Stream)>& work, int times) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  work(stream);
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(stream, &graph), "end of capture");
  cudaGraphExec_t ready = nullptr;
  must(cudaGraphInstantiate(&ready, graph, 0), "graph");
  for (int i = 0; i < times; ++i) must(cudaGraphLaunch(ready, stream), "launch");
  must(cudaStreamSynchronize(stream), "graph's kernels");
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}
#else
const char* gpu_problem() { return "built without CUDA kernels (no nvcc)"; }
DeviceArray::~DeviceArray() = default;
void DeviceArray::upload() { throw Error(gpu_problem()); }
void DeviceArray::download() { throw Error(gpu_problem()); }
void synchronize() { throw Error(gpu_problem()); }
void through_graph(const std::function<void(Stream)>&, int) { throw Error(gpu_problem()); }
#endif

DeviceArray::DeviceArray(DType type, std::size_t n, std::size_t shift)
    : type_(type), n_(n), shift_(shift), bytes_(2 * kGuard + (n + shift) * size_of(type), 0xa5) {
  upload();
}

DeviceArray::DeviceArray(const DeviceArray& other)
    : type_(other.type_), n_(other.n_), shift_(other.shift_), bytes_(other.bytes_) {
  upload();
}

double DeviceArray::operator[](std::size_t i) const {
  const unsigned char* at = bytes_.data() + begin() + i * size_of(type_);
  if (type_ == DType::i64) {
    std::int64_t value = 0;
    std::memcpy(&value, at, 8);
    return static_cast<double>(value);
  }
  if (type_ == DType::i32) {
    std::int32_t value = 0;
    std::memcpy(&value, at, 4);
    return value;
  }
  if (type_ == DType::f32) {
    float value = 0;
    std::memcpy(&value, at, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return type_ == DType::bf16 ? from_bf16(bits) : from_f16(bits);
}

void DeviceArray::set(std::size_t i, double value) {
  unsigned char* at = bytes_.data() + begin() + i * size_of(type_);
  if (type_ == DType::i64) {
    const auto whole = static_cast<std::int64_t>(value);
    std::memcpy(at, &whole, 8);
    return;
  }
  if (type_ == DType::i32) {
    const auto whole = static_cast<std::int32_t>(value);
    std::memcpy(at, &whole, 4);
    return;
  }
  const auto single = static_cast<float>(value);
  if (type_ == DType::f32) {
    std::memcpy(at, &single, 4);
    return;
  }
  const std::uint16_t bits = type_ == DType::bf16 ? to_bf16(single) : to_f16(single);
  std::memcpy(at, &bits, 2);
}

bool DeviceArray::guarded() const {
  const std::size_t end = begin() + n_ * size_of(type_);
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    if ((i < begin() || i >= end) && bytes_[i] != 0xa5) return false;
  }
  return true;
}

DeviceArray normal_array(DType type, std::size_t n, std::mt19937& random, double scale,
                         std::size_t shift) {
  std::normal_distribution<float> normal(0, static_cast<float>(scale));
  DeviceArray array(type, n, shift);
  for (std::size_t i = 0; i < n; ++i) array.set(i, normal(random));
  array.upload();
  return array;
}

void expect_close(DeviceArray& got, const std::vector<double>& wanted, double relative, double unit,
                  const char* what) {
  got.download();
  EXPECT_TRUE(got.guarded()) << what << " was written out of bounds";
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double size = std::abs(wanted[i]);
    const double before = relative * std::max(size, unit);
    // Subnormal f16 numbers all have the same step.
    const double step =
        std::max(rounding(got.type()) * (size + before), got.type() == DType::f16 ? 0x1p-25 : 0.0);
    if (std::abs(got[i] - wanted[i]) <= before + step) continue;
    FAIL() << what << "[" << i << "] of " << wanted.size() << " is " << got[i] << ", expected "
           << wanted[i] << " ± " << before + step;
  }
}

}  // namespace tessera::kernels::cuda
