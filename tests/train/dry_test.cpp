// One process simulates rank 0 of many: its memory equals the formulas, for any number of ranks.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/dry/backend.h"
#include "tessera/comm/dry/device_backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/train/trainer.h"
#include "tests/text.h"

namespace tessera::train {
namespace {

RunConfig dry_config(const std::vector<std::pair<std::string, std::string>>& given) {
  RunConfig config;
  config.backend = BackendName::dry;
  for (const auto& [name, text] : given) set(config, field(name), text);
  return config;
}

void expect_as_planned(const RunConfig& config, int ranks, const std::string& what, int rank = 0,
                       double peak_share = 0.03) {
  Trainer trainer(config, comm::Group(comm::dry::make_backend(rank, ranks, "world")));
  for (int step = 0; step < 2; ++step) trainer.step();
  const Summary summary = trainer.summary();
  for (const auto& [row, share] :
       std::vector<std::pair<std::string, double>>{{"params", 0.01},
                                                   {"grads", 0.01},
                                                   {"optimizer", 0.01},
                                                   {"activations", 0.03},
                                                   {"buffers", 0.03},
                                                   {"peak", peak_share}}) {
    const auto want = static_cast<double>(summary.predicted.memory.at(row));
    const auto got = static_cast<double>(summary.measured.memory.at(row));
    EXPECT_NEAR(got, want, share * want + 64 * 64) << what << " " << row;
  }
  ASSERT_TRUE(summary.predicted.sent && summary.measured.sent);
  for (const Axis axis : kAllAxes) {
    EXPECT_EQ((*summary.measured.sent)[axis], (*summary.predicted.sent)[axis])
        << what << ", " << axis_name(axis);
  }
}

TEST(Dry, MemoryAndTrafficEqualThePlan) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    for (const int ranks : {1, 2, 8, 64}) {
      const std::string count = std::to_string(ranks);
      expect_as_planned(
          dry_config({{"zero", stage}, {"ranks", count}, {"hidden", "128"}, {"micro-batch", "4"}}),
          ranks, "stage " + std::string(stage) + ", " + count + " ranks");
    }
  }
  expect_as_planned(dry_config({{"zero", "3"}, {"ranks", "8"}, {"gather", "copy"}}), 8, "copies");
}

// One process simulates any rank of any mesh.
TEST(Dry, MemoryAndTrafficEqualThePlanAtEveryCoordinate) {
  for (const char* mesh : {"dp=2,tp=2", "dp=2,pp=2", "dp=1,tp=2,pp=2", "dp=4,dp_replicate=2",
                           "dp=4,dp_replicate=2,tp=2,pp=2"}) {
    const Axes axes = mesh;
    for (int rank = 0; rank < axes.world(); ++rank) {
      RunConfig config = dry_config({{"zero", "2"}, {"micro-batch", "2"}, {"grad-accum", "2"}});
      config.axes = axes;
      expect_as_planned(config, static_cast<int>(axes.world()), str(mesh, ", rank ", rank), rank);
    }
  }
}

TEST(Dry, ContextParallelRanksEqualThePlan) {
  for (const char* mesh : {"cp=2", "dp=2,cp=2,tp=2", "cp=4,pp=2"}) {
    const Axes axes = mesh;
    for (const char* kind : {"ring", "ulysses"}) {
      for (const char* stage : {"0", "3"}) {
        for (int rank = 0; rank < axes.world(); ++rank) {
          RunConfig config = dry_config({{"zero", stage}, {"grad-accum", "2"}, {"cp-kind", kind}});
          config.axes = axes;
          expect_as_planned(config, static_cast<int>(axes.world()),
                            str(mesh, ", ", kind, ", stage ", stage, ", rank ", rank), rank);
        }
      }
    }
  }
}

// Experts of simulated ranks are used evenly.
TEST(Dry, ExpertParallelRanksEqualThePlan) {
  for (const char* mesh : {"dp=2,ep=2", "dp=4,dp_replicate=2,ep=2", "dp=2,cp=2,ep=4",
                           "dp=2,ep=2,tp=2", "dp=2,ep=2,pp=2"}) {
    const Axes axes = mesh;
    for (const char* stage : {"3"}) {
      for (int rank = 0; rank < axes.world(); ++rank) {
        RunConfig config =
            dry_config({{"model", "moe-tiny"}, {"zero", stage}, {"grad-accum", "2"}});
        config.axes = axes;
        expect_as_planned(config, static_cast<int>(axes.world()),
                          str(mesh, ", stage ", stage, ", rank ", rank), rank, 0.05);
      }
    }
  }
}

TEST(Dry, CoordinateSelectsTheSimulatedRank) {
  RunConfig config = dry_config({{"dry-rank", "tp=1,dp=2,pp=1"}});
  config.axes = "dp=4,dp_replicate=2,tp=2,pp=2";
  EXPECT_EQ(dry_rank(config), 1 + 2 * 0 + 4 * 1 + 8 * 1);
  for (const char* wrong : {"tp=2", "tp", "dp=4", "cp=1", "tp=1,tp=1", "dp_replicate=1", "ep=0"}) {
    config.dry_rank = wrong;
    EXPECT_TRUE(contains(error_of([&] { dry_rank(config); }), "--dry-rank")) << wrong;
  }
}

TEST(Dry, RejectsSaveAndResume) {
  for (const char* flag : {"save", "resume"}) {
    const RunConfig config = dry_config({{flag, "somewhere"}});
    EXPECT_TRUE(contains(error_of([&] { resolve(config, 8); }), "--" + std::string(flag))) << flag;
  }
}

// The device backend, on host memory: shards of other ranks are copies of this rank's shard, and
// received data is zero.
TEST(Dry, DeviceBackendCopiesOwnShards) {
  using comm::Collective;
  for (const int ranks : {1, 2, 5}) {
    const auto host = comm::dry::make_backend(0, ranks, "world");
    const auto backend = comm::dry::make_device_backend(host, c10::Device(c10::kCPU));
    EXPECT_TRUE(backend->on_device() && backend->simulated());
    const std::vector<float> mine = {1, 2, 3, 4};
    std::vector<float> all(4 * static_cast<std::size_t>(ranks), -1);
    Collective gather;
    gather.op = comm::Op::all_gather;
    gather.dtype = DType::f32;
    gather.count = all.size();
    gather.in = mine.data(), gather.out = all.data();
    backend->submit(gather).wait();
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], mine[i % 4]);

    std::vector<float> part(4, -1);
    Collective scatter = gather;
    scatter.op = comm::Op::reduce_scatter;
    scatter.in = all.data(), scatter.out = part.data();
    backend->submit(scatter).wait();
    EXPECT_EQ(part, mine);
    if (ranks == 1) continue;
    Collective receive = gather;
    receive.op = comm::Op::recv;
    receive.peer = 1, receive.count = 4;
    receive.in = nullptr, receive.out = part.data();
    backend->submit(receive).wait();
    EXPECT_EQ(part, std::vector<float>(4, 0));
    EXPECT_EQ(backend->traffic().sent_bytes,
              2 * ring_bytes(gather, ranks, 0));  // a receive sends nothing
  }
}

}  // namespace
}  // namespace tessera::train
