// A job in which one rank goes wrong in the way that the first argument names. The others print
// what they were told, how long after, and end with status 9. Started by mpi_failure.sh.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tessera/comm/hierarchical/backend.h"
#include "tessera/core/errors.h"
#include "tests/comm/mpi_world.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;  // one clock for all processes of a machine

struct Plan {
  std::string way;
  std::string note;     // a file in which the culprit leaves the time
  std::string backend;  // mpi or two-level
};

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

void go_wrong(const Plan& plan, Backend& group) {
  std::ofstream(plan.note) << std::fixed << now() << std::flush;
  if (plan.way == "kill") ::raise(SIGKILL);
  if (plan.way == "stop") ::raise(SIGSTOP);
  if (plan.way == "exit") _exit(5);
  if (plan.way == "throw") throw std::runtime_error("a bug of this rank alone");
  if (plan.way == "message") {
    float x = 0;
    group.submit({Op::recv, DType::f32, ReduceOp::sum, Traffic::model, nullptr, &x, 1, 0, ""})
        .wait();
  }
}

void work(const Plan& plan, Backend& group) {
  const int rank = group.rank(), culprit = 1;
  std::vector<float> x(300'000, 1.0f);
  for (int i = 0;; ++i) {
    if (i == 5 && rank == culprit) {
      if (plan.way == "leave") return;
      go_wrong(plan, group);
    }
    if (i == 5 && rank == 0 && plan.way == "message") {
      group.submit(
          {Op::send, DType::i64, ReduceOp::sum, Traffic::model, x.data(), nullptr, 7, culprit, ""});
    }
    group
        .submit({Op::all_reduce, DType::f32, ReduceOp::max, Traffic::model, x.data(), x.data(),
                 i % 2 == 0 ? x.size() : 10, -1, "gradient"})
        .wait();
  }
}

int run(const Plan& plan) {
  int rank = -1;
  try {
    testing::World world = testing::join_world();
    rank = world.rank();
    if (plan.way == "stop") world.options.timeout = std::chrono::milliseconds(1500);
    if (plan.backend == "mpi") {
      work(plan, *world.group("world"));
    } else {
      if (world.peers->same_host(world.size() - 1))
        world.peers = testing::pretend_hosts(world.peers, 2);
      work(plan, *hierarchical::make_backend(world.peers, world.runtime, world.everybody(), "world",
                                             world.options));
    }
  } catch (const PeerError& error) {
    double then = 0;
    std::ifstream(plan.note) >> then;
    std::printf("rank %d: PeerError names %d after %.3f s: %s\n", rank, error.rank(), now() - then,
                error.what());
    return 9;
  } catch (const UsageError& error) {
    std::printf("rank %d: UsageError: %s\n", rank, error.what());
    return 9;
  } catch (const std::exception& error) {
    std::printf("rank %d: exception: %s\n", rank, error.what());
    return 3;
  }
  std::printf("rank %d: done\n", rank);
  return 0;
}

}  // namespace
}  // namespace tessera::comm

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return tessera::comm::run({argv[1], argv[2], argv[3]});
}
