#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/run_options.h"
#include "tessera/planner/program_cost.h"

// Context parallelism of one run: the chunks and keys of each rank, its attention work, and the
// bytes of both kinds.
namespace tessera::planner {

// Assignment of the 2·cp chunks of a sequence to cp ranks: as a run does it ([Note: zig-zag]), or
// two neighboring chunks to each rank, for comparison.
enum class ChunkOrder : std::uint8_t { zigzag, in_order };

// Returns the chunks of a rank. Without context parallelism the sequence is one chunk.
std::vector<int> chunks_of_rank(ChunkOrder order, int rank, int cp);
// Returns the rank whose keys and values `rank` has in a step of the ring, 0 to cp - 1. Blocks
// travel from rank to rank + 1.
int owner_of_keys(int rank, int step, int cp);
// Return the causal attention work of a rank in one step of the ring, and in all steps, in squares
// of a chunk: 1 for a chunk of earlier keys, 1/2 for its own.
double attention_work(ChunkOrder order, int cp, int rank, int step);
double attention_work(ChunkOrder order, int cp, int rank);

// Returns context_kind_for() for a run with these ranks. On a GPU, other software takes rings where
// a run on the CPU would, but no software has capped scores there.
ContextKind context_kind(const RunConfig& q, ContextKind asked, const Axes& axes);

// Cost of one kind of attention with the other settings of a run.
struct ContextCost {
  ContextKind kind = ContextKind::ring;
  // Formula with numbers: of one message of a ring, "B·T·2·kv·d·e = 1 · 2048 · … B", or of all that
  // ulysses sends in forward.
  std::string formula;
  double message = 0;   // bytes of one message of a ring; 0 for ulysses
  std::string refused;  // reason why the kind is not possible; then nothing below is set
  std::int64_t heads = 0, tokens = 0;  // of the queries for which a rank computes attention
  // Bytes that a rank sends in one layer per micro-batch: as the run recomputes, and the total with
  // full recomputation.
  OperationTraffic sent;
  double sent_with_full_recompute = 0;
  double kept = 0;  // bytes that one layer keeps for backward per micro-batch
  RunConfig question = RunConfig::for_plan();  // the run with this kind, resolved
};
// Throws UsageError if only the number of parameters is known.
ContextCost context_cost(const RunConfig& resolved, ContextKind kind);
// Returns the same run without context parallelism, for its memory. If that has too few ranks for
// the expert parallelism, ep is smaller.
RunConfig without_context(const RunConfig& resolved);

}  // namespace tessera::planner
