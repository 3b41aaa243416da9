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
#include "tessera/comm/secret.h"
#include "tessera/core/errors.h"
#include "tessera/core/most_ranks.h"
#include "tessera/core/text.h"
#include "tessera/process/cpu_topology.h"
#include "tessera/process/launcher.h"
#include "tessera/process/rendezvous.h"

namespace tessera::cli {
namespace {

constexpr int kTorchrunPort = 29500;

constexpr const char* kRunExamples =
    "  tessera run -n 4 -- ./program --its-own-options\n"
    "  tessera run -n 2 --threads 1 --bind none -- python3 train.py\n"
    "  tessera run -n 8 --nodes 2 --node-rank 0 --master-addr host0 --secret-file F -- ./program\n"
    "  tessera run -n 8 --nodes 2 --node-rank 1 --master-addr host0 --secret-file F -- ./program\n"
    "\n"
    "The last two commands are for host0 and host1; F holds the same 32 random bytes on both.\n"
    "The environment of each rank has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT\n"
    "and the other variables of torchrun. The exit status is that of the rank that failed\n"
    "first: 128 + n after signal n, 124 after --timeout, 127 if the program is not found.";

struct RunArguments {
  process::LaunchOptions launch;
  int threads = 0;
  std::string bind = "core";
  bool no_prefix = false;
  std::string master_addr;
  int master_port = 0;
  process::RendezvousOptions rendezvous;
};

void add_options(CommandLine& line, RunArguments& arguments) {
  CLI::App& app = line.app();
  process::LaunchOptions& launch = arguments.launch;
  line.integer(app, "-n,--ranks", launch.ranks, 1, kMaxRanks, "ranks on this machine", kMaxRanksWhy)
      ->required()
      ->default_str("");
  line.integer(app, "--threads", arguments.threads, 1, 4096,
               "threads per rank (OMP_NUM_THREADS); by default the variable if it is set, "
               "otherwise the rank's share of the cores")
      ->default_str("");
  line.choice(app, "--bind", arguments.bind, {"core", "none"},
              "bind each rank to its share of the cores, if there is a core for each rank");
  app.add_flag("--no-prefix", arguments.no_prefix, "do not prefix the output of the ranks");
  line.seconds(app, "--timeout", launch.timeout, "stop the run after this time; 0: no limit");
  line.seconds(app, "--grace", launch.grace,
               "after a failure, time for the other ranks to exit by themselves");
  line.seconds(app, "--stop-grace", launch.stop_grace,
               "after a termination signal, time for the ranks to exit before they are killed");
  line.integer(app, "--nodes", launch.nodes, 1, 1 << 20, "number of machines");
  line.integer(app, "--node-rank", launch.node_rank, 0, 1 << 20, "index of this machine");
  app.add_option("--master-addr", arguments.master_addr, "address of node 0, used for rendezvous");
  line.integer(app, "--master-port", arguments.master_port, 0, 65535,
               "port of torch.distributed on node 0; 0: a free one, or 29500 with several nodes. "
               "With several nodes Tessera's own rendezvous uses the next port");
  app.add_option("--secret-file", arguments.rendezvous.secret_file,
                 "file with mode 0600 and the same content on every node, which authenticates "
                 "the ranks; required with several nodes, otherwise generated");
  app.add_option("--interface", arguments.rendezvous.interface,
                 "name or address of the network interface on which to listen for other nodes; "
                 "by default the one that routes to --master-addr");
  line.takes_program();
}

void check_nodes(RunArguments& arguments) {
  process::LaunchOptions& launch = arguments.launch;
  if (launch.node_rank >= launch.nodes) {
    throw UsageError(str("--node-rank is ", launch.node_rank, " but --nodes is ", launch.nodes,
                         "; must be 0 to ", launch.nodes - 1),
                     "node-rank");
  }
  if (launch.nodes > 1 && arguments.master_addr.empty()) {
    throw UsageError("--nodes needs --master-addr, the address of node 0, the same on every node",
                     "nodes");
  }
  if (launch.nodes > 1 && arguments.rendezvous.secret_file.empty()) {
    throw UsageError(
        str("--nodes needs --secret-file: without it anyone on the network could join the "
            "ranks. Create one and copy it to every node: ",
            comm::how_to_make_secret_file("F")),
        "nodes");
  }
  if (launch.nodes > 1 && arguments.master_port == 65535) {
    throw UsageError(Flag("master-port"),
                     "got 65535; must be at most 65534 with several nodes, which use the next "
                     "port too");
  }
  if (launch.nodes > INT_MAX / launch.ranks) {
    throw UsageError(str("--ranks ", launch.ranks, " × --nodes ", launch.nodes,
                         ": the number of ranks must be at most ", INT_MAX),
                     "ranks");
  }
  if (!arguments.master_addr.empty()) launch.master_addr = arguments.master_addr;
  launch.master_port = arguments.master_port;
  if (launch.nodes > 1 && launch.master_port == 0) launch.master_port = kTorchrunPort;
}

void divide_machine(RunArguments& arguments) {
  process::LaunchOptions& launch = arguments.launch;
  const process::Topology machine = process::topology();
  launch.threads = arguments.threads;
  if (launch.threads == 0 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    launch.threads = process::threads_per_rank(machine, process::cpu_quota(), launch.ranks);
  }
  if (arguments.bind == "core" && launch.ranks > 1) {
    launch.cpus = process::divide_cores(machine, launch.ranks);
  }
}

}  // namespace

int run_command(int argc, char** argv) {
  RunArguments arguments;
  CommandLine line("run", "Starts a program as several ranks and supervises them.", kRunExamples);
  add_options(line, arguments);
  if (!line.parse(argc, argv)) return 0;
  process::LaunchOptions& launch_options = arguments.launch;
  launch_options.command = line.program();
  if (launch_options.command.empty()) {
    throw UsageError("no program to run; add it at the end: tessera run -n 4 -- ./program");
  }
  check_nodes(arguments);
  divide_machine(arguments);
  launch_options.prefix = !arguments.no_prefix;
  launch_options.color = std::getenv("NO_COLOR") == nullptr;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    launch_options.environment.emplace_back(*entry);
  }

  process::check_open_files(launch_options.ranks);
  const process::BlockedSignals signals;  // before the store starts its thread
  // The id must be equal on all nodes; with several, the address of the first is known to each.
  launch_options.run_id = launch_options.nodes == 1 ? str("tessera-run-", ::getpid())
                                                    : str("tessera-", launch_options.master_addr,
                                                          "-", launch_options.master_port);
  const process::Rendezvous rendezvous(launch_options, arguments.rendezvous);
  return process::launch(launch_options, signals).status;
}

}  // namespace tessera::cli
