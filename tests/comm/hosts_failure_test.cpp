// One of four ranks on two simulated hosts fails in the middle of collectives: all others name it.

#include <gtest/gtest.h>

#include <stdexcept>

#include "tessera/comm/hierarchical/backend.h"
#include "tessera/comm/tcp/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/comm/processes.h"
#include "tests/text.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using testing::Processes;

constexpr int kCulprit = 1;

void fail(const std::string& way, Backend& group) {
  if (way == "kill") ::raise(SIGKILL);
  if (way == "stop") ::raise(SIGSTOP);
  if (way == "exit") _exit(5);
  if (way == "throw") throw std::runtime_error("a bug of this rank alone");
  if (way == "message") {
    float x = 0;
    group.submit({Op::recv, DType::f32, ReduceOp::sum, Traffic::model, nullptr, &x, 1, 0, ""})
        .wait();
  }
}

void work(const std::string& way, Backend& group) {
  std::vector<float> x(300'000, 1.0f);
  for (int i = 0;; ++i) {
    if (i == 5 && group.rank() == kCulprit) {
      if (way == "leave") return;
      fail(way, group);
    }
    if (i == 5 && group.rank() == 0 && way == "message") {
      (void)group.submit({Op::send, DType::i64, ReduceOp::sum, Traffic::model, x.data(), nullptr, 7,
                          kCulprit, ""});
    }
    group
        .submit({Op::all_reduce, DType::f32, ReduceOp::max, Traffic::model, x.data(), x.data(),
                 i % 2 == 0 ? x.size() : 10, -1, "gradient"})
        .wait();
  }
}

void run_rank(const std::string& backend, const std::string& way, std::shared_ptr<Peers> peers) {
  GroupOptions options;
  if (way == "stop") options.timeout = 1500ms;
  const std::vector<int> all = {0, 1, 2, 3};
  try {
    work(way, backend == "tcp" ? *tcp::make_backend(std::move(peers), all, "world", options)
                               : *hierarchical::make_backend(std::move(peers), tcp::make_backend,
                                                             all, "world", options));
  } catch (const PeerError& error) {
    throw std::runtime_error(str("PeerError names ", error.rank(), ": ", error.what()));
  } catch (const UsageError& error) {
    throw std::runtime_error(str("UsageError: ", error.what()));
  }
}

class HostsFailure : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, HostsFailure,
    ::testing::Values(std::pair("tcp", "kill"), std::pair("tcp", "exit"), std::pair("tcp", "stop"),
                      std::pair("tcp", "throw"), std::pair("tcp", "leave"),
                      std::pair("two_level", "kill"), std::pair("two_level", "exit"),
                      std::pair("two_level", "stop"), std::pair("two_level", "throw"),
                      std::pair("two_level", "leave")),
    [](const auto& one) { return str(one.param.first, "_", one.param.second); });

// Long before the timeout of five minutes for ranks that are alive.
TEST_P(HostsFailure, IsReportedByAllOtherRanks) {
  const auto& [backend, way] = GetParam();
  Processes ranks(
      4, [&](std::shared_ptr<Peers> peers) { run_rank(backend, way, std::move(peers)); }, 2);
  for (const int r : {0, 2, 3}) {
    EXPECT_NE(ranks.await_end(r, 60s), -1) << "rank " << r << " hangs";
    EXPECT_TRUE(contains(ranks.error(r), str("PeerError names ", kCulprit))) << ranks.error(r);
  }
}

TEST(HostsFailure, MessagesThatDifferAreReportedByAllRanks) {
  Processes ranks(
      4, [&](std::shared_ptr<Peers> peers) { run_rank("tcp", "message", std::move(peers)); }, 2);
  for (int r = 0; r < 4; ++r) {
    EXPECT_NE(ranks.await_end(r, 60s), -1) << "rank " << r << " hangs";
    const std::string text = ranks.error(r);
    EXPECT_TRUE(contains(text, "UsageError: ") && contains(text, "7 × i64") &&
                contains(text, "1 × f32"))
        << text;
  }
}

}  // namespace
}  // namespace tessera::comm
