#include "tessera/kernels/cuda/cublaslt_api.h"

#include <dlfcn.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::kernels::cuda::lt {
namespace {

class LtSymbols {
 public:
  LtSymbols() {
    constexpr const char* names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    // One that is here already comes first: LibTorch has chosen it to fit its CUDA.
    for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
      for (const char* name : names) {
        handle_ = dlopen(name, flags);
        if (handle_ != nullptr) return;
      }
    }
    const char* error = dlerror();
    problem_ = str("cuBLASLt is not in the process and cannot be loaded (",
                   error != nullptr ? error : "no reason given",
                   "); use a LibTorch for CUDA, or put the folder of libcublasLt.so.13 in "
                   "LD_LIBRARY_PATH");
  }

  template <typename Function>
  void load(const char* name, Function& function) {
    if (handle_ == nullptr) return;
    void* at = dlsym(handle_, name);
    if (at == nullptr && problem_.empty()) {
      problem_ = str("the cuBLASLt in this process has no ", name, "; 12.0 or later is needed");
    }
    function = reinterpret_cast<Function>(at);
  }

  const std::string& problem() const { return problem_; }

 private:
  void* handle_ = nullptr;  // never closed: kernels of it may be under way until the end
  std::string problem_;
};

Library load_cublaslt() {
  Library library;
  LtSymbols symbols;
  Api& api = library.api;
  symbols.load("cublasLtGetVersion", api.get_version);
  symbols.load("cublasLtGetStatusString", api.get_status_string);
  symbols.load("cublasLtCreate", api.create);
  symbols.load("cublasLtMatmulDescCreate", api.operation_create);
  symbols.load("cublasLtMatmulDescSetAttribute", api.operation_set);
  symbols.load("cublasLtMatrixLayoutCreate", api.layout_create);
  symbols.load("cublasLtMatmulPreferenceCreate", api.preference_create);
  symbols.load("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  symbols.load("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  symbols.load("cublasLtMatmulAlgoGetHeuristic", api.propose);
  symbols.load("cublasLtMatmul", api.matmul);
  library.problem = symbols.problem();
  library.loaded = library.problem.empty();
  return library;
}

}  // namespace

void Api::check(Status status, const char* call) const {
  if (status == Status::success) return;
  throw Error(str("cuBLASLt's ", call, " failed: ", get_status_string(status), " (version ",
                  get_version(), "); CUBLASLT_LOG_LEVEL=2 makes it say more"));
}

const Library& library() {
  static const Library loaded = load_cublaslt();
  return loaded;
}

}  // namespace tessera::kernels::cuda::lt
