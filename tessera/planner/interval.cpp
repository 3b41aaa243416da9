#include "tessera/planner/interval.h"

namespace tessera::planner {
namespace {

struct RunKind {
  double low, high;  // of measured / predicted
  const char* basis;
};

// Of --score over the measured steps on A100s; the others of the runs in docs/step-time.md.
constexpr RunKind kOneNode{0.91, 1.11, "140 steps of Megatron on one node of A100s"};
constexpr RunKind kSeveralNodes{0.93, 1.15, "20 steps of Megatron on 8 to 64 nodes of A100s"};
constexpr RunKind kOwnGpu{0.91, 1.03, "7 steps of Tessera on one H200"};
constexpr RunKind kOwnCpu{0.90, 1.10, "Tessera's own steps on a calibrated host"};
constexpr RunKind kPlain{0.88, 1.15, "published runs of PyTorch on H100s, and steps on one H200"};
// Nobody measured Tessera or plain PyTorch over several nodes.
constexpr RunKind kUnmeasured{0.80, 1.30, "no measured run of this kind: a guess"};

RunKind run_kind(const Question& q) {
  if (q.software == Software::megatron) return q.nodes > 1 ? kSeveralNodes : kOneNode;
  if (q.nodes > 1) return q.software == Software::pytorch ? kPlain : kUnmeasured;
  if (q.software == Software::pytorch) return kPlain;
  return q.hardware.cpu ? kOwnCpu : kOwnGpu;
}

}  // namespace

Interval step_interval(const Question& q, double step) {
  const RunKind kind = run_kind(q);
  return {kind.low * step, kind.high * step, kind.basis};
}

}  // namespace tessera::planner
