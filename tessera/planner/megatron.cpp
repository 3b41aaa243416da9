#include "tessera/planner/megatron.h"

#include "tessera/core/errors.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {

MegatronReport megatron_report(const Question& q) {
  if (q.state_only()) {
    throw UsageError("--convention: megatron counts a model by its sizes; --params gives none");
  }
  const ModelShape& m = q.model;
  const double h = real(m.hidden), layers = real(m.layers);
  const double attention = 2 * h * real(m.q_width()) + 2 * h * real(m.kv_width());
  const double mlp = (m.swiglu ? 3 : 2) * h * real(m.ffn);
  const double table = real(padded_vocab(m.vocab, 128LL * q.tp())) * h;
  MegatronReport report;
  report.in_blocks = layers * (attention + mlp + 4 * h) + 2 * h;
  report.in_embeddings = m.tied ? table : 2 * table;
  // The first stage has the embedding; the head is elsewhere unless there is one stage only.
  const double tables = !m.tied && q.pp() == 1 ? 2 * table : table;
  report.most_loaded_shard = (report.in_blocks / q.pp() + tables) / q.tp();
  report.bytes = report.most_loaded_shard * (q.zero == 0 ? 18 : 6 + 12.0 / q.shards());
  return report;
}

}  // namespace tessera::planner
