// Compares the layer on meshes of ranks with the layer on one rank.

#include <ATen/Parallel.h>

#include "tessera/comm/mesh.h"
#include "tests/experts/reference.h"
#include "tests/ranks.h"

namespace tessera::experts {
namespace {

using test::Case;

Case mesh_case() {
  Case of;
  of.batch = 3;
  of.tokens = 16;
  of.layer.hidden = 12;
  of.layer.experts = {.count = 5, .per_token = 2, .width = 8};
  of.layer.experts.balance_loss = 0.2;
  of.layer.experts.z_loss = 0.1;
  of.layer.label = "blocks.1.experts";
  return of;
}

// Layer on one rank after forward and backward.
struct Whole {
  at::Tensor x, dy, y, dx;
  std::map<std::string, at::Tensor> grads;
  Load load;
};

Whole run_whole(const Case& of) {
  Whole whole;
  torch::manual_seed(5);
  whole.x = torch::randn({of.batch, of.tokens, of.layer.hidden}).to(of.type);
  whole.dy = torch::randn(whole.x.sizes()).to(of.type);
  if (of.row_tokens > 0) {  // the engine's losses do not include padding
    whole.dy.narrow(1, of.row_tokens, of.tokens - of.row_tokens).zero_();
  }
  MixtureOfExperts layer = test::make_layer(of);
  const nn::PassScope scope(std::make_shared<const nn::Pass>(test::pass_of(of)));
  const at::Tensor x = whole.x.clone().requires_grad_();
  whole.y = layer->forward(x);
  whole.y.backward(whole.dy);
  whole.y = whole.y.detach();
  whole.dx = x.grad();
  for (const auto& param : layer->named_parameters()) {
    whole.grads[param.key()] = param.value().grad();
  }
  whole.load = layer->take_load();
  return whole;
}

at::Tensor take_runs(const at::Tensor& whole, const ParamSpec& spec, const Axes& axes,
                     const Coordinate& at) {
  at::Tensor out = torch::zeros(local_shape(spec, axes, at), whole.options()).view({-1});
  for (const Run& run : local_runs(spec, axes, at)) {
    out.narrow(0, run.local, run.count).copy_(whole.view({-1}).narrow(0, run.whole, run.count));
  }
  return out.view(local_shape(spec, axes, at));
}

// Rows of a data-parallel rank: [begin, end).
struct Share {
  std::int64_t begin, end;
};

// Runs the layer on a mesh. `shares`: rows of each data-parallel rank.
void compare(const Case& of, const char* sizes, bool sequence, const std::vector<Share>& shares,
             double limit = 1e-6) {
  at::set_num_threads(1);
  const Whole whole = run_whole(of);
  const Axes axes(sizes);
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    at::set_num_threads(1);
    const comm::Mesh mesh(world, axes);
    const Coordinate& at = mesh.coordinate();
    const std::string text = tessera::str(axes.text(), sequence ? " with sequence parallelism" : "",
                                          ", rank ", world.rank(), ", ", of.text());
    // The groups, in the same order on all ranks.
    const comm::Group cp = mesh.group(Axis::cp), ep = mesh.group(Axis::ep);
    const comm::Group tokens = mesh.group(kTokenAxes), same = mesh.expert_group(kTokenAxes);
    const tensor_parallel::Axis tp{mesh.tp(), sequence && axes.tp() > 1};
    MixtureOfExperts layer = test::make_layer(of, {tp, cp, ep}, axes, at);

    nn::Pass pass = test::pass_of(of);
    const Share share = shares.at(static_cast<std::size_t>(axes.index(kDataAxes, at)));
    pass.first_sample += static_cast<std::uint64_t>(share.begin);
    if (cp.size() > 1) pass.part = {cp.rank(), cp.size()};
    const nn::PassScope scope(std::make_shared<const nn::Pass>(pass));
    const auto mine = [&](const at::Tensor& all) {
      at::Tensor part =
          nn::tokens_of(pass.part, all.narrow(0, share.begin, share.end - share.begin));
      if (!tp.sequence) return part;
      return part.chunk(tp.size(), 1)[static_cast<std::size_t>(tp.rank())].contiguous();
    };
    const at::Tensor x = mine(whole.x).clone().requires_grad_();
    const at::Tensor y = layer->forward(x);
    y.backward(mine(whole.dy));
    EXPECT_LE(test::difference(y, mine(whole.y)), limit) << text;
    EXPECT_LE(test::difference(x.grad(), mine(whole.dx)), 2 * limit) << "x, " << text;

    for (const ParamSpec& spec : tensor_parallel::find_specs(*layer)) {
      const at::Tensor param = layer->named_parameters()[spec.name];
      const at::Tensor expected = whole.grads.at(spec.name);
      const comm::Group& group = spec.of_expert ? same : tokens;
      const at::Tensor sum =
          param.grad().defined() ? param.grad().clone() : torch::zeros_like(param);
      const at::Tensor defined = torch::tensor({param.grad().defined() ? 1.0f : 0.0f});
      group.all_reduce(sum).wait();
      group.all_reduce(defined).wait();
      EXPECT_EQ(defined.item<float>() > 0, expected.defined()) << spec.name << ", " << text;
      if (!expected.defined()) continue;
      EXPECT_LE(test::difference(sum, take_runs(expected, spec, axes, at)), 4 * limit)
          << spec.name << ", " << text;
    }

    Load load = layer->take_load();
    const at::Tensor sums = torch::tensor(
        {load.dropped, load.routed, load.entropy, load.balance, load.z, load.rows}, torch::kDouble);
    tokens.all_reduce(load.tokens).wait();
    tokens.all_reduce(sums).wait();
    const auto* of_sums = sums.const_data_ptr<double>();
    load = {load.tokens, of_sums[0], of_sums[1], of_sums[2], of_sums[3], of_sums[4], of_sums[5]};
    test::expect_equal_loads(load, whole.load, 1e-9, text);
  });
}

