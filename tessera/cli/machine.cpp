#include "tessera/cli/machine.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "tessera/core/shared_library.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

// Returns the value of a "key : value" line of /proc/cpuinfo or /proc/meminfo; "" if absent.
std::string field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key) continue;
    const std::size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Arm processors report numbers instead of a name.
std::string arm_model(const std::string& cpuinfo) {
  static constexpr std::pair<const char*, const char*> kArmParts[] = {
      {"0xd07", "Cortex-A57"},  {"0xd08", "Cortex-A72"},    {"0xd0b", "Cortex-A76"},
      {"0xd0c", "Neoverse N1"}, {"0xd40", "Neoverse V1"},   {"0xd49", "Neoverse N2"},
      {"0xd4f", "Neoverse V2"}, {"0xd83", "Neoverse V3AE"}, {"0xd84", "Neoverse V3"},
      {"0xd8e", "Neoverse N3"}};
  const std::string implementer = field(cpuinfo, "CPU implementer");
  const std::string part = field(cpuinfo, "CPU part");
  if (implementer.empty()) return "";
  for (const auto& [number, name] : kArmParts) {
    if (implementer == "0x41" && part == number) return str("Arm ", name);
  }
  return str("implementer ", implementer, ", part ", part);
}

std::int64_t kibibytes(const std::string& meminfo, const std::string& key) {
  std::istringstream value(field(meminfo, key));
  std::int64_t number = 0;
  value >> number;
  return number * 1024;
}

std::optional<std::int64_t> memory_limit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    std::int64_t value = 0;
    // cgroup v1 writes "no limit" as a number near 2^63.
    if (file >> value && value < (std::int64_t{1} << 60)) return value;
  }
  return std::nullopt;
}

}  // namespace

CpuInfo cpu_info() {
  utsname system{};
  ::uname(&system);
  return cpu_info(read_file("/proc/cpuinfo"), system.machine);
}

CpuInfo cpu_info(const std::string& cpuinfo, const std::string& architecture) {
  // Kernel name, common name.
  static constexpr std::pair<const char*, const char*> kNames[] = {{"avx2", "AVX2"},
                                                                   {"fma", "FMA"},
                                                                   {"f16c", "F16C"},
                                                                   {"avx512f", "AVX-512"},
                                                                   {"avx512_bf16", "AVX-512 bf16"},
                                                                   {"avx512_fp16", "AVX-512 fp16"},
                                                                   {"avx512_vnni", "AVX-512 VNNI"},
                                                                   {"amx_tile", "AMX"},
                                                                   {"amx_bf16", "AMX bf16"},
                                                                   {"amx_fp16", "AMX fp16"},
                                                                   {"amx_int8", "AMX int8"},
                                                                   {"asimd", "NEON"},
                                                                   {"asimdhp", "NEON fp16"},
                                                                   {"asimddp", "dot product"},
                                                                   {"sve", "SVE"},
                                                                   {"sve2", "SVE2"},
                                                                   {"bf16", "bf16"},
                                                                   {"i8mm", "i8mm"},
                                                                   {"sme", "SME"}};
  CpuInfo info;
  info.architecture = architecture;
  info.model = field(cpuinfo, "model name");
  if (info.model.empty()) info.model = arm_model(cpuinfo);
  if (info.model.empty()) info.model = "unknown";
  std::string flags = field(cpuinfo, "flags");
  if (flags.empty()) flags = field(cpuinfo, "Features");
  const std::vector<std::string> words = [&] {
    std::istringstream in(flags);
    return std::vector<std::string>(std::istream_iterator<std::string>(in), {});
  }();
  for (const auto& [kernel, common] : kNames) {
    if (std::find(words.begin(), words.end(), kernel) != words.end()) {
      info.features.emplace_back(common);
    }
  }
  return info;
}

MemoryInfo memory_info() {
  const std::string meminfo = read_file("/proc/meminfo");
  MemoryInfo info;
  info.total = kibibytes(meminfo, "MemTotal");
  info.available = kibibytes(meminfo, "MemAvailable");
  info.limit = memory_limit();
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    const auto block = static_cast<std::int64_t>(shm.f_frsize);
    info.dev_shm_total = static_cast<std::int64_t>(shm.f_blocks) * block;
    info.dev_shm_free = static_cast<std::int64_t>(shm.f_bavail) * block;
  }
  return info;
}

std::vector<Limit> limits() {
  const auto limit = [](const char* name, int resource, bool bytes) {
    rlimit values{};
    ::getrlimit(static_cast<__rlimit_resource_t>(resource), &values);
    Limit result{name, std::nullopt, bytes};
    if (values.rlim_cur != RLIM_INFINITY) {
      result.value = static_cast<std::int64_t>(values.rlim_cur);
    }
    return result;
  };
  return {limit("open files", RLIMIT_NOFILE, false), limit("processes", RLIMIT_NPROC, false),
          limit("locked memory", RLIMIT_MEMLOCK, true), limit("stack", RLIMIT_STACK, true),
          limit("address space", RLIMIT_AS, true)};
}

std::optional<std::vector<Gpu>> driver_gpus() {
  const SharedLibrary library({"libcuda.so.1"});
  int (*init)(unsigned) = nullptr;
  int (*count)(int*) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(std::size_t*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  library.find("cuInit", init);
  library.find("cuDeviceGetCount", count);
  library.find("cuDeviceGet", get);
  library.find("cuDeviceGetName", name);
  library.find("cuDeviceTotalMem_v2", memory);
  library.find("cuDeviceGetAttribute", attribute);
  constexpr int kMultiprocessors = 16;     // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…
  if (!init || !count || !get || !name || !memory || init(0) != 0) return std::nullopt;
  int devices = 0;
  if (count(&devices) != 0) return std::nullopt;
  std::vector<Gpu> gpus;
  for (int i = 0; i < devices; ++i) {
    int device = 0;
    char text[256] = "";
    std::size_t bytes = 0;
    if (get(&device, i) != 0) continue;
    name(text, sizeof text, device);
    memory(&bytes, device);
    int units = 0;
    if (!attribute || attribute(&units, kMultiprocessors, device) != 0) units = 0;
    int major = 0, minor = 0;
    const bool known = attribute && attribute(&major, kMajor, device) == 0 &&
                       attribute(&minor, kMinor, device) == 0;
    gpus.push_back({text, static_cast<std::int64_t>(bytes), units,
                    known ? str(major, ".", minor) : std::string()});
  }
  return gpus;
}

std::string cublaslt_version() {
  const char* const name = "cublasLtGetVersion";
  const SharedLibrary library(name, {"libcublasLt.so.13", "libcublasLt.so.12"});
  std::size_t (*get)() = nullptr;
  library.find(name, get);
  if (get == nullptr) return "";
  const std::size_t version = get();  // 130002 is 13.0.2
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace tessera::cli
