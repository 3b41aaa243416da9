#include "tessera/kernels/cuda/cublaslt_api.h"

#include "tessera/core/errors.h"
#include "tessera/core/shared_library.h"
#include "tessera/core/text.h"

namespace tessera::kernels::cuda::lt {
namespace {

Library load_cublaslt() {
  Library library;
  // Prefers a library that is already loaded: LibTorch chose it to match its CUDA version.
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
        str("cuBLASLt is not loaded in this process and cannot be loaded (", symbols.problem(),
            "). Use a LibTorch built for CUDA, or add the folder of libcublasLt.so.13 to "
            "LD_LIBRARY_PATH.");
  } else if (!symbols.missing().empty()) {
    library.problem = str("The cuBLASLt in this process does not provide ", symbols.missing(),
                          ". Version 12.0 or later is required.");
  }
  library.loaded = library.problem.empty();
  return library;
}

}  // namespace

void Api::check(Status status, const char* call) const {
  if (status == Status::success) return;
  throw Error(str(call, " failed: ", get_status_string(status), " (cuBLASLt version ",
                  get_version(), "). Set CUBLASLT_LOG_LEVEL=2 for details."));
}

const Library& library() {
  static const Library loaded = load_cublaslt();
  return loaded;
}

}  // namespace tessera::kernels::cuda::lt
