// tessera simulate: simulates a training step event by event.

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/cli/simulate_report.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/progress.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/sweep.h"
#include "tessera/planner/topology.h"
#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulation.h"

namespace tessera::cli {
namespace {

constexpr const char* kSimulateExamples =
    "  tessera simulate --model gpt3-175b --hardware a100-80 --tp 8 --pp 16 --dp 8 \\\n"
    "                   --global-batch 1536 --trace step.json      (open it in ui.perfetto.dev)\n"
    "  tessera simulate --model llama2-7b --hardware h200 --sweep dp=1..4096 --svg scaling.svg\n"
    "  tessera simulate --pp 2 --grad-accum 8 --forward 120ms --backward 220ms --hop 5ms\n"
    "  tessera simulate --model gpt2-xl --dp 64 --jitter 0.05 --straggler 3:1.5\n"
    "  tessera simulate --model llama3.1-405b --tp 8 --pp 16 --dp 32 --zero 1 --sequence-parallel "
    "\\\n"
    "                   --global-batch 2048 --mtbf 50000h --checkpoint-cost 60s "
    "--restart-cost 10min\n"
    "\n"
    "Ranks are numbered tp first, then dp, then pp, so that tp neighbors share a node.\n"
    "JSON: {step, tokens_per_s, utilization, bubble, world, memory, fits, remedy,\n"
    "time:{compute, comm_exposed, tp, pp, dp, bubble, optimizer, step}, ranks:[…], failures:{…}},\n"
    "times in seconds, means over all ranks, memory in bytes of the most loaded device;\n"
    "with --sweep {sweep:[…], comparison}, or {swept, sweep:[…]} for a setting that is no axis.";

struct SimulateArguments {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  std::string hardware_file, trace, svg, sweep, collective = "mixed";
  std::vector<simulator::Straggler> stragglers;
  double jitter = 0, law_cost = 0.05;
  int seed = 0, traced = 16;
  double forward = 0, backward = 0, hop = 0, optimizer = 0, tp_time = 0;
  double mtbf = 0, checkpoint_cost = 60, restart_cost = 600;
  bool full = false, json = false;
  bool given_forward = false, given_backward = false, given_hop = false, given_optimizer = false;
  bool given_tp_time = false;
};

template <typename Number>
bool read_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

void read_stragglers(const std::string& text, std::vector<simulator::Straggler>& all) {
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    const std::size_t colon = part.find(':');
    simulator::Straggler one;
    if (colon == std::string_view::npos || !read_number(part.substr(0, colon), one.rank) ||
        !read_number(part.substr(colon + 1), one.factor)) {
      throw UsageError(
          Flag("straggler"),
          str("got ", quote(part), "; must be RANK:FACTOR such as 3:1.5, or several with commas"));
    }
    all.push_back(one);
    begin = end + 1;
  }
}

void add_options(CommandLine& line, SimulateArguments& a) {
  CLI::App& app = line.app();
  const auto noted = [](bool& given) { return [&given](const std::string&) { given = true; }; };
  app.add_flag("--json", a.json, "print JSON");
  CLI::Option* const sweep =
      app.add_option("--sweep", a.sweep,
                     "simulate several sizes of an axis: dp=1..48 is the powers of two up to 48, "
                     "and 48, dp=1..48,12 also has 12; or several values of another setting: "
                     "bucket-size=1MB..128MB")
          ->type_name("NAME=A..B");
  app.add_option("--svg", a.svg, "with --sweep: plot throughput and efficiency")->type_name("FILE");
  line.number(app, "--law-cost", a.law_cost, 0, 1,
              "with --sweep: c of the law 1/(1 + c log2 N) to compare with")
      ->needs(sweep);
  CLI::Option* const trace =
      app.add_option("--trace", a.trace, "write a timeline of the ranks for Perfetto")
          ->type_name("FILE");
  line.integer(app, "--trace-ranks", a.traced, 1, 1 << 20, "ranks in the trace")->needs(trace);
  line.number(app, "--jitter", a.jitter, 0, 2, "spread of computing times: lognormal, mean kept");
  app.add_option_function<std::string>(
         "--straggler", [&](const std::string& text) { read_stragglers(text, a.stragglers); },
         "rank whose computation takes FACTOR times as long; several with commas")
      ->type_name("RANK:FACTOR");
  line.integer(app, "--seed", a.seed, 0, 1 << 30, "seed of jitter and failures");
  line.choice(app, "--collective", a.collective, {"mixed", "ring", "tree", "auto"},
              "algorithm of the collectives along dp");
  app.add_flag("--full", a.full, "simulate every replica even if one is enough");
  CLI::Option* const mtbf =
      line.seconds(app, "--mtbf", a.mtbf, "mean time between failures of one device; 0: none");
  line.seconds(app, "--checkpoint-cost", a.checkpoint_cost, "time to save a checkpoint")
      ->needs(mtbf);
  line.seconds(app, "--restart-cost", a.restart_cost, "time from a failure until training resumes")
      ->needs(mtbf);
  line.seconds(app, "--forward", a.forward,
               "forward time of a rank per micro-batch, instead of the model's; needs --backward")
      ->each(noted(a.given_forward));
  line.seconds(app, "--backward", a.backward,
               "backward time of a rank per micro-batch; needs --forward")
      ->each(noted(a.given_backward));
  line.seconds(app, "--hop", a.hop, "with --forward: transfer time from one stage to the next")
      ->each(noted(a.given_hop));
  line.seconds(app, "--tp-time", a.tp_time,
               "with --forward and --tp: time of the tp collectives of one micro-batch, half of "
               "it in forward")
      ->each(noted(a.given_tp_time));
  line.seconds(app, "--optimizer", a.optimizer,
               "with --forward: time of the optimizer at the end of the step")
      ->each(noted(a.given_optimizer));
  app.add_option("--hardware-file", a.hardware_file, "TOML file with your own hardware")
      ->type_name("FILE");
  add_plan_flags(app, a.settings);
}

void check_arguments(const SimulateArguments& a) {
  if (a.given_forward != a.given_backward) {
    throw UsageError("--forward and --backward: give both or neither", "forward");
  }
  if (a.given_forward && !(a.forward + a.backward > 0)) {
    throw UsageError("--forward and --backward: got 0 for both; one must be greater than 0",
                     "forward");
  }
  for (const simulator::Straggler& each : a.stragglers) {
    if (!(each.rank >= 0 && each.factor > 0 && each.factor <= 1e6)) {
      throw UsageError(Flag("straggler"),
                       str("got ", each.rank, ":", each.factor,
                           "; must be a rank from 0 and a factor above 0, at most 1e6"));
    }
  }
  if (!a.given_forward && (a.given_hop || a.given_optimizer || a.given_tp_time)) {
    throw UsageError(str(a.given_hop         ? "--hop"
                         : a.given_optimizer ? "--optimizer"
                                             : "--tp-time",
                         ": needs --forward and --backward; without them the model and the "
                         "hardware define all times"));
  }
  if (!a.svg.empty() && a.sweep.empty()) {
    throw UsageError(Flag("svg"), "needs --sweep, such as dp=1..1024; or use --trace");
  }
  if (!a.trace.empty() && !a.sweep.empty()) {
    throw UsageError("--trace and --sweep: choose one of them", "trace");
  }
}

// Replaces the model's times by given ones: all stages are equal, and nothing else takes time.
void take_given_times(const SimulateArguments& a, simulator::Scenario& s) {
  const double tp_time = s.tp() > 1 ? a.tp_time : 0;
  for (auto& rank : s.chunks) {
    for (planner::StepChunk& chunk : rank) {
      const double each = s.chunks_per_rank();
      // Two of a layer's four all-reduces are in forward.
      const double reductions = tp_time / 2 / each;
      chunk.forward_comm = chunk.backward_comm = {};
      chunk.forward_comm[Axis::tp] = chunk.backward_comm[Axis::tp] = reductions;
      chunk.forward = a.forward / each + reductions;
      chunk.backward_input = a.backward / 2 / each + reductions;
      chunk.backward_weight = a.backward / 2 / each;
    }
  }
  s.hop_bytes = s.tied_bytes = 0;
  s.hop_latency = a.hop;
  s.optimizer = a.optimizer;
}

// Throws UsageError if --tp-time has no effect. A sweep of tp may contain size 1.
void check_tp_time(const SimulateArguments& a, const planner::RunConfig& resolved) {
  if (!a.given_tp_time || resolved.tp() > 1 || a.sweep.starts_with("tp=")) return;
  throw UsageError(Flag("tp-time"), "tp is 1, which sends nothing; give --tp 2 or more");
}

simulator::Scenario scenario_for(const SimulateArguments& a, const planner::RunConfig& resolved) {
  check_tp_time(a, resolved);
  simulator::Scenario s = simulator::scenario_of(resolved);
  if (a.given_forward) take_given_times(a, s);
  s.topology.algorithm = planner::parse_algorithm(a.collective);
  s.jitter = a.jitter;
  s.stragglers = a.stragglers;
  s.seed = static_cast<std::uint64_t>(a.seed);
  return s;
}

std::optional<simulator::Reliability> reliability_for(const SimulateArguments& a, int devices) {
  if (a.mtbf == 0) return std::nullopt;
  const simulator::Reliability r{a.mtbf, devices, a.checkpoint_cost, a.restart_cost};
  check(r);
  return r;
}

bool sweeps_an_axis(const std::string& sweep) {
  std::string name = sweep.substr(0, sweep.find('='));
  std::replace(name.begin(), name.end(), '-', '_');
  return sweep.find('=') == std::string::npos || find_axis(name) != nullptr;
}

bool all_refused(const std::vector<SettingRow>& rows) {
  return std::all_of(rows.begin(), rows.end(),
                     [](const SettingRow& row) { return !row.refused.empty(); });
}

// Sweeps a setting that is not an axis, such as the bucket size: [Note: sweeps] of the planner.
int run_setting_sweep(const SimulateArguments& a, const planner::Catalog& catalog) {
  if (!a.svg.empty()) throw UsageError(Flag("svg"), "draws only sweeps of an axis, such as dp");
  if (a.mtbf > 0) throw UsageError(Flag("mtbf"), "applies only to sweeps of an axis, such as dp");
  if (a.law_cost != SimulateArguments().law_cost) {
    throw UsageError(Flag("law-cost"), "applies only to sweeps of an axis, such as dp");
  }
  const planner::PlanSweep swept = planner::parse_plan_sweep(a.sweep);
  if (a.settings.has(swept.setting)) {
    throw UsageError(str("--", swept.setting, " and --sweep ", a.sweep, ": choose one of them"),
                     swept.setting);
  }
  std::vector<SettingRow> rows;
  for (const std::string& value : swept.values) {
    SettingRow& row = rows.emplace_back();
    row.value = value;
    try {
      planner::RunConfig config = a.settings;
      config.set(swept.setting, value);
      config = planner::resolve(planner::look_up(config, catalog));
      const simulator::Scenario scenario = scenario_for(a, config);
      row.result = simulate(scenario);
      row.tokens_per_s = static_cast<double>(config.global_batch * config.seq) / row.result.step;
      row.gpus = scenario.world();
      if (!a.given_forward) row.fit = simulator::fit_of(config);
    } catch (const UsageError& error) {
      row.refused = error.what();
      if (rows.size() == swept.values.size() && all_refused(rows)) throw;
    }
  }
  return print_out(a.json ? setting_sweep_json(swept.setting, rows)
                          : setting_sweep_text(swept.setting, rows));
}

int run_sweep(const SimulateArguments& a, const planner::Catalog& catalog) {
  if (!sweeps_an_axis(a.sweep)) return run_setting_sweep(a, catalog);
  Sweep sweep;
  try {
    sweep.range = simulator::parse_sweep(a.sweep);
  } catch (const UsageError& error) {
    throw UsageError(Flag("sweep"), error.what());
  }
  sweep.law_cost = a.law_cost;
  sweep.reliability = reliability_for(a, 1);
  if (a.settings.has(sweep.range.axis)) {
    throw UsageError(str("--", sweep.range.axis, " and --sweep ", a.sweep, ": choose one of them"));
  }
  ProgressOptions options;
  options.label = "simulating";
  Progress progress(static_cast<std::int64_t>(sweep.range.sizes.size()), options);
  bool first = true;
  simulator::SweepCase last;
  std::map<int, Fit> fits;
  sweep.rows = simulator::sweep(sweep.range, a.law_cost, [&](int size) {
    planner::RunConfig settings = a.settings;
    settings.set(sweep.range.axis, std::to_string(size));
    const planner::RunConfig resolved = planner::resolve(planner::look_up(settings, catalog));
    simulator::SweepCase one;
    one.scenario = scenario_for(a, resolved);
    one.tokens = static_cast<double>(resolved.global_batch * resolved.seq);
    if (first) sweep.question = resolved;
    if (!a.given_forward) fits[size] = simulator::fit_of(resolved);
    first = false;
    progress.add();
    last = one;
    return one;
  });
  for (const simulator::SweepRow& row : sweep.rows) {
    if (!a.given_forward) sweep.fits.push_back(fits[row.size]);
  }
  if (a.collective == "mixed" && !last.scenario.irregular() && sweep.rows.back().refused.empty()) {
    last.scenario.topology.algorithm = planner::Algorithm::automatic;
    sweep.quicker = last.tokens / simulate(last.scenario).step;
  }
  write_file("--svg", a.svg, [&] {
    return simulator::sweep_svg(sweep.range, sweep.rows, a.law_cost, sweep_title(sweep));
  });
  return print_out(a.json ? sweep_json(sweep) : sweep_text(sweep));
}

}  // namespace

