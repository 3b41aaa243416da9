#include <cuda_runtime.h>

#include <string>

#include "tessera/core/errors.h"
#include "tessera/kernels/cuda/gemm_runtime.h"

namespace tessera::kernels::cuda {
namespace {

void check_runtime(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(std::string(call) + " failed: " + cudaGetErrorString(status));
}

cudaStream_t as_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

bool has_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
  cudaGetLastError();
  return false;
}

int current_device() {
  int device = 0;
  check_runtime(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

int compute_capability() {
  int major = 0, minor = 0;
  const int device = current_device();
  check_runtime(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                "cudaDeviceGetAttribute");
  check_runtime(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

bool capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(as_stream(stream), &status) != cudaSuccess) {
    cudaGetLastError();
    return true;  // legacy stream while another stream is captured: measuring is not allowed
  }
  return status != cudaStreamCaptureStatusNone;
}

void* try_allocate(std::size_t bytes, Stream stream) {
  void* memory = nullptr;
  if (cudaMallocAsync(&memory, bytes, as_stream(stream)) == cudaSuccess) return memory;
  cudaGetLastError();
  return nullptr;
}

void release(void* memory, Stream stream) noexcept {
  if (memory == nullptr || cudaFreeAsync(memory, as_stream(stream)) == cudaSuccess) return;
  cudaGetLastError();
}

Stopwatch::Stopwatch() {
  cudaEvent_t begin = nullptr, end = nullptr;
  check_runtime(cudaEventCreate(&begin), "cudaEventCreate");
  begin_ = begin;
  check_runtime(cudaEventCreate(&end), "cudaEventCreate");
  end_ = end;
}

Stopwatch::~Stopwatch() {
  if (begin_ != nullptr) cudaEventDestroy(as_event(begin_));
  if (end_ != nullptr) cudaEventDestroy(as_event(end_));
}

void Stopwatch::start(Stream stream) {
  check_runtime(cudaEventRecord(as_event(begin_), as_stream(stream)), "cudaEventRecord");
}

float Stopwatch::stop(Stream stream) {
  float ms = 0;
  check_runtime(cudaEventRecord(as_event(end_), as_stream(stream)), "cudaEventRecord");
  check_runtime(cudaEventSynchronize(as_event(end_)), "cudaEventSynchronize");
  check_runtime(cudaEventElapsedTime(&ms, as_event(begin_), as_event(end_)),
                "cudaEventElapsedTime");
  return ms;
}

}  // namespace tessera::kernels::cuda
