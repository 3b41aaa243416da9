#include "tessera/core/param_spec.h"

#include <algorithm>
#include <cstddef>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

// Consecutive elements along one dim that one rank holds.
struct DimShare {
  std::int64_t begin = 0;   // in the whole parameter
  std::int64_t length = 0;  // without padding
  std::int64_t room = 0;    // with padding
  bool counted = true;      // no rank before this one holds them
};

// One dim of a parameter on one rank.
struct LocalDim {
  std::int64_t size = 0;  // of the whole parameter
  std::vector<DimShare> shares;

  std::int64_t local_size() const {
    std::int64_t sum = 0;
    for (const DimShare& share : shares) sum += share.room;
    return sum;
  }
  bool is_whole() const {
    return shares.size() == 1 && shares[0].counted && shares[0].length == size &&
           shares[0].room == size;
  }
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += str(i ? ", " : "", shape[i]);
  return text + "]";
}

[[noreturn]] void refuse(const ParamSpec& spec, const std::string& why) {
  throw UsageError(str("parameter ", spec.name, " ", shape_text(spec.shape), ": ", why));
}

// Returns true if ranks along this axis hold the same elements of a parameter without a cut along
// it, so that only the first of them counts these.
bool first_rank_counts(Axis axis) {
  switch (axis) {
    case Axis::tp: return true;
    case Axis::cp:
    case Axis::ep:
    case Axis::dp_shard: return false;      // the engine divides the tensor
    case Axis::dp_replicate: return false;  // the engine counts one replica
    case Axis::pp: return false;            // one stage holds the parameter
  }
  return false;
}

void check_cuts(const ParamSpec& spec, const Axes& axes, const Coordinate& coordinate) {
  for (const Axis axis : kAllAxes) {
    if (kTokenAxes.contains(axis)) continue;
    const int rank = coordinate[axis], ranks = axes.size(axis);
    if (ranks >= 1 && rank >= 0 && rank < ranks) continue;
    refuse(spec, str("coordinate ", axis_name(axis), "=", rank, " is outside a mesh with ",
                     axis_name(axis), "=", ranks));
  }
  for (const std::int64_t size : spec.shape) {
    if (size < 0) refuse(spec, "a size is negative");
  }
  for (std::size_t i = 0; i < spec.cuts.size(); ++i) {
    const ParamSpec::Cut& cut = spec.cuts[i];
    if (kTokenAxes.contains(cut.axis)) {
      refuse(spec, str("it is cut along ", axis_name(cut.axis),
                       ", whose ranks hold the same tensor; choose another axis"));
    }
    if (cut.dim < 0 || cut.dim >= static_cast<int>(spec.shape.size())) {
      refuse(spec, str(axis_name(cut.axis), " cuts dim ", cut.dim, ", but it has ",
                       spec.shape.size(), " dims"));
    }
    if (cut.pad_to < 1) refuse(spec, str("it is padded to a multiple of ", cut.pad_to));
    for (std::size_t j = 0; j < i; ++j) {
      const ParamSpec::Cut& other = spec.cuts[j];
      if (cut.axis == other.axis) {
        refuse(spec, str(axis_name(cut.axis), " cuts dims ", other.dim, " and ", cut.dim,
                         "; an axis must cut one dim"));
      }
      if (cut.dim == other.dim) {
        refuse(spec, str("dim ", cut.dim, " is cut along ", axis_name(other.axis), " and ",
                         axis_name(cut.axis), "; a dim must be cut along one axis"));
      }
    }
  }
}

std::vector<DimShare> shares_of(const ParamSpec& spec, const ParamSpec::Cut& cut, int rank,
                                int ranks) {
  const std::int64_t size = spec.shape[static_cast<std::size_t>(cut.dim)];
  if (cut.segments.empty()) {
    const std::int64_t each = (size + ranks - 1) / ranks;
    const std::int64_t room = (each + cut.pad_to - 1) / cut.pad_to * cut.pad_to;
    const std::int64_t begin = std::min(size, rank * room);
    return {{begin, std::min(room, size - begin), room, true}};
  }
  std::vector<DimShare> shares;
  std::int64_t begin = 0;
  for (const ParamSpec::Segment& segment : cut.segments) {
    const std::int64_t parts = segment.parts == 0 ? ranks : segment.parts;
    const std::string_view axis = axis_name(cut.axis);
    if (segment.length < 0 || parts < 0 || segment.length % parts != 0) {
      refuse(spec,
             str("a segment of ", segment.length, " along dim ", cut.dim, " cannot be cut into ",
                 parts, " equal parts; choose a ", axis, " that divides it"));
    }
    if (parts % ranks != 0 && ranks % parts != 0) {
      refuse(spec,
             str(parts, " parts of a segment cannot be divided among ", ranks, " ranks along ",
                 axis, "; choose a ", axis, " that divides ", parts, " or is a multiple of it"));
    }
    // More parts than ranks: each rank holds several neighbors. Fewer: ranks / parts ranks hold the
    // same one.
    const std::int64_t different = std::min<std::int64_t>(parts, ranks);
    const std::int64_t length = segment.length / different;
    const std::int64_t copies = ranks / different;
    const DimShare share{begin + rank / copies * length, length, length, rank % copies == 0};
    begin += segment.length;
    // Neighbors are one share: with one rank a dim of several segments is whole.
    if (!shares.empty() && shares.back().begin + shares.back().length == share.begin &&
        shares.back().counted == share.counted) {
      shares.back().length += length;
      shares.back().room += length;
    } else {
      shares.push_back(share);
    }
  }
  if (begin != size) {
    refuse(spec, str("its segments make ", begin, " along dim ", cut.dim, ", which has ", size));
  }
  return shares;
}

