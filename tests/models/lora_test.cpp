// Models with adapters: equal to the model with merged weights for every cut, with the activations
// and the traffic that the planner predicts.

#include "tessera/core/lora.h"

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/models/init.h"
#include "tessera/models/language_model.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/program_cost.h"
#include "tests/models/small_models.h"
#include "tests/text.h"

namespace tessera::models {
namespace {

using tensor_parallel::test::each_rank;
using tensor_parallel::test::expect_close;
using tensor_parallel::test::gradients_of;
using tensor_parallel::test::Named;
using tensor_parallel::test::wholes_of;
using test::Batch;
using test::batch_of;
using test::gpt_of_three;
using test::question_of;
using test::small_llama;
using test::stir;

ModelShape with_adapters(ModelShape shape, const std::string& targets, std::int64_t rank = 3) {
  shape.lora = {rank, 5, targets};
  shape.name += " adapters of " + targets;
  return shape;
}

struct Tuned {
  double loss = 0;
  Named grads;
};

// Computes the gradients of adapters from those of the merged weights W + s · B A:
// dB = s · dW Aᵀ and dA = s · Bᵀ dW.
Tuned by_merging(const ModelShape& shape, const Batch& data) {
  const auto adapted = make_model(shape, {}, 3);
  stir(*adapted);
  ModelShape plain = shape;
  plain.lora = {};
  const auto merged = make_model(plain, {}, 3);
  Named parameters;
  {
    const at::NoGradGuard no_grad;
    for (const auto& item : adapted->named_parameters()) parameters[item.key()] = item.value();
    for (const auto& item : merged->named_parameters()) {
      item.value().copy_(parameters.at(item.key()));
    }
  }
  struct Place {
    std::string a, b, weight;
    std::int64_t first;
  };
  std::vector<Place> places;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const Adapter& adapter : adapters_of(shape)) {
      const std::string block = str("blocks.", layer);
      const AdapterSpecs specs = specs_of(adapter, shape.lora.rank, block);
      const std::int64_t before[] = {0, shape.q_width(), shape.q_width() + shape.kv_width()};
      std::int64_t first = 0;
      if (adapter.part > 0) first = adapter.linear == "fc" ? shape.ffn : before[adapter.part];
      places.push_back(
          {specs.a.name, specs.b.name, str(block, ".", adapter.linear, ".weight"), first});
    }
  }
  const auto rows = [](const at::Tensor& w, const Place& place, const at::Tensor& b) {
    return w.narrow(0, place.first, b.size(0));
  };
  Named weights;
  for (const auto& item : merged->named_parameters()) weights[item.key()] = item.value();
  {
    const at::NoGradGuard no_grad;
    for (const Place& place : places) {
      const at::Tensor &a = parameters.at(place.a), &b = parameters.at(place.b);
      rows(weights.at(place.weight), place, b).add_(b.mm(a), shape.lora.scale());
    }
  }
  const at::Tensor loss = merged->loss(data.ids, data.targets);
  (loss / 7).backward();
  Tuned out{loss.item<double>(), {}};
  for (const Place& place : places) {
    const at::Tensor a = parameters.at(place.a).detach(), b = parameters.at(place.b).detach();
    const at::Tensor dw = rows(weights.at(place.weight).grad(), place, b);
    out.grads[place.a] = b.t().mm(dw) * shape.lora.scale();
    out.grads[place.b] = dw.mm(a.t()) * shape.lora.scale();
  }
  return out;
}

