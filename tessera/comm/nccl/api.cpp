#include "tessera/comm/nccl/api.h"

#include <dlfcn.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::nccl {
namespace {

class Symbols {
 public:
  // Already in the process if libtorch_cuda is; it must be that very one, because two NCCLs in one
  // process would each start their own threads and count memory apart.
  Symbols() {
    if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) return;
    handle_ = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (handle_ == nullptr) {
      const char* error = dlerror();
      problem_ = str("NCCL is not in the process and cannot be loaded (",
                     error != nullptr ? error : "no reason given",
                     "); install it, or put the folder of libnccl.so.2 in LD_LIBRARY_PATH");
    }
  }

  template <typename Function>
  void load(const char* name, Function& function) {
    find(name, function);
    if (function == nullptr && problem_.empty()) {
      problem_ = str("the NCCL in this process has no ", name, "; 2.14 or later is needed");
    }
  }
  // Null if it is not there.
  template <typename Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle_ != nullptr ? handle_ : RTLD_DEFAULT, name));
  }

  const std::string& problem() const { return problem_; }

 private:
  void* handle_ = nullptr;  // never closed: NCCL leaves threads behind
  std::string problem_;
};

// 22809 is 2.28.9.
std::string spell(int version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

Library load() {
  Library library;
  Symbols symbols;
  Api& api = library.api;
  symbols.load("ncclGetVersion", api.get_version);
  symbols.load("ncclGetErrorString", api.get_error_string);
  symbols.load("ncclGetLastError", api.get_last_error);
  symbols.load("ncclGetUniqueId", api.get_unique_id);
  symbols.load("ncclCommInitRank", api.comm_init_rank);
  symbols.load("ncclCommDestroy", api.comm_destroy);
  symbols.load("ncclCommAbort", api.comm_abort);
  symbols.load("ncclCommGetAsyncError", api.comm_get_async_error);
  symbols.load("ncclAllReduce", api.all_reduce);
  symbols.load("ncclReduceScatter", api.reduce_scatter);
  symbols.load("ncclAllGather", api.all_gather);
  symbols.load("ncclBroadcast", api.broadcast);
  symbols.load("ncclReduce", api.reduce);
  symbols.load("ncclSend", api.send);
  symbols.load("ncclRecv", api.recv);
  symbols.load("ncclGroupStart", api.group_start);
  symbols.load("ncclGroupEnd", api.group_end);
  library.problem = symbols.problem();
  library.loaded = library.problem.empty();
  if (!library.loaded) return library;
  symbols.find("ncclCommRegister", api.comm_register);
  symbols.find("ncclCommDeregister", api.comm_deregister);
  int version = 0;
  api.get_version(&version);
  library.version = spell(version);
  library.number = version;
  return library;
}

}  // namespace

void Api::check(Result result, const char* call) const {
  if (result == Result::success) return;
  const char* detail = get_last_error(nullptr);
  throw Error(str("NCCL's ", call, " failed: ", get_error_string(result),
                  detail != nullptr && *detail != '\0' ? str(" (", detail, ")") : "",
                  "; NCCL_DEBUG=INFO makes it say more"));
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace tessera::comm::nccl
