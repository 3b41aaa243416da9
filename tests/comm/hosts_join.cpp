// A rank of a job on several hosts; two_hosts.sh starts it.
//
//   hosts_join collectives   compares every operation in host memory with the expected result
//   hosts_join disagree      ranks make different calls
//   hosts_join die           the last rank kills itself, and all others must name it
//   hosts_join link          measures what two levels and one level send between the hosts
//   hosts_join nccl          over GPUs if there are enough; otherwise all must report why not
//
// A second argument is the backend, tcp by default.

#include <signal.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "tessera/comm/bootstrap.h"
#include "tessera/comm/gpus.h"
#include "tessera/comm/launch.h"
#include "tessera/comm/mesh.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/core/errors.h"

namespace tessera::comm {
namespace {

int failures = 0;

#define EXPECT(condition, ...)                                           \
  if (!(condition)) {                                                    \
    ++failures;                                                          \
    std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
    std::fprintf(stderr, __VA_ARGS__);                                   \
    std::fprintf(stderr, "\n");                                          \
  }

at::Tensor input(std::int64_t count, int rank, at::Device device) {
  return (at::arange(count, at::kFloat).remainder(17) + 100 * rank).to(device);
}

bool same(const at::Tensor& got, const at::Tensor& want) { return at::equal(got.cpu(), want); }

// Whole numbers, so that any order of addition gives the same result.
void every_operation(const Group& group, std::int64_t count, at::Device device) {
  const int n = group.size(), rank = group.rank();
  const auto stride = static_cast<std::int64_t>(shard_stride(static_cast<std::size_t>(count), n));
  const Shard shard = shard_of(static_cast<std::size_t>(count), n, rank);
  const auto begin = static_cast<std::int64_t>(shard.begin);
  const auto own = static_cast<std::int64_t>(shard.size);
  at::Tensor sum = at::zeros({count});
  for (int r = 0; r < n; ++r) sum += input(count, r, at::kCPU);
  const auto call = [](const char* label) {
    Call made;
    made.label = label;
    return made;
  };
  at::Tensor x = input(count, rank, device);
  group.all_reduce(x, call("sum")).wait();
  EXPECT(same(x, sum), "all_reduce of %ld", static_cast<long>(count));
  x = input(count, rank, device);
  at::Tensor out = at::zeros({own}, x.options());
  group.reduce_scatter(out, x, call("scatter")).wait();
  EXPECT(same(out, sum.narrow(0, begin, own)), "reduce_scatter of %ld", static_cast<long>(count));
  at::Tensor all = at::zeros({count}, x.options());
  group.all_gather(all, out, call("gather")).wait();
  EXPECT(same(all, sum), "all_gather of %ld", static_cast<long>(count));
  x = input(count, rank, device);
  group.broadcast(x, n - 1, call("broadcast")).wait();
  EXPECT(same(x, input(count, n - 1, at::kCPU)), "broadcast of %ld", static_cast<long>(count));
  x = input(count, rank, device);
  group.reduce(x, 1, call("reduce")).wait();
  EXPECT(same(x, rank == 1 ? sum : input(count, rank, at::kCPU)), "reduce");
  out = at::zeros({own * n}, x.options());
  group.all_to_all(out, input(count, rank, device), call("exchange")).wait();
  for (int r = 0; r < n; ++r) {
    EXPECT(same(out.narrow(0, r * own, own), input(count, r, at::kCPU).narrow(0, begin, own)),
           "all_to_all of %ld from %d", static_cast<long>(count), r);
  }
  out = at::zeros({count}, x.options());
  const Work sent = group.send(input(count, rank, device), (rank + 1) % n, call("ring"));
  group.recv(out, (rank + n - 1) % n, call("ring")).wait();
  sent.wait();
  EXPECT(same(out, input(count, (rank + n - 1) % n, at::kCPU)), "ring");
  if (stride * n == count) {
    Call parts = call("parts");
    parts.parts = std::make_shared<std::vector<std::size_t>>(std::vector<std::size_t>{
        static_cast<std::size_t>(count), 0, static_cast<std::size_t>(count)});
    x = at::cat({input(count, rank, device), input(count, rank, device)});
    group.reduce_scatter(x, x, parts).wait();
    group.all_gather(x, x, parts).wait();
    EXPECT(same(x, at::cat({sum, sum})), "parts");
  }
}

void collectives(const Group& world) {
  for (const std::int64_t count : {0, 1, 4, 1000, 100'003}) every_operation(world, count, at::kCPU);
  const Mesh mesh(world, Axes("dp=2,tp=2"));
  every_operation(mesh.dp(), 1000, at::kCPU);  // across the hosts
  every_operation(mesh.tp(), 1000, at::kCPU);
  const Group split = world.split(world.rank() % 2, -world.rank());
  EXPECT(split.size() == 2 && split.rank() == (world.rank() < 2 ? 1 : 0), "split");
  world.barrier();
  if (world.backend() != "tcp") return;  // two-level divides large buffers
  try {
    const at::Tensor large = at::empty({(1 << 26) + 1});
    world.all_reduce(large).wait();
    EXPECT(false, "more than 256 MiB went through");
  } catch (const UsageError& error) {
    EXPECT(std::string(error.what()).find("Split") != std::string::npos, "%s", error.what());
  }
}

void disagree(const Group& world) {
  for (int round = 0; round < 3; ++round) {
    try {
      world.all_reduce(at::ones({world.rank() == 2 ? 7 : 5})).wait();
      EXPECT(false, "no error");
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT(text.find("rank 2 called all_reduce(sum, 7 × f32)") != std::string::npos, "%s",
             text.c_str());
    }
    const at::Tensor x = at::ones({3});
    world.all_reduce(x).wait();
    EXPECT(x[0].item<float>() == 4.0f, "the group is of use afterwards");
  }
}

void die(const Group& world) {
  world.barrier();
  const int last = world.size() - 1;
  if (world.rank() == last) kill(getpid(), SIGKILL);
  const auto began = std::chrono::steady_clock::now();
  try {
    world.all_reduce(at::ones({3})).wait();
    EXPECT(false, "no error");
  } catch (const PeerError& error) {
    EXPECT(error.rank() == last, "%s", error.what());
  }
  EXPECT(std::chrono::steady_clock::now() - began < std::chrono::seconds(20), "late");
}

// Returns the bytes that this host has sent through the network interface between the hosts.
double link_bytes() {
  std::ifstream table("/proc/net/dev");
  for (std::string line; std::getline(table, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.find("cable") > colon) continue;
    std::istringstream numbers(line.substr(colon + 1));
    double value = 0;
    for (int field = 0; field < 9; ++field) numbers >> value;  // field 9: bytes sent
    return value;
  }
  EXPECT(false, "no interface");
  return 0;
}

void link(const Group& world, InitOptions options) {
  options.backend = "tcp";
  const Group flat = init(options);
  const int local = detect_launch().local_size, hosts = world.size() / local;
  const std::int64_t count = 4'000'000;
  const at::Tensor x = at::ones({count}), shard = at::ones({count / world.size()});
  const auto crossed = [&](const Group& group, const std::function<Work(const Group&)>& call) {
    const auto wait_until_idle = [&] {
      world.barrier();
      // Acknowledgments may still be in transit: wait until the link is idle.
      for (double last = -1, seen = link_bytes(); seen != last;) {
        last = seen;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        seen = link_bytes();
      }
      world.barrier();
    };
    wait_until_idle();
    const double before = link_bytes();
    call(group).wait();
    wait_until_idle();
    return link_bytes() - before;
  };
  const auto check = [&](const char* name, double want,
                         const std::function<Work(const Group&)>& call) {
    const double two = crossed(world, call), one = crossed(flat, call);
    if (world.rank() == 0) {
      std::printf("%s: a host sent %.2f MB, formula %.2f MB; over one level %.2f MB\n", name,
                  two * 1e-6, want * 1e-6, one * 1e-6);
    }
    EXPECT(two >= want * 0.99 && two <= want * 1.2 + 100'000, "%s: %.0f bytes", name, two);
    EXPECT(one > two * (1 + (local - 1) * 0.7), "%s: %.0f bytes over one level", name, one);
  };
  const double shards = 4.0 * count / hosts * (hosts - 1);  // of all ranks of a host together
  check("all_reduce", 2 * shards, [&](const Group& g) { return g.all_reduce(x); });
  check("reduce_scatter", shards, [&](const Group& g) { return g.reduce_scatter(shard, x); });
  check("all_gather", shards, [&](const Group& g) { return g.all_gather(x, shard); });
}

void over_nccl(InitOptions options) {
  options.backend = "nccl";
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  std::string problem;
  try {
    const Group world = init(options);
    const at::Device device(
        at::kCUDA, static_cast<c10::DeviceIndex>(gpu_of(detect_launch().local_rank, gpu_count())));
    for (const std::int64_t count : {4, 1000, 100'003}) every_operation(world, count, device);
    every_operation(world, 12, at::kCPU);
    std::printf("nccl between the hosts\n");
    return;
  } catch (const Error& error) {
    problem = error.what();
  }
  const bool told = problem.find("cannot use nccl: rank ") != std::string::npos ||
                    problem.find("NCCL's") != std::string::npos;
  EXPECT(told, "%s", problem.c_str());
  std::printf("SKIPPED: nccl between the hosts: %s\n", problem.c_str());
}

int run(const std::string& what, const std::string& backend) {
  InitOptions options;
  options.backend = backend;
  options.comm.timeout = std::chrono::seconds(60);
  if (what == "nccl") {
    over_nccl(options);
  } else {
    const Group world = init(options);
    const bool two_levels = backend == "auto" && detect_launch().local_size > 1;
    EXPECT(world.backend() == (two_levels ? "two-level" : "tcp"), "%s", world.backend().c_str());
    if (what == "collectives") collectives(world);
    if (what == "disagree") disagree(world);
    if (what == "die") die(world);
    if (what == "link") link(world, options);
  }
  if (failures == 0)
    std::printf("rank %d of %d: %s is right\n", detect_launch().rank, detect_launch().size,
                what.c_str());
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera::comm

int main(int argc, char** argv) {
  try {
    return tessera::comm::run(argc > 1 ? argv[1] : "collectives", argc > 2 ? argv[2] : "tcp");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
