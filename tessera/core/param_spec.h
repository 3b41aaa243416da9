#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// [Note: param specs] What a parameter is, whatever mesh it is trained on. A rank's own parameter
// is a part of it that follows from the spec and the rank's place on the mesh; checkpoints,
// clipping (copies counted once) and initialisation read nothing else.
struct ParamSpec {
  std::string name;                 // as in a single process: "blocks.7.qkv.weight"
  std::vector<std::int64_t> shape;  // of the whole parameter, row-major

  // How tensor parallelism cuts it. -1: every rank has all of it. Otherwise along this dim, which
  // is made of segments side by side (the q, k and v of one matrix), each cut by itself into equal
  // parts (heads); rank t of tp has part t · parts / tp of each. Fewer parts than ranks (kv heads):
  // some ranks have the same one. More: each rank has parts / tp neighbours.
  // [Note: padding] Empty segments: one, cut into tp parts that need not be equal. All ranks have
  // ceil(size / tp) rows (or columns), rounded up to a multiple of pad_to, and what lies beyond the
  // end of the parameter is padding: it is zero, gets no gradient, and is in no run, so that
  // checkpoints, norms and counts never see it.
  struct Segment {
    std::int64_t length = 0;  // along tp_dim
    std::int64_t parts = 0;   // divides length; tp divides it or is a multiple of it. 0: tp

    friend bool operator==(const Segment&, const Segment&) = default;
  };
  int tp_dim = -1;
  std::vector<Segment> segments;
  std::int64_t pad_to = 1;

  // Padding is the rank's affair, not the parameter's.
  friend bool operator==(const ParamSpec& a, const ParamSpec& b) {
    return a.name == b.name && a.shape == b.shape && a.tp_dim == b.tp_dim &&
           a.segments == b.segments;
  }
};

// A stretch of elements that lie side by side both in the whole parameter and in a rank's part.
struct Run {
  std::int64_t whole = 0;  // where it begins, counted in elements of the whole parameter
  std::int64_t local = 0;  // and in the part
  std::int64_t count = 0;

  friend bool operator==(const Run&, const Run&) = default;
};

// The shape of what tensor-parallel rank t of tp has, padding included, and its elements in order,
// without it. Throws UsageError if tp does not cut the segments evenly.
std::vector<std::int64_t> local_shape(const ParamSpec& spec, int t, int tp);
// The elements of that part.
std::vector<Run> local_runs(const ParamSpec& spec, int t, int tp);
// Those of them that no rank before t has: norms count every element of the whole once.
std::vector<Run> counted_runs(const ParamSpec& spec, int t, int tp);

}  // namespace tessera
