// Chosen by CMake where MPI was not found.

#include "tessera/comm/mpi/runtime.h"
#include "tessera/core/errors.h"

namespace tessera::comm::mpi {

bool available() noexcept { return false; }
std::string why_not() {
  return "this build has no MPI. Install Open MPI (Debian: libopenmpi-dev openmpi-bin) and build "
         "again with TESSERA_MPI=ON";
}
std::string version() { return ""; }

struct MpiProgress {};

// start() is the only way to a Runtime, so nothing below it is ever reached.
std::shared_ptr<Runtime> Runtime::start() { throw UsageError(why_not()); }

Runtime::Runtime() = default;
Runtime::~Runtime() = default;
TransferPtr Runtime::send(const void*, std::size_t, int, int, std::shared_ptr<EventCount>,
                          std::shared_ptr<void>) {
  throw UsageError(why_not());
}
TransferPtr Runtime::receive(void*, std::size_t, int, int, std::shared_ptr<EventCount>,
                             std::shared_ptr<void>) {
  throw UsageError(why_not());
}
std::uint64_t Runtime::sent_bytes() const noexcept { return 0; }
void Runtime::watch_peers(const std::shared_ptr<Peers>&) {}
void Runtime::abandon() noexcept {}
bool Runtime::broken() const noexcept { return true; }
int Runtime::next_group_number() const noexcept { return 0; }
bool Runtime::claim_group_number(int) noexcept { return false; }

}  // namespace tessera::comm::mpi
