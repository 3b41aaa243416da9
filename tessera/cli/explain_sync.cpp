// tessera explain sync: shows on a small network what the engine does.

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/comm/threads.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/zero/engine.h"

namespace tessera::cli {
namespace {

constexpr const char* kExplainSyncExamples =
    "  tessera explain sync\n"
    "  tessera explain sync --ranks 3 --width 1024 --layers 8\n"
    "\n"
    "The ranks are threads of this process; each has its own batch.";

struct SyncArguments {
  int ranks = 2;
  int width = 512;
  int layers = 6;
  int rounds = 9;
};

torch::nn::Sequential make_net(const std::vector<int>& widths) {
  torch::nn::Sequential net;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    net->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
    if (i + 2 < widths.size()) net->push_back(torch::nn::Tanh());
  }
  const at::NoGradGuard no_grad;
  int seed = 0;
  for (const at::Tensor& p : net->parameters()) {
    ++seed;
    p.copy_((at::arange(p.numel(), at::kFloat) * 0.7 + seed).sin().view(p.sizes()) * 0.5);
  }
  return net;
}

at::Tensor input(int rank, int rows, int columns) {
  return (at::arange(rows * columns, at::kFloat) * (rank + 1)).cos().view({rows, columns});
}

std::string numbers(const at::Tensor& values) {
  std::string text;
  const at::Tensor flat = values.flatten();
  for (std::int64_t i = 0; i < std::min<std::int64_t>(3, flat.numel()); ++i) {
    char number[16];
    std::snprintf(number, sizeof(number), "%+.4f ", flat[i].item<double>());
    text += number;
  }
  return text + (flat.numel() > 3 ? "…" : "");
}

// What each rank has before and after, by parameter; filled by the ranks, each its own row.
struct Story {
  std::vector<std::map<std::string, std::string>> before, after;
  std::vector<zero::BucketInfo> buckets;
};

void tell_rank(const comm::Group& group, Story& story) {
  torch::nn::Sequential net = make_net({4, 6, 5, 2});
  const at::Tensor x = input(group.rank(), 8, 4);
  const auto loss = [&](const at::Tensor& y) { return y.square().mean(); };
  // By itself, as without other ranks.
  loss(net->forward(x)).backward();
  auto& before = story.before[static_cast<std::size_t>(group.rank())];
  for (const auto& p : net->named_parameters()) before[p.key()] = numbers(p.value().grad());

  zero::Options options;
  options.bucket_bytes = 150;
  zero::Engine engine(net.ptr(), group, options);
  engine.backward(loss(nn::observed(
      engine.root(), [&](at::Tensor in) { return net->forward(in); }, x)));
  if (group.rank() == 0) story.buckets = engine.buckets();
  engine.finish_reduction();
  auto& after = story.after[static_cast<std::size_t>(group.rank())];
  for (const auto& p : net->named_parameters()) after[p.key()] = numbers(p.value().grad());
}

std::string tell(const Story& story) {
  std::string text =
      "Backward runs from the last layer to the first, so the gradients of the last layer are "
      "ready first.\nBuckets leave as soon as all their gradients are there, while backward goes "
      "on.\n";
  for (std::size_t b = 0; b < story.buckets.size(); ++b) {
    const zero::BucketInfo& bucket = story.buckets[b];
    text += str("\nbucket ", b, ", ", format_bytes(bucket.bytes), ", leaves ",
                b == 0                          ? "first"
                : b + 1 == story.buckets.size() ? "last"
                                                : "next",
                "\n");
    for (const std::string& name : bucket.params) {
      text += str("  ", name, "\n");
      for (std::size_t r = 0; r < story.before.size(); ++r) {
        text += str("    rank ", r, "  before  ", story.before[r].at(name), "\n");
      }
      for (std::size_t r = 0; r < story.after.size(); ++r) {
        text += str("    rank ", r, "  after   ", story.after[r].at(name), "\n");
      }
    }
  }
  return text + "\nAfter synchronisation every rank has the mean of what the ranks had before.\n";
}

// Milliseconds of a backward pass with its synchronisation, one after another for each way.
struct Way {
  std::string name;
  std::vector<double> times;
};

void time_rank(const comm::Group& group, const SyncArguments& arguments, std::vector<Way>& ways) {
  std::vector<int> widths(static_cast<std::size_t>(arguments.layers) + 1, arguments.width);
  const at::Tensor x = input(group.rank(), 32, arguments.width);
  using Clock = std::chrono::steady_clock;
  torch::nn::Sequential plain = make_net(widths);
  torch::nn::Sequential bucketed = make_net(widths), overlapped = make_net(widths);
  zero::Options options;
  options.bucket_bytes = std::int64_t{4} << 20;
  zero::Engine with_overlap(overlapped.ptr(), group, options);
  options.overlap_grad_reduce = false;
  zero::Engine without_overlap(bucketed.ptr(), group, options);

  const auto engine_pass = [&](zero::Engine& engine, torch::nn::Sequential& net) {
    engine.begin({});
    engine.backward(nn::observed(
                        engine.root(), [&](at::Tensor in) { return net->forward(in); }, x)
                        .square()
                        .mean());
    engine.finish_reduction();
    engine.discard();
  };
  const std::vector<std::function<void()>> passes = {
      [&] {
        plain->zero_grad();
        plain->forward(x).square().mean().backward();
        for (const at::Tensor& p : plain->parameters()) group.all_reduce(p.grad()).wait();
      },
      [&] { engine_pass(without_overlap, bucketed); },
      [&] { engine_pass(with_overlap, overlapped); }};
  for (int round = -1; round < arguments.rounds; ++round) {
    for (std::size_t way = 0; way < passes.size(); ++way) {
      group.barrier();
      const auto began = Clock::now();
      passes[way]();
      group.barrier();
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
      if (group.rank() == 0 && round >= 0) ways[way].times.push_back(ms);
    }
  }
}

std::string show(std::vector<Way> ways, const SyncArguments& arguments) {
  std::string text = str("\nTimes of forward, backward and synchronisation, ", arguments.layers,
                         " layers of ", arguments.width, " × ", arguments.width, " on ",
                         arguments.ranks, " ranks (median and best of ", arguments.rounds, "):\n");
  for (Way& way : ways) {
    std::sort(way.times.begin(), way.times.end());
    char line[96];
    std::snprintf(line, sizeof(line), "  %-42s %8.2f ms %8.2f ms\n", way.name.c_str(),
                  way.times[way.times.size() / 2], way.times.front());
    text += line;
  }
  return text;
}

int sync(const SyncArguments& arguments) {
  at::set_num_threads(1);
  const auto over = [&](const std::function<void(const comm::Group&)>& body) {
    comm::run_threads(arguments.ranks, [&](std::shared_ptr<comm::Backend> backend) {
      body(comm::Group(std::move(backend)));
    });
  };
  Story story;
  story.before.resize(static_cast<std::size_t>(arguments.ranks));
  story.after.resize(static_cast<std::size_t>(arguments.ranks));
  over([&](const comm::Group& group) { tell_rank(group, story); });
  write_all(1, tell(story));
  std::vector<Way> ways = {{"per parameter, after backward", {}},
                           {"in buckets of 4 MiB, after backward", {}},
                           {"in buckets, overlapping backward", {}}};
  over([&](const comm::Group& group) { time_rank(group, arguments, ways); });
  return write_all(1, show(std::move(ways), arguments)) ? 0 : 1;
}

}  // namespace

int explain_sync_command(int argc, char** argv) {
  SyncArguments arguments;
  CommandLine line("explain sync",
                   "Each parameter's gradient on every rank before and after synchronisation, its "
                   "bucket, and what buckets and overlap save.",
                   kExplainSyncExamples);
  CLI::App& app = line.app();
  line.integer(app, "-n,--ranks", arguments.ranks, 1, 64, "ranks");
  line.integer(app, "--width", arguments.width, 1, 8192, "width of the layers that are timed");
  line.integer(app, "--layers", arguments.layers, 1, 256, "how many of them");
  line.integer(app, "--rounds", arguments.rounds, 1, 1000, "repetitions, the ways taking turns");
  if (!line.parse(argc, argv)) return 0;
  return sync(arguments);
}

}  // namespace tessera::cli
