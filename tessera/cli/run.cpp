// tessera run: starts a program as several ranks.

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/launcher.h"
#include "tessera/cli/store_server.h"
#include "tessera/cli/topology.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

constexpr int kTorchrunPort = 29500;

constexpr const char* kExamples =
    "  tessera run -n 4 -- ./program --its-own-options\n"
    "  tessera run -n 2 --threads 1 --bind none -- python3 train.py\n"
    "  tessera run -n 8 --nodes 2 --node-rank 0 --master-addr host0 -- ./program   (on host0)\n"
    "  tessera run -n 8 --nodes 2 --node-rank 1 --master-addr host0 -- ./program   (on host1)\n"
    "\n"
    "Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the other\n"
    "variables of torchrun in its environment. The status is that of the rank that failed\n"
    "first: 128 + n after signal n, 124 after --timeout, 127 for a program that is not there.";

struct RunArguments {
  LaunchOptions launch;
  int threads = 0;
  std::string bind = "core";
  bool no_prefix = false;
  std::string master_addr;
  int master_port = 0;
};

void add_options(CommandLine& line, RunArguments& arguments) {
  CLI::App& app = line.app();
  LaunchOptions& launch = arguments.launch;
  line.integer(app, "-n,--ranks", launch.ranks, 1, 4096, "ranks on this machine")->required();
  line.integer(app, "--threads", arguments.threads, 1, 4096,
               "threads of each rank (OMP_NUM_THREADS); otherwise its share of the cores, unless "
               "the variable is set")
      ->default_str("");
  line.choice(app, "--bind", arguments.bind, {"core", "none"},
              "bind each rank to its share of the cores, where there is one for each");
  app.add_flag("--no-prefix", arguments.no_prefix, "leave the output of the ranks as it is");
  line.seconds(app, "--timeout", launch.timeout, "end the run after this time; 0 is never");
  line.seconds(app, "--grace", launch.grace,
               "after a failure, time for the others to end by themselves");
  line.integer(app, "--nodes", launch.nodes, 1, 1 << 20, "machines that take part");
  line.integer(app, "--node-rank", launch.node_rank, 0, 1 << 20, "which of them this is");
  app.add_option("--master-addr", arguments.master_addr, "address of node 0, where the ranks meet");
  line.integer(app, "--master-port", arguments.master_port, 0, 65535,
               "port there; 0 is a free one, or 29500 with several nodes");
  line.takes_program();
}

void check_nodes(RunArguments& arguments) {
  LaunchOptions& launch = arguments.launch;
  if (launch.node_rank >= launch.nodes) {
    throw UsageError(str("--node-rank is ", launch.node_rank, " but --nodes is ", launch.nodes,
                         "; the nodes are numbered from 0 to ", launch.nodes - 1));
  }
  if (launch.nodes > 1 && arguments.master_addr.empty()) {
    throw UsageError("--nodes needs --master-addr, the address of node 0, the same on every node");
  }
  if (launch.nodes > INT_MAX / launch.ranks) throw UsageError("too many ranks in all");
  if (!arguments.master_addr.empty()) launch.master_addr = arguments.master_addr;
  launch.master_port = arguments.master_port;
  if (launch.nodes > 1 && launch.master_port == 0) launch.master_port = kTorchrunPort;
}

void divide_machine(RunArguments& arguments) {
  LaunchOptions& launch = arguments.launch;
  const Topology machine = topology();
  launch.threads = arguments.threads;
  if (launch.threads == 0 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    launch.threads = threads_per_rank(machine, cpu_quota(), launch.ranks);
  }
  if (arguments.bind == "core" && launch.ranks > 1) {
    launch.cpus = divide_cores(machine, launch.ranks);
  }
}

}  // namespace

int run_command(int argc, char** argv) {
  RunArguments arguments;
  CommandLine line("run", "Starts a program as several ranks and looks after them.", kExamples);
  add_options(line, arguments);
  if (!line.parse(argc, argv)) return 0;
  LaunchOptions& launch_options = arguments.launch;
  launch_options.command = line.program();
  if (launch_options.command.empty()) {
    throw UsageError("no program to run; write it at the end: tessera run -n 4 -- ./program");
  }
  check_nodes(arguments);
  divide_machine(arguments);
  launch_options.prefix = !arguments.no_prefix;
  launch_options.color = std::getenv("NO_COLOR") == nullptr;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    launch_options.environment.emplace_back(*entry);
  }

  check_open_files(launch_options);
  const BlockedSignals signals;  // before the store starts its thread
  std::optional<StoreServer> store;
  if (launch_options.node_rank == 0) {
    store.emplace(launch_options.nodes == 1 && arguments.master_addr.empty(),
                  launch_options.master_port);
    launch_options.master_port = store->port();
  }
  // The same on every node: the address of the store is what they agree on.
  launch_options.run_id =
      str("tessera-", launch_options.master_addr, "-", launch_options.master_port);
  return launch(launch_options, signals).status;
}

}  // namespace tessera::cli
