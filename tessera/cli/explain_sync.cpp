// tessera explain sync: shows gradient synchronization on a small network.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/sync_report.h"
#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/zero/engine.h"

namespace tessera::cli {
namespace {

constexpr const char* kExplainSyncExamples =
    "  tessera explain sync\n"
    "  tessera explain sync --ranks 3 --width 1024 --layers 4\n"
    "  tessera explain sync --bucket-size 50kB --width 64 --json\n"
    "\n"
    "The ranks are threads of this process; each has its own batch.";

constexpr int kBatch = 32;  // samples per rank

at::Tensor random_values(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat);
}

torch::nn::Sequential make_net(const SyncArguments& arguments) {
  torch::nn::Sequential net;
  for (int i = 1; i <= arguments.layers; ++i) {
    net->push_back(str("layer", i), torch::nn::Linear(arguments.width, arguments.width));
    if (i < arguments.layers) net->push_back(str("tanh", i), torch::nn::Tanh());
  }
  const at::NoGradGuard no_grad;
  std::uint64_t seed = 0;
  for (const at::Tensor& p : net->parameters()) {
    p.copy_(random_values(p.sizes(), ++seed) / std::sqrt(arguments.width));
  }
  return net;
}

at::Tensor input_of(int rank, const SyncArguments& arguments) {
  return random_values({kBatch, arguments.width}, 1000 + static_cast<std::uint64_t>(rank));
}

at::Tensor loss_of(const at::Tensor& output) { return output.square().sum() / kBatch; }

// Returns the first values, at most 4.
std::vector<double> first_values(const at::Tensor& values) {
  const at::Tensor flat = values.flatten();
  std::vector<double> all;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(4, flat.numel()); ++i) {
    all.push_back(flat[i].item<double>());
  }
  return all;
}

// Records the collective calls of a rank, and the waits of the thread that makes it.
class CallRecorder : public comm::Observer {
 public:
  void ran(const comm::Collective& call, Time begin, Time end) override {
    if (call.traffic != comm::Traffic::model) return;
    const std::lock_guard lock(mutex_);
    calls_.push_back(made(call, begin, end));
  }
  void waited(const comm::Collective& call, Time begin, Time end) override {
    if (std::this_thread::get_id() != thread_) return;
    const std::lock_guard lock(mutex_);
    waits_.push_back(made(call, begin, end));
  }
  void take(RankTimes& times) {
    const std::lock_guard lock(mutex_);
    times.calls = std::exchange(calls_, {});
    times.waits = std::exchange(waits_, {});
  }

 private:
  static RankTimes::Call made(const comm::Collective& call, Time begin, Time end) {
    std::string op = comm::name(call.op);
    std::replace(op.begin(), op.end(), '_', '-');
    return {op, call.label, static_cast<std::int64_t>(call.bytes()), begin, end};
  }

  const std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::vector<RankTimes::Call> calls_, waits_;
};

void record_gradients(const comm::Group& group, const SyncArguments& arguments,
                      SyncGradients& record) {
  torch::nn::Sequential net = make_net(arguments);
  const at::Tensor x = input_of(group.rank(), arguments);
  loss_of(net->forward(x)).backward();
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto read = [&](SyncGradients::Values& to) {
    for (const auto& p : net->named_parameters()) to[p.key()] = first_values(p.value().grad());
  };
  read(record.before[rank]);
  zero::Options options;
  options.bucket_bytes = arguments.bucket_bytes;
  zero::DataParallel<torch::nn::Sequential> train(net, group, options);
  train.backward(loss_of(train(x)));
  train.finish_reduction();
  read(record.after[rank]);
  if (rank != 0) return;
  for (const auto& p : net->named_parameters()) record.elements[p.key()] = p.value().numel();
}

// Method of synchronization as options of the engine.
struct Method {
  std::string name, text;
  std::int64_t bucket_bytes;
  int stage;
  bool overlap;
};

