// The buckets of a described step equal those of the engine.

#include "tessera/planner/step_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/core/shard.h"
#include "tessera/core/text.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/run.h"
#include "tessera/planner/step_time.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

std::vector<double> bytes_of(const StepBuckets& buckets) {
  std::vector<double> all;
  for (const std::uint16_t size : buckets.size_of) all.push_back(buckets.sizes[size].bytes);
  return all;
}

// Returns the elements of a chunk's trained parameters in the engine's order: parameters outside
// blocks first.
std::vector<std::int64_t> placed(const RunConfig& q, const ModelPart& part) {
  std::vector<std::int64_t> outside, blocks;
  const auto padded = [&](const ParamSpec& spec) {
    return shard_size(elements_on_rank(q, spec), q.dp()) * q.dp();
  };
  if (q.model.lora.any()) {
    for (const ParamSpec& spec : adapter_params(q.model, part)) blocks.push_back(padded(spec));
    return blocks;
  }
  for (const ParamSpec& spec : model_params(q.model, q.tp(), part)) {
    (spec.name.starts_with("blocks.") ? blocks : outside).push_back(padded(spec));
  }
  outside.insert(outside.end(), blocks.begin(), blocks.end());
  return outside;
}

// Fills buckets as zero/plan.cpp does, parameter by parameter: [chunk][bucket].
std::vector<std::vector<double>> filled(const RunConfig& q, const Coordinate& at = {}) {
  std::vector<std::vector<std::int64_t>> chunks;
  std::int64_t all = 0;
  for (const ModelPart& part : parts_on_rank(q, at)) {
    chunks.push_back(placed(q, part));
    for (const std::int64_t elements : chunks.back()) all += elements * q.travel();
  }
  const double limit =
      q.bucket_bytes > 0 ? q.bucket_bytes : static_cast<double>(default_bucket_bytes(all));
  std::vector<std::vector<double>> buckets;
  for (const std::vector<std::int64_t>& chunk : chunks) {
    std::vector<double>& own = buckets.emplace_back();
    double open = 0;
    for (std::size_t i = chunk.size(); i-- > 0;) {
      open += static_cast<double>(chunk[i] * q.travel());
      if (open < limit && i > 0) continue;
      own.push_back(open);
      open = 0;
    }
  }
  return buckets;
}

RunConfig asked(const char* model, int dp, int tp, int pp, int zero, double bucket) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape(model);
  q.hardware = built_in().find("h100");
  q.software = Software::tessera;
  q.axes.set_dp(dp), q.axes.set(Axis::tp, tp), q.axes.set(Axis::pp, pp);
  q.zero = zero, q.bucket_bytes = static_cast<std::int64_t>(bucket), q.grad_accum = 8;
  return q;
}

void expect_filled_alike(const RunConfig& resolved, const std::string& what) {
  const Step step = describe_step(resolved);
  for (int r = 0; r < resolved.pp(); ++r) {
    const auto want = filled(resolved, {{Axis::pp, r}});
    const std::vector<StepChunk>& chunks = step.chunks[static_cast<std::size_t>(r)];
    ASSERT_EQ(chunks.size(), want.size()) << what;
    for (std::size_t c = 0; c < want.size(); ++c) {
      ASSERT_TRUE(chunks[c].buckets) << what;
      EXPECT_EQ(bytes_of(*chunks[c].buckets), want[c]) << what << " rank " << r << " chunk " << c;
      const std::vector<double>& ready = chunks[c].buckets->ready;
      EXPECT_TRUE(std::is_sorted(ready.begin(), ready.end())) << what;
      EXPECT_GT(ready.front(), 0) << what;
      EXPECT_LE(ready.back(), 1) << what;
      if (!resolved.model.lora.any()) {
        EXPECT_NEAR(ready.back(), 1, 1e-9) << what;
      }
      // Transfers of both the plan and the simulator.
      const Transfers sent = step.reductions(chunks[c], step.places());
      EXPECT_EQ(sent.count, static_cast<int>(want[c].size())) << what;
      double bytes = 0;
      for (int i = 0; i < sent.count; ++i) bytes += sent.each(i).bytes;
      EXPECT_NEAR(sent.bytes() / bytes, 1, 1e-12) << what;
    }
  }
}

