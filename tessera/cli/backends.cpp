#include "tessera/cli/backends.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/core/fd.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

constexpr std::size_t kBytes = 1 << 16;

std::string failed(const char* what) { return str(what, ": ", std::strerror(errno)); }

bool send_fd(int socket, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

Fd receive_fd(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return Fd();
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return Fd();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return Fd(fd);
}

class Mapping {
 public:
  explicit Mapping(const Fd& fd)
      : address_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0)) {}
  ~Mapping() {
    if (valid()) ::munmap(address_, kBytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool valid() const { return address_ != MAP_FAILED; }
  volatile char* bytes() const { return static_cast<volatile char*>(address_); }

 private:
  void* address_;
};

BackendStatus row(const char* name, const std::string& problem, const std::string& good) {
  return {name, problem.empty(), problem.empty() ? good : problem};
}

}  // namespace

std::string shared_memory_problem() {
  const Fd memory(::memfd_create("tessera-doctor", MFD_CLOEXEC));
  if (!memory.open()) return failed("memfd_create");
  if (::ftruncate(memory.get(), kBytes) != 0) return failed("ftruncate of a memfd");
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return failed("socketpair");
  const Fd here(fds[0]), there(fds[1]);
  if (!send_fd(here.get(), memory.get())) return failed("sending a descriptor");
  const Fd received = receive_fd(there.get());
  if (!received.open()) return "a descriptor sent over a Unix socket did not arrive";
  const Mapping mine(memory), theirs(received);
  if (!mine.valid() || !theirs.valid()) return failed("mapping a memfd");
  mine.bytes()[kBytes - 1] = 42;
  return theirs.bytes()[kBytes - 1] == 42 ? "" : "two mappings of one memfd differ";
}

std::vector<BackendStatus> backend_statuses(const BackendFacts& facts) {
  const std::string two_level_problem = !facts.shm_problem.empty()   ? "needs shm"
                                        : !facts.mpi_problem.empty() ? "needs mpi"
                                                                     : "";
  std::string nccl_problem = facts.nccl_problem;
  if (!nccl_problem.empty() && facts.usable_gpus == 0 && facts.driver_gpus > 0) {
    nccl_problem += str(" (the driver lists ", facts.driver_gpus, " that LibTorch cannot use)");
  }
  return {
      row("shm", facts.shm_problem, "processes can share memfds"),
      row("mpi", facts.mpi_problem, facts.mpi_version),
      row("two-level", two_level_problem, "shm inside a host, mpi between hosts"),
      row("nccl", nccl_problem, str("NCCL ", facts.nccl_version, ", ", facts.usable_gpus, " GPUs")),
      row("tcp", "", "small tensors, over the control connections of the ranks"),
      row("dry", "", "one process simulates one rank of many")};
}

}  // namespace tessera::cli
