// Measures the benefit of overlapping matrix products with the collectives of tensor-parallel
// layers: a column- and a row-parallel linear, forward and backward, with and without overlap in
// turns.
//   tessera run -n 2 --threads 4 --no-prefix -- build/bin/overlap_bench --threads 4 --device cuda
// Started alone (CPU only), its ranks are threads:
//   overlap_bench [--ranks 2] [--threads 1] [--batch 1] [--tokens 1024] [--width 1024] [--ffn 4096]
//                 [--dtype fp32|bf16] [--device cpu|cuda] [--sequence 0|1] [--steps 20]

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tessera/comm/bootstrap.h"
#include "tessera/comm/threads.h"
#include "tessera/tensor_parallel/layers.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

struct Setting {
  std::map<std::string, std::string> given = {
      {"ranks", "2"},  {"threads", "1"},  {"batch", "1"},    {"tokens", "1024"}, {"width", "1024"},
      {"ffn", "4096"}, {"dtype", "fp32"}, {"device", "cpu"}, {"sequence", "1"},  {"steps", "20"}};

  std::int64_t number(const char* name) const { return std::stoll(given.at(name)); }
  at::TensorOptions tensors() const {
    return at::device(c10::Device(given.at("device")))
        .dtype(given.at("dtype") == "bf16" ? at::kBFloat16 : at::kFloat);
  }
};

struct Times {
  double median = 0, least = 0;
};
Times times_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front()};
}

struct Pair {
  tensor_parallel::ColumnParallelLinear up;
  tensor_parallel::RowParallelLinear down;
};

Pair make_pair(const Setting& s, const tensor_parallel::Axis& axis) {
  tensor_parallel::LinearOptions in, out;
  in.in = out.out = s.number("width");
  in.out = out.in = s.number("ffn");
  in.tensors = out.tensors = s.tensors();
  Pair pair{tensor_parallel::ColumnParallelLinear(axis, in),
            tensor_parallel::RowParallelLinear(axis, out)};
  const at::NoGradGuard no_gradients;
  pair.up->weight.normal_(0, 0.02);
  pair.down->weight.normal_(0, 0.02);
  return pair;
}

double step(Pair& pair, const at::Tensor& x, const at::Tensor& dy, const comm::Group& group) {
  const auto finish = [&] {
    if (!x.is_cpu()) {
      const c10::impl::VirtualGuardImpl guard(x.device().type());
      guard.synchronizeStream(guard.getStream(x.device()));
    }
    group.barrier();
  };
  finish();
  const Clock::time_point begin = Clock::now();
  pair.down->forward(pair.up->forward_gelu(x)).backward(dy);
  finish();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Measured {
  std::vector<double> plain, overlapped;
};

Measured measure(const Setting& s, const comm::Group& group) {
  at::set_num_threads(static_cast<int>(s.number("threads")));
  const bool sequence = s.number("sequence") != 0;
  Pair pairs[2] = {make_pair(s, {group, sequence, false}), make_pair(s, {group, sequence, true})};
  const std::int64_t tokens = s.number("tokens") / (sequence ? group.size() : 1);
  at::Tensor x = at::randn({s.number("batch"), tokens, s.number("width")}, s.tensors());
  const at::Tensor dy = at::randn_like(x);
  x.requires_grad_();
  Measured all;
  for (std::int64_t i = -3; i < s.number("steps"); ++i) {
    for (const int overlap : {0, 1}) {
      const double seconds = step(pairs[overlap], x, dy, group);
      x.mutable_grad() = at::Tensor();
      if (i >= 0) (overlap ? all.overlapped : all.plain).push_back(seconds);
    }
  }
  return all;
}

void report(const Setting& s, const Measured& all, int ranks) {
  const bool sequence = s.number("sequence") != 0;
  const Times off = times_of(all.plain), on = times_of(all.overlapped);
  std::printf(
      "%d ranks × %s threads, %s %s, [%s, %s, %s] → %s%s: off %.2f ms (least %.2f), overlapped "
      "%.2f ms (min %.2f): %.3f times as fast (min: %.3f)\n",
      ranks, s.given.at("threads").c_str(), s.given.at("device").c_str(),
      s.given.at("dtype").c_str(), s.given.at("batch").c_str(), s.given.at("tokens").c_str(),
      s.given.at("width").c_str(), s.given.at("ffn").c_str(), sequence ? ", sequence-parallel" : "",
      off.median * 1e3, off.least * 1e3, on.median * 1e3, on.least * 1e3, off.median / on.median,
      off.least / on.least);
}

}  // namespace

int main(int argc, char** argv) {
  Setting s;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (!name.starts_with("--") || s.given.count(name.substr(2)) == 0) {
      std::fprintf(stderr, "overlap_bench: unknown option %s; the top of its source lists them\n",
                   argv[i]);
      return 2;
    }
    s.given[name.substr(2)] = argv[i + 1];
  }
  const comm::Group world = comm::init();
  if (world.size() > 1) {
    const Measured all = measure(s, world);
    if (world.rank() == 0) report(s, all, world.size());
    return 0;
  }
  if (s.given["device"] != "cpu") {
    // Autograd has one thread per device, so ranks that are threads would deadlock.
    std::fprintf(stderr,
                 "overlap_bench: on a GPU, ranks must be processes; start it with: tessera "
                 "run -n 2 -- overlap_bench ...\n");
    return 2;
  }
  const int ranks = static_cast<int>(s.number("ranks"));
  Measured all;
  comm::run_threads(ranks, [&](std::shared_ptr<comm::Backend> backend) {
    const comm::Group group(std::move(backend));
    const Measured mine = measure(s, group);
    if (group.rank() == 0) all = mine;
  });
  report(s, all, ranks);
  return 0;
}
