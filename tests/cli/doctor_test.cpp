#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/cli/doctor_report.h"
#include "tessera/cli/machine.h"
#include "tests/processes.h"

namespace tessera::cli {
namespace {

TEST(Machine, ReadsAnIntelCpu) {
  const CpuInfo cpu = cpu_info(
      "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8481C\n"
      "flags\t\t: fpu fma avx2 avx512f avx512_bf16 amx_bf16 amx_tile amx_int8\n",
      "x86_64");
  EXPECT_EQ(cpu.model, "Intel(R) Xeon(R) Platinum 8481C");
  EXPECT_EQ(cpu.features, (std::vector<std::string>{"AVX2", "FMA", "AVX-512", "AVX-512 bf16", "AMX",
                                                    "AMX bf16", "AMX int8"}));
}

TEST(Machine, ReadsAnArmCpu) {
  const CpuInfo cpu = cpu_info(
      "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\nCPU implementer\t: 0x41\n"
      "CPU part\t: 0xd40\n",
      "aarch64");
  EXPECT_EQ(cpu.model, "Arm Neoverse V1");
  EXPECT_EQ(cpu.features, (std::vector<std::string>{"NEON", "SVE", "bf16", "i8mm"}));
  EXPECT_EQ(cpu_info("CPU implementer : 0x99\nCPU part : 0x1\n", "aarch64").model,
            "implementer 0x99, part 0x1");
  EXPECT_EQ(cpu_info("", "riscv64").model, "unknown");
}

TEST(Machine, ReadsThisMachine) {
  EXPECT_FALSE(cpu_info().architecture.empty());
  const MemoryInfo memory = memory_info();
  EXPECT_GT(memory.total, 0);
  EXPECT_LE(memory.available, memory.total);
  EXPECT_EQ(limits().size(), 5u);
}

const BackendStatus& find(const std::vector<BackendStatus>& all, const std::string& name) {
  return *std::find_if(all.begin(), all.end(), [&](const auto& row) { return row.name == name; });
}

TEST(Backends, ReportWhatIsMissing) {
  BackendFacts facts;
  facts.nccl_problem = "LibTorch has no CUDA";
  facts.driver_gpus = 2;
  std::vector<BackendStatus> rows = backend_statuses(facts);
  EXPECT_TRUE(find(rows, "shm").works);
  EXPECT_TRUE(find(rows, "dry").works);
  EXPECT_TRUE(find(rows, "two-level").works);
  EXPECT_FALSE(find(rows, "nccl").works);
  EXPECT_EQ(find(rows, "nccl").why,
            "LibTorch has no CUDA (the driver lists 2 that LibTorch cannot use)");

  facts = {};
  facts.shm_problem = "memfd_create: no";
  facts.nccl_version = "2.28.9";
  facts.usable_gpus = 8;
  rows = backend_statuses(facts);
  EXPECT_FALSE(find(rows, "shm").works);
  EXPECT_EQ(find(rows, "two-level").why, "needs shm");
  EXPECT_TRUE(find(rows, "nccl").works);
  EXPECT_EQ(find(rows, "nccl").why, "NCCL 2.28.9, 8 GPUs");

  facts.shm_problem = "";
  EXPECT_TRUE(find(backend_statuses(facts), "two-level").works);
}

TEST(Backends, SharedMemoryWorksHere) { EXPECT_EQ(shared_memory_problem(), ""); }

DoctorReport example() {
  DoctorReport report;
  report.tessera_version = "0.1.0";
  report.compiler = compiler_version();
  report.torch.version = "2.13.0";
  report.cpu = {"Arm Neoverse N1", "aarch64", {"NEON"}};
  report.topology.source = "sysfs";
  report.topology.cores = {{0, 0, {0}}, {0, 0, {1}}};
  report.memory.total = std::int64_t{16} << 30;
  report.limits = {{"open files", 1024, false}, {"stack", std::nullopt, true}};
  report.gpus = std::vector<Gpu>{{"H200", std::int64_t{140} << 30, 132, "9.0"}};
  report.driver = "580.65.06";
  report.cublaslt = "13.0.2";
  report.cuda_kernels = true;
  report.backends = {{"shm", true, "memfds"}, {"nccl", false, "not built"}};
  return report;
}

TEST(DoctorReport, TextShowsEveryPart) {
  const std::string text = to_text(example());
  for (const char* part :
       {"0.1.0", "2.13.0", "Arm Neoverse N1", "NEON", "2 cores", "1 socket", "16 GiB",
        "open files 1,024", "stack unlimited", "H200, 140 GiB, compute capability 9.0",
        "driver 580.65.06", "13.0.2", "built in", "LibTorch can use 0 of them", "shm",
        "works  memfds", "not built"}) {
    EXPECT_TRUE(contains(text, part)) << part << " not in\n" << text;
  }
}

TEST(DoctorReport, JsonShowsTheSame) {
  const auto json = nlohmann::json::parse(to_json(example()));
  EXPECT_EQ(json["versions"]["libtorch"], "2.13.0");
  EXPECT_TRUE(json["versions"]["libtorch_cuda"].is_null());
  EXPECT_EQ(json["cpu"]["cores"], 2);
  EXPECT_EQ(json["memory"]["total_bytes"], std::int64_t{16} << 30);
  EXPECT_EQ(json["limits"]["open files"], 1024);
  EXPECT_TRUE(json["limits"]["stack"].is_null());
  EXPECT_EQ(json["gpus"]["devices"][0]["name"], "H200");
  EXPECT_EQ(json["gpus"]["devices"][0]["capability"], "9.0");
  EXPECT_EQ(json["versions"]["driver"], "580.65.06");
  EXPECT_EQ(json["versions"]["cublaslt"], "13.0.2");
  EXPECT_EQ(json["versions"]["cuda_kernels"], true);
  EXPECT_EQ(json["backends"].size(), 2u);
  EXPECT_EQ(json["backends"][1]["works"], false);
}

TEST(DoctorReport, IsHealthyIfShmWorks) {
  DoctorReport report = example();
  EXPECT_TRUE(report.healthy());
  report.backends[0].works = false;
  EXPECT_FALSE(report.healthy());
}

}  // namespace
}  // namespace tessera::cli
