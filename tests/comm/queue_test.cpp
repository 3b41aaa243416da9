// Parts that the backends share: pieces, the queue of sends and receives, and capabilities.

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>

#include "tessera/comm/backend_kind.h"
#include "tessera/comm/dry/backend.h"
#include "tessera/comm/pieces.h"
#include "tessera/comm/point_to_point_queue.h"
#include "tessera/comm/threads.h"

namespace tessera::comm {
namespace {

TEST(Pieces, CoverEveryElementOnce) {
  for (std::size_t elements = 1; elements <= 40; ++elements) {
    for (int shards = 1; shards <= 5; ++shards) {
      for (std::size_t most = 0; most <= 9; ++most) {
        const Pieces cut(elements, shards, most);
        std::vector<int> seen(elements, 0);
        for (std::size_t p = 0; p < cut.count; ++p) {
          for (int s = 0; s < shards; ++s) {
            EXPECT_LE(cut.length(s, p), cut.width(p));
            for (std::size_t i = 0; i < cut.length(s, p); ++i) ++seen.at(cut.offset(s, p) + i);
          }
        }
        EXPECT_EQ(seen, std::vector<int>(elements, 1)) << elements << " " << shards << " " << most;
        EXPECT_LE(cut.quantum, std::max<std::size_t>(1, most));
      }
    }
  }
}

// Moves a message in one step per element. A message with a label fails in its first step.
class StepTransport final : public PointToPointTransport {
 public:
  struct StepMessage final : PointToPointMessage {
    using PointToPointMessage::PointToPointMessage;
    std::size_t steps = 0;
  };

  std::shared_ptr<PointToPointMessage> make_message(Collective call) const override {
    return std::make_shared<StepMessage>(std::move(call));
  }
  bool move(PointToPointMessage& message) override {
    if (abandoned_.load()) throw std::runtime_error("abandoned");
    if (blocked_.load()) return false;
    if (!message.call.label.empty()) throw std::runtime_error(message.call.label);
    message.finished = ++static_cast<StepMessage&>(message).steps >= message.call.count;
    if (message.finished) finished.push_back(message.call.count);
    return true;
  }
  void on_error() noexcept override { ++errors; }
  std::uint64_t events() override { return events_.load(); }
  void wait(std::uint64_t seen) override { events_.wait(seen); }
  void notify() override {
    ++events_;
    events_.notify_all();
  }
  void abandon() override {
    abandoned_.store(true);
    notify();
  }
  void block(bool yes) {
    blocked_.store(yes);
    notify();
  }

  std::vector<std::size_t> finished;  // in this order
  int errors = 0;

 private:
  std::atomic<std::uint64_t> events_{0};
  std::atomic<bool> blocked_{false}, abandoned_{false};
};

Collective step_message(std::size_t count, int to, std::string label = "") {
  return {Op::send, DType::u8, ReduceOp::sum, Traffic::model, nullptr, nullptr, count, to, label};
}

TEST(PointToPointQueue, LinesProgressIndependently) {
  const auto transport = std::make_shared<StepTransport>();
  PointToPointQueue queue(transport, 3);
  transport->block(true);
  std::vector<Work> works;
  for (const std::size_t count : {90u, 5u})
    works.push_back(queue.submit(step_message(count, 1), {}));
  works.push_back(queue.submit(step_message(10, 2), {}));
  for (const Work& work : works) EXPECT_FALSE(work.done());
  transport->block(false);
  for (const Work& work : works) work.wait();
  EXPECT_EQ(transport->finished, (std::vector<std::size_t>{10, 90, 5}));
}

TEST(PointToPointQueue, ReportsAFailureToItsCallerOnly) {
  const auto transport = std::make_shared<StepTransport>();
  PointToPointQueue queue(transport, 2);
  const Work bad = queue.submit(step_message(1, 1, "broken"), {});
  const Work good = queue.submit(step_message(3, 1), {});
  EXPECT_THROW(bad.wait(), std::runtime_error);
  good.wait();
  EXPECT_EQ(transport->errors, 1);
  bool after = false;
  queue.submit(step_message(2, 1), {.after = [&] { after = true; }}).wait();
  EXPECT_TRUE(after);
}

TEST(PointToPointQueue, AbandonsMessagesDuringStackUnwinding) {
  const auto transport = std::make_shared<StepTransport>();
  transport->block(true);
  Work work;
  try {
    PointToPointQueue queue(transport, 2);
    work = queue.submit(step_message(1, 1), {});
    throw std::logic_error("the program fails");
  } catch (const std::logic_error&) {
  }
  EXPECT_THROW(work.wait(), std::runtime_error);
}

TEST(Backend, ReportsItsCapabilities) {
  run_threads(2, [](std::shared_ptr<Backend> group) {
    EXPECT_TRUE(group->shares_memory());
    EXPECT_FALSE(group->simulated());
    EXPECT_FALSE(group->on_device());
  });
  const auto dry = dry::make_backend(1, 4, "dry");
  EXPECT_TRUE(dry->shares_memory());
  EXPECT_TRUE(dry->simulated());
}

TEST(BackendKind, HasAnEntryForEveryName) {
  std::set<std::string> names;
  for (const std::string& name : backend_names()) {
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(backend_kind(name).name, name);
  }
  EXPECT_EQ(backend_names().front(), "auto");
  EXPECT_TRUE(backend_kind("nccl").needs_gpu);
  EXPECT_TRUE(backend_kind("shm").shares_memory);
  EXPECT_FALSE(backend_kind("no such").shares_memory);
}

}  // namespace
}  // namespace tessera::comm
