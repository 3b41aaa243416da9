// Step times of Tessera's fused operations on a GPU.

#include <gtest/gtest.h>

#include "tessera/planner/calibration.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

RunConfig on_h200(const ModelShape& model, std::int64_t batch, std::int64_t seq = 1024) {
  RunConfig q = RunConfig::for_plan();
  q.model = model;
  q.hardware = Catalog().find("h200");
  q.layout = parse_state_layout("bf16");
  q.micro_batch = batch, q.seq = seq;
  return resolve(q);
}

// Without the cost of memory and attention, only products remain: three per matrix, with six FLOPs
// per element and token.
TEST(LightTime, LayerHasThreeProductsPerMatrix) {
  for (const char* name : {"gpt2-124m", "gpt2-xl", "llama3-8b"}) {
    RunConfig q = on_h200(find_model_shape(name), 16);
    q.hardware.memory_bandwidth = 1e18;
    q.hardware.attention_efficiency = 1;
    q.hardware.product_efficiency = 0.01;  // makes other costs negligible
    q.hardware.kernel_start = 0;
    const PartWork work = part_work(q, ProgramPart::layer);
    const double device =
        work.forward.device + work.backward_input.device + work.backward_weight.device;
    const ModelShape& m = q.model;
    const double matrices =
        static_cast<double>(m.layer_params() - (m.biases.norm ? 2 : 1) * 2 * m.hidden);
    const double least = 6 * matrices * 16 * 1024 / (q.hardware.peak_16bit * 0.01);
    EXPECT_GT(device, 0.99 * least) << name;  // biases are not products
    EXPECT_LT(device, 1.25 * least) << name;  // waves of tiles are not all full
  }
}

TEST(LightTime, CudaGraphHasNoLaunchCost) {
  RunConfig q = on_h200(find_model_shape("gpt2-124m"), 1);
  const double graph = step_time(q).step();
  q.hardware.launch *= 10;
  EXPECT_EQ(step_time(q).step(), graph);
  q.cuda_graph = CudaGraph::off;
  EXPECT_GT(step_time(q).step(), graph);
}

TEST(LightTime, RecomputingTakesTime) {
  RunConfig q = on_h200(find_model_shape("gpt2-xl"), 8);
  double before = step_time(q).step();
  for (const Recompute what : {Recompute::selective, Recompute::full}) {
    q.recompute = what;
    EXPECT_GT(step_time(q).step(), before);
    before = step_time(q).step();
  }
}

// Every matrix of a layer and the table is read in 16 bits and written in 32.
TEST(LightTime, Fp32GradientsAreCopied) {
  for (const char* name : {"gpt2-124m", "gpt2-xl", "llama3-8b"}) {
    RunConfig q = on_h200(find_model_shape(name), 2);
    q.hardware.kernel_start = 0;
    const PartWork layer = part_work(q, ProgramPart::layer),
                   table = part_work(q, ProgramPart::embedding),
                   head = part_work(q, ProgramPart::head);
    q.layout = parse_state_layout("bf16-fp32grad");
    const ModelShape& m = q.model;
    const double small = static_cast<double>(m.layer_params()) * 0.001;  // biases and norms
    const double vocab = static_cast<double>(m.vocab * m.hidden);
    const auto copied = [&](const PartWork& with, const PartWork& without) {
      return with.backward_weight.device - without.backward_weight.device;
    };
    EXPECT_NEAR(copied(part_work(q, ProgramPart::layer), layer),
                pass_time(q.hardware, 6 * static_cast<double>(m.layer_params())),
                pass_time(q.hardware, 6 * small) * 2)
        << name;
    EXPECT_NEAR(copied(part_work(q, ProgramPart::embedding), table),
                pass_time(q.hardware, 6 * vocab), 1e-9);
    EXPECT_NEAR(copied(part_work(q, ProgramPart::head), head),
                m.tied ? 0 : pass_time(q.hardware, 6 * vocab), 1e-9);
  }
}

TEST(LightTime, MoreOfAnythingTakesLonger) {
  const double one = step_time(on_h200(find_model_shape("gpt2-124m"), 8)).step();
  EXPECT_GT(step_time(on_h200(find_model_shape("gpt2-124m"), 9)).step(), one);
  EXPECT_GT(step_time(on_h200(find_model_shape("gpt2-124m"), 8, 1536)).step(), 1.5 * one);
  ModelShape wider = find_model_shape("gpt2-124m");
  wider.vocab *= 2;
  EXPECT_GT(step_time(on_h200(wider, 8)).step(), one);
}

// The hardware entry selects the software; a question may override it.
TEST(LightTime, HardwareEntrySelectsTesserasConstants) {
  RunConfig q = on_h200(find_model_shape("gpt2-xl"), 15);
  EXPECT_EQ(q.software, Software::tessera);
  EXPECT_TRUE(q.fused_activations());
  q.software = Software::megatron;
  EXPECT_GT(step_time(resolve(q)).step(), step_time(on_h200(q.model, 15)).step());
  RunConfig other = RunConfig::for_plan();
  other.model = find_model_shape("gpt2-xl");
  other.hardware = Catalog().find("h100");
  EXPECT_EQ(resolve(other).software, Software::megatron);
}

}  // namespace
}  // namespace tessera::planner
