#include "tessera/planner/rank_clock.h"

#include <cmath>

#include "tessera/planner/step_clock.h"

namespace tessera::planner {
namespace {

using schedule::Kind;

// Micro-batches in the middle are alike after a few; more than these are not looked at.
constexpr std::int64_t kMostLooked = 6;
constexpr double kSame = 1e-9;

RankTime own_time(const std::vector<StepChunk>& chunks) {
  RankTime own;
  for (const StepChunk& chunk : chunks) {
    own.forward += chunk.forward;
    own.backward_input += chunk.backward_input;
    own.backward_weight += chunk.backward_weight;
  }
  return own;
}

class RankReckoner {
 public:
  RankReckoner(const Step& step, const Places& places, const std::vector<StepChunk>& chunks)
      : step_(step), chunks_(chunks), clock_(1, step.interference, step.prefetch()) {
    for (const StepChunk& chunk : chunks) {
      gathers_.push_back(step.gathers(chunk, places));
      reductions_.push_back(step.reductions(chunk, places));
    }
    late_.assign(chunks.size(), 0);
    own_ = result_.micro = own_time(chunks);
  }

  RankClock reckon() {
    const bool apart = step_.schedule == "gpipe";  // all forwards, then all backwards
    expect(true, !apart, true);
    int all = 0;
    for (const Transfers& each : gathers_) all += each.count;
    clock_.start(step_start(step_, step_.zero == 3 ? 2 * all : all));
    micro_batches(true, !apart);
    if (apart) micro_batches(false, true);
    for (std::size_t c = chunks_.size(); c-- > 0;) {
      if (late_[c] > 0) clock_.reduce_late(late_[c], reductions_[c].seconds);
    }
    clock_.finish();
    const double k = static_cast<double>(step_.micros);
    result_.total = clock_.now() + skipped_;
    result_.late = first_forward_ - result_.micro.forward;
    result_.after = result_.total - result_.late - k * result_.micro.total();
    return result_;
  }

 private:
  // Gathers of one micro-batch to come.
  void expect(bool forward, bool backward, bool first) {
    if (step_.zero != 3 && !first) return;
    for (std::size_t c = 0; c < chunks_.size() && forward; ++c) {
      clock_.expect_gathers(gathers_[c].count, gathers_[c].seconds);
    }
    if (step_.zero != 3 || step_.keep_params) return;
    for (std::size_t c = chunks_.size(); c-- > 0 && backward;) {
      clock_.expect_gathers(gathers_[c].count, gathers_[c].seconds);
    }
  }

  void compute(Kind kind, std::size_t c, bool first, bool last) {
    const StepOp op = step_op(step_, kind, chunks_[c], gathers_[c], reductions_[c], first, last);
    const double seconds = op.work + op.tp;
    clock_.run(op, reductions_[c].seconds, &seconds);
    if (op.late_reduces > 0) late_[c] = op.late_reduces;
  }

  // All of them, of one pass or of both. The gathers of the next are known when one begins.
  void micro_batches(bool forward, bool backward) {
    const std::int64_t k = step_.micros;
    double before = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      const bool first = i == 0, last = i + 1 == k;
      expect(forward && !last, backward ? !last : last, false);
      const double began = clock_.now();
      if (forward) {
        for (std::size_t c = 0; c < chunks_.size(); ++c) compute(Kind::forward, c, first, last);
        (first ? first_forward_ : result_.micro.forward) = clock_.now() - began;
      }
      const double turned = clock_.now();
      if (backward) {
        for (std::size_t c = chunks_.size(); c-- > 0;) compute(Kind::backward, c, first, last);
        if (!last) result_.micro.backward_input = clock_.now() - turned - own_.backward_weight;
      }
      const double took = clock_.now() - began;
      const bool same = std::abs(took - before) <= kSame * took || i >= kMostLooked;
      before = took;
      if (i == 0 || i + 2 >= k || !same) continue;
      const std::int64_t skip = k - 2 - i;
      skipped_ += static_cast<double>(skip) * took;
      i += skip;
    }
  }

  const Step& step_;
  const std::vector<StepChunk>& chunks_;
  StepClock clock_;
  std::vector<Transfers> gathers_, reductions_;
  std::vector<int> late_;  // [chunk]: reductions after all computation
  RankTime own_;
  RankClock result_;
  double first_forward_ = 0;
  double skipped_ = 0;  // seconds of micro-batches that were not looked at
};

}  // namespace

RankClock rank_clock(const Step& step, const Places& places, const std::vector<StepChunk>& chunks) {
  if (step.dp() > 1) return RankReckoner(step, places, chunks).reckon();
  RankClock clock;
  clock.micro = own_time(chunks);
  clock.total = static_cast<double>(step.micros) * clock.micro.total();
  return clock;
}

}  // namespace tessera::planner
