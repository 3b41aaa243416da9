#include "tessera/cli/own_ranks.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "tessera/cli/launcher.h"
#include "tessera/cli/store_server.h"
#include "tessera/cli/topology.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

std::string own_program() {
  std::string path(4096, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw Error(str("cannot read /proc/self/exe: ", std::strerror(errno)));
  path.resize(static_cast<std::size_t>(length));
  return path;
}

}  // namespace

std::vector<std::string> own_command(int argc, char** argv) {
  std::vector<std::string> words = {own_program()};
  words.insert(words.end(), argv, argv + argc);
  return words;
}

int start_ranks(const OwnRanks& own, std::vector<std::string> command) {
  const Topology machine = topology();
  LaunchOptions options;
  options.command = std::move(command);
  options.ranks = own.ranks;
  options.threads =
      own.threads > 0 ? own.threads : threads_per_rank(machine, cpu_quota(), own.ranks);
  options.cpus = divide_cores(machine, own.ranks);
  options.prefix = false;
  options.grace = own.grace;
  options.run_id = str("tessera-", own.name, "-", ::getpid());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    options.environment.emplace_back(*entry);
  }
  const BlockedSignals signals;  // before the store starts its thread
  const StoreServer store(/*only_here=*/true, 0);
  options.master_port = store.port();
  return launch(options, signals).status;
}

int become_mpirun(int ranks, const std::vector<std::string>& command) {
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(ranks)};
  if (static_cast<unsigned>(ranks) > std::thread::hardware_concurrency()) {
    words.push_back("--oversubscribe");
  }
  if (::geteuid() == 0) words.push_back("--allow-run-as-root");
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp("mpirun", pointers.data());
  throw UsageError(str("cannot start mpirun: ", std::strerror(errno),
                       ". Install it (Debian: openmpi-bin), or choose --backend shm"));
}

}  // namespace tessera::cli
