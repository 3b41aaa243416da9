#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/planner/calibration.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

std::vector<PassSample> samples_of(const Hardware& hardware) {
  std::vector<PassSample> samples;
  for (const int hidden : {256, 512, 1024}) {
    for (const int seq : {128, 1024}) {
      for (const int vocab : {1024, 16384}) {
        RunConfig q = RunConfig::for_plan();
        q.model = gpt_shape(2, hidden, 8, vocab, seq);
        q.layout = parse_state_layout("fp32");
        q.hardware = hardware;
        q.micro_batch = 2;
        q = resolve(q);
        samples.push_back({q, pass_seconds(q)});
      }
    }
  }
  return samples;
}

TEST(Calibration, RecoversTheConstantsOfGeneratedSamples) {
  Hardware truth = Catalog().find("cpu");
  truth.product_efficiency = 0.7;
  truth.memory_efficiency = 0.3;
  truth.attention_efficiency = 0.15;
  truth.logit_bytes = 90;
  const std::vector<PassSample> samples = samples_of(truth);
  const Hardware start = Catalog().find("cpu");
  EXPECT_GT(calibration_error(start, samples), 0.2);
  const Hardware found = calibrate(start, samples);
  EXPECT_LT(calibration_error(found, samples), 0.005);
  EXPECT_NEAR(found.product_efficiency, 0.7, 0.02);
  EXPECT_NEAR(found.memory_efficiency, 0.3, 0.02);
  EXPECT_NEAR(found.attention_efficiency, 0.15, 0.01);
  EXPECT_NEAR(found.logit_bytes, 90, 6);
  EXPECT_THROW(calibrate(start, {}), UsageError);
}

TEST(Calibration, WritesEntriesThatTheCatalogueReads) {
  Hardware made = Catalog().find("h100");
  made.name = "mine";
  made.launch = 1.5e-6;
  made.cores = 6;
  Catalog catalog;
  catalog.parse(hardware_toml(made), "made");
  const Hardware& read = catalog.find("mine");
  EXPECT_DOUBLE_EQ(read.launch, 1.5e-6);
  EXPECT_NEAR(read.memory, made.memory, 1);
  EXPECT_DOUBLE_EQ(read.between.bandwidth, made.between.bandwidth);
  EXPECT_EQ(read.units, made.units);
  EXPECT_EQ(read.cores, 6);
  EXPECT_DOUBLE_EQ(read.gradient_passes, made.gradient_passes);
  EXPECT_EQ(hardware_toml(read), hardware_toml(made));
}

}  // namespace
}  // namespace tessera::planner
