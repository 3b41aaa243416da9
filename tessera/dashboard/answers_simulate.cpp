// Answers of the simulator: one step, and its scaling.

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/api.h"
#include "tessera/planner/step_time.h"
#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulation.h"

namespace tessera::dashboard {
namespace {

// Estimates the events of a simulation. Throws UsageError if it would take seconds.
void check_work(const simulator::Scenario& s, const Limits& limits) {
  double units = 0;
  for (const auto& rank : s.chunks) {
    for (const planner::StepChunk& chunk : rank) units += s.zero == 3 ? chunk.units : 1;
  }
  const double work = 4 * units * static_cast<double>(s.micros) * (s.irregular() ? s.dp() : 1);
  if (work > static_cast<double>(limits.events)) {
    throw UsageError(
        Flag("grad-accum"),
        str("such a step takes about ", fixed(work / 1e6, 0), " million events; this page allows ",
            limits.events / 1'000'000, ". Use fewer ranks or micro-batches, or tessera simulate."));
  }
}

std::vector<simulator::Straggler> stragglers_of(Ask& ask) {
  std::vector<simulator::Straggler> all;
  for (const Json& each : ask.list("stragglers", 64)) {
    const bool good = each.is_object() && each.size() == 2 && each.contains("rank") &&
                      each.contains("factor") && each["rank"].is_number_integer() &&
                      each["factor"].is_number();
    const double rank = good ? each["rank"].get<double>() : -1;
    const double factor = good ? each["factor"].get<double>() : -1;
    if (!(rank >= 0 && rank < 1e9 && factor > 0 && factor <= 1e6)) {
      throw UsageError(Flag("stragglers"),
                       "must be objects such as {\"rank\":3,\"factor\":1.5}, with a factor above "
                       "0");
    }
    all.push_back({static_cast<int>(rank), factor});
  }
  return all;
}

Json spans_of(const simulator::Simulation& s) {
  Json spans = Json::array();
  for (const simulator::Span& span : s.result.spans) {
    const int p = span.worker / s.result.replicas, d = span.worker % s.result.replicas;
    Json one = {{"rank", s.scenario.rank(p, d)},
                {"lane", simulator::Span::kLaneNames[span.lane]},
                {"what", span.what},
                {"begin", span.begin},
                {"end", span.end}};
    if (span.micro >= 0) one["micro"] = span.micro, one["chunk"] = span.chunk;
    spans.push_back(std::move(one));
  }
  return spans;
}

// Returns the size from which doubling gains less than half of its cost.
Json stops_paying(const std::vector<simulator::SweepRow>& rows,
                  double simulator::SweepRow::*efficiency) {
  const simulator::SweepRow* last = nullptr;
  for (const simulator::SweepRow& row : rows) {
    // A dp that was given beside the powers of two is not a doubling.
    if (!row.refused.empty() || !std::has_single_bit(static_cast<std::uint64_t>(row.size)))
      continue;
    if (last != nullptr && last->*efficiency > 0) {
      const double grown = static_cast<double>(row.gpus) / last->gpus;
      const double gained = grown * (row.*efficiency) / (last->*efficiency);
      if (gained - 1 < 0.5 * (grown - 1)) return last->size;
    }
    last = &row;
  }
  return nullptr;
}

}  // namespace

Json simulate_answer(const Knowledge& known, Ask& ask) {
  const double jitter = ask.number("jitter", 0, 0, 2);
  const auto seed = ask.integer("seed", 0, 0, 1 << 30);
  const int traced = static_cast<int>(ask.integer("trace_ranks", 0, 0, 64));
  const auto stragglers = stragglers_of(ask);
  simulator::Simulation s;
  s.question = ask.question(known.catalog, known.limits);
  s.scenario = simulator::scenario_of(s.question);
  s.scenario.jitter = jitter;
  s.scenario.seed = static_cast<std::uint64_t>(seed);
  s.scenario.stragglers = stragglers;
  std::string given = jitter > 0 ? str(" --jitter ", jitter, " --seed ", seed) : "";
  for (const simulator::Straggler& each : stragglers) {
    if (each.rank >= s.scenario.world()) {
      throw UsageError(Flag("stragglers"), str("got rank ", each.rank, "; must be less than ",
                                               axis_product(), " = ", s.scenario.world()));
    }
    given += str(" --straggler ", each.rank, ":", each.factor);
  }
  check_work(s.scenario, known.limits);
  const double drawn = static_cast<double>(traced) * static_cast<double>(s.scenario.micros) *
                       s.scenario.chunks_per_rank();
  if (drawn > static_cast<double>(known.limits.drawn)) {
    throw UsageError(Flag("trace-ranks"),
                     str("got ", traced, " ranks with ", s.scenario.micros,
                         " micro-batches; the drawn passes must be at most ", known.limits.drawn));
  }
  simulator::Options options;
  options.traced = traced;
  s.result = simulator::simulate(s.scenario, options);
  s.fit = simulator::fit_of(s.question);
  Json json = Json::parse(simulator::simulation_json(s));
  if (!s.scenario.irregular()) json["planned_step"] = planner::step_time(s.question).step();
  if (traced > 0) json["spans"] = spans_of(s);
  json["command"] =
      ask.command("simulate", {"jitter", "seed", "trace_ranks", "stragglers"}) + given;
  return json;
}

Json scaling_answer(const Knowledge& known, Ask& ask) {
  const double overhead = ask.number("overhead", 0.05, 0, 1);
  const double jitter = ask.number("jitter", 0, 0, 2);
  const bool overlap = ask.flag("overlap", true);
  const double bandwidth = ask.number("bandwidth", 0, 1, 1e15);
  const auto most = ask.integer("max_dp", 4096, 1, 4096);
  const auto dp_given = ask.integer("dp", 1, 1, 1 << 20);  // a row besides the powers of two
  planner::RunConfig settings = ask.settings();
  if (!overlap) {
    settings.set("overlap-grad-reduce", "false");
    settings.set("overlap-param-gather", "false");
  }
  std::string swept = str("dp=1..", most);
  if (!std::has_single_bit(static_cast<std::uint64_t>(dp_given)) || dp_given > most) {
    swept += str(",", dp_given);
  }
  const simulator::SweepRange range = simulator::parse_sweep(swept);
  std::map<int, simulator::Fit> fits;
  const auto rows = simulator::sweep(range, overhead, [&](int size) {
    planner::RunConfig one = settings;
    one.set("dp", std::to_string(size));
    planner::RunConfig resolved = planner::resolve(planner::look_up(one, known.catalog));
    check_limits(resolved, known.limits);
    if (bandwidth > 0) resolved.hardware.between.bandwidth = bandwidth;
    simulator::SweepCase each;
    each.scenario = simulator::scenario_of(resolved);
    each.scenario.jitter = jitter;
    check_work(each.scenario, known.limits);
    each.tokens = static_cast<double>(resolved.global_batch * resolved.seq);
    fits[size] = simulator::fit_of(resolved);
    return each;
  });
  Json dp = Json::array(), gpus = Json::array(), steps = Json::array(), ideal = Json::array(),
       fit = Json::array();
  Json refused = Json::array(), throughput = Json::array(), efficiency = Json::array();
  Json exposed = Json::array(), law_throughput = Json::array(), law = Json::array();
  double first = 0;  // tokens/s of one replica
  for (const simulator::SweepRow& row : rows) {
    dp.push_back(row.size);
    gpus.push_back(row.gpus);
    const bool possible = row.refused.empty();
    if (possible && first == 0) first = row.tokens_per_s / row.size;
    const auto put = [&](Json& list, double value) {
      list.push_back(possible ? Json(value) : Json());
    };
    put(steps, row.step);
    put(throughput, row.tokens_per_s);
    put(efficiency, row.efficiency);
    put(exposed, possible ? sum(row.mean.comm) / row.step : 0);
    put(ideal, first * row.size);
    put(law, row.law);
    put(law_throughput, first * row.size * row.law);
    fit.push_back(possible ? Json(fits[row.size].fits()) : Json());
    refused.push_back(possible ? Json() : Json(row.refused));
  }
  std::string command =
      ask.command("simulate", {"overhead", "jitter", "overlap", "bandwidth", "max_dp", "dp"});
  if (!overlap) command += " --no-overlap-grad-reduce --no-overlap-param-gather";
  if (jitter > 0) command += str(" --jitter ", exact_word(jitter));
  if (bandwidth > 0) command += str(" --between-bandwidth ", rate_word(bandwidth));
  command += str(" --sweep ", swept, " --law-cost ", exact_word(overhead));
  return {{"dp", std::move(dp)},
          {"gpus", std::move(gpus)},
          {"step", std::move(steps)},
          {"simple", {{"throughput", std::move(law_throughput)}, {"efficiency", std::move(law)}}},
          {"simulated",
           {{"throughput", std::move(throughput)},
            {"efficiency", std::move(efficiency)},
            {"exposed", std::move(exposed)}}},
          {"ideal", std::move(ideal)},
          {"fits", std::move(fit)},
          {"refused", std::move(refused)},
          {"stops_paying_at", stops_paying(rows, &simulator::SweepRow::efficiency)},
          {"simple_stops_paying_at", stops_paying(rows, &simulator::SweepRow::law)},
          {"law_parts", simulator::compare_with_law(range, rows, overhead)},
          {"command", std::move(command)}};
}

Json pipeline_with_hops(const std::string& schedule, int ranks, int micros, int chunks,
                        const planner::StepChunk& chunk, double hop) {
  simulator::Scenario scenario;
  scenario.schedule = *find_named<ScheduleChoice>(schedule);
  scenario.micros = micros;
  scenario.chunks = planner::equal_chunks(ranks, chunks, chunk);
  scenario.axes.set(Axis::pp, ranks);
  scenario.hop_latency = hop;
  scenario.topology.inside.bandwidth = scenario.topology.nic.bandwidth = 1e12;  // moves no bytes
  simulator::Options options;
  options.traced = ranks;
  const simulator::Result result = simulator::simulate(scenario, options);
  Json actions = Json::array();
  for (int r = 0; r < ranks; ++r) actions.push_back(Json::array());
  for (const simulator::Span& span : result.spans) {
    if (span.lane != simulator::Span::computing || span.micro < 0) continue;
    actions[static_cast<std::size_t>(span.worker / result.replicas)].push_back(
        {{"kind", span.what},
         {"micro", span.micro},
         {"chunk", span.chunk},
         {"begin", span.begin},
         {"end", span.end}});
  }
  return {
      {"step", result.step}, {"bubble", 1 - result.utilization}, {"actions", std::move(actions)}};
}

}  // namespace tessera::dashboard
