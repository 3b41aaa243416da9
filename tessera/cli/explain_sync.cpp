// tessera explain sync: shows gradient synchronization on a small network.

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
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
    "  tessera explain sync --bucket-size 400 --width 64 --json\n"
    "\n"
    "The ranks are threads of this process; each has its own batch.";

struct SyncArguments {
  int ranks = 2;
  int width = 512;
  int layers = 6;
  int rounds = 9;
  int bucket_bytes = 150;  // of the small network
  bool json = false;
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

// Returns the first values, at most 4.
std::vector<double> first_values(const at::Tensor& values) {
  const at::Tensor flat = values.flatten();
  std::vector<double> all;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(4, flat.numel()); ++i) {
    all.push_back(flat[i].item<double>());
  }
  return all;
}

std::string numbers(const std::vector<double>& values) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, values.size()); ++i) {
    char number[16];
    std::snprintf(number, sizeof(number), "%+.4f", values[i]);
    text += str(i > 0 ? " " : "", number);
  }
  return text + (values.size() > 3 ? " …" : "");
}

using Clock = std::chrono::steady_clock;

// Activity of a rank, in seconds since its pass began.
struct SyncSpan {
  std::string lane, what;
  double begin = 0, end = 0;
};

// Records the collective calls of a rank.
class CallClock : public comm::Observer {
 public:
  explicit CallClock(Time zero) : zero_(zero) {}
  void ran(const comm::Collective& call, Time begin, Time end) override {
    const std::lock_guard lock(mutex_);
    if (call.traffic != comm::Traffic::model) return;
    spans_.push_back({"comm", call.label, since(begin), since(end)});
  }
  void waited(const comm::Collective&, Time, Time) override {}
  double since(Time when) const { return std::chrono::duration<double>(when - zero_).count(); }
  std::vector<SyncSpan> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  Time zero_;
  std::mutex mutex_;
  std::vector<SyncSpan> spans_;
};

// Gradients before and after synchronization, by parameter. Each rank fills its own row.
struct SyncRecord {
  std::vector<std::map<std::string, std::vector<double>>> before, after;
  std::map<std::string, std::int64_t> elements;
  std::vector<zero::BucketInfo> buckets;
  // Rank 0 only, in seconds since backward began.
  std::map<std::string, double> ready;  // when the gradient of a parameter was ready
  std::vector<SyncSpan> calls;          // of the buckets, in order
};

void record_rank(const comm::Group& group, const SyncArguments& arguments, SyncRecord& record) {
  torch::nn::Sequential net = make_net({4, 6, 5, 2});
  const at::Tensor x = input(group.rank(), 8, 4);
  const auto loss = [&](const at::Tensor& y) { return y.square().mean(); };
  // Without synchronization.
  loss(net->forward(x)).backward();
  auto& before = record.before[static_cast<std::size_t>(group.rank())];
  for (const auto& p : net->named_parameters()) before[p.key()] = first_values(p.value().grad());

  zero::Options options;
  options.bucket_bytes = arguments.bucket_bytes;
  zero::Engine engine(net.ptr(), group, options);
  const at::Tensor last = loss(nn::observed(
      engine.root(), [&](at::Tensor in) { return net->forward(in); }, x));
  group.barrier();
  const auto clock = std::make_shared<CallClock>(Clock::now());
  if (group.rank() == 0) {
    group.observe(clock);
    for (const auto& p : net->named_parameters()) {
      p.value().register_hook([&record, clock, name = p.key()](const at::Tensor&) {
        record.ready[name] = clock->since(Clock::now());
      });
    }
  }
  engine.backward(last);
  if (group.rank() == 0) {
    record.buckets = engine.buckets();
    for (const auto& p : net->named_parameters()) record.elements[p.key()] = p.value().numel();
  }
  engine.finish_reduction();
  if (group.rank() == 0) {
    group.observe(nullptr);
    record.calls = clock->take();
  }
  auto& after = record.after[static_cast<std::size_t>(group.rank())];
  for (const auto& p : net->named_parameters()) after[p.key()] = first_values(p.value().grad());
}