int simulate_command(int argc, char** argv) {
  SimulateArguments a;
  CommandLine line(
      "simulate",
      "Simulates a training step event by event: computation, messages, collectives and "
      "the links they share.",
      kSimulateExamples);
  add_options(line, a);
  if (!line.parse(argc, argv)) return 0;
  check_arguments(a);
  const planner::Catalog catalog = make_catalog(a.hardware_file);
  if (!a.sweep.empty()) return run_sweep(a, catalog);

  Simulation s;
  s.question = planner::resolve(planner::look_up(a.settings, catalog));
  s.scenario = scenario_for(a, s.question);
  for (const simulator::Straggler& each : a.stragglers) {
    if (each.rank < s.scenario.world()) continue;
    throw UsageError(Flag("straggler"), str("got rank ", each.rank, "; must be less than ",
                                            axis_product(), " = ", s.scenario.world()));
  }
  s.reliability = reliability_for(a, s.scenario.world());
  s.result = simulate(s.scenario, {.full = a.full, .traced = a.trace.empty() ? 0 : a.traced});
  s.given_times = a.given_forward;
  if (!a.given_forward) s.fit = simulator::fit_of(s.question);
  if (a.collective == "mixed" && s.scenario.averages_gradients() && !s.scenario.irregular()) {
    simulator::Scenario other = s.scenario;
    other.topology.algorithm = planner::Algorithm::automatic;
    s.quicker = simulate(other).step;
  }
  if (!a.given_forward && !s.scenario.irregular()) {
    s.agreement = simulator::agreement_of(s.scenario, s.result);
  }
  write_file("--trace", a.trace, [&] { return simulator::trace_json(s.scenario, s.result); });
  return print_out(a.json ? simulation_json(s) : simulation_text(s));
}

}  // namespace tessera::cli
