#include "tessera/planner/interval.h"

#include "tessera/planner/places.h"

namespace tessera::planner {
namespace {

struct RunKind {
  double low, high;  // of measured / predicted
  const char* basis;
};

// Of measured steps on A100s that benchmarks/cross_validate.py left out when it fitted constants:
// 10% and 90% quantiles, with models left out or meshes, whichever is farther from 1.
constexpr RunKind kOneNode{0.909, 1.087, "140 steps of Megatron on one node of A100s, left out"};
constexpr RunKind kSeveralNodes{0.950, 1.129,
                                "20 steps of Megatron on 8 to 64 nodes of A100s, left out"};

// A class of few runs, by the least and the most of them: a next one is between these with a chance
// of (n - 1) / (n + 1), and the distance from their middle grows by as much as four in five is
// more.
constexpr RunKind of_few(double least, double most, int n, const char* basis) {
  const double middle = (least + most) / 2, stretch = 0.8 * (n + 1) / (n - 1);
  const double half = (most - least) / 2 * (stretch > 1 ? stretch : 1);
  return {middle - half, middle + half, basis};
}
// The runs of docs/benchmarks.md, and the published ones.
constexpr RunKind kOwnGpu = of_few(0.910, 0.998, 7, "7 steps of Tessera on one H200");
constexpr RunKind kPlain =
    of_few(0.955, 1.167, 7, "4 steps of PyTorch on one H200 and 3 published runs on H100s");
// What benchmarks/compare_plan.py holds them to.
constexpr RunKind kOwnCpu{0.90, 1.10, "Tessera's own steps on a calibrated host"};

// Kinds that nobody measured: half as far again from the prediction as the farthest that was.
constexpr double kFarther = 1.5;
constexpr RunKind unmeasured() {
  double low = 1, high = 1;
  for (const RunKind& kind : {kOneNode, kSeveralNodes, kOwnGpu, kPlain, kOwnCpu}) {
    low = kind.low < low ? kind.low : low;
    high = kind.high > high ? kind.high : high;
  }
  return {1 - kFarther * (1 - low), 1 + kFarther * (high - 1),
          "no measured run of its kind: half as far again as the farthest kind"};
}

RunKind run_kind(const Question& q) {
  if (places(q).along[Axis::tp].nodes() > 1) return unmeasured();
  if (q.software == Software::megatron) return q.nodes > 1 ? kSeveralNodes : kOneNode;
  if (q.software == Software::pytorch) return kPlain;
  if (q.nodes > 1) return unmeasured();
  return q.hardware.cpu ? kOwnCpu : kOwnGpu;
}

}  // namespace

Interval step_interval(const Question& q, double step) {
  const RunKind kind = run_kind(q);
  return {kind.low * step, kind.high * step, kind.basis};
}

}  // namespace tessera::planner
