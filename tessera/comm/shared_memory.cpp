#include "tessera/comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::comm {
namespace {

constexpr auto kUnknown = std::numeric_limits<std::uint64_t>::max();

class MappedSegment final : public Segment {
 public:
  MappedSegment(std::byte* data, std::size_t size) {
    data_ = data;
    size_ = size;
  }
  ~MappedSegment() override { munmap(data_, size_); }
};

std::string size_text(std::uint64_t bytes) {
  return format_bytes(static_cast<std::int64_t>(bytes));
}

// Describes errno, with a remedy if there is a known one.
std::string reason() {
  const int error = errno;
  std::string text = std::strerror(error);
  if (error == EFBIG) text += "; shared memory counts as a file: raise its limit (ulimit -f)";
  if (error == EMFILE) text += "; raise the limit of open files (ulimit -n)";
  if (error == ENOSPC || error == ENOMEM) {
    text +=
        "; use less memory (more ranks, a higher ZeRO stage, smaller batches) or raise the "
        "limits of the control group and of the address space (ulimit -v)";
  }
  return text;
}

// Returns the number after `key` in a file with lines "key number" or "key: number kB".
std::uint64_t number_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  std::uint64_t value = 0;
  while (file >> word) {
    if (word == key && file >> value) return value;
  }
  return 0;
}

std::uint64_t first_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : kUnknown;  // "max" is not a number
}

// Returns the memory left in the cgroups from this process's up to the root, swap included.
std::uint64_t control_group_left(std::uint64_t swap) {
  std::ifstream own("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(own, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  std::uint64_t left = kUnknown;
  for (;;) {
    const std::string folder = "/sys/fs/cgroup" + (path == "/" ? "" : path) + "/memory.";
    const std::uint64_t most = first_number(folder + "max"),
                        used = first_number(folder + "current");
    if (most != kUnknown && used != kUnknown) {
      const std::uint64_t files =
          number_in(folder + "stat", "inactive_file") + number_in(folder + "stat", "active_file");
      left = std::min(left, most - std::min(most, used - std::min(used, files)) + swap);
    }
    if (path.empty() || path == "/") return left;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

std::uint64_t available_memory() {
  const std::uint64_t swap = 1024 * number_in("/proc/meminfo", "SwapFree:");
  const std::uint64_t host = 1024 * number_in("/proc/meminfo", "MemAvailable:");
  return std::min(host == 0 ? kUnknown : host + swap, control_group_left(swap));
}

Fd make_shared_memory(std::size_t bytes, Pages pages) {
  if (pages == Pages::reserved && bytes > available_memory()) {
    throw OutOfMemoryError(str(
        "cannot reserve ", size_text(bytes), " of shared memory: ", size_text(available_memory()),
        " are available to this process; use less memory (a higher ZeRO stage, smaller "
        "batches, fewer ranks on this host) or raise the limit of the control group"));
  }
  Fd fd(memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.open() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw Error(str("cannot create ", size_text(bytes), " of shared memory: ", reason()));
  }
  // Sealed so that it cannot shrink while a process reads it.
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return fd;
}

void reserve(const Fd& memory, std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  while (fallocate(memory.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return;  // the kernel only allocates on first touch
    throw OutOfMemoryError(
        str("cannot reserve ", size_text(bytes), " of shared memory: ", reason()));
  }
}

std::shared_ptr<Segment> map_shared_memory(const Fd& memory, std::size_t bytes) {
  void* at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (at == MAP_FAILED) {
    throw Error(str("cannot map ", size_text(bytes), " of shared memory: ", reason()));
  }
  return std::make_shared<MappedSegment>(static_cast<std::byte*>(at), bytes);
}

}  // namespace tessera::comm
