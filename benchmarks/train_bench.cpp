// Runs training steps of Tessera's engine on demand, in turns with other programs
// (compare_train.py, which describes the protocol). Started by `tessera run`.
//   tessera run -n 2 --threads 1 --no-prefix -- build/bin/train_bench --stage 2 <<<$'go 5\nquit'

#include <ATen/record_function.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/comm/bootstrap.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/models/language_model.h"
#include "tessera/zero/engine.h"
#include "tests/models/plain_gpt.h"

namespace tessera {
namespace {

using Arguments = std::map<std::string, std::string>;

Arguments parse(int argc, char** argv) {
  Arguments arguments = {{"model", "own"},  {"stage", "0"},       {"layout", "fp32"},
                         {"comm", "on"},    {"gather", "auto"},   {"layers", "6"},
                         {"hidden", "512"}, {"heads", "8"},       {"vocab", "8192"},
                         {"seq", "256"},    {"micro-batch", "4"}, {"warmup", "2"},
                         {"seed", "0"},     {"bucket-mb", "16"},  {"overlap", "on"},
                         {"cache", "on"},   {"times", "off"},     {"profile", "off"}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--serve") continue;
    const auto found = arguments.find(word.rfind("--", 0) == 0 ? word.substr(2) : word);
    if (found == arguments.end() || i + 1 == argc) {
      throw UsageError(
          str("train_bench: unknown option ", quote(word), "; compare_train.py starts it"));
    }
    found->second = argv[++i];
  }
  return arguments;
}

// Time spent in each operator and autograd node of this thread, excluding nested calls.
struct Profile {
  using Clock = std::chrono::steady_clock;
  struct Frame : at::ObserverContext {
    std::string name;
    Clock::time_point began;
    double inside = 0;
    Frame* outer = nullptr;
  };
  static inline thread_local Frame* top = nullptr;
  static inline std::map<std::string, std::pair<double, int>> totals;

  static void start() {
    at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
              auto frame = std::make_unique<Frame>();
              frame->name = f.name();
              frame->outer = std::exchange(top, frame.get());
              frame->began = Clock::now();
              return frame;
            },
            [](const at::RecordFunction&, at::ObserverContext* context) {
              auto* frame = static_cast<Frame*>(context);
              const double all =
                  std::chrono::duration<double, std::milli>(Clock::now() - frame->began).count();
              top = frame->outer;
              if (top != nullptr) top->inside += all;
              totals[frame->name].first += all - frame->inside;
              ++totals[frame->name].second;
            })
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }

  static void print(std::int64_t steps) {
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [name, total] : totals) {
      sorted.emplace_back(total.first / static_cast<double>(steps),
                          str(name, " × ", total.second / steps));
    }
    std::sort(sorted.rbegin(), sorted.rend());
    for (std::size_t i = 0; i < std::min<std::size_t>(24, sorted.size()); ++i) {
      std::cerr << sorted[i].first << " ms/step  " << sorted[i].second << "\n";
    }
    totals.clear();
  }
};

class Bench {
 public:
  Bench(const Arguments& arguments, const comm::Group& world)
      : arguments_(arguments), world_(world), plain_(arguments.at("model") == "plain") {
    const ModelShape shape = gpt_shape(number("layers"), number("hidden"), number("heads"),
                                       number("vocab"), number("seq"));
    zero::Options options;
    options.stage = static_cast<int>(number("stage"));
    options.layout = parse_state_layout(arguments.at("layout"));
    options.optimizer = zero::AdamW{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1};
    options.clip_norm = 1.0;
    options.bucket_bytes = number("bucket-mb") << 20;
    options.overlap_grad_reduce = options.overlap_param_gather = options.prefetch =
        arguments.at("overlap") == "on";
    if (arguments.at("gather") == "copy") options.gather = zero::Gather::copy;
    if (plain_) {
      plain_model_ = models::PlainGpt(shape, static_cast<std::uint64_t>(number("seed")));
    } else {
      own_model_ = models::make_model(shape, {}, static_cast<std::uint64_t>(number("seed")));
    }
    const std::shared_ptr<torch::nn::Module> module =
        plain_ ? std::static_pointer_cast<torch::nn::Module>(plain_model_.ptr())
               : std::static_pointer_cast<torch::nn::Module>(own_model_);
    for (const at::Tensor& p : module->parameters()) parameters_ += p.numel();
    const comm::Group group = arguments.at("comm") == "off" ? comm::Group() : world;
    engine_ = std::make_unique<zero::Engine>(module, group, options);
    torch::manual_seed(100 + world.rank());
    ids_ = torch::randint(number("vocab"), {number("micro-batch"), number("seq")}, at::kLong);
    targets_ = ids_.roll(1, 1);
  }