TEST(StepBuckets, EqualTheEnginesBuckets) {
  for (const char* model :
       {"gpt-tiny", "gpt2-124m", "gpt2-774m", "llama-tiny", "llama3.2-1b", "llama2-70b"}) {
    for (const double bucket : {0.0, 1.0, 5e3, 1e5, 4e6, 25e6, 1e9, 1e12}) {
      for (const int dp : {2, 3, 8, 64}) {
        for (const int tp : {1, 2}) {
          for (const char* layout : {"bf16", "fp32"}) {
            RunConfig q = asked(model, dp, tp, 1, dp == 8 ? 3 : 1, bucket);
            q.layout = parse_state_layout(layout);
            expect_filled_alike(resolve(q), str(model, " bucket ", bucket, " dp ", dp, " tp ", tp));
          }
        }
      }
    }
  }
}

TEST(StepBuckets, EqualTheEnginesBucketsForPipelineStages) {
  for (const char* model : {"gpt2-124m", "llama2-7b"}) {
    for (const double bucket : {0.0, 1.0, 4e6, 1e9}) {
      for (const char* schedule : {"1f1b", "interleaved"}) {
        RunConfig q = asked(model, 2, 1, 4, 0, bucket);
        q.schedule = *find_named<ScheduleChoice>(schedule);
        expect_filled_alike(resolve(q), str(model, " bucket ", bucket, " ", schedule));
      }
    }
  }
}

TEST(StepBuckets, EqualTheEnginesBucketsForAdapters) {
  for (const char* model : {"gpt2-124m", "llama3-8b"}) {
    for (const int tp : {1, 2, 4}) {
      for (const double bucket : {0.0, 1.0, 2e5}) {
        RunConfig q = asked(model, 4, tp, 1, 1, bucket);
        q.model.lora = {8, 16, "all"};
        expect_filled_alike(resolve(q), str(model, " tp ", tp, " bucket ", bucket));
      }
    }
  }
}

// Even with the smallest bucket size, a bucket holds a whole parameter, which determines the number
// and duration of collectives.
TEST(StepBuckets, HoldAtLeastOneParameter) {
  const RunConfig q = resolve(asked("llama2-7b", 8, 1, 1, 1, 1));
  const Step step = describe_step(q);
  EXPECT_EQ(step.chunks[0][0].buckets->count(), 32 * 6 + 3);
  RunConfig also = q;
  also.bucket_bytes = 1000;
  EXPECT_DOUBLE_EQ(step_time(also).step(), step_time(q).step());
}

// Too many buckets are grouped, with the same number of collectives and bytes.
TEST(StepBuckets, VeryDeepModelsAreGrouped) {
  RunConfig q = asked("gpt2-124m", 4, 1, 1, 0, 1);
  q.model.layers = 300;
  q = resolve(q);
  const StepBuckets buckets = *describe_step(q).chunks[0][0].buckets;
  const std::vector<double> want = filled(q).front();
  EXPECT_EQ(want.size(), 300U * 12 + 4);
  EXPECT_LE(buckets.count(), 1024);
  EXPECT_EQ(buckets.calls(), static_cast<int>(want.size()));
  double sum = 0, all = 0;
  for (const double bytes : bytes_of(buckets)) sum += bytes;
  for (const double bytes : want) all += bytes;
  EXPECT_NEAR(sum / all, 1, 1e-12);
}

// Software without units outside blocks sends the head's gradient first, as soon as it is computed.
TEST(StepBuckets, OtherSoftwareStartsWithTheHead) {
  RunConfig q = asked("llama2-7b", 8, 1, 1, 0, 25e6);
  q.software = Software::megatron;
  q = resolve(q);
  const StepChunk chunk = describe_step(q).chunks[0][0];
  const std::vector<double> bytes = bytes_of(*chunk.buckets);
  EXPECT_EQ(bytes.front(), 2.0 * 32000 * 4096);
  EXPECT_LT(chunk.buckets->ready.front(), 0.1);
  double all = 0;
  for (const double each : bytes) all += each;
  EXPECT_DOUBLE_EQ(all, chunk.grad_bytes);
  // Four matrices per layer; norms share their buckets.
  EXPECT_EQ(chunk.buckets->count(), 1 + 32 * 4 + 1);
}

}  // namespace
}  // namespace tessera::planner