std::string record_text(const SyncRecord& record) {
  std::string text =
      "Backward runs from the last layer to the first, so the gradients of the last layer are "
      "ready first.\nA bucket is sent as soon as all its gradients are ready, while backward "
      "continues.\n";
  for (std::size_t b = 0; b < record.buckets.size(); ++b) {
    const zero::BucketInfo& bucket = record.buckets[b];
    text += str("\nbucket ", b, ", ", format_bytes(bucket.bytes), ", sent ",
                b == 0                           ? "first"
                : b + 1 == record.buckets.size() ? "last"
                                                 : "next",
                "\n");
    for (const std::string& name : bucket.params) {
      text += str("  ", name, "\n");
      for (std::size_t r = 0; r < record.before.size(); ++r) {
        text += str("    rank ", r, "  before  ", numbers(record.before[r].at(name)), "\n");
      }
      for (std::size_t r = 0; r < record.after.size(); ++r) {
        text += str("    rank ", r, "  after   ", numbers(record.after[r].at(name)), "\n");
      }
    }
  }
  return text + "\nAfter synchronization every rank has the mean of the ranks' gradients.\n";
}

// Way to synchronize, with its measurements.
struct Way {
  std::string name;
  std::vector<double> times;                      // milliseconds of each pass
  std::vector<std::vector<SyncSpan>> spans = {};  // [rank], of one pass
};

