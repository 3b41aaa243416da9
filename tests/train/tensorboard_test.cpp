#include "tessera/train/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tests/interop.h"
#include "tests/processes.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class TensorBoard : public ::testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const fs::path folder = temporary_.path;
};

StepMetrics step_with(std::int64_t step, double loss) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = loss;
  metrics.lr = 1e-3 * static_cast<double>(step);
  metrics.tokens = 100;
  metrics.step_s = 0.5;
  metrics.mem_peak_bytes = 12345678;
  return metrics;
}

TEST_F(TensorBoard, RecordsAreFramedWithTheirChecksums) {
  EXPECT_EQ(masked_crc("123456789"), (0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u);
  EventFile file(folder / "a" / "b", "--tensorboard", 1);
  file.write(3, {{"x", 1.5}});
  const std::string bytes = read_all(file.path());
  std::size_t at = 0, records = 0;
  for (; at < bytes.size(); ++records) {
    std::uint64_t length = 0;
    std::uint32_t crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(crc, masked_crc(std::string_view(bytes).substr(at, 8)));
    ASSERT_LE(at + 16 + length, bytes.size());
    std::memcpy(&crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(crc, masked_crc(std::string_view(bytes).substr(at + 12, length)));
    at += 16 + length;
  }
  EXPECT_EQ(records, 3U);  // the version, the start, the scalar
}

// Steps that a run repeats after a restart count once, with the later values.
TEST_F(TensorBoard, IsReadByTensorBoard) {
  TESSERA_NEEDS_INTEROP();
  {
    EventFile first(folder.string(), "--tensorboard", 1);
    for (int step = 1; step <= 6; ++step) first.write(step_with(step, 10.0 - step));
  }
  {
    EventFile again(folder.string(), "--tensorboard", 5);
    StepMetrics metrics = step_with(5, 50);
    again.write(metrics);
    metrics = step_with(6, 60);
    metrics.evaluation = Evaluation{7.5, 3, 6};
    again.write(metrics);
  }
  Capture out, err;
  const int status =
      execute({kInteropPython, "-c",
               "import json, sys\n"
               "from tensorboard.backend.event_processing import event_accumulator as a\n"
               "r = a.EventAccumulator(sys.argv[1]); r.Reload()\n"
               "print(json.dumps({t: [[e.step, e.value] for e in r.Scalars(t)] "
               "for t in r.Tags()['scalars']}))\n",
               folder.string()},
              out, err);
  ASSERT_EQ(status, 0) << err.text();
  const auto read = nlohmann::json::parse(out.text());
  const auto losses = read.at("train/loss");
  ASSERT_EQ(losses.size(), 6U) << out.text();
  for (int step = 1; step <= 4; ++step) {
    EXPECT_EQ(losses[static_cast<std::size_t>(step - 1)], nlohmann::json({step, 10.0 - step}));
  }
  EXPECT_EQ(losses[4], nlohmann::json({5, 50.0}));
  EXPECT_EQ(losses[5], nlohmann::json({6, 60.0}));
  EXPECT_EQ(read.at("eval/loss"), nlohmann::json::parse("[[6, 2.5]]"));
  EXPECT_EQ(read.at("speed/tokens_per_s")[0], nlohmann::json({1, 200.0}));
  EXPECT_NEAR(read.at("eval/bits_per_byte")[0][1].get<double>(), 7.5 / 6 / std::log(2.0), 1e-6);
  EXPECT_NEAR(read.at("train/lr")[2][1].get<double>(), 3e-3, 1e-9);
  EXPECT_EQ(read.at("memory/peak_bytes").size(), 6U);
}

TEST_F(TensorBoard, RejectsPathsThatCannotBeAFolder) {
  std::ofstream(folder / "file") << "x";
  const std::string path = folder / "file";
  EXPECT_TRUE(contains(error_of([&] { check_event_folder(path, "--tensorboard"); }),
                       "--tensorboard: cannot write"));
  EXPECT_TRUE(contains(error_of([&] { EventFile(path, "--tensorboard", 1); }), "--tensorboard"));
  check_event_folder((folder / "new" / "er").string(), "--tensorboard");
  EXPECT_FALSE(fs::exists(folder / "new"));
}

}  // namespace
}  // namespace tessera::train