void compare(const ModelShape& shape, int tp, bool sequence, nn::Recompute mode, const Batch& data,
             const Tuned& wanted) {
  const std::string what =
      str(shape.name, " tp ", tp, sequence ? " sequence " : " ", nn::name(mode));
  auto question = question_of(shape, tp, sequence, data);
  question.recompute = mode;
  const auto planned = planner::tensor_parallel_traffic(question);
  std::vector<ParamSpec> specs;
  const auto ranks = each_rank<Tuned>(tp, [&](const comm::Group& group) {
    const auto model = make_model(shape, {.tp = group, .sequence_parallel = sequence}, 3);
    stir(*model);
    if (mode != nn::Recompute::none) nn::set_recompute(*model, mode);
    const auto start = group.traffic();
    const at::Tensor loss = model->loss(data.ids, data.targets);
    const auto middle = group.traffic();
    (loss / 7).backward();
    EXPECT_EQ(static_cast<std::int64_t>((middle - start).sent_bytes), planned.forward) << what;
    EXPECT_EQ(static_cast<std::int64_t>((group.traffic() - middle).sent_bytes),
              planned.recompute + planned.backward)
        << what;
    Named grads;
    for (const auto& [name, grad] : gradients_of(*model)) {
      EXPECT_EQ(grad.defined(), is_adapter_param(name)) << what << " " << name;
      if (grad.defined()) grads[name] = grad;
    }
    if (group.rank() == 0) {
      for (const ParamSpec& spec : find_specs(*model)) {
        if (is_adapter_param(spec.name)) specs.push_back(spec);
      }
    }
    return Tuned{loss.item<double>(), grads};
  });
  std::vector<Named> grads;
  for (const Tuned& rank : ranks) {
    EXPECT_EQ(rank.loss, ranks[0].loss) << what;
    grads.push_back(rank.grads);
  }
  EXPECT_NEAR(ranks[0].loss / wanted.loss, 1, 1e-5) << what;
  const Named wholes = wholes_of(specs, grads);
  ASSERT_EQ(wholes.size(), wanted.grads.size()) << what;
  for (const auto& [name, grad] : wanted.grads) {
    expect_close(wholes.at(name), grad, what + " " + name, 1e-4);
  }
  // The planner has the same parameters.
  const auto params = planner::adapter_params(shape, {0, shape.layers, true, true});
  ASSERT_EQ(params.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(params[i].name, specs[i].name) << what;
    EXPECT_EQ(params[i].shape, specs[i].shape) << what;
    for (int t = 0; t < tp; ++t) {
      const Axes axes{{Axis::tp, tp}};
      const Coordinate at{{Axis::tp, t}};
      EXPECT_EQ(local_runs(params[i], axes, at), local_runs(specs[i], axes, at)) << specs[i].name;
    }
  }
}

