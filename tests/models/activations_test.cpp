// Activations predicted by the planner, compared with the ledger of each rank.

#include "tessera/planner/program_cost.h"

#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/models/language_model.h"
#include "tests/models/small_models.h"

namespace tessera::models {
namespace {

using tensor_parallel::test::each_rank;

ModelShape wide_llama(std::int64_t kv_heads) {
  ModelShape shape = test::small_llama(kv_heads);
  shape.layers = 2;
  shape.hidden = 64;
  shape.ffn = 96;
  shape.vocab = 80;
  return shape;
}

TEST(Activations, EqualTheLedgersOfRanks) {
  memory::install();
  ModelShape qwen = wide_llama(2), mistral = wide_llama(2), relu = gpt_shape(2, 64, 4, 100, 64);
  qwen.name = "qwen", qwen.biases.qkv = true, qwen.tied = true, qwen.head_width = 24;
  mistral.name = "mistral", mistral.window = 16;
  relu.name = "relu", relu.activation = Activation::relu;
  ModelShape qwen3 = wide_llama(2), gemma2 = wide_llama(2);
  qwen3.name = "qwen3", qwen3.qk_norm = true, qwen3.head_width = 24;
  gemma2.name = "gemma2", gemma2.tied = gemma2.post_norms = gemma2.norm_plus_one = true;
  gemma2.gate = Activation::gelu_tanh, gemma2.embedding_scale = 8, gemma2.window = 16;
  gemma2.window_period = 2, gemma2.attention_cap = 50, gemma2.logit_cap = 30;
  ModelShape gemma3 = gemma2;
  gemma3.name = "gemma3", gemma3.attention_cap = gemma3.logit_cap = 0, gemma3.qk_norm = true;
  gemma3.window_rotary_base = 1e4;
  for (const ModelShape& shape : {gpt_shape(2, 64, 4, 100, 64), wide_llama(4), wide_llama(2),
                                  wide_llama(1), qwen, mistral, relu, qwen3, gemma2, gemma3}) {
    for (const int tp : {1, 2, 4}) {
      for (const bool sequence : {false, true}) {
        for (const auto mode :
             {planner::Recompute::none, planner::Recompute::selective, planner::Recompute::full}) {
          for (const at::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
            const planner::ProgramInput question{shape,
                                                 3,
                                                 40,
                                                 type == torch::kFloat ? 4 : 2,
                                                 mode,
                                                 {{Axis::tp, tp}},
                                                 sequence ? tp : 1};
            const auto planned = planner::held_bytes(question);
            for (const bool overlap : {false, true}) {
              if (overlap && tp == 1) continue;
              const auto kept = each_rank<std::int64_t>(tp, [&](const comm::Group& group) {
                const Part part{.tp = group, .sequence_parallel = sequence, .overlap_tp = overlap};
                return test::kept_bytes(shape, part, type, mode);
              });
              for (const std::int64_t bytes : kept) {
                EXPECT_NEAR(static_cast<double>(bytes) / static_cast<double>(planned), 1, 0.01)
                    << shape.name << " tp " << tp << " sequence " << sequence << " " << name(mode)
                    << " " << type << (overlap ? " overlapped" : "") << ": " << bytes << " of "
                    << planned;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::models
