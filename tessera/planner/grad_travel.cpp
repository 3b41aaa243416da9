#include "tessera/planner/grad_travel.h"

#include <algorithm>

#include "tessera/core/shard.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run_parts.h"

namespace tessera::planner {

LowRank low_rank_of(const RunQuestion& q, const std::vector<ModelPart>& parts) {
  LowRank all;
  const auto padded = [&](std::int64_t count) {
    return shard_size(count, q.shards()) * q.shards();
  };
  for (const ModelPart& part : parts) {
    for (const ParamSpec& spec : trained_params(q.model, q.tp(), part)) {
      const std::int64_t own = elements_on_rank(q, spec);
      std::int64_t rows = 0, columns = 0;
      if (spec.shape.size() >= 2 && own > 0) {
        rows = shape_on_rank(q, spec)[0];
        columns = own / rows;
      }
      if (const std::int64_t rank = power_sgd_rank(rows, columns, q.power_sgd); rank > 0) {
        all.traveling += padded(rows * rank) + padded(columns * rank);
        all.errors += own;
      } else {
        all.traveling += padded(own);
      }
    }
  }
  return all;
}

double traveling_grad_bytes(const Question& q, double params,
                            const std::vector<StageShare>& chunks) {
  if (q.compression() != GradCompression::powersgd || q.dp() == 1) return params * q.travel();
  std::vector<ModelPart> parts;
  for (const StageShare& chunk : chunks) {
    parts.push_back({0, chunk.layers, chunk.embedding, chunk.head});
  }
  return 4 * static_cast<double>(low_rank_of(run_question(q), parts).traveling);
}

double most_grad_bytes(const Question& q) {
  double most = 0;
  for (const auto& chunks : stage_shares(q)) {
    most = std::max(most, traveling_grad_bytes(q, trained_on_rank(q, chunks), chunks));
  }
  return most;
}

}  // namespace tessera::planner
