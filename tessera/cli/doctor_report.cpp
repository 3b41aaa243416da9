#include "tessera/cli/doctor_report.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/cli/json_output.h"
#include "tessera/core/fd.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

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

BackendStatus backend_row(const char* name, const std::string& problem, const std::string& good) {
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
  const std::string two_level_problem = facts.shm_problem.empty() ? "" : "needs shm";
  std::string nccl_problem = facts.nccl_problem;
  if (!nccl_problem.empty() && facts.usable_gpus == 0 && facts.driver_gpus > 0) {
    nccl_problem += str(" (the driver lists ", facts.driver_gpus, " that LibTorch cannot use)");
  }
  return {backend_row("shm", facts.shm_problem, "processes can share memfds"),
          backend_row("two-level", two_level_problem, "shm inside a host, tcp between hosts"),
          backend_row("nccl", nccl_problem,
                      str("NCCL ", facts.nccl_version, ", ", facts.usable_gpus, " GPUs")),
          backend_row("tcp", "", "over the control connections of the ranks"),
          backend_row("dry", "", "one process simulates one rank of many")};
}

namespace {

using Json = nlohmann::ordered_json;

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string row(const std::string& name, const std::string& value) {
  return str("  ", name, std::string(name.size() < 14 ? 14 - name.size() : 1, ' '), value, "\n");
}

std::string size(std::int64_t bytes) { return format_bytes(bytes, ByteUnits::kBinary); }

std::string memory_rows(const DoctorReport& report) {
  const MemoryInfo& memory = report.memory;
  std::string text = row("memory", size(memory.total) + ", " + size(memory.available) + " free" +
                                       (memory.limit ? ", limited to " + size(*memory.limit) : ""));
  text += row("/dev/shm", memory.dev_shm_total ? size(*memory.dev_shm_total) + ", " +
                                                     size(memory.dev_shm_free.value_or(0)) +
                                                     " free (shm does not use it: it uses memfds)"
                                               : "missing (not needed: shm uses memfds)");
  std::vector<std::string> parts;
  for (const Limit& limit : report.limits) {
    parts.push_back(limit.name + " " +
                    (!limit.value  ? "unlimited"
                     : limit.bytes ? size(*limit.value)
                                   : format_grouped(*limit.value)));
  }
  return text + row("limits", join(parts, ", "));
}

std::string gpu_rows(const DoctorReport& report) {
  if (!report.gpus) return row("GPUs", "none: no NVIDIA driver (libcuda.so.1) here");
  if (report.gpus->empty()) return row("GPUs", "none: the driver lists no device");
  std::string text;
  for (const Gpu& gpu : *report.gpus) {
    text += row("GPU", str(gpu.name, ", ", size(gpu.memory),
                           gpu.capability.empty() ? "" : ", compute capability " + gpu.capability));
  }
  if (report.driver) text += row("", "driver " + *report.driver);
  if (report.torch.gpus < static_cast<int>(report.gpus->size())) {
    text += row("", str("LibTorch can use ", report.torch.gpus, " of them"));
  }
  return text;
}

}  // namespace

bool DoctorReport::healthy() const {
  return std::any_of(backends.begin(), backends.end(), [](const BackendStatus& backend) {
    return backend.name == "shm" && backend.works;
  });
}

std::string compiler_version() {
#if defined(__clang__)
  return str("clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#else
  return str("g++ ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
}

std::string to_text(const DoctorReport& report) {
  const process::Topology& topology = report.topology;
  const int cores = static_cast<int>(topology.cores.size());
  std::string text = "Versions\n";
  text += row("tessera", str(report.tessera_version, ", built with ", report.compiler));
  text += row("LibTorch", report.torch.version + (report.torch.cuda_build
                                                      ? ", CUDA " + report.torch.cuda_version
                                                      : std::string(", without CUDA")));
  text += row("", report.torch.library);
  text += row("NCCL", report.nccl.value_or("none"));
  text += row("cuBLASLt", report.cublaslt.value_or("none"));
  text += row("GPU kernels", report.cuda_kernels
                                 ? "built in"
                                 : "not built: no nvcc was found (scripts/setup.sh nvcc)");
  text += row("topology", topology.source);
  text += "\nMachine\n";
  text += row("CPU", str(report.cpu.model, " (", report.cpu.architecture, ")"));
  text +=
      row("features", report.cpu.features.empty() ? "none known" : join(report.cpu.features, ", "));
  text +=
      row("cores", str(plural(cores, "core"), ", ", plural(topology.cpus(), "thread"), ", ",
                       plural(topology.packages(), "socket"), ", ",
                       plural(topology.numa_nodes(), "NUMA node"),
                       report.cpu_quota ? str(", limited to the CPU time of ", *report.cpu_quota)
                                        : std::string()));
  text += memory_rows(report);
  text += gpu_rows(report);
  text += "\nBackends\n";
  for (const BackendStatus& backend : report.backends) {
    text += row(backend.name, str(backend.works ? "works  " : "no     ", backend.why));
  }
  return text;
}

std::string to_json(const DoctorReport& report) {
  Json json;
  json["versions"] = {
      {"tessera", report.tessera_version},
      {"compiler", report.compiler},
      {"libtorch", report.torch.version},
      {"libtorch_library", report.torch.library},
      {"libtorch_cuda", report.torch.cuda_build ? Json(report.torch.cuda_version) : Json(nullptr)},
      {"nccl", or_null(report.nccl)},
      {"cublaslt", or_null(report.cublaslt)},
      {"cuda_kernels", report.cuda_kernels},
      {"driver", or_null(report.driver)},
      {"topology", report.topology.source}};
  json["cpu"] = {{"model", report.cpu.model},
                 {"architecture", report.cpu.architecture},
                 {"features", report.cpu.features},
                 {"cores", report.topology.cores.size()},
                 {"threads", report.topology.cpus()},
                 {"sockets", report.topology.packages()},
                 {"numa_nodes", report.topology.numa_nodes()},
                 {"quota", or_null(report.cpu_quota)}};
  json["memory"] = {{"total_bytes", report.memory.total},
                    {"available_bytes", report.memory.available},
                    {"limit_bytes", or_null(report.memory.limit)},
                    {"dev_shm_bytes", or_null(report.memory.dev_shm_total)},
                    {"dev_shm_free_bytes", or_null(report.memory.dev_shm_free)}};
  json["limits"] = Json::object();
  for (const Limit& limit : report.limits) json["limits"][limit.name] = or_null(limit.value);
  json["gpus"] = {{"driver", report.gpus.has_value()},
                  {"usable_by_libtorch", report.torch.gpus},
                  {"devices", Json::array()}};
  if (report.gpus) {
    for (const Gpu& gpu : *report.gpus) {
      json["gpus"]["devices"].push_back(
          {{"name", gpu.name},
           {"memory_bytes", gpu.memory},
           {"capability", gpu.capability.empty() ? Json(nullptr) : Json(gpu.capability)}});
    }
  }
  json["backends"] = Json::array();
  for (const BackendStatus& backend : report.backends) {
    json["backends"].push_back(
        {{"name", backend.name}, {"works", backend.works}, {"why", backend.why}});
  }
  return json_text(json);
}

}  // namespace tessera::cli