  double step() {
    const std::int64_t tokens = ids_.numel();
    engine_->begin({.micro_batches = 1, .tokens = static_cast<double>(tokens)});
    const at::Tensor loss = nn::observed(
        engine_->root(),
        [&](at::Tensor ids, at::Tensor targets) {
          return plain_ ? plain_model_->loss(ids, targets) : own_model_->loss(ids, targets);
        },
        ids_, targets_);
    engine_->backward(loss);
    return engine_->step().loss;
  }

  nlohmann::json run(std::int64_t steps) {
    using Clock = std::chrono::steady_clock;
    engine_->reset_times();
    const bool profile = arguments_.at("profile") == "on" && world_.rank() == 0;
    if (profile && Profile::totals.empty()) Profile::start();
    const comm::TrafficCounts before = world_.traffic();
    world_.barrier();
    const auto began = Clock::now();
    double loss = 0;
    for (std::int64_t i = 0; i < steps; ++i) loss = step();
    engine_->synchronize();
    world_.barrier();
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count() /
                      static_cast<double>(steps);
    if (profile) Profile::print(steps);
    nlohmann::json answer = {
        {"steps", steps},
        {"ms", ms},
        {"tokens_per_s", 1000.0 * static_cast<double>(ids_.numel() * world_.size()) / ms},
        {"loss", loss}};
    if (arguments_.at("times") == "on") {
      const double per = 1000.0 / static_cast<double>(steps);
      answer["exposed_ms"] = engine_->times().exposed * per;
      answer["optimizer_ms"] = engine_->times().optimizer * per;
      answer["busy_ms"] = static_cast<double>((world_.traffic() - before).busy_ns) * 1e-9 * per;
    }
    return answer;
  }

  std::int64_t number(const std::string& name) const { return std::stoll(arguments_.at(name)); }
  std::int64_t parameters() const { return parameters_; }
  std::string name() const {
    return str("tessera-", arguments_.at("model"), "-", arguments_.at("stage"),
               arguments_.at("comm") == "off" ? "-nocomm" : "");
  }

 private:
  const Arguments arguments_;
  const comm::Group world_;
  const bool plain_;
  std::shared_ptr<models::LanguageModel> own_model_;
  models::PlainGpt plain_model_{nullptr};
  std::unique_ptr<zero::Engine> engine_;
  at::Tensor ids_, targets_;
  std::int64_t parameters_ = 0;
};

// Reads a line on rank 0. Returns its number of steps on all ranks, or 0 to exit.
std::int64_t next_order(const comm::Group& world) {
  const at::Tensor order = at::zeros({1}, at::kLong);
  if (world.rank() == 0) {
    std::string word;
    std::int64_t steps = 0;
    if (std::cin >> word >> steps && word == "go" && steps >= 1) order[0] = steps;
  }
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "order";
  world.broadcast(order, 0, call).wait();
  return order.item<std::int64_t>();
}

int serve(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  comm::InitOptions init;
  init.comm.timeout = std::chrono::hours(12);  // other programs take their turns meanwhile
  const comm::Group world = comm::init(init);
  if (arguments.at("cache") == "on") memory::install();
  Bench bench(arguments, world);
  for (std::int64_t i = 0; i < bench.number("warmup"); ++i) bench.step();
  const std::string dtype = arguments.at("layout") == "fp32" ? "fp32" : "bf16";
  const auto say = [&](nlohmann::json line) {
    line["peer"] = bench.name();
    line["dtype"] = dtype;
    if (world.rank() == 0) std::cout << line.dump() << std::endl;
  };
  say({{"ready", true}, {"ranks", world.size()}, {"parameters", bench.parameters()}});
  int repetition = 0;
  while (const std::int64_t steps = next_order(world)) {
    nlohmann::json answer = bench.run(steps);
    answer["rep"] = repetition++;
    say(answer);
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::serve(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "train_bench: " << error.what() << "\n";
    return 1;
  }
}
