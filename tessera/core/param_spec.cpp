#include "tessera/core/param_spec.h"

#include <algorithm>
#include <cstddef>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

// What one rank has of one segment, along tp_dim.
struct Share {
  std::int64_t begin = 0;   // in the whole
  std::int64_t length = 0;  // of what this rank has
  std::int64_t room = 0;    // length and padding
  bool counted = true;      // no rank before has it
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += str(i ? ", " : "", shape[i]);
  return text + "]";
}

[[noreturn]] void refuse(const ParamSpec& spec, const std::string& why) {
  throw UsageError(str("parameter ", spec.name, " ", shape_text(spec.shape), ": ", why));
}

std::vector<Share> shares_of(const ParamSpec& spec, int t, int tp) {
  if (tp < 1 || t < 0 || t >= tp) {
    refuse(spec, str("there is no tensor-parallel rank ", t, " of ", tp));
  }
  for (const std::int64_t size : spec.shape) {
    if (size < 0) refuse(spec, "a size is negative");
  }
  if (spec.tp_dim < -1 || spec.tp_dim >= static_cast<int>(spec.shape.size())) {
    refuse(spec, str("tp_dim is ", spec.tp_dim, ", but it has ", spec.shape.size(),
                     " dims; -1 is for a parameter that is not cut"));
  }
  if (spec.tp_dim == -1) return {};
  const std::int64_t size = spec.shape[static_cast<std::size_t>(spec.tp_dim)];
  if (spec.pad_to < 1) refuse(spec, str("it is padded to a multiple of ", spec.pad_to));
  if (spec.segments.empty()) {
    const std::int64_t each = (size + tp - 1) / tp;
    const std::int64_t room = (each + spec.pad_to - 1) / spec.pad_to * spec.pad_to;
    const std::int64_t begin = std::min(size, t * room);
    return {{begin, std::min(room, size - begin), room, true}};
  }
  std::vector<Share> shares;
  std::int64_t begin = 0;
  for (const ParamSpec::Segment& segment : spec.segments) {
    const std::int64_t parts = segment.parts == 0 ? tp : segment.parts;
    if (segment.length < 0 || parts < 0 || segment.length % parts != 0) {
      refuse(spec, str("a segment of ", segment.length, " along dim ", spec.tp_dim,
                       " cannot be cut into ", parts, " equal parts; choose a tp that divides it"));
    }
    if (parts % tp != 0 && tp % parts != 0) {
      refuse(spec, str(parts, " parts of a segment cannot be dealt to ", tp,
                       " tensor-parallel ranks; choose a tp that divides ", parts,
                       " or is a multiple of it"));
    }
    // More parts than ranks: as many neighbours each. Fewer: tp / parts ranks have the same one.
    const std::int64_t cuts = parts < tp ? parts : tp;
    const std::int64_t length = segment.length / cuts;
    const std::int64_t copies = tp / cuts;
    shares.push_back({begin + t / copies * length, length, length, t % copies == 0});
    begin += segment.length;
  }
  if (begin != size) {
    refuse(spec,
           str("its segments make ", begin, " along dim ", spec.tp_dim, ", which has ", size));
  }
  return shares;
}

std::vector<Run> runs_of(const ParamSpec& spec, int t, int tp, bool counted_only) {
  const std::vector<Share> shares = shares_of(spec, t, tp);
  std::vector<Run> runs;
  auto add = [&runs](const Run& run) {
    if (run.count == 0) return;
    if (!runs.empty() && runs.back().whole + runs.back().count == run.whole &&
        runs.back().local + runs.back().count == run.local) {
      runs.back().count += run.count;
    } else {
      runs.push_back(run);
    }
  };
  std::int64_t outer = 1, inner = 1;  // elements before and after tp_dim
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    const int dim = static_cast<int>(i);
    if (dim < spec.tp_dim) outer *= spec.shape[i];
    if (dim > spec.tp_dim) inner *= spec.shape[i];
  }
  if (spec.tp_dim == -1) {
    if (!counted_only || t == 0) add({0, 0, inner});
    return runs;
  }
  const std::int64_t row = spec.shape[static_cast<std::size_t>(spec.tp_dim)] * inner;
  std::int64_t local = 0;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (const Share& share : shares) {
      const std::int64_t count = share.length * inner;
      if (!counted_only || share.counted) add({o * row + share.begin * inner, local, count});
      local += share.room * inner;
    }
  }
  return runs;
}

}  // namespace

std::vector<std::int64_t> local_shape(const ParamSpec& spec, int t, int tp) {
  const std::vector<Share> shares = shares_of(spec, t, tp);
  std::vector<std::int64_t> shape = spec.shape;
  if (spec.tp_dim == -1) return shape;
  std::int64_t length = 0;
  for (const Share& share : shares) length += share.room;
  shape[static_cast<std::size_t>(spec.tp_dim)] = length;
  return shape;
}

std::vector<Run> local_runs(const ParamSpec& spec, int t, int tp) {
  return runs_of(spec, t, tp, false);
}

std::vector<Run> counted_runs(const ParamSpec& spec, int t, int tp) {
  return runs_of(spec, t, tp, true);
}

}  // namespace tessera
