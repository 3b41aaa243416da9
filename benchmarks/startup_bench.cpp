// Time until the ranks of a job have found each other and hold their control connections:
//   startup_bench [RANKS_PER_HOST] [ROUNDS] [MOST_RANKS]
// For 2, 4, 8, … MOST_RANKS (64) ranks, as processes of this machine, medians of ROUNDS (5). Hosts
// are simulated: RANKS_PER_HOST consecutive ranks use Unix sockets, the others TCP over the
// loopback interface. 0 (the default) puts all ranks on one host.
//   startup_bench store [CLIENTS]
// Time of connecting to the store, and of one operation while CLIENTS (4096) are connected to it.

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/comm/secret.h"
#include "tessera/comm/socket_peers.h"
#include "tessera/comm/store_client.h"
#include "tessera/comm/store_server.h"
#include "tessera/core/errors.h"

namespace {

using namespace tessera::comm;
using Clock = std::chrono::steady_clock;

// Memory that the parent and all ranks map.
struct Board {
  std::atomic<int> started;
  std::atomic<int> connected;
  std::atomic<bool> go;
  std::atomic<bool> end;
  std::atomic<int> connections[4096];
};

// Number of sockets that do not listen.
int count_connections() {
  int connections = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int listens = 0;
    socklen_t length = sizeof(listens);
    connections +=
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens == 0;
  }
  return connections;
}

void wait_for(const auto& condition, useconds_t interval = 200) {
  while (!condition()) usleep(interval);
}

int run_rank(Board& board, int rank, int size, int per_host, const StoreClientOptions& where) {
  try {
    const int before = count_connections();
    ++board.started;
    wait_for([&] { return board.go.load(); });
    StoreClientOptions own = where;
    own.rank = rank;
    const auto store = connect_store(own);
    PeersOptions options;
    options.secret = where.secret;
    options.run = where.run;
    options.address = "127.0.0.1";
    if (per_host > 0) options.host = "host " + std::to_string(rank / per_host);
    const auto peers = connect_peers(*store, rank, size, options);
    board.connections[rank] = count_connections() - before - 1;  // without the store's
    ++board.connected;
    // Seldom, so that ranks that are connected take no time from the others.
    wait_for([&] { return board.end.load(); }, 20'000);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

struct Result {
  double seconds = 0;
  int most_connections = 0;
};

Result start(int size, int per_host) {
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  auto& board = *new (memory) Board{};
  const std::string secret = random_secret();
  std::vector<pid_t> ranks;
  int pipes[2];
  if (pipe(pipes) != 0) std::abort();
  for (int r = 0; r < size; ++r) {
    const pid_t pid = fork();
    if (pid == 0) {
      int port = 0;
      close(pipes[1]);
      if (read(pipes[0], &port, sizeof(port)) != sizeof(port)) _exit(1);
      _exit(run_rank(board, r, size, per_host, {{"127.0.0.1"}, port, secret, "bench", 0, size}));
    }
    ranks.push_back(pid);
  }
  // After the ranks were forked: it has a thread.
  const StoreServer server({"127.0.0.1", 0, secret, "bench", size});
  const int port = server.port();
  for (int r = 0; r < size; ++r) {
    if (write(pipes[1], &port, sizeof(port)) != sizeof(port)) std::abort();
  }
  wait_for([&] { return board.started == size; });
  const auto begin = Clock::now();
  board.go = true;
  wait_for([&] { return board.connected == size || waitpid(-1, nullptr, WNOHANG) > 0; });
  Result result{std::chrono::duration<double>(Clock::now() - begin).count(), 0};
  if (board.connected != size) std::exit(1);
  for (int r = 0; r < size; ++r)
    result.most_connections = std::max(result.most_connections, board.connections[r].load());
  board.end = true;
  for (const pid_t pid : ranks) waitpid(pid, nullptr, 0);
  close(pipes[0]);
  close(pipes[1]);
  munmap(memory, sizeof(Board));
  return result;
}

void time_store(int clients) {
  constexpr int kOperations = 2000;
  const std::string secret = random_secret();
  const StoreServer server({"127.0.0.1", 0, secret, "bench", clients});
  std::vector<decltype(connect_store({}))> stores;
  const auto start = Clock::now();
  for (int r = 0; r < clients; ++r) {
    stores.push_back(connect_store({{"127.0.0.1"}, server.port(), secret, "bench", r, clients}));
  }
  const double connecting = std::chrono::duration<double>(Clock::now() - start).count();
  stores.front()->set("key", std::string(64, 'x'));
  const auto begin = Clock::now();
  for (int i = 0; i < kOperations; ++i) stores.back()->get("key", std::chrono::seconds(10));
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%d clients: %.1f us per connection, %.1f us per operation\n", clients,
              connecting * 1e6 / clients, seconds * 1e6 / kOperations);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "store") {
    time_store(argc > 2 ? std::max(std::atoi(argv[2]), 1) : 4096);
    return 0;
  }
  const int per_host = argc > 1 ? std::atoi(argv[1]) : 0;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const int most = argc > 3 ? std::min(std::atoi(argv[3]), 4096) : 64;
  std::printf("%6s %12s %24s\n", "ranks", "ms (median)", "connections of a rank");
  for (int size = 2; size <= most; size *= 2) {
    std::vector<double> times;
    int connections = 0;
    for (int round = 0; round < rounds; ++round) {
      const Result result = start(size, per_host);
      times.push_back(result.seconds * 1e3);
      connections = std::max(connections, result.most_connections);
    }
    std::sort(times.begin(), times.end());
    std::printf("%6d %12.1f %24d\n", size, times[times.size() / 2], connections);
    std::fflush(stdout);
  }
}
