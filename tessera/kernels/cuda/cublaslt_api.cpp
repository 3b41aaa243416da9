#include "tessera/kernels/cuda/cublaslt_api.h"

#include "tessera/core/errors.h"
#include "tessera/core/shared_library.h"
#include "tessera/core/text.h"

namespace tessera::kernels::cuda::lt {
namespace {

Library load_cublaslt() {
  Library library;
  // One that is here already: LibTorch has chosen it to fit its CUDA.
  SharedLibrary symbols({"libcublasLt.so.13", "libcublasLt.so.12"});
  Api& api = library.api;
  symbols.need("cublasLtGetVersion", api.get_version);
  symbols.need("cublasLtGetStatusString", api.get_status_string);
  symbols.need("cublasLtCreate", api.create);
  symbols.need("cublasLtMatmulDescCreate", api.operation_create);
  symbols.need("cublasLtMatmulDescSetAttribute", api.operation_set);
  symbols.need("cublasLtMatrixLayoutCreate", api.layout_create);
  symbols.need("cublasLtMatmulPreferenceCreate", api.preference_create);
  symbols.need("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  symbols.need("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  symbols.need("cublasLtMatmulAlgoGetHeuristic", api.propose);
  symbols.need("cublasLtMatmul", api.matmul);
  if (!symbols.open()) {
    library.problem =
        str("cuBLASLt is not in the process and cannot be loaded (", symbols.problem(),
            "); use a LibTorch for CUDA, or put the folder of libcublasLt.so.13 in "
            "LD_LIBRARY_PATH");
  } else if (!symbols.missing().empty()) {
    library.problem =
        str("the cuBLASLt in this process has no ", symbols.missing(), "; 12.0 or later is needed");
  }
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
