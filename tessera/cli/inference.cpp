#include "tessera/cli/inference.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "tessera/comm/backend_kind.h"
#include "tessera/comm/gpus.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/memory/device_memory.h"
#include "tessera/models/language_model.h"
#include "tessera/process/host_memory.h"
#include "tessera/process/own_ranks.h"
#include "tessera/train/memory_check.h"

namespace tessera::cli {

void add_model_options(CommandLine& line, InferenceArguments& a) {
  line.app().add_option("--from", a.from, "trained model")->required()->type_name("FOLDER");
  line.app()
      .add_option("--base", a.base,
                  "for adapters: their base model; by default the one that their files name")
      ->type_name("FOLDER");
}

void add_device_options(CommandLine& line, InferenceArguments& a) {
  CLI::App& app = line.app();
  line.choice(app, "--device", a.device, {"cpu", "cuda"}, "device to compute on");
  line.choice(app, "--backend", a.backend, comm::backend_names(), "backend of the collectives");
  line.integer(app, "--threads", a.threads, 0, 4096, "threads per rank; 0: its share of the cores");
  app.add_flag("--force", a.force, "start even if memory seems insufficient");
}

void check_device_options(const InferenceArguments& a) {
  if (comm::backend_kind(a.backend).simulated) {
    throw UsageError(Flag("backend"), str("got ", a.backend, ", which simulates the other ranks"));
  }
  if (a.device == "cuda" && comm::gpu_count() == 0) {
    throw UsageError(Flag("device"), "got cuda, but LibTorch finds no CUDA device; must be cpu");
  }
}

std::unique_ptr<train::ModelFiles> open_model(const InferenceArguments& a) {
  if (a.threads > 0) at::set_num_threads(a.threads);
  auto files = train::open_model(a.from, a.base);
  try {
    models::check_tp(files->shape(), a.tp);
  } catch (const UsageError& error) {
    throw UsageError(str("--tp ", a.tp, ": ", error.what()), "tp");
  }
  return files;
}

c10::Device own_device(const InferenceArguments& a, const comm::Group& ranks) {
  if (a.device == "cpu") return c10::kCPU;
  const int rank = comm::local_rank_of(ranks.rank(), ranks.size());
  const int gpu = comm::gpu_of(rank, std::max(1, comm::gpu_count()));
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice(device);
  return device;
}

void check_memory(const InferenceArguments& a, std::int64_t need, c10::Device device, int ranks,
                  const std::string& remedy) {
  if (a.force) return;
  if (!device.is_cpu()) {
    at::empty({1}, at::device(device));  // initializes the device: device_free() needs it
    if (const auto free = memory::device_free(device)) {
      train::check_inference_memory(need, ranks, *free, device.str(), remedy);
    }
  } else if (const auto free = process::free_host_memory()) {
    train::check_inference_memory(need, ranks, free->bytes, str("this host (", free->bound, ")"),
                                  remedy);
  }
}

void print_notes(const std::string& command, const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    if (!note.empty())
      write_all(2, str("tessera ", command, ": note: ", visible_lines(note), "\n"));
  }
}

int start_own_ranks(const InferenceArguments& a, int ranks, const std::string& command, int argc,
                    char** argv) {
  return process::start_ranks({.ranks = ranks, .threads = a.threads, .name = command},
                              process::own_command(argc, argv));
}

}  // namespace tessera::cli
