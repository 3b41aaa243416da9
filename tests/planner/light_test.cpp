// Kept activations and padding of runs on a GPU: [Note: fused operations].

#include <gtest/gtest.h>

#include "tessera/planner/limits.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run.h"

namespace tessera::planner {
namespace {

ModelShape llama_like(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                      std::int64_t kv_heads, std::int64_t ffn, std::int64_t vocab) {
  ModelShape m = find_model_shape("llama-tiny");
  m.name.clear();
  m.layers = layers, m.hidden = hidden, m.heads = heads, m.kv_heads = kv_heads, m.ffn = ffn;
  m.vocab = vocab;
  return m;
}

RunConfig on_gpu(const ModelShape& model, std::int64_t batch, std::int64_t seq,
                 const char* layout = "bf16") {
  RunConfig q = RunConfig::for_plan();
  q.model = model;
  q.software = Software::tessera;
  q.gpu = true;
  q.layout = parse_state_layout(layout);
  q.micro_batch = batch, q.seq = seq;
  return q;
}

// The formula in the units of models/language_model.h. Sizes are whole blocks of the allocator, so
// nothing is rounded.
TEST(Light, BlocksKeepOnlyTensorsThatAreExpensiveToRecompute) {
  for (const std::int64_t layers : {1, 5}) {
    for (const std::int64_t batch : {1, 15}) {
      for (const std::int64_t width : {256, 1600}) {
        for (const char* layout : {"bf16", "fp32"}) {
          const std::int64_t n = batch * 1024, heads = width / 64;
          const ModelShape gpt = gpt_shape(layers, width, heads, 50304, 1024);
          const RunConfig q = resolve(on_gpu(gpt, batch, 1024, layout));
          const std::int64_t e = q.layout.param;
          const std::int64_t block = n * width * 10 * e + n * (16 + 4 * heads);
          const std::int64_t head = 2 * n * width * e + 8 * n + 512 + 4 * 50304 * width;
          EXPECT_EQ(run_memory(q).activations, layers * block + head);

          const ModelShape llama = llama_like(layers, width, heads, 1, 3 * width, 32000);
          const RunConfig l = resolve(on_gpu(llama, batch, 1024, layout));
          const std::int64_t qkv = width + 2 * 64;
          const std::int64_t gated = n * e * (3 * width + qkv + 6 * width) + n * (8 + 4 * heads);
          EXPECT_EQ(run_memory(l).activations,
                    layers * gated + 2 * n * width * e + 4 * n + 512 + 4 * 32000 * width);
        }
      }
    }
  }
}

// Ranks share the tensors between two products; with sequence parallelism the others too.
TEST(Light, TensorParallelRanksKeepShards) {
  const std::int64_t layers = 3, width = 1024, heads = 16, n = 4 * 1024;
  const ModelShape gpt = gpt_shape(layers, width, heads, 50304, 1024);
  for (const int tp : {2, 4, 8}) {
    for (const bool sequence : {false, true}) {
      RunConfig q = on_gpu(gpt, 4, 1024);
      q.axes.set(Axis::tp, tp);
      q.sequence_parallel = sequence;
      q.vocab_multiple = 1;
      q = resolve(q);
      const std::int64_t e = q.layout.param, own = sequence ? n / tp : n;
      const std::int64_t block =
          own * width * 2 * e + n * width * 8 * e / tp + own * 16 + n * 4 * heads / tp;
      // The gradient of the head's input is whole; ids that the embedding looks up, and their mask.
      const std::int64_t head =
          own * width * e + n * width * e + own * 8 + 512 + 4 * (50304 / tp) * width + n * 9;
      EXPECT_EQ(run_memory(q).activations, layers * block + head) << tp << sequence;
    }
  }
}

TEST(Light, AppliesToTesseraOnAGpu) {
  const ModelShape gpt = find_model_shape("gpt2-124m");
  EXPECT_TRUE(resolve(on_gpu(gpt, 4, 1024)).fused_activations());
  RunConfig other = on_gpu(gpt, 4, 1024);
  other.axes.set(Axis::tp, 2);
  EXPECT_TRUE(resolve(other).fused_activations());
  other = on_gpu(gpt, 4, 1024);
  other.gpu = false;
  EXPECT_FALSE(resolve(other).fused_activations());
  other = on_gpu(gpt, 4, 1024);
  other.software = Software::megatron;
  EXPECT_FALSE(resolve(other).fused_activations());
  // By default, the hardware decides.
  other = on_gpu(gpt, 4, 1024);
  other.gpu.reset();
  EXPECT_TRUE(resolve(other).fused_activations());
  other.hardware.cpu = true;
  EXPECT_FALSE(resolve(other).fused_activations());
}

// Padding rows of the table have parameters, gradients and state like the others.
TEST(Light, PaddedRowsAreCounted) {
  for (const int tp : {1, 2, 3}) {
    for (const int multiple : {0, 1, 64, 128}) {
      const ModelShape gpt = find_model_shape("gpt2-124m");
      RunConfig q = on_gpu(gpt, 1, 1024);
      q.axes.set(Axis::tp, tp);
      q.vocab_multiple = multiple;
      q = resolve(q);
      const std::int64_t by = multiple == 0 ? 128 : multiple;
      const std::int64_t rows = (50257 + tp - 1) / tp;
      const std::int64_t padded = (rows + by - 1) / by * by;
      EXPECT_EQ(q.model.vocab, by > 1 ? padded * tp : 50257);
      EXPECT_EQ(resolve(q).model.vocab, q.model.vocab) << "resolved twice";
      // The same run with an explicitly padded vocabulary.
      RunConfig whole = on_gpu(gpt, 1, 1024);
      whole.axes.set(Axis::tp, tp);
      whole.vocab_multiple = 1;
      whole.model.vocab = by > 1 ? padded * tp : 50257;
      const RunPlan got = plan_run(q), want = plan_run(resolve(whole));
      EXPECT_EQ(got.params, want.params);
      EXPECT_EQ(got.grads, want.grads);
      EXPECT_EQ(got.optimizer, want.optimizer);
      EXPECT_EQ(got.params, got.grads);
      EXPECT_EQ(model_flops(q), model_flops(resolve(whole)));
    }
  }
  // On a CPU, and for other software, only on request.
  RunConfig q = on_gpu(find_model_shape("gpt2-xl"), 1, 1024);
  q.gpu = false;
  EXPECT_EQ(resolve(q).model.vocab, 50257);
  q.gpu = true, q.software = Software::megatron;
  EXPECT_EQ(resolve(q).model.vocab, 50257);
}

// Full recomputation keeps the input of each block, on every device.
TEST(Light, FullRecomputationKeepsOnlyTheInputsOfBlocks) {
  RunConfig q = on_gpu(gpt_shape(12, 768, 12, 512, 1024), 8, 1024);
  q.recompute = Recompute::full;
  const std::int64_t inputs = 12 * 8 * 1024 * 768 * 2;
  const RunMemory full = run_memory(resolve(q));
  EXPECT_GT(full.activations, inputs);
  EXPECT_LT(static_cast<double>(full.activations), 1.25 * static_cast<double>(inputs));
  q.recompute = Recompute::none;
  const RunMemory none = run_memory(resolve(q));
  EXPECT_GT(full.temporary, none.temporary) << "a block is computed again in backward";
  EXPECT_LT(full.total(), none.total());
}

// Twice the batch of Megatron-LM's layers, without recomputing a product.
TEST(Light, ThirtySequencesOfGpt2XlFitIn80GB) {
  RunConfig q = on_gpu(find_model_shape("gpt2-xl"), 1, 1024);
  q.hardware.memory = 80e9;
  EXPECT_GE(largest_batches(resolve(q)).asked.micro_batch, 30);
  q.gpu = false;
  EXPECT_LT(largest_batches(resolve(q)).asked.micro_batch, 25);
}

}  // namespace
}  // namespace tessera::planner
