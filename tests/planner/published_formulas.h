#pragma once

// Formulas of Korthikanti et al. (2022), to compare the planner with.
namespace tessera::planner {

// Activation bytes of one transformer layer in 16 bits, without recomputation or with selective or
// full recomputation. `tp` shards the tensors between the linears, sequence parallelism the rest.
struct ActivationInput {
  double seq = 0, batch = 0, hidden = 0, heads = 0;
  int tp = 1;
  int sequence_ranks = 1;
  bool attention_matrix_kept = true;  // neither fused nor selectively recomputed
};
inline double layer_activation_bytes(const ActivationInput& q) {
  const double sbh = q.seq * q.batch * q.hidden;
  const double scores = q.attention_matrix_kept ? 5 * q.heads * q.seq / q.hidden : 0;
  return sbh * (10.0 / q.sequence_ranks + (24 + scores) / q.tp);
}
inline double recomputed_layer_bytes(double seq, double batch, double hidden) {
  return 2 * seq * batch * hidden;
}

}  // namespace tessera::planner