std::vector<Method> methods_of(const SyncArguments& arguments) {
  const std::int64_t size = arguments.bucket_bytes;
  const std::string buckets = str("buckets of at least ", format_bytes(size));
  // A bucket is closed when it is large enough, so 1 byte is one parameter.
  return {{"per-parameter", "one all-reduce per parameter, after backward", 1, 0, false},
          {"bucketed", str("all-reduce of ", buckets, ", after backward"), size, 0, false},
          {"overlapped", str("all-reduce of ", buckets, ", during backward"), size, 0, true},
          {"zero-2",
           str("ZeRO-2: reduce-scatter of ", buckets,
               ", during backward; all-gather of the updated parameters after the optimizer "
               "(training overlaps it with the next forward)"),
           size, 2, true},
          {"zero-3",
           str("ZeRO-3: all-gather of each layer's parameters before its forward and before its "
               "backward; reduce-scatter of ",
               buckets, ", during backward"),
           size, 3, true}};
}

// One method on one rank: its own network and engine.
class MethodRank {
 public:
  MethodRank(const comm::Group& group, const SyncArguments& arguments, const Method& method)
      : group_(group),
        overlap_(method.overlap),
        input_(input_of(group.rank(), arguments)),
        train_(make_net(arguments), group, options_of(method)) {
    const std::vector<zero::BucketInfo> buckets = train_.buckets();
    for (const zero::BucketInfo& bucket : buckets) {
      for (const std::string& name : bucket.params) {
        labels_[name] = method.bucket_bytes > 1 ? str("bucket ", buckets_.size()) : name;
      }
      buckets_.push_back({bucket.params, bucket.bytes});
    }
    if (method.stage > 0) return;
    for (const auto& p : train_.model()->named_parameters()) {
      p.value().register_hook([this, name = p.key()](const at::Tensor&) {
        ready_[name] = std::chrono::steady_clock::now();
      });
    }
  }
  MethodRank(const MethodRank&) = delete;  // the hooks refer to it
  MethodRank& operator=(const MethodRank&) = delete;

  const std::vector<SyncBucket>& buckets() const { return buckets_; }

  RankTimes pass() {
    const auto now = [] { return std::chrono::steady_clock::now(); };
    const auto recorder = std::make_shared<CallRecorder>();
    group_.barrier();
    group_.observe(recorder);
    const std::uint64_t sent = group_.traffic().sent_bytes;
    RankTimes times;
    times.begin = now();
    const at::Tensor loss = loss_of(train_(input_));
    times.forward = now();
    train_.backward(loss);
    times.backward = now();
    train_.finish_reduction();
    times.synchronized = now();
    train_.step();
    times.end = now();
    group_.observe(nullptr);
    times.sent_bytes = static_cast<std::int64_t>(group_.traffic().sent_bytes - sent);
    recorder->take(times);
    times.ready = ready_;
    // Without overlap, the engine begins to communicate before backward() returns.
    if (!overlap_) {
      times.backward = times.forward;
      for (const auto& [name, when] : ready_) times.backward = std::max(times.backward, when);
    }
    for (RankTimes::Call& call : times.calls) {
      // Buckets are labeled by one of their parameters.
      const auto found = labels_.find(call.what);
      if (found != labels_.end()) call.what = found->second;
    }
    group_.barrier();
    return times;
  }

 private:
  static zero::Options options_of(const Method& method) {
    zero::Options options;
    options.stage = method.stage;
    options.optimizer = zero::SGD{.lr = 0};  // every pass has the same gradients
    options.bucket_bytes = method.bucket_bytes;
    options.overlap_grad_reduce = method.overlap;
    // Within the pass that updates the parameters, and by copies, as between hosts.
    options.overlap_param_gather = false;
    options.gather = zero::Gather::copy;
    return options;
  }

