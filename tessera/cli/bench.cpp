// tessera bench: measures collectives on this machine.

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/cli/bench_comm.h"
#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/rank_failure.h"
#include "tessera/comm/backend_kind.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/comm/launch.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/progress.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/process/own_ranks.h"

namespace tessera::cli {
namespace {

constexpr const char* kBenchExamples =
    "  tessera bench comm --ranks 2\n"
    "  tessera bench comm --ranks 4 --sizes 25MiB --ops all_reduce --memory symmetric\n"
    "  tessera bench comm --ranks 2 --ops all --sizes 4KiB,1MiB --dtype bf16 --json\n"
    "  mpirun -n 2 tessera bench comm                      (joins the ranks of a launcher)\n"
    "\n"
    "JSON is an array of {op, backend, memory, dtype, ranks, bytes, ms, min_ms, gb_per_s}. bytes "
    "is\n"
    "the whole buffer (the input of all_reduce, the output of all_gather), ms the median over "
    "the\n"
    "repetitions of the time on the slowest rank, min_ms the minimum, gb_per_s = bytes / time.";

struct BenchArguments {
  BenchOptions bench;
  int ranks = 2;
  bool ranks_given = false;
  std::string backend = "auto";
  std::string memory;  // empty: all kinds that the backend supports
  std::string dtype = name(BenchOptions().dtype);
  bool json = false;
};

// Adds an option with a comma-separated list. `read` is called for each value.
void add_list(CLI::App& app, const std::string& name, const std::string& shown,
              const std::string& help, const std::function<void()>& clear,
              const std::function<void(const std::string&)>& read) {
  app.add_option_function<std::string>(
         name,
         [=](const std::string& text) {
           clear();
           std::istringstream in(text + ",");
           for (std::string part; std::getline(in, part, ',');) {
             try {
               read(part);
             } catch (const UsageError& error) {
               throw UsageError(name + ": " + error.what());
             }
           }
         },
         help)
      ->type_name("LIST")
      ->default_str(shown);
}

void read_operation(const std::string& text, std::vector<std::string>& ops) {
  std::vector<std::string> known = bench_operations();
  if (text == "all") {
    ops = known;
    return;
  }
  if (std::find(known.begin(), known.end(), text) == known.end()) {
    known.push_back("all");
    throw UsageError(str("got ", quote(text), "; must be one of ", join(known, ", "),
                         did_you_mean(text, known)));
  }
  ops.push_back(text);
}

void add_options(CommandLine& line, CLI::App& comm, BenchArguments& arguments) {
  BenchOptions& bench = arguments.bench;
  line.integer(comm, "-n,--ranks", arguments.ranks, 2, 4096,
               "ranks to start on this machine; under torchrun, mpirun, srun or tessera run, the "
               "ranks of the launcher")
      ->each([&](const std::string&) { arguments.ranks_given = true; });
  add_list(
      comm, "--sizes", "4KiB,1MiB,25MiB,100MiB", "sizes of the whole buffer",
      [&] { bench.sizes.clear(); },
      [&](const std::string& text) { bench.sizes.push_back(parse_bytes(text)); });
  add_list(
      comm, "--ops", join(bench.ops, ","),
      "operations: " + join(bench_operations(), ", ") + "; or all", [&] { bench.ops.clear(); },
      [&](const std::string& text) { read_operation(text, bench.ops); });
  line.choice(comm, "--memory", arguments.memory, {"symmetric", "ordinary", "both"},
              "kind of buffer; by default both on shm, otherwise ordinary");
  line.dtype(comm, "--dtype", arguments.dtype, comm::kMovedTypes, "element type");
  line.choice(comm, "--backend", arguments.backend, comm::backend_names(),
              "auto: shm on one host, two-level on several");
  line.seconds(comm, "--time", bench.seconds, "time of each measurement");
  line.integer(comm, "--repeat", bench.repeat, 0, 1 << 20,
               "repetitions of each measurement; 0: as many as fit into --time");
  comm.add_flag("--json", arguments.json, "print JSON");
}

std::vector<std::string> memories(const std::string& asked, const comm::Group& world) {
  const bool symmetric = world.shares_memory() && world.size() > 1;
  if (asked.empty()) {
    return symmetric ? std::vector<std::string>{"symmetric", "ordinary"}
                     : std::vector<std::string>{"ordinary"};
  }
  if (asked != "ordinary" && !symmetric) {
    throw UsageError(Flag("memory"), str("got ", asked, ", but the backend ", world.backend(),
                                         " has no symmetric memory; must be ordinary"));
  }
  if (asked == "both") return {"symmetric", "ordinary"};
  return {asked};
}

int measure(BenchArguments& arguments) {
  comm::InitOptions init;
  init.backend = arguments.backend;
  const comm::Group world = comm::init(init);
  arguments.bench.memories = memories(arguments.memory, world);
  std::optional<Progress> bar;
  BenchProgress progress;
  if (world.rank() == 0) {
    progress = [&](int done, int total, const std::string& what) {
      if (!bar) {
        ProgressOptions shown;
        shown.label = "bench comm";
        bar.emplace(total, shown);
      }
      bar->update(done, what);
    };
  }
  const std::vector<BenchResult> results = bench_comm(world, arguments.bench, progress);
  if (world.rank() == 0) {
    // A log needs no final progress line: the figures follow.
    if (bar && bar->mode() == ProgressMode::kTerminal) {
      bar->update(static_cast<std::int64_t>(results.size()));
      bar->finish();
    }
    print_out(arguments.json ? bench_json(results) : bench_table(results));
  }
  return 0;
}

int bench_on_ranks(BenchArguments& arguments, int argc, char** argv) {
  arguments.bench.dtype = parse_dtype(arguments.dtype, comm::kMovedTypes);
  check_sizes(arguments.bench);
  const comm::Launch launch = comm::detect_launch();
  if (launch.launcher != "alone") {
    if (arguments.ranks_given) {
      process::check_given_ranks(arguments.ranks, launch.launcher, launch.size);
    }
    return report_to_launcher([&] { return measure(arguments); });
  }
  return process::start_ranks({.ranks = arguments.ranks, .name = "bench"},
                              process::own_command(argc, argv));
}

}  // namespace

int bench_command(int argc, char** argv) {
  BenchArguments arguments;
  CommandLine line("bench", "Measures this machine.", kBenchExamples);
  CLI::App& comm = *line.app().add_subcommand(
      "comm", "Measures collectives, on ranks that it starts or on the ranks of a launcher.");
  add_options(line, comm, arguments);
  line.app().require_subcommand(1);
  return line.run(argc, argv, [&] { return bench_on_ranks(arguments, argc, argv); });
}

}  // namespace tessera::cli