std::vector<LocalDim> local_dims(const ParamSpec& spec, const Axes& axes,
                                 const Coordinate& coordinate) {
  check_cuts(spec, axes, coordinate);
  std::vector<LocalDim> dims;
  for (const std::int64_t size : spec.shape) dims.push_back({size, {{0, size, size, true}}});
  for (const ParamSpec::Cut& cut : spec.cuts) {
    dims[static_cast<std::size_t>(cut.dim)].shares =
        shares_of(spec, cut, coordinate[cut.axis], axes.size(cut.axis));
  }
  return dims;
}

// Collects the runs of a rank from the outermost dim to the innermost one that is cut. The elements
// after that one are contiguous.
class RunCollector {
 public:
  RunCollector(std::vector<LocalDim> dims, bool counted_only)
      : dims_(std::move(dims)),
        counted_only_(counted_only),
        strides_(dims_.size()),
        local_strides_(dims_.size()),
        cut_dims_(dims_.size()) {
    while (cut_dims_ > 0 && dims_[cut_dims_ - 1].is_whole()) --cut_dims_;
  }

  std::vector<Run> collect() {
    for (const LocalDim& dim : dims_) {
      if (dim.size == 0) return {};  // before the product of the other sizes can overflow
    }
    std::int64_t stride = 1, local_stride = 1;
    for (std::size_t d = dims_.size(); d-- > 0;) {
      strides_[d] = stride, local_strides_[d] = local_stride;
      stride *= dims_[d].size, local_stride *= dims_[d].local_size();
    }
    if (cut_dims_ == 0) {
      add({0, 0, stride});
    } else {
      visit(0, 0, 0);
    }
    return std::move(runs_);
  }

 private:
  void visit(std::size_t d, std::int64_t whole, std::int64_t local) {
    for (const DimShare& share : dims_[d].shares) {
      const std::int64_t begin = whole + share.begin * strides_[d];
      if (counted_only_ && !share.counted) {
        // Skipped, but it takes space in the local tensor.
      } else if (d + 1 == cut_dims_) {
        add({begin, local, share.length * strides_[d]});
      } else {
        for (std::int64_t i = 0; i < share.length; ++i) {
          visit(d + 1, begin + i * strides_[d], local + i * local_strides_[d]);
        }
      }
      local += share.room * local_strides_[d];
    }
  }
  void add(const Run& run) {
    if (run.count == 0) return;
    if (!runs_.empty() && runs_.back().whole + runs_.back().count == run.whole &&
        runs_.back().local + runs_.back().count == run.local) {
      runs_.back().count += run.count;
    } else {
      runs_.push_back(run);
    }
  }

  const std::vector<LocalDim> dims_;
  const bool counted_only_;
  std::vector<std::int64_t> strides_, local_strides_;  // elements, in the parameter and on the rank
  std::size_t cut_dims_;                               // dims after these are whole
  std::vector<Run> runs_;
};

}  // namespace

const ParamSpec::Cut* ParamSpec::cut_along(Axis axis) const {
  const auto found =
      std::find_if(cuts.begin(), cuts.end(), [&](const Cut& cut) { return cut.axis == axis; });
  return found == cuts.end() ? nullptr : &*found;
}

std::vector<std::int64_t> local_shape(const ParamSpec& spec, const Axes& axes,
                                      const Coordinate& coordinate) {
  std::vector<std::int64_t> shape;
  for (const LocalDim& dim : local_dims(spec, axes, coordinate)) shape.push_back(dim.local_size());
  return shape;
}

std::vector<Run> local_runs(const ParamSpec& spec, const Axes& axes, const Coordinate& coordinate) {
  return RunCollector(local_dims(spec, axes, coordinate), false).collect();
}

std::vector<Run> counted_runs(const ParamSpec& spec, const Axes& axes,
                              const Coordinate& coordinate) {
  RunCollector runs(local_dims(spec, axes, coordinate), true);
  for (const Axis axis : kAllAxes) {
    if (first_rank_counts(axis) && !spec.cut_along(axis) && coordinate[axis] != 0) return {};
  }
  return runs.collect();
}

}  // namespace tessera