  const comm::Group group_;
  const bool overlap_;
  const at::Tensor input_;
  zero::DataParallel<torch::nn::Sequential> train_;
  std::vector<SyncBucket> buckets_;
  std::map<std::string, std::string> labels_;  // of the collective with a parameter's gradient
  std::map<std::string, RankTimes::Time> ready_;
};

// Times of every pass: [method][round][rank].
using AllTimes = std::vector<std::vector<std::vector<RankTimes>>>;

void time_rank(const comm::Group& group, const SyncArguments& arguments,
               const std::vector<Method>& methods, std::vector<SyncWay>& ways, AllTimes& all) {
  std::vector<std::unique_ptr<MethodRank>> ranks;
  for (const Method& method : methods) {
    ranks.push_back(std::make_unique<MethodRank>(group, arguments, method));
  }
  // Methods alternate, so that a slow moment of the machine affects all of them. Round -1 warms up.
  for (int round = -1; round < arguments.rounds; ++round) {
    for (std::size_t m = 0; m < methods.size(); ++m) {
      RankTimes times = ranks[m]->pass();
      if (round < 0) continue;
      all[m][static_cast<std::size_t>(round)][static_cast<std::size_t>(group.rank())] =
          std::move(times);
    }
  }
  if (group.rank() != 0) return;
  for (std::size_t m = 0; m < methods.size(); ++m) ways[m].buckets = ranks[m]->buckets();
}

SyncReport make_report(const SyncArguments& arguments) {
  const auto over = [&](const std::function<void(const comm::Group&)>& body) {
    comm::run_threads(arguments.ranks, [&](std::shared_ptr<comm::Backend> backend) {
      body(comm::Group(std::move(backend)));
    });
  };
  const auto ranks = static_cast<std::size_t>(arguments.ranks);
  SyncReport report;
  report.arguments = arguments;
  report.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  report.gradients.before.resize(ranks);
  report.gradients.after.resize(ranks);
  over([&](const comm::Group& group) { record_gradients(group, arguments, report.gradients); });
  const std::vector<Method> methods = methods_of(arguments);
  for (const Method& method : methods) report.ways.push_back({method.name, method.text});
  AllTimes all(methods.size());
  for (auto& rounds : all) {
    rounds.assign(static_cast<std::size_t>(arguments.rounds), std::vector<RankTimes>(ranks));
  }
  over([&](const comm::Group& group) { time_rank(group, arguments, methods, report.ways, all); });
  for (std::size_t m = 0; m < methods.size(); ++m) {
    for (const auto& round : all[m]) report.ways[m].passes.push_back(on_one_clock(round));
  }
  return report;
}

}  // namespace

int explain_sync_command(int argc, char** argv) {
  SyncArguments arguments;
  CommandLine line("explain sync",
                   "Shows the gradient of each parameter on every rank before and after "
                   "synchronization, its bucket, and the times of one all-reduce per parameter, of "
                   "buckets, of overlap with backward, and of ZeRO-2 and ZeRO-3.",
                   kExplainSyncExamples);
  CLI::App& app = line.app();
  line.integer(app, "-n,--ranks", arguments.ranks, 1, 64, "number of ranks");
  line.integer(app, "--width", arguments.width, 1, 8192, "width of the layers");
  line.integer(app, "--layers", arguments.layers, 1, 256, "number of layers");
  line.integer(app, "--rounds", arguments.rounds, 1, 1000, "timed passes; the methods alternate");
  line.bytes(app, "--bucket-size", arguments.bucket_bytes,
             "bytes of gradients after which a bucket is closed");
  app.add_flag("--json", arguments.json, "print JSON, with a timeline of every rank");
  if (!line.parse(argc, argv)) return 0;
  if (arguments.bucket_bytes < 1) throw UsageError("--bucket-size: must be at least 1 byte");
  at::set_num_threads(1);
  const SyncReport report = make_report(arguments);
  return print_out(arguments.json ? sync_json(report).dump() + "\n" : sync_text(report));
}

}  // namespace tessera::cli
