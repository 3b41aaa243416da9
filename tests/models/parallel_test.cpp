// Language models cut over ranks and into parts, compared with the whole model in one process.

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/models/init.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/unallocated.h"
#include "tessera/parallel/initial.h"
#include "tessera/planner/parameters.h"
#include "tests/models/small_models.h"

namespace tessera::models {
namespace {

using tensor_parallel::test::each_rank;
using tensor_parallel::test::expect_close;
using tensor_parallel::test::gradients_of;
using tensor_parallel::test::Named;
using tensor_parallel::test::parameters_of;
using tensor_parallel::test::separate_and_fused;
using tensor_parallel::test::wholes_of;
using test::Batch;
using test::batch_of;
using test::expect_same;
using test::fuses_on_cpu;
using test::gpt_of_three;
using test::question_of;
using test::Ran;
using test::stir;

ModelShape llama(std::int64_t kv_heads, bool tied = false) {
  ModelShape shape = test::small_llama(kv_heads);
  shape.tied = tied;
  return shape;
}

// Computes in fp32, from numbers that are first rounded to `type`.
Ran alone(const ModelShape& shape, const Batch& batch, at::ScalarType type = torch::kFloat) {
  const auto model = make_model(shape, {}, 3, at::TensorOptions(type));
  stir(*model);
  model->to(torch::kFloat);
  const at::Tensor loss = model->loss(batch.ids, batch.targets);
  (loss / 7).backward();
  return {loss.item<double>(), gradients_of(*model), find_specs(*model)};
}

// Compares the loss and all gradients with one process, and the traffic with the planner.
void compare(const ModelShape& shape, int tp, bool sequence, nn::Recompute mode, const Batch& batch,
             const Ran& wanted, bool overlap = false) {
  const std::string what =
      str(shape.name, " tp ", tp, sequence ? " sequence " : " ", overlap ? "overlapped " : "",
          nn::name(mode), fuses_on_cpu() ? " fused" : "");
  auto question = question_of(shape, tp, sequence, batch);
  question.recompute = mode;
  const auto planned = planner::tensor_parallel_traffic(question);
  const auto ranks = each_rank<Ran>(tp, [&](const comm::Group& group) {
    const Part part{.tp = group, .sequence_parallel = sequence, .overlap_tp = overlap};
    const auto model = make_model(shape, part, 3);
    stir(*model);
    if (mode != nn::Recompute::none) nn::set_recompute(*model, mode);
    const auto start = group.traffic();
    const at::Tensor loss = model->loss(batch.ids, batch.targets);
    const auto middle = group.traffic();
    (loss / 7).backward();
    EXPECT_EQ(static_cast<std::int64_t>((middle - start).sent_bytes), planned.forward) << what;
    EXPECT_EQ(static_cast<std::int64_t>((group.traffic() - middle).sent_bytes),
              planned.recompute + planned.backward)
        << what;
    EXPECT_EQ((group.traffic() - start).control_bytes, 0u) << what;
    return Ran{loss.item<double>(), gradients_of(*model), find_specs(*model)};
  });
  std::vector<Named> grads;
  for (const Ran& rank : ranks) {
    EXPECT_EQ(rank.loss, ranks[0].loss) << what;
    EXPECT_EQ(rank.specs, wanted.specs) << what;
    grads.push_back(rank.grads);
  }
  expect_same({ranks[0].loss, wholes_of(wanted.specs, grads), {}}, wanted, what);
}

TEST(Parallel, EveryCutMatchesTheWholeModel) {
  for (const ModelShape& shape : {gpt_of_three(), llama(4), llama(2), llama(1, true)}) {
    for (const Batch& batch : {batch_of(shape), batch_of(shape, 3, 4)}) {
      const Ran wanted = alone(shape, batch);
      separate_and_fused([&](bool) {
        for (const int tp : {1, 2, 4}) {
          for (const bool sequence : {false, true}) {
            for (const auto mode :
                 {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
              compare(shape, tp, sequence, mode, batch, wanted);
              if (tp > 1) compare(shape, tp, sequence, mode, batch, wanted, /*overlap=*/true);
            }
          }
        }
      });
    }
  }
}

TEST(Parallel, PadsVocabulariesThatRanksDoNotDivide) {
  ModelShape own_head = llama(2), tied = llama(1, true);
  own_head.vocab = 257;
  tied.vocab = 101;
  ModelShape three = llama(3);
  three.heads = 6, three.hidden = 36, three.ffn = 45, three.vocab = 101;
  for (const ModelShape& shape : {gpt_shape(2, 36, 6, 101, 20), own_head, tied, three}) {
    const Batch batch = batch_of(shape);
    const Ran wanted = alone(shape, batch);
    for (const int tp : {1, 2, 3, 4}) {
      if (shape.heads % tp != 0 || (shape.kv_heads % tp != 0 && tp % shape.kv_heads != 0)) continue;
      for (const bool sequence : {false, true}) {
        compare(shape, tp, sequence, nn::Recompute::none, batch, wanted, sequence);
      }
      const auto ranks = each_rank<Ran>(tp, [&](const comm::Group& group) {
        const auto model = make_model(shape, {.tp = group, .pad_vocab_to = 64}, 3);
        stir(*model);
        EXPECT_EQ(model->forward(batch.ids).size(-1), shape.vocab);
        const at::Tensor loss = model->loss(batch.ids, batch.targets);
        (loss / 7).backward();
        return Ran{loss.item<double>(), gradients_of(*model), find_specs(*model)};
      });
      std::vector<Named> grads;
      for (const Ran& rank : ranks) grads.push_back(rank.grads);
      expect_same({ranks[0].loss, wholes_of(ranks[0].specs, grads), {}}, wanted, "padded to 64");
    }
  }
}

TEST(Parallel, EveryCutMatchesTheWholeModelInBf16) {
  for (const ModelShape& shape : {gpt_of_three(), llama(1)}) {
    const Batch batch = batch_of(shape);
    const Ran wanted = alone(shape, batch, torch::kBFloat16);
    for (const bool sequence : {false, true}) {
      const auto ranks = each_rank<Ran>(2, [&](const comm::Group& group) {
        const auto model = make_model(shape, {.tp = group, .sequence_parallel = sequence}, 3,
                                      at::TensorOptions(torch::kBFloat16));
        stir(*model);
        const at::Tensor loss = model->loss(batch.ids, batch.targets);
        (loss / 7).backward();
        return Ran{loss.item<double>(), gradients_of(*model), {}};
      });
      EXPECT_NEAR(ranks[0].loss / wanted.loss, 1, 2e-2);
      const Named grads = wholes_of(wanted.specs, {ranks[0].grads, ranks[1].grads});
      for (const auto& [name, grad] : wanted.grads) {
        expect_close(grads.at(name), grad, str(shape.name, " bf16 ", sequence, " ", name), 8e-2);
      }
    }
  }
}

// Deferred weight gradients of a pipeline are equal too.
TEST(Parallel, DeferredWeightGradientsAreEqual) {
  for (const ModelShape& shape : {gpt_of_three(), llama(4)}) {
    const Batch batch = batch_of(shape);
    const Ran wanted = alone(shape, batch);
    separate_and_fused([&](bool) {
      for (const bool sequence : {false, true}) {
        const auto ranks = each_rank<Ran>(2, [&](const comm::Group& group) {
          const Part part{.tp = group, .sequence_parallel = sequence, .overlap_tp = shape.swiglu};
          const auto model = make_model(shape, part, 3);
          stir(*model);
          auto later = c10::make_intrusive<nn::DeferredGradients>();
          at::Tensor loss;
          {
            const nn::DeferredGradients::Scope scope(later);
            loss = model->loss(batch.ids, batch.targets);
          }
          (loss / 7).backward();
          EXPECT_EQ(later->pushed(), 4 * shape.layers + 1) << shape.name;
          later->run();
          return Ran{loss.item<double>(), gradients_of(*model), {}};
        });
        expect_same({ranks[0].loss, wholes_of(wanted.specs, {ranks[0].grads, ranks[1].grads}), {}},
                    wanted, str(shape.name, " deferred ", sequence));
      }
    });
  }
}

TEST(Parallel, EveryCutHasTheSameInitialValues) {
  for (const ModelShape& shape : {gpt_of_three(), llama(2)}) {
    const auto whole = make_model(shape, {}, 5);
    const Named wanted = parameters_of(*whole);
    for (const int tp : {2, 4}) {
      const auto ranks = each_rank<Named>(tp, [&](const comm::Group& group) {
        const auto model = make_model(shape, {.tp = group}, 5);
        return parameters_of(*model);
      });
      for (const auto& [name, value] : wholes_of(find_specs(*whole), ranks)) {
        EXPECT_TRUE(value.equal(wanted.at(name))) << shape.name << name;
      }
    }
  }
}

// A model without memory, whose values are made by ranges, equals an allocated model.
TEST(Parallel, ModelsWithoutMemoryHaveTheSameInitialValues) {
  ModelShape odd = gpt_of_three();
  odd.vocab = 101;
  for (const ModelShape& shape : {odd, llama(2)}) {
    each_rank<int>(2, [&](const comm::Group& group) {
      const auto there = make_model(shape, {.tp = group}, 3);
      const auto empty = make_model(shape, {.tp = group}, 3, nn::ParamOptions::unallocated());
      const auto specs = find_specs(*empty);
      EXPECT_EQ(specs, find_specs(*there));
      const Named wanted = parameters_of(*there);
      std::size_t next = 0;
      for (const auto& item : empty->named_parameters()) {
        const ParamSpec& spec = specs[next++];
        const at::Tensor& whole = wanted.at(item.key());
        EXPECT_TRUE(nn::is_unallocated(item.value())) << spec.name;
        EXPECT_EQ(item.value().sizes(), whole.sizes()) << spec.name;
        for (std::int64_t begin = 0; begin < whole.numel(); begin += 100) {
          const at::Tensor out = torch::empty({std::min<std::int64_t>(100, whole.numel() - begin)});
          fill_initial_range(out, spec, initial_values(shape)(spec), 3, {{tessera::Axis::tp, 2}},
                             {{tessera::Axis::tp, group.rank()}}, begin);
          EXPECT_TRUE(at::equal(out, whole.view(-1).narrow(0, begin, out.numel()))) << spec.name;
        }
      }
      return 0;
    });
  }
}

TEST(Parallel, LogitsAreWholeOnEveryRank) {
  const Batch batch = batch_of(gpt_of_three());
  const auto model = make_model(gpt_of_three(), {}, 3);
  stir(*model);
  const at::NoGradGuard no_grad;
  const at::Tensor wanted = model->forward(batch.ids);
  for (const bool sequence : {false, true}) {
    const auto ranks = each_rank<at::Tensor>(4, [&](const comm::Group& group) {
      const at::NoGradGuard also_here;
      const auto part = make_model(gpt_of_three(), {.tp = group, .sequence_parallel = sequence}, 3);
      stir(*part);
      return part->forward(batch.ids);
    });
    for (const at::Tensor& logits : ranks) expect_close(logits, wanted, "logits");
  }
}

// Runs the stages one after another on each tensor-parallel rank, as a pipeline would.
Ran by_parts(const ModelShape& shape, const std::vector<std::int64_t>& ends, const comm::Group& tp,
             bool sequence, const Batch& batch) {
  std::vector<std::shared_ptr<LanguageModel>> parts;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    Part part{.tp = tp, .sequence_parallel = sequence, .first_layer = begin, .last_layer = ends[i]};
    part.embedding = i == 0;
    part.head = i + 1 == ends.size();
    parts.push_back(make_model(shape, part, 3));
    stir(*parts.back());
    begin = ends[i];
  }
  Ran ran;
  std::vector<at::Tensor> ins = {batch.ids}, outs;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    outs.push_back(parts[i]->forward_part(ins[i]));
    EXPECT_EQ(outs.back().size(1), batch.ids.size(1) / (sequence ? tp.size() : 1));
    ins.push_back(outs.back().detach().requires_grad_());
  }
  const at::Tensor loss = parts.back()->loss(ins.back(), batch.targets);
  (loss / 7).backward();
  for (std::size_t i = outs.size(); i > 0; --i) outs[i - 1].backward(ins[i].grad());
  ran.loss = loss.item<double>();
  for (const auto& part : parts) {
    for (const ParamSpec& spec : find_specs(*part)) {
      const at::Tensor grad = gradients_of(*part).at(spec.name);
      at::Tensor& sum = ran.grads[spec.name];
      EXPECT_EQ(sum.defined(), shape.tied && parts.size() > 1 && part == parts.back() &&
                                   spec.name == "tok.weight");
      sum = sum.defined() ? sum + grad : grad;
    }
  }
  return ran;
}

TEST(Parallel, PartsInSequenceMatchTheWholeModel) {
  for (const ModelShape& shape : {gpt_of_three(), llama(2), llama(4, true)}) {
    const Batch batch = batch_of(shape);
    const Ran wanted = alone(shape, batch);
    for (const std::vector<std::int64_t>& ends :
         {std::vector<std::int64_t>{3}, {2, 3}, {1, 2, 3}, {0, 3, 3}}) {
      for (const int tp : {1, 2}) {
        const bool sequence = tp == 2;
        const auto ranks = each_rank<Ran>(tp, [&](const comm::Group& group) {
          return by_parts(shape, ends, group, sequence, batch);
        });
        std::vector<Named> grads;
        for (const Ran& rank : ranks) grads.push_back(rank.grads);
        expect_same({ranks[0].loss, wholes_of(wanted.specs, grads), {}}, wanted,
                    str(shape.name, " in ", ends.size(), " parts, tp ", tp));
      }
    }
  }
}

// The traffic of the parts adds up to that of the whole model.
TEST(Parallel, TrafficOfPartsAddsUpToTheWhole) {
  for (const ModelShape& shape : {gpt_of_three(), llama(2)}) {
    for (const bool sequence : {false, true}) {
      const Batch batch = batch_of(shape);
      const auto whole = question_of(shape, 4, sequence, batch);
      auto first = whole, last = whole;
      first.layers = 1;
      first.head = false;
      last.layers = 2;
      last.embedding = false;
      EXPECT_EQ(tensor_parallel_traffic(first).total() + tensor_parallel_traffic(last).total(),
                tensor_parallel_traffic(whole).total());
    }
  }
}

TEST(Parallel, PlannerHasTheParametersOfBothFamilies) {
  std::vector<ModelShape> shapes = {gpt_of_three(), llama(4), llama(2), llama(1, true)};
  for (const ModelShape& shape : model_shapes()) {
    if (shape.params() < 20'000'000'000) shapes.push_back(shape);
  }
  for (const ModelShape& shape : shapes) {
    for (const int tp : {1, 2, 4}) {
      if (shape.heads % tp != 0) continue;
      each_rank<int>(tp, [&](const comm::Group& group) {
        const planner::ModelPart cut =
            planner::part_of_stage(planner::layers_of_stages(shape, 2), 1);
        Part part;
        part.tp = group;
        for (const bool whole : {true, false}) {
          if (!whole) {
            part.first_layer = cut.first_layer;
            part.embedding = false;
          }
          const auto model = make_model(shape, part, 0, at::TensorOptions(at::kMeta));
          const auto planned =
              whole ? planner::model_params(shape, tp) : planner::model_params(shape, tp, cut);
          const auto specs = find_specs(*model);
          std::size_t next = 0;
          std::int64_t params = 0;
          for (const auto& item : model->named_parameters()) {
            if (next == planned.size()) break;
            const ParamSpec& spec = planned[next];
            const Axes axes{{tessera::Axis::tp, tp}};
            const Coordinate at{{tessera::Axis::tp, group.rank()}};
            EXPECT_EQ(item.key(), spec.name);
            EXPECT_EQ(item.value().sizes().vec(), local_shape(spec, axes, at)) << spec.name;
            EXPECT_EQ(specs[next].shape, spec.shape) << spec.name;
            EXPECT_EQ(local_runs(specs[next], axes, at), local_runs(spec, axes, at)) << spec.name;
            params += item.value().numel();
            ++next;
          }
          EXPECT_EQ(next, planned.size());
          EXPECT_EQ(specs.size(), planned.size());
          if (whole && tp == 1) {
            EXPECT_EQ(params, shape.params()) << shape.name;
          }
        }
        return 0;
      });
    }
  }
}

TEST(Parallel, RejectsInvalidCuts) {
  const at::TensorOptions meta(at::kMeta);
  each_rank<int>(4, [&](const comm::Group& group) {
    const auto refused = [&](ModelShape shape, Part part, const std::string& why) {
      part.tp = group;
      try {
        make_model(shape, part, 0, meta);
        ADD_FAILURE() << "accepted: " << why;
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      }
    };
    refused(gpt_shape(1, 30, 6, 48, 20), {}, "heads is 6");
    auto shape = llama(4);
    shape.ffn = 42;
    refused(shape, {}, "ffn is 42");
    shape = llama(4);
    shape.heads = 12;
    shape.kv_heads = 3;
    shape.hidden = 48;
    refused(shape, {}, "kv-heads is 3");
    refused(gpt_of_three(), {.first_layer = 2, .last_layer = 4}, "layers [2, 4)");
    refused(gpt_of_three(), {.first_layer = 2, .last_layer = 1}, "layers [2, 1)");
    shape = llama(4);
    shape.head_width = 3;
    refused(shape, {}, "even width");
    // The length of sequences is known only later.
    const auto model = make_model(gpt_of_three(), {.tp = group, .sequence_parallel = true});
    EXPECT_THROW(model->forward_part(torch::zeros({1, 6}, torch::kLong)), UsageError);
    const auto middle =
        make_model(gpt_of_three(), {.tp = group, .embedding = false, .head = false});
    EXPECT_THROW(middle->forward_part(torch::zeros({1, 6}, torch::kLong)), UsageError);
    EXPECT_THROW(middle->loss(torch::zeros({1, 4, 32}), torch::zeros({1, 4}, torch::kLong)),
                 UsageError);
    return 0;
  });
}

}  // namespace
}  // namespace tessera::models
