#include "tessera/simulator/scenario.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::simulator {
namespace {

void require(bool good, std::string_view what, double got, const char* wanted) {
  if (!good) throw UsageError(str(what, ": got ", got, ", wanted ", wanted));
}

void check_chunk(const Chunk& chunk) {
  for (const double seconds : {chunk.forward, chunk.backward_input, chunk.backward_weight,
                               chunk.tp_forward, chunk.tp_backward}) {
    require(seconds >= 0 && std::isfinite(seconds), "duration of a chunk", seconds,
            "seconds of at least 0");
  }
  for (const double bytes : {chunk.grad_bytes, chunk.param_bytes}) {
    require(bytes >= 0 && std::isfinite(bytes), "bytes of a chunk", bytes, "at least 0");
  }
  require(chunk.units >= 1, "units of a chunk", chunk.units, "at least 1");
  require(chunk.tp_forward <= chunk.forward, "tensor-parallel part of a forward", chunk.tp_forward,
          "no more than the forward itself");
  require(chunk.tp_backward <= chunk.backward_input + chunk.backward_weight,
          "tensor-parallel part of a backward", chunk.tp_backward,
          "no more than the backward itself");
}

void check_link(const planner::Link& link, const char* what) {
  require(link.bandwidth > 0 && std::isfinite(link.bandwidth), what, link.bandwidth,
          "a positive bandwidth in bytes per second");
  require(link.latency >= 0 && std::isfinite(link.latency), what, link.latency,
          "a latency of at least 0 s");
}

}  // namespace

int Scenario::dp_per_node() const { return std::clamp(fabric.per_node / tp(), 1, dp()); }

bool Scenario::symmetric() const {
  if (irregular()) return false;
  // Hops cross nodes for all replicas or for none.
  for (int p = 0; p + 1 < pp(); ++p) {
    const bool crosses = node(rank(p, 0)) != node(rank(p + 1, 0));
    for (int d = 1; d < dp(); ++d) {
      if ((node(rank(p, d)) != node(rank(p + 1, d))) != crosses) return false;
    }
  }
  // Between the last and the first rank messages go where chunks are interleaved.
  const bool crosses = node(rank(0, 0)) != node(rank(pp() - 1, 0));
  for (int d = 1; d < dp(); ++d) {
    if ((node(rank(0, d)) != node(rank(pp() - 1, d))) != crosses) return false;
  }
  return true;
}

void check(const Scenario& s) {
  const Axes axes = s.axes.with("pp", s.pp());
  for (const Axis& axis : axes.list()) require(axis.size >= 1, axis.name, axis.size, "at least 1");
  require(axes.world() <= 1 << 24, axes.text(), static_cast<double>(axes.world()),
          "at most 16,777,216 ranks");
  require(s.zero >= 0 && s.zero <= 3, "ZeRO stage", s.zero, "0 to 3");
  require(s.bucket_bytes > 0, "bucket", s.bucket_bytes, "a positive number of bytes");
  require(s.hop_bytes >= 0 && std::isfinite(s.hop_bytes), "bytes of a hop", s.hop_bytes,
          "at least 0");
  require(s.hop_latency >= 0 && std::isfinite(s.hop_latency), "latency of a hop", s.hop_latency,
          "seconds of at least 0");
  require(s.tied_bytes >= 0 && std::isfinite(s.tied_bytes), "bytes of a tied parameter",
          s.tied_bytes, "at least 0");
  require(s.optimizer >= 0 && std::isfinite(s.optimizer), "optimizer", s.optimizer,
          "seconds of at least 0");
  require(s.jitter >= 0 && s.jitter <= 2, "jitter", s.jitter, "0 to 2");
  require(s.fabric.per_node >= 1, "devices per node", s.fabric.per_node, "at least 1");
  check_link(s.fabric.inside, "link inside a node");
  check_link(s.fabric.between, "link between nodes");
  for (const Straggler& each : s.stragglers) {
    require(each.rank >= 0 && each.rank < s.world(), "straggler", each.rank,
            "a rank below dp · tp · pp");
    require(each.factor > 0 && std::isfinite(each.factor), "factor of a straggler", each.factor,
            "a positive number");
  }
  if (s.chunks.size() != s.schedule.actions.size()) {
    throw UsageError(str("chunks of ", s.chunks.size(), " pipeline ranks for a schedule of ",
                         s.schedule.actions.size()));
  }
  for (const auto& chunks : s.chunks) {
    if (static_cast<int>(chunks.size()) != s.schedule.chunks) {
      throw UsageError(
          str(chunks.size(), " chunks on a pipeline rank for a schedule of ", s.schedule.chunks));
    }
    for (const Chunk& chunk : chunks) check_chunk(chunk);
  }
}

std::vector<std::vector<Chunk>> equal_chunks(const schedule::Schedule& schedule,
                                             const Chunk& chunk) {
  return std::vector(static_cast<std::size_t>(schedule.ranks),
                     std::vector(static_cast<std::size_t>(schedule.chunks), chunk));
}

}  // namespace tessera::simulator