TEST(MixtureOfExpertsOnAMesh, ExpertParallelRanksMatchOne) {
  compare(mesh_case(), "dp=2,ep=2", false, {{0, 2}, {2, 3}});
  compare(mesh_case(), "dp=3,ep=3", false, {{0, 1}, {1, 2}, {2, 3}});
  compare(mesh_case(), "dp=4,ep=4", false, {{0, 1}, {1, 1}, {1, 3}, {3, 3}});
  compare(mesh_case(), "dp=4,ep=2", false, {{0, 0}, {0, 1}, {1, 2}, {2, 3}});
  compare(mesh_case(), "dp=2", false, {{0, 1}, {1, 3}});
}

TEST(MixtureOfExpertsOnAMesh, TensorParallelRanksMatchOne) {
  for (const bool sequence : {false, true}) {
    for (const bool shared : {false, true}) {
      Case of = mesh_case();
      of.layer.biases = true;
      if (shared) {
        of.layer.experts.shared_width = 6;
        of.layer.experts.shared_gate = true;
        of.layer.experts.scores = RouterScores::sigmoid;
        of.layer.experts.selection_bias = true;
        of.layer.experts.scale = 1.5;
      }
      compare(of, "tp=2", sequence, {{0, 3}});
      compare(of, "tp=2,dp=2,ep=2", sequence, {{0, 1}, {1, 3}});
    }
  }
}

TEST(MixtureOfExpertsOnAMesh, ContextParallelRanksMatchOne) {
  for (const double capacity : {0.0, 0.75}) {
    for (const std::int64_t row_tokens : {0, 13}) {
      Case of = mesh_case();
      of.row_tokens = row_tokens;
      of.layer.experts.capacity = capacity;
      of.layer.experts.jitter = 0.1;
      compare(of, "cp=2", false, {{0, 3}});
      compare(of, "cp=2,ep=2", false, {{0, 3}});
      compare(of, "cp=2,dp=2,ep=4", false, {{0, 2}, {2, 3}});
    }
  }
}

TEST(MixtureOfExpertsOnAMesh, AllAxesTogetherMatchOne) {
  Case of = mesh_case();
  of.layer.experts.capacity = 1.0;
  of.layer.experts.jitter = 0.1;
  of.layer.experts.shared_width = 6;
  of.row_tokens = 14;
  for (const bool sequence : {false, true}) {
    compare(of, "tp=2,cp=2,ep=2", sequence, {{0, 3}});
  }
  of.layer.gated = false;
  of.layer.activation = Activation::relu;
  of.layer.biases = true;
  compare(of, "tp=2,cp=2,dp=2,ep=4", true, {{0, 2}, {2, 3}});
}

// Most experts get no token.
TEST(MixtureOfExpertsOnAMesh, RanksWithoutTokensMatchOne) {
  Case of = mesh_case();
  of.batch = 1;
  of.tokens = 2;
  of.layer.experts.count = 7;
  of.layer.experts.per_token = 1;
  compare(of, "dp=4,ep=4", false, {{0, 0}, {0, 1}, {1, 1}, {1, 1}});
  compare(of, "dp=2,ep=2", false, {{0, 0}, {0, 1}});
}

TEST(MixtureOfExpertsOnAMesh, ComputesInBfloat16) {
  Case of = mesh_case();
  of.type = at::kBFloat16;
  compare(of, "tp=2,dp=2,ep=2", true, {{0, 1}, {1, 3}}, 2e-2);
}

}  // namespace
}  // namespace tessera::experts
