#include "tessera/simulator/simulation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tessera::simulator {
namespace {

using nlohmann::ordered_json;

ordered_json rank_time_json(const RankTime& time, double step) {
  return {{"compute", time.compute},
          {"comm_exposed", sum(time.comm)},
          {"tp", time.comm[Axis::tp]},
          {"pp", time.comm[Axis::pp]},
          {"dp", time.comm[Axis::dp_shard]},
          {"dp_replicate", time.comm[Axis::dp_replicate]},
          {"bubble", time.bubble},
          {"optimizer", time.optimizer},
          {"step", step}};
}

ordered_json failures_json(const Reliability& r, double step, double tokens_per_s,
                           std::uint64_t seed) {
  const FailurePlan plan = plan_failures(r, step, seed);
  return {{"system_mtbf", r.system_mtbf()},
          {"best_interval", best_interval(r)},
          {"young_interval", young_interval(r)},
          {"daly_interval", daly_interval(r)},
          {"checkpoint_every_steps", plan.steps},
          {"goodput", plan.goodput},
          {"goodput_simulated", plan.simulated.fraction},
          {"goodput_error", plan.simulated.error},
          {"tokens_per_s", plan.goodput * tokens_per_s}};
}

}  // namespace

Fit fit_of(const planner::Question& q) {
  const planner::Plan plan = planner::plan_numbers(q);
  Fit fit{plan.needed(), planner::usable_memory(q.hardware), ""};
  if (!plan.fits) fit.remedy = planner::remedy_for(plan);
  return fit;
}

double Simulation::tokens_per_s() const {
  return static_cast<double>(question.global_batch * question.seq) / result.step;
}

FailurePlan plan_failures(const Reliability& r, double step, std::uint64_t seed) {
  FailurePlan plan;
  plan.steps = std::max(1.0, std::round(best_interval(r) / step));
  plan.interval = plan.steps * step;
  plan.goodput = expected_goodput(r, plan.interval);
  plan.simulated = simulated_goodput(r, plan.interval, seed);
  return plan;
}

std::string simulation_json(const Simulation& s) {
  const Result& r = s.result;
  ordered_json json = {{"step", r.step},
                       {"tokens_per_s", s.tokens_per_s()},
                       {"utilisation", r.utilisation},
                       {"bubble", r.bubble},
                       {"world", s.scenario.world()},
                       {"time", rank_time_json(r.mean, r.step)},
                       {"replicas", r.replicas},
                       {"events", r.events}};
  if (s.fit) {
    json["memory"] = std::llround(s.fit->needed);
    json["memory_usable"] = std::llround(s.fit->usable);
    json["fits"] = s.fit->fits();
    if (!s.fit->fits()) json["remedy"] = s.fit->remedy;
  }
  if (s.agreement) {
    json["planned_step"] = s.agreement->planned;
    for (const Agreement::Effect& effect : s.agreement->effects) {
      json["simulated_more"][effect.name] = effect.seconds;
    }
  }
  ordered_json ranks = ordered_json::array();
  for (int p = 0; p < s.scenario.pp(); ++p) {
    for (int d = 0; d < r.replicas; ++d) {
      const RankTime& one = r.at(p, d);
      ordered_json row = {{"rank", s.scenario.rank(p, d)}, {"pp", p}, {"dp", d}};
      row["utilisation"] = r.step > 0 ? one.compute / r.step : 0;
      row["time"] = rank_time_json(one, r.step);
      row["sent_dp"] = one.sent[Axis::dp_shard];
      row["sent_dp_replicate"] = one.sent[Axis::dp_replicate];
      ranks.push_back(std::move(row));
    }
  }
  json["ranks"] = std::move(ranks);
  if (s.reliability) {
    json["failures"] = failures_json(*s.reliability, r.step, s.tokens_per_s(), s.scenario.seed);
  }
  return json.dump() + "\n";
}

std::string sweep_json(const Sweep& s) {
  ordered_json rows = ordered_json::array();
  for (std::size_t i = 0; i < s.rows.size(); ++i) {
    const SweepRow& row = s.rows[i];
    ordered_json json = {{s.range.axis, row.size}};
    if (!row.refused.empty()) {
      json["error"] = row.refused;
    } else {
      json["gpus"] = row.gpus;
      json["step"] = row.step;
      json["tokens_per_s"] = row.tokens_per_s;
      json["tokens_per_s_per_gpu"] = row.tokens_per_s / row.gpus;
      json["efficiency"] = row.efficiency;
      json["law"] = row.law;
      json["bubble"] = row.bubble;
      json["utilisation"] = row.utilisation;
      json["time"] = rank_time_json(row.mean, row.step);
      if (!s.fits.empty()) {
        json["memory"] = std::llround(s.fits[i].needed);
        json["fits"] = s.fits[i].fits();
        if (!s.fits[i].fits()) json["remedy"] = s.fits[i].remedy;
      }
      if (s.reliability) {
        Reliability r = *s.reliability;
        r.devices = row.gpus;
        json["failures"] = failures_json(r, row.step, row.tokens_per_s, 0);
      }
    }
    rows.push_back(std::move(json));
  }
  const ordered_json json = {{"sweep", rows},
                             {"comparison", compare_with_law(s.range, s.rows, s.law_cost)}};
  return json.dump() + "\n";
}

}  // namespace tessera::simulator
