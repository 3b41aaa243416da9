#include "tessera/comm/call_log.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/local_peers.h"

namespace tessera::comm {
namespace {

Record called(const std::string& label, std::size_t count = 4, Op op = Op::all_reduce) {
  Collective call;
  call.op = op;
  call.dtype = DType::f32;
  call.count = count;
  call.label = label;
  return make_record(call);
}

class Logs {
 public:
  explicit Logs(int ranks, CallLog::Kind kind = CallLog::Kind::collectives)
      : peers_(make_local_peers(ranks)) {
    std::vector<int> members;
    for (int r = 0; r < ranks; ++r) members.push_back(r);
    for (const auto& peers : peers_) {
      logs_.push_back(std::make_unique<CallLog>(peers, members, "topic", "group", kind));
    }
  }
  CallLog& operator[](int rank) { return *logs_[static_cast<std::size_t>(rank)]; }
  // Lets all ranks compare their logs a few times. Returns the first difference found, or "".
  std::string look(int stuck = -1) {
    for (int round = 0; round < 4; ++round) {
      for (std::size_t r = 0; r < logs_.size(); ++r) {
        if (const auto found = logs_[r]->look(static_cast<int>(r) == stuck)) {
          EXPECT_EQ(found->kind, Failure::Kind::usage);
          return found->text;
        }
      }
    }
    return "";
  }

 private:
  std::vector<std::shared_ptr<Peers>> peers_;
  std::vector<std::unique_ptr<CallLog>> logs_;
};

TEST(CallLog, ReportsNothingForEqualCalls) {
  Logs logs(3);
  for (std::uint64_t n = 1; n <= 1000; ++n) {
    for (int r = 0; r < 3; ++r) logs[r].add(n, called("call " + std::to_string(n % 10)));
    if (n % 17 == 0) {
      ASSERT_EQ(logs.look(n % 2 == 0 ? 1 : -1), "");
    }
  }
}

TEST(CallLog, NamesTheRankThatIsBehind) {
  Logs logs(3);
  for (std::uint64_t n = 1; n <= 1000; ++n) {
    for (int r = 0; r < 3; ++r) logs[r].add(n, called("call " + std::to_string(n % 10)));
  }
  EXPECT_EQ(logs[0].late().rank, 1);  // rank 0 has not compared with it yet
  // Rank 0 is one call ahead of the others, and rank 1 waits in that call.
  logs[0].add(1001, called("ahead"));
  logs[1].expect(1001, called("ahead"));
  EXPECT_EQ(logs.look(0), "");
  EXPECT_NE(logs[0].late().rank, 0);
  EXPECT_NE(logs[0].late().text.find("#1000 all_reduce(sum, 4 × f32, \"call 0\")"),
            std::string::npos)
      << logs[0].late().text;
}

TEST(CallLog, NamesTheCallInWhichRanksDiffer) {
  for (const std::uint64_t where : {1, 5, 63, 64, 65, 130, 500}) {
    for (const bool hangs : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "#" << where << (hangs ? " hangs" : " goes on"));
      Logs logs(2);
      std::string found;
      for (std::uint64_t n = 1; found.empty() && n <= where + 2 * CallLog::kEvery; ++n) {
        logs[0].add(n, called("a"));
        logs[1].add(n, called(n == where ? "b" : "a"));
        const bool last = hangs && n == where;
        found = logs.look(last ? 0 : -1);
        if (last) break;
      }
      EXPECT_NE(found.find("in call #" + std::to_string(where) + " of group group"),
                std::string::npos)
          << found;
      EXPECT_NE(found.find("\"a\""), std::string::npos) << found;
      EXPECT_NE(found.find("\"b\""), std::string::npos) << found;
    }
  }
}

TEST(CallLog, NamesAWaitingCallThatDiffersFromACompletedOne) {
  for (const int waits : {0, 1}) {
    Logs logs(2);
    for (int r = 0; r < 2; ++r) logs[r].add(1, called("same"));
    logs[waits].expect(2, called("new", 9));
    EXPECT_EQ(logs.look(), "");
    logs[1 - waits].add(2, called("known"));
    const std::string found = logs.look(1 - waits);
    EXPECT_NE(found.find("9 × f32, \"new\""), std::string::npos) << found;
    EXPECT_NE(found.find("\"known\""), std::string::npos) << found;
  }
}

TEST(CallLog, ForgetsRejectedCalls) {
  Logs logs(2);
  logs[0].expect(1, called("x"));
  logs[1].expect(1, called("y"));
  EXPECT_EQ(logs.look(0), "");  // the two ranks detect this difference in the call itself
  logs[0].expect_nothing();
  logs[1].expect_nothing();
  for (int r = 0; r < 2; ++r) logs[r].add(2, called("z"));
  EXPECT_EQ(logs.look(1), "");
}

TEST(CallLog, TreatsASendAndItsReceiveAsEqual) {
  Logs logs(2, CallLog::Kind::messages);
  for (std::uint64_t n = 1; n <= 200; ++n) {
    logs[0].add(n, called("m", n, Op::send));
    logs[1].add(n, called("m", n, Op::recv));
    ASSERT_EQ(logs.look(), "");
  }
  logs[0].add(201, called("m", 1, Op::send));
  logs[1].add(201, called("m", 2, Op::recv));
  EXPECT_NE(logs.look(0).find("#201"), std::string::npos);
}

TEST(CallLog, DifferentPartsAreDifferentCalls) {
  using Sizes = std::vector<std::size_t>;
  Collective call;
  call.op = Op::all_gather;
  call.count = 8;
  call.parts = std::make_shared<Sizes>(Sizes{4, 4});
  const Record one = make_record(call);
  call.parts = std::make_shared<Sizes>(Sizes{2, 6});
  const Record other = make_record(call);
  EXPECT_FALSE(same_call(one, other));
  EXPECT_NE(CallLog::key(one, CallLog::Kind::collectives),
            CallLog::key(other, CallLog::Kind::collectives));
}

// Each rank compares with only some others, but a difference on any rank is found.
TEST(CallLog, FindsDifferencesInLargeGroups) {
  constexpr int kRanks = CallLog::kAllCompared + 8;
  for (const int odd : {0, 17, kRanks - 1}) {
    Logs logs(kRanks);
    for (std::uint64_t i = 1; i <= CallLog::kEvery; ++i) {
      for (int r = 0; r < kRanks; ++r) logs[r].add(i, called(r == odd && i == 5 ? "b" : "a"));
    }
    const std::string text = logs.look();
    EXPECT_NE(text.find("disagree in call #5"), std::string::npos) << text;
    EXPECT_NE(text.find("rank " + std::to_string(odd) + " called"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tessera::comm