TEST(Lora, EveryCutMatchesTheMergedModel) {
  ModelShape qwen = small_llama(2), tied = small_llama(1);
  qwen.biases.qkv = true;
  tied.tied = true;
  int turn = 0;
  for (const ModelShape& base : {gpt_of_three(), small_llama(4), qwen, tied}) {
    std::vector<std::string> all = {"auto", "all"};
    ModelShape any = base;
    any.lora.rank = 1;
    for (const Adapter& adapter : possible_adapters(any)) all.push_back(adapter.target);
    for (const std::string& targets : all) {
      const ModelShape shape = with_adapters(base, targets);
      const Batch data = batch_of(shape);
      const Tuned wanted = by_merging(shape, data);
      for (const int tp : {1, 2, 4}) {
        for (const bool sequence : {false, true}) {
          if (sequence && tp == 1) continue;
          for (const auto mode :
               {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
            const bool chosen = targets == "all" || ++turn % 3 == 0;
            if (!chosen) continue;
            tensor_parallel::test::separate_and_fused(
                [&](bool) { compare(shape, tp, sequence, mode, data, wanted); });
          }
        }
      }
    }
  }
}

TEST(Lora, ActivationsMatchThePlanner) {
  memory::install();
  for (const ModelShape& base : {gpt_shape(2, 64, 4, 100, 64), small_llama(4), small_llama(2)}) {
    for (const char* targets : {"auto", "all", "o", "down", "fc,o"}) {
      const ModelShape shape = with_adapters(base, targets, 8);
      for (const int tp : {1, 2}) {
        for (const bool sequence : {false, true}) {
          for (const auto mode : {planner::Recompute::none, planner::Recompute::selective,
                                  planner::Recompute::full}) {
            for (const at::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
              if ((sequence && tp == 1) || (tp > 1 && type != torch::kFloat)) continue;
              const auto planned = planner::held_bytes({shape,
                                                        3,
                                                        40,
                                                        type == torch::kFloat ? 4 : 2,
                                                        mode,
                                                        {{tessera::Axis::tp, tp}},
                                                        sequence ? tp : 1});
              const auto kept = each_rank<std::int64_t>(tp, [&](const comm::Group& group) {
                return test::kept_bytes(shape, {.tp = group, .sequence_parallel = sequence}, type,
                                        mode);
              });
              EXPECT_NEAR(static_cast<double>(kept[0]) / static_cast<double>(planned), 1, 0.01)
                  << shape.name << " tp " << tp << " sequence " << sequence << " " << name(mode)
                  << " " << type << ": " << kept[0] << " of " << planned;
            }
          }
        }
      }
    }
  }
}

// As in PEFT, A is uniform within 1 / sqrt(in), and B is zero. The base starts as without adapters.
// All values are equal for every cut.
TEST(Lora, StartsAsTheModelWithoutAdapters) {
  const ModelShape base = gpt_shape(2, 96, 4, 48, 20);
  const ModelShape shape = with_adapters(base, "all", 16);
  const auto plain = make_model(base, {}, 3), model = make_model(shape, {}, 3);
  const Named before = tensor_parallel::test::parameters_of(*plain);
  std::size_t same = 0;
  for (const auto& [name, value] : tensor_parallel::test::parameters_of(*model)) {
    if (!is_adapter_param(name)) {
      EXPECT_TRUE(value.equal(before.at(name))) << name;
      ++same;
    } else if (name.ends_with(".B")) {
      EXPECT_FALSE(value.any().item<bool>()) << name;
    } else {
      const double bound = 1 / std::sqrt(static_cast<double>(value.size(1)));
      EXPECT_LE(value.abs().max().item<double>(), bound) << name;
      EXPECT_GT(value.abs().max().item<double>(), 0.99 * bound) << name;
      EXPECT_NEAR(value.mean().item<double>(), 0, 0.1 * bound) << name;
      EXPECT_NEAR(value.std().item<double>(), bound / std::sqrt(3.0), 0.05 * bound) << name;
    }
  }
  EXPECT_EQ(same, before.size());
  const Batch data = batch_of(shape);
  EXPECT_TRUE(model->forward(data.ids).equal(plain->forward(data.ids)));
  const auto ranks = each_rank<Named>(4, [&](const comm::Group& group) {
    return tensor_parallel::test::parameters_of(*make_model(shape, {.tp = group}, 3));
  });
  const Named whole = tensor_parallel::test::parameters_of(*model);
  for (const auto& [name, value] : wholes_of(find_specs(*model), ranks)) {
    EXPECT_TRUE(value.equal(whole.at(name))) << name;
  }
}

TEST(Lora, AcceptsTargetsByManyNames) {
  const auto targets_of = [](ModelShape shape, const std::string& text) {
    shape.lora = {4, 8, text};
    std::vector<std::string> names;
    for (const Adapter& adapter : adapters_of(shape)) names.push_back(adapter.target);
    return join(names, ",");
  };
  EXPECT_EQ(targets_of(gpt_of_three(), "auto"), "qkv");
  EXPECT_EQ(targets_of(gpt_of_three(), "c_attn, c_proj,c_fc"), "qkv,o,fc,down");
  EXPECT_EQ(targets_of(gpt_of_three(), "mlp.c_proj"), "down");
  EXPECT_EQ(targets_of(small_llama(2), "auto"), "q,v");
  EXPECT_EQ(targets_of(small_llama(2), "v_proj,q_proj"), "q,v");
  EXPECT_EQ(targets_of(small_llama(2), "qkv,fc"), "q,k,v,gate,up");
  EXPECT_EQ(targets_of(small_llama(2), "all"), "q,k,v,o,gate,up,down");
  for (const auto& [shape, text, words] :
       std::vector<std::tuple<ModelShape, std::string, std::string>>{
           {gpt_of_three(), "q,v", "got \"q\" in \"q,v\"; must be auto, all, or some of qkv"},
           {small_llama(2), "c_attn", "some of q, k, v, o, gate, up, down"},
           {small_llama(2), "", "got \"\""},
           {small_llama(2), "q,,v", "got \"\" in"}}) {
    EXPECT_TRUE(contains(error_of([&] { targets_of(shape, text); }), words)) << text;
  }
  ModelShape wrong = small_llama(2);
  wrong.lora = {-1, 8, "q"};
  EXPECT_TRUE(contains(error_of([&] { check_lora(wrong); }), "--lora-rank: got -1"));
  wrong.lora = {4, 0, "q"};
  EXPECT_TRUE(contains(error_of([&] { check_lora(wrong); }), "--lora-alpha: got 0"));
}

TEST(Lora, RejectsOverlappedProducts) {
  const ModelShape shape = with_adapters(small_llama(2), "q");
  each_rank<int>(2, [&](const comm::Group& group) {
    EXPECT_THROW(make_model(shape, {.tp = group, .overlap_tp = true}, 3), UsageError);
    return 0;
  });
}

}  // namespace
}  // namespace tessera::models
