// Answers on context parallelism.

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/api.h"
#include "tessera/planner/context_costs.h"
#include "tessera/planner/json.h"
#include "tessera/planner/rank_load.h"

namespace tessera::dashboard {
namespace {

using planner::ChunkOrder;

// Chunks and work of every rank, by step of the ring and in total.
Json work_json(ChunkOrder order, int cp) {
  Json chunks = Json::array(), work = Json::array(), total = Json::array();
  double longest = 0;
  for (int rank = 0; rank < cp; ++rank) {
    chunks.push_back(planner::chunks_of_rank(order, rank, cp));
    Json steps = Json::array();
    for (int step = 0; step < cp; ++step) {
      steps.push_back(planner::attention_work(order, cp, rank, step));
    }
    work.push_back(std::move(steps));
    total.push_back(planner::attention_work(order, cp, rank));
    longest = std::max(longest, total.back().get<double>());
  }
  return {{"chunks", std::move(chunks)},
          {"work", std::move(work)},
          {"total", std::move(total)},
          {"longest", longest}};
}

Json owners_json(int cp) {
  Json owners = Json::array();
  for (int rank = 0; rank < cp; ++rank) {
    Json steps = Json::array();
    for (int step = 0; step < cp; ++step) {
      steps.push_back(planner::owner_of_keys(rank, step, cp));
    }
    owners.push_back(std::move(steps));
  }
  return owners;
}

// One kind of attention, with the plan that has it.
Json kind_json(const planner::ContextCost& cost, int cp) {
  Json json = {{"kind", name(cost.kind)}, {"formula", cost.formula}};
  if (!cost.refused.empty()) {
    json["error"] = cost.refused;
    return json;
  }
  const planner::Plan plan = planner::plan_numbers(cost.question);
  if (cost.kind == ContextKind::ring) {
    json["messages"] = cp - 1;
    json["message"] = planner::whole_json(cost.message);
  }
  json["heads"] = cost.heads;
  json["tokens"] = cost.tokens;
  json["sent"] = {{"forward", planner::whole_json(cost.sent.forward)},
                  {"recompute", planner::whole_json(cost.sent.recompute)},
                  {"backward", planner::whole_json(cost.sent.backward)},
                  {"total", planner::whole_json(cost.sent.total())},
                  {"with_full_recompute", planner::whole_json(cost.sent_with_full_recompute)}};
  json["kept"] = planner::whole_json(cost.kept);
  json["memory"] = planner::memory_json(plan);
  json["fits"] = planner::fits_json(plan);
  json["sent_per_step"] = planner::whole_json(plan.traffic.sent[Axis::cp]);
  json["waiting"] = plan.time.comm[Axis::cp];
  json["step"] = plan.time.step();
  return json;
}

}  // namespace

Json context_answer(const Knowledge& known, Ask& ask) {
  const bool modelled = ask.has("model") || ask.has("layers") || ask.has("hidden") ||
                        ask.has("heads") || ask.has("params");
  if (!modelled) {
    ask.otherwise("model", "llama3-8b");
    ask.otherwise("cp", "4");
  }
  const planner::RunConfig q = ask.question(known.catalog, known.limits);
  const int cp = q.cp();
  if (cp > known.limits.context_ranks) {
    throw UsageError(Flag("cp"), str("got ", cp, "; must be at most ", known.limits.context_ranks,
                                     " on this page. tessera explain context accepts more."));
  }
  Json kinds = Json::array();
  for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
    kinds.push_back(kind_json(planner::context_cost(q, kind), cp));
  }
  planner::Plan whole;
  whole.question = planner::without_context(q);
  whole.memory = planner::memory_of(whole.question);
  const double usable = planner::usable_memory(q.hardware);
  Json zigzag = work_json(ChunkOrder::zigzag, cp), in_order = work_json(ChunkOrder::in_order, cp);
  const double slowdown = in_order["longest"].get<double>() / zigzag["longest"].get<double>();
  const std::size_t chunks = zigzag["chunks"].size() * zigzag["chunks"][0].size();
  return {{"cp", cp},
          {"kind", name(q.cp_kind)},
          {"seq", q.seq},
          {"padded", q.rank_tokens() * cp},
          {"tokens", q.rank_tokens()},
          {"chunks", chunks},
          {"chunk_tokens", q.rank_tokens() * cp / static_cast<std::int64_t>(chunks)},
          {"owners", owners_json(cp)},
          {"zigzag", std::move(zigzag)},
          {"in_order", std::move(in_order)},
          {"slowdown", slowdown},
          {"kinds", std::move(kinds)},
          {"without_cp",
           {{"kept", planner::whole_json(planner::layer_activations(whole.question))},
            {"memory", planner::memory_json(whole)},
            {"fits", whole.memory.total() <= usable}}},
          {"capacity", usable},
          {"hardware", q.hardware.name},
          {"command", ask.command("explain context")}};
}

}  // namespace tessera::dashboard