void time_rank(const comm::Group& group, const SyncArguments& arguments, std::vector<Way>& ways) {
  std::vector<int> widths(static_cast<std::size_t>(arguments.layers) + 1, arguments.width);
  const at::Tensor x = input(group.rank(), 32, arguments.width);
  torch::nn::Sequential plain = make_net(widths);
  torch::nn::Sequential bucketed = make_net(widths), overlapped = make_net(widths);
  zero::Options options;
  options.bucket_bytes = std::int64_t{4} << 20;
  zero::Engine with_overlap(overlapped.ptr(), group, options);
  options.overlap_grad_reduce = false;
  zero::Engine without_overlap(bucketed.ptr(), group, options);

  Clock::time_point forward_done, backward_done;  // of the last pass
  const auto engine_pass = [&](zero::Engine& engine, torch::nn::Sequential& net) {
    engine.begin({});
    const at::Tensor loss = nn::observed(
                                engine.root(), [&](at::Tensor in) { return net->forward(in); }, x)
                                .square()
                                .mean();
    forward_done = Clock::now();
    engine.backward(loss);
    backward_done = Clock::now();
    engine.finish_reduction();
    engine.discard();
  };
  const std::vector<std::function<void()>> passes = {
      [&] {
        plain->zero_grad();
        const at::Tensor loss = plain->forward(x).square().mean();
        forward_done = Clock::now();
        loss.backward();
        backward_done = Clock::now();
        for (const auto& p : plain->named_parameters()) {
          comm::Call call;
          call.label = p.key();
          group.all_reduce(p.value().grad(), call).wait();
        }
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
  if (!arguments.json) return;
  for (std::size_t way = 0; way < passes.size(); ++way) {
    group.barrier();
    const auto clock = std::make_shared<CallClock>(Clock::now());
    group.observe(clock);
    passes[way]();
    group.observe(nullptr);
    std::vector<SyncSpan>& spans = ways[way].spans[static_cast<std::size_t>(group.rank())];
    spans = clock->take();
    const double forward = clock->since(forward_done), backward = clock->since(backward_done);
    spans.insert(spans.begin(),
                 {{"compute", "forward", 0, forward}, {"compute", "backward", forward, backward}});
    group.barrier();
  }
}

nlohmann::ordered_json sync_json(const SyncRecord& record, const std::vector<Way>& ways,
                                 const SyncArguments& arguments) {
  using Json = nlohmann::ordered_json;
  Json parameters = Json::array(), buckets = Json::array(), all = Json::array();
  for (std::size_t b = 0; b < record.buckets.size(); ++b) {
    const zero::BucketInfo& bucket = record.buckets[b];
    double ready = 0;
    for (const std::string& name : bucket.params) {
      Json before = Json::array(), after = Json::array();
      for (const auto& rank : record.before) before.push_back(rank.at(name));
      for (const auto& rank : record.after) after.push_back(rank.at(name));
      const auto when = record.ready.find(name);
      if (when != record.ready.end()) ready = std::max(ready, when->second);
      parameters.push_back({{"name", name},
                            {"elements", record.elements.at(name)},
                            {"bucket", b},
                            {"ready", when == record.ready.end() ? Json() : Json(when->second)},
                            {"before", std::move(before)},
                            {"after", std::move(after)}});
    }
    Json one = {
        {"index", b}, {"bytes", bucket.bytes}, {"parameters", bucket.params}, {"ready", ready}};
    if (b < record.calls.size()) {
      one["sent"] = record.calls[b].begin;
      one["done"] = record.calls[b].end;
    }
    buckets.push_back(std::move(one));
  }
  const char* const names[] = {"per-parameter", "bucketed", "overlapped"};
  for (std::size_t w = 0; w < ways.size(); ++w) {
    std::vector<double> times = ways[w].times;
    std::sort(times.begin(), times.end());
    Json spans = Json::array();
    for (std::size_t r = 0; r < ways[w].spans.size(); ++r) {
      for (const SyncSpan& span : ways[w].spans[r]) {
        spans.push_back({{"rank", r},
                         {"lane", span.lane},
                         {"what", span.what},
                         {"begin", span.begin},
                         {"end", span.end}});
      }
    }
    all.push_back({{"name", names[w]},
                   {"text", ways[w].name},
                   {"seconds", times[times.size() / 2] / 1e3},
                   {"best_seconds", times.front() / 1e3},
                   {"spans", std::move(spans)}});
  }
  return {{"ranks", arguments.ranks},
          {"bucket_bytes", arguments.bucket_bytes},
          {"width", arguments.width},
          {"layers", arguments.layers},
          {"parameters", std::move(parameters)},
          {"buckets", std::move(buckets)},
          {"ways", std::move(all)}};
}

std::string show(std::vector<Way> ways, const SyncArguments& arguments) {
  std::string text = str("\nTimes of forward, backward and synchronization, ", arguments.layers,
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
  SyncRecord record;
  record.before.resize(static_cast<std::size_t>(arguments.ranks));
  record.after.resize(static_cast<std::size_t>(arguments.ranks));
  over([&](const comm::Group& group) { record_rank(group, arguments, record); });
  if (!arguments.json) print_out(record_text(record));
  std::vector<Way> ways = {{"per parameter, after backward", {}},
                           {"in buckets of 4 MiB, after backward", {}},
                           {"in buckets, overlapping backward", {}}};
  for (Way& way : ways) way.spans.resize(static_cast<std::size_t>(arguments.ranks));
  over([&](const comm::Group& group) { time_rank(group, arguments, ways); });
  if (arguments.json) return print_out(sync_json(record, ways, arguments).dump() + "\n");
  return print_out(show(std::move(ways), arguments));
}

}  // namespace

int explain_sync_command(int argc, char** argv) {
  SyncArguments arguments;
  CommandLine line("explain sync",
                   "Shows the gradient of each parameter on every rank before and after "
                   "synchronization, its bucket, and the time that buckets and overlap save.",
                   kExplainSyncExamples);
  CLI::App& app = line.app();
  line.integer(app, "-n,--ranks", arguments.ranks, 1, 64, "number of ranks");
  line.integer(app, "--width", arguments.width, 1, 8192, "width of the timed layers");
  line.integer(app, "--layers", arguments.layers, 1, 256, "number of timed layers");
  line.integer(app, "--rounds", arguments.rounds, 1, 1000, "repetitions; the ways alternate");
  line.integer(app, "--bucket-size", arguments.bucket_bytes, 16, 1 << 30,
               "bytes of a bucket of the small network");
  app.add_flag("--json", arguments.json, "print JSON, with a timeline of every rank");
  if (!line.parse(argc, argv)) return 0;
  return sync(arguments);
}

}  // namespace tessera::cli
