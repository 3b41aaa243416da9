#include "tessera/simulator/simulation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/step_time.h"

namespace tessera::simulator {
namespace {

using nlohmann::ordered_json;

ordered_json rank_time_json(const RankTime& time, double step) {
  ordered_json json = {{"compute", time.compute}, {"comm_exposed", sum(time.comm)}};
  for (const Axis axis : kTableAxes) json[std::string(axis_name(axis))] = time.comm[axis];
  json["bubble"] = time.bubble;
  json["optimizer"] = time.optimizer;
  json["step"] = step;
  return json;
}

// Seconds are those of the simulation, as a mean over ranks.
ordered_json experts_json(const Simulation& s) {
  const planner::ExpertCosts& costs = *s.fit->experts;
  return {{"parameters", std::llround(costs.parameters)},
          {"active_parameters", std::llround(costs.active)},
          {"imbalance", s.question.expert_received()},
          {"rows",
           {{"mean_of_an_expert", costs.mean},
            {"busiest_rank", std::llround(costs.busiest)},
            {"dropped", costs.dropped}}},
          {"all_to_all",
           {{"calls", std::llround(costs.exchange.calls)},
            {"bytes", std::llround(costs.exchange.bytes)},
            {"seconds", s.result.mean.comm[Axis::ep]},
            {"crosses_hosts", costs.exchange.crosses_hosts}}}};
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

std::string metadata(const char* name, int pid, int tid, const std::string& value) {
  return str(R"({"name":")", name, R"(","ph":"M","pid":)", pid, R"(,"tid":)", tid,
             R"(,"args":{"name":")", value, "\"}}");
}

}  // namespace

Fit fit_of(const planner::RunConfig& q) {
  const planner::Plan plan = planner::plan_numbers(q);
  Fit fit{plan.needed(), planner::usable_memory(q.hardware), "", std::nullopt};
  if (!plan.fits) fit.remedy = planner::remedy_for(plan);
  if (q.model.experts.any()) fit.experts = planner::expert_costs(plan);
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
                       {"utilization", r.utilization},
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
    if (s.fit->experts) json["experts"] = experts_json(s);
  }
  if (s.agreement) {
    json["planned_step"] = s.agreement->planned;
    for (const Agreement::Effect& effect : s.agreement->effects) {
      json["simulated_more"][effect.name] = effect.seconds;
    }
  }
  ordered_json ranks = ordered_json::array();
  for (std::size_t i = 0; i < r.ranks.size(); ++i) {
    const RankTime& one = r.ranks[i];
    const int p = static_cast<int>(i) / r.replicas, d = static_cast<int>(i) % r.replicas;
    ordered_json row = {{"rank", s.scenario.rank(p, d)}, {"pp", p}, {"dp", d}};
    row["utilization"] = r.step > 0 ? one.compute / r.step : 0;
    row["time"] = rank_time_json(one, r.step);
    for (const Axis axis : kDataAxes) row[str("sent_", axis_name(axis))] = one.sent[axis];
    ranks.push_back(std::move(row));
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
      json["utilization"] = row.utilization;
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

const Agreement::Effect& Agreement::largest() const {
  return *std::max_element(effects.begin(), effects.end(), [](const Effect& a, const Effect& b) {
    return std::abs(a.seconds) < std::abs(b.seconds);
  });
}

Agreement agreement_of(const Scenario& s, const Result& result) {
  const planner::Places places = s.places();
  const double few = planner::play_step(s, places).end;
  const double all = planner::play_whole_step(s, places).end;
  const double alone = s.pipelined() ? simulate(s, {.shared_links = false}).step : result.step;
  Agreement agreement;
  agreement.planned = planner::step_time(s).step();
  agreement.simulated = result.step;
  agreement.effects[0] = {"messages and collectives share links", result.step - alone};
  agreement.effects[1] = {"a long step was extrapolated from its first micro-batches", all - few};
  // The rest: hops that stay on a node for some replicas only.
  agreement.effects[2] = {"replicas are placed on the nodes in different ways",
                          alone - agreement.planned - (all - few)};
  return agreement;
}

std::string reason(const Agreement& agreement) {
  const Agreement::Effect& effect = agreement.largest();
  return str(format_time(std::abs(effect.seconds)), effect.seconds > 0 ? " more" : " less",
             " in the simulation: ", effect.name);
}

std::string trace_json(const Scenario& scenario, const Result& result) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto add = [&](const std::string& event) {
    out += separator;
    out += event;
    separator = ",\n";
  };
  std::set<int> shown;
  char line[256];
  for (const Span& span : result.spans) {
    const int p = span.worker / result.replicas, d = span.worker % result.replicas;
    const int rank = scenario.rank(p, d);
    if (shown.insert(rank).second) {
      add(metadata("process_name", rank, 0,
                   str("rank ", rank, ": pipeline rank ", p, ", replica ", d)));
      const int lanes = scenario.replicas() > 1 ? 4 : 3;
      for (int lane = 0; lane < lanes; ++lane) {
        add(metadata("thread_name", rank, lane, Span::kLaneNames[lane]));
      }
    }
    std::snprintf(line, sizeof line,
                  "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
                  span.what, rank, static_cast<int>(span.lane), span.begin * 1e6,
                  (span.end - span.begin) * 1e6);
    std::string event = line;
    if (span.micro >= 0) {
      event += str(R"(,"args":{"micro":)", span.micro, R"(,"chunk":)", span.chunk, "}");
    }
    add(event + "}");
  }
  return out + "\n]}\n";
}

}  // namespace tessera::simulator
