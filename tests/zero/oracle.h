#pragma once

// Runs a small network with the engine on some ranks, and without it in one process.

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <map>
#include <mutex>

#include "tessera/comm/mesh.h"
#include "tessera/core/text.h"
#include "tessera/planner/state.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/engine_of_part.h"
#include "tests/ranks.h"
#include "tests/zero/nets.h"

namespace tessera::zero::test {

struct Case {
  std::string net = "mlp";
  int ranks = 2;
  int replicas = 1;
  int steps = 3;
  Options options;
  nn::Recompute recompute = nn::Recompute::none;
  c10::Device device{c10::kCPU};
  std::vector<std::string> frozen = {};  // prefixes of the names of frozen parameters

  std::string describe() const {
    return str(net, ", ", ranks, " ranks, ", replicas, " replicas, stage ", options.stage,
               ", layout ", options.layout.name, ", ", options.micro_batches,
               " micro-batches, bucket ", options.bucket_bytes);
  }
};

// Freezes the parameters of the case.
inline void freeze(torch::nn::Module& net, const Case& run) {
  for (const auto& item : net.named_parameters()) {
    for (const std::string& prefix : run.frozen) {
      if (item.key().starts_with(prefix)) item.value().set_requires_grad(false);
    }
  }
}

struct Result {
  std::uint64_t hash = 0;
  std::vector<std::pair<std::string, at::Tensor>> params;
  std::vector<at::Tensor> buffers;
  std::vector<double> losses, norms;
  std::uint64_t sent = 0, expected = 0;                // bytes of all steps of rank 0
  std::uint64_t sent_across = 0, expected_across = 0;  // bytes between replicas
};

inline std::uint64_t batch_seed(int step, int rank, int micro) {
  return 1000 + static_cast<std::uint64_t>((step * 64 + rank) * 64 + micro);
}

inline Batch on(const Batch& batch, c10::Device device) {
  return {batch.x.to(device), batch.y.to(device)};
}

// Runs the case on one rank.
inline Result train(const comm::Group& group, const Case& run) {
  auto net = make_net(run.net);
  net->initialize(group.rank() == 0 ? 7 : 99);  // training starts with rank 0's values
  net->set_rank(group.rank());
  net->to(run.device);
  freeze(*net, run);
  Options options = run.options;
  // Batch norm requires its parameters in the type of its statistics.
  if (run.net == "conv") {
    options.policy = [](const std::string& name, const at::Tensor& param) {
      ParamPolicy policy = default_policy(name, param);
      policy.keep_fp32 = name.find("norm") == 0;
      return policy;
    };
  }
  const comm::Mesh mesh(
      group, {{Axis::dp_shard, run.ranks / run.replicas}, {Axis::dp_replicate, run.replicas}});
  Engine engine(net, mesh, options);
  const DataGroups& groups = engine.data_groups();
  if (run.recompute != nn::Recompute::none) nn::set_recompute(*net, run.recompute);
  Result result;
  const comm::TrafficCounts before = groups.shard.traffic(),
                            before_across = groups.replicate.traffic();
  for (int step = 0; step < run.steps; ++step) {
    for (int k = 0; k < run.options.micro_batches; ++k) {
      const Batch batch = on(net->batch(batch_seed(step, group.rank(), k)), run.device);
      const at::Tensor loss = nn::observed(engine.root(), [&] { return net->loss(batch); });
      engine.backward(loss);
    }
    const StepInfo info = engine.step();
    result.losses.push_back(info.loss);
    result.norms.push_back(info.grad_norm);
  }
  engine.synchronize();
  result.sent = (groups.shard.traffic() - before).sent_bytes;
  result.sent_across = (groups.replicate.traffic() - before_across).sent_bytes;
  planner::TrafficInput question;
  question.stage = run.options.stage;
  question.dp = groups.shard.size();
  question.micro_batches = run.options.micro_batches;
  question.param_bytes = static_cast<double>(engine.traveling_param_bytes());
  question.grad_bytes = static_cast<double>(engine.traveling_grad_bytes());
  question.policy = run.options.reduce.value_or(default_reduce_policy(run.options.stage));
  question.keep_params = run.options.keep_params;
  result.expected = static_cast<std::uint64_t>(
      planner::data_parallel_traffic(question).total() * run.steps + 0.5);
  // An all-reduce of this rank's shard of each bucket for every reduction of gradients.
  const auto replicas = static_cast<std::uint64_t>(run.replicas);
  for (const BucketInfo& bucket : engine.buckets()) {
    const auto elements = static_cast<std::uint64_t>(bucket.bytes / bucket.element_bytes) /
                          static_cast<std::uint64_t>(groups.shard.size());
    const int reductions = question.policy == ReducePolicy::each ? run.options.micro_batches : 1;
    result.expected_across +=
        2 * (replicas - 1) * ((elements + replicas - 1) / replicas) *
        static_cast<std::uint64_t>(bucket.element_bytes * reductions * run.steps);
  }
  result.hash = engine.params_hash();
  for (auto& [name, value] : engine.full_parameters())
    result.params.emplace_back(name, value.cpu().clone());
  for (const at::Tensor& buffer : net->buffers()) result.buffers.push_back(buffer.cpu().clone());
  return result;
}

// Returns the result of rank 0, after checking that all ranks have the same.
inline Result train(const Case& run) {
  std::vector<Result> results(static_cast<std::size_t>(run.ranks));
  over(run.ranks, [&](const comm::Group& group) {
    results[static_cast<std::size_t>(group.rank())] = train(group, run);
  });
  for (const Result& result : results) {
    EXPECT_EQ(result.hash, results[0].hash) << run.describe();
    EXPECT_EQ(result.losses, results[0].losses) << run.describe();
    EXPECT_EQ(result.norms, results[0].norms) << run.describe();
    EXPECT_EQ(result.sent, results[0].sent) << run.describe();
  }
  return results[0];
}

// Runs the case in one process with torch only. Networks whose loss is a mean over independent
// samples get the global batch at once; batch norm and networks whose ranks differ, part by part.
inline Result train_alone(const Case& run) {
  auto net = make_net(run.net);
  net->initialize(7);
  freeze(*net, run);
  std::vector<at::Tensor> params;
  for (const at::Tensor& p : net->parameters()) {
    if (p.requires_grad()) params.push_back(p);
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (const auto* sgd = std::get_if<SGD>(&run.options.optimizer)) {
    optimizer = std::make_unique<torch::optim::SGD>(
        params, torch::optim::SGDOptions(sgd->lr).momentum(sgd->momentum));
  } else {
    const AdamW& adamw = std::get<AdamW>(run.options.optimizer);
    optimizer = std::make_unique<torch::optim::AdamW>(
        params,
        torch::optim::AdamWOptions(adamw.lr).weight_decay(adamw.weight_decay).eps(adamw.eps));
  }
  Result result;
  const bool whole = run.net == "mlp" || run.net == "tied";
  for (int step = 0; step < run.steps; ++step) {
    optimizer->zero_grad();
    const int parts = run.ranks * run.options.micro_batches;
    double total = 0;
    std::vector<at::Tensor> xs, ys;
    for (int r = 0; r < run.ranks; ++r) {
      std::vector<at::Tensor> saved;
      for (const at::Tensor& buffer : net->buffers()) saved.push_back(buffer.clone());
      net->set_rank(r);
      for (int k = 0; k < run.options.micro_batches; ++k) {
        const Batch batch = net->batch(batch_seed(step, r, k));
        xs.push_back(batch.x);
        ys.push_back(batch.y);
        if (whole) continue;
        const at::Tensor loss = net->loss(batch) / parts;
        total += loss.item<double>();
        loss.backward();
      }
      const at::NoGradGuard no_grad;
      if (r == 0) continue;  // rank 0's buffers are used
      for (std::size_t i = 0; i < saved.size(); ++i) net->buffers()[i].copy_(saved[i]);
    }
    if (whole) {
      const at::Tensor loss = net->loss({at::cat(xs), at::cat(ys)});
      total = loss.item<double>();
      loss.backward();
    }
    double squares = 0;
    for (const at::Tensor& p : params) {
      if (p.grad().defined()) squares += p.grad().to(at::kDouble).square().sum().item<double>();
    }
    result.norms.push_back(std::sqrt(squares));
    if (run.options.clip_norm > 0) torch::nn::utils::clip_grad_norm_(params, run.options.clip_norm);
    optimizer->step();
    result.losses.push_back(total);
  }
  for (const auto& entry : net->named_parameters()) {
    result.params.emplace_back(entry.key(), entry.value().detach().to(at::kFloat));
  }
  for (const at::Tensor& buffer : net->buffers()) result.buffers.push_back(buffer);
  return result;
}

// Returns the largest difference of any parameter, relative to its largest element.
inline double distance(const Result& a, const Result& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.params.size(); ++i) {
    const at::Tensor& x = a.params[i].second;
    const at::Tensor& y = b.params[i].second;
    if (x.numel() == 0) continue;
    const double scale = std::max(1e-3, y.abs().max().item<double>());
    worst = std::max(worst, (x - y).abs().max().item<double>() / scale);
  }
  return worst;
}

using tessera::over;

inline at::Tensor forward_loss(Engine& engine, Net& net, const Batch& batch) {
  return nn::observed(engine.root(), [&] { return net.loss(batch); });
}

}  // namespace tessera::zero::test
