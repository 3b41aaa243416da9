#include "tessera/comm/nccl/api.h"

#include "tessera/core/errors.h"
#include "tessera/core/shared_library.h"
#include "tessera/core/text.h"

namespace tessera::comm::nccl {
namespace {

// 22809 is 2.28.9.
std::string spell(int version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

Library load() {
  Library library;
  // If libtorch_cuda is loaded, so is its NCCL, and that one must be used: two NCCLs in one process
  // would each start their own threads and account for memory separately.
  SharedLibrary symbols("ncclGetVersion", {"libnccl.so.2"}, RTLD_GLOBAL);
  Api& api = library.api;
  symbols.need("ncclGetVersion", api.get_version);
  symbols.need("ncclGetErrorString", api.get_error_string);
  symbols.need("ncclGetLastError", api.get_last_error);
  symbols.need("ncclGetUniqueId", api.get_unique_id);
  symbols.need("ncclCommInitRank", api.comm_init_rank);
  symbols.need("ncclCommDestroy", api.comm_destroy);
  symbols.need("ncclCommAbort", api.comm_abort);
  symbols.need("ncclCommGetAsyncError", api.comm_get_async_error);
  symbols.need("ncclAllReduce", api.all_reduce);
  symbols.need("ncclReduceScatter", api.reduce_scatter);
  symbols.need("ncclAllGather", api.all_gather);
  symbols.need("ncclBroadcast", api.broadcast);
  symbols.need("ncclReduce", api.reduce);
  symbols.need("ncclSend", api.send);
  symbols.need("ncclRecv", api.recv);
  symbols.need("ncclGroupStart", api.group_start);
  symbols.need("ncclGroupEnd", api.group_end);
  if (!symbols.open()) {
    library.problem = str("NCCL cannot be loaded (", symbols.problem(),
                          "); install it, or add the folder of libnccl.so.2 to LD_LIBRARY_PATH");
  } else if (!symbols.missing().empty()) {
    library.problem =
        str("the NCCL in this process has no ", symbols.missing(), "; use NCCL 2.14 or later");
  }
  library.loaded = library.problem.empty();
  if (!library.loaded) return library;
  symbols.find("ncclCommRegister", api.comm_register);
  symbols.find("ncclCommDeregister", api.comm_deregister);
  symbols.find("ncclCommSplit", api.comm_split);
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
                  "; set NCCL_DEBUG=INFO for details"));
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace tessera::comm::nccl
