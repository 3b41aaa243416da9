#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/axes.h"

namespace tessera {

// [Note: param specs] Description of a parameter that does not depend on the mesh it is trained on.
// The tensor of one rank follows from the spec, the sizes of the mesh and the rank's coordinate.
// Checkpoints, clipping (copies are counted once) and initialization read nothing else.
struct ParamSpec {
  // Elements that lie next to each other along a cut dim and are cut independently of the others,
  // such as q, k and v in one matrix.
  struct Segment {
    // Number of rows (or columns) along the dim.
    std::int64_t length = 0;
    // Number of equal parts (heads). It divides `length`, and the number of ranks divides it or is
    // a multiple of it. 0: the number of ranks.
    std::int64_t parts = 0;

    friend bool operator==(const Segment&, const Segment&) = default;
  };

  // A dim that is divided among the ranks along one axis of the mesh.
  //
  // Rank r of n holds part r · parts / n of each segment. With fewer parts than ranks (KV heads)
  // several ranks hold the same part. With more, each rank holds parts / n neighboring ones.
  // [Note: padding] Without segments the dim is cut into n shards that need not be equal. Each rank
  // has ceil(size / n) rows (or columns), rounded up to a multiple of pad_to. Those beyond the end
  // of the parameter are padding: they are zero, get no gradient and are in no run, so checkpoints,
  // norms and counts do not include them.
  struct Cut {
    // Axis of the mesh. Not one of kTokenAxes: those ranks hold the same tensor, and the engine
    // shards it.
    Axis axis = Axis::tp;
    // Index into `shape`.
    int dim = 0;
    // Their lengths add up to the size of the dim. Empty: see [Note: padding].
    std::vector<Segment> segments = {};
    // Used without segments. Not part of the parameter, so operator== ignores it.
    std::int64_t pad_to = 1;

    friend bool operator==(const Cut& a, const Cut& b) {
      return a.axis == b.axis && a.dim == b.dim && a.segments == b.segments;
    }
  };

  // Name in a single process: "blocks.7.qkv.weight".
  std::string name;
  // Sizes of the whole parameter, row-major.
  std::vector<std::int64_t> shape;
  // At most one for each axis and for each dim. Ranks along an axis without a cut hold the same
  // elements.
  std::vector<Cut> cuts = {};
  // Only the ranks with the same experts hold the parameter: [Note: expert ranks].
  bool of_expert = false;

  // Returns the cut along an axis, or null. The pointer is valid as long as `cuts` is unchanged.
  const Cut* cut_along(Axis axis) const;

  friend bool operator==(const ParamSpec&, const ParamSpec&) = default;
};

// Elements that are contiguous both in the whole parameter and in the tensor of a rank.
struct Run {
  // Index of the first element in the whole parameter.
  std::int64_t whole = 0;
  // Index of the first element in the tensor of the rank.
  std::int64_t local = 0;
  // Number of elements.
  std::int64_t count = 0;

  friend bool operator==(const Run&, const Run&) = default;
};

// Returns the shape of the tensor of the rank at a coordinate, with padding. All three functions
// throw UsageError if the coordinate is outside the mesh, two cuts share an axis or a dim, or an
// axis does not divide the segments evenly.
std::vector<std::int64_t> local_shape(const ParamSpec& spec, const Axes& axes,
                                      const Coordinate& coordinate);
// Returns the elements of that tensor, without padding.
std::vector<Run> local_runs(const ParamSpec& spec, const Axes& axes, const Coordinate& coordinate);
// Returns the elements that no rank before this one holds, so that norms and checkpoints include
// every element of the parameter once. "Before" means a lower index along an axis that cuts the
// parameter or along tp. A stage holds its parameters alone, and the engine divides a tensor among
// data-parallel ranks, so the index along pp, dp, ep and dp_replicate does not matter otherwise.
std::vector<Run> counted_runs(const ParamSpec& spec, const Axes& axes,
                              const Coordinate& coordinate);

}  // namespace tessera
