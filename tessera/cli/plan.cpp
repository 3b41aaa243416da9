// tessera plan: predicts memory, traffic and time of a run, or searches for the best one.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/cli/plan_report.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/index.h"
#include "tessera/core/log.h"
#include "tessera/core/progress.h"
#include "tessera/core/text.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/json.h"
#include "tessera/planner/places.h"
#include "tessera/planner/score.h"

namespace tessera::cli {
namespace {

constexpr const char* kPlanExamples =
    "  tessera plan --model gpt2-xl --dp 8 --zero 1 --micro-batch 8\n"
    "  tessera plan --model llama3-70b --gpus 128 --tp 8 --pp 4 --global-batch 512 --zero 1\n"
    "  tessera plan --layers 24 --hidden 2048 --heads 16 --seq 1024 --hardware a100-80 --json\n"
    "  tessera plan --params 13B --dp 8 --zero 2 --layout bf16-nomaster    only its size is known\n"
    "  tessera plan --search --model gpt3-175b --gpus 256 --hardware a100-80 --global-batch 1536\n"
    "  tessera plan --model gpt2-xl --dp 8 --max-batch                     largest batch\n"
    "  tessera plan --model gpt2-xl --dp 8 --max-model                     largest model\n"
    "  tessera plan --model gpt2-xl --zero 1 --sweep dp=1..64 --svg dp.svg    memory and time "
    "against a flag\n"
    "  tessera plan --model gpt2-xl --sweep seq=256..1024:256\n"
    "  tessera plan --model llama2-70b --tp 8 --pp 2 --dp 4 --axis-order tp,pp,dp --topology\n"
    "  tessera plan --score runs.csv --hardware a100-80 --attention unfused   predicted against "
    "measured\n"
    "  tessera plan --questions rows.jsonl > plans.jsonl     one question per line; - is stdin\n"
    "  tessera plan --model gpt2-xl --layout bf16-fp32grad --convention megatron\n"
    "\n"
    "Every planning flag is also a key of --questions and a column of --score, with\n"
    "underscores. Flags give the defaults of what a line or a file omits.";

struct PlanArguments {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  std::string hardware_file, questions, score, sweep, svg, convention = "exact";
  bool json = false, search = false, max_batch = false, max_model = false, topology = false;
  bool list_models = false, list_hardware = false;
  int top = 10;
};

void add_options(CommandLine& line, PlanArguments& arguments) {
  CLI::App& app = line.app();
  // First: CLI11 runs the callbacks in the order in which the options are added.
  app.add_option_function<std::string>(
         "--config",
         [&arguments](const std::string& path) { read_plan_config(path, arguments.settings); },
         "read settings from a config file of tessera train; flags override it")
      ->type_name("FILE");
  app.add_flag("--json", arguments.json, "print JSON");
  app.add_flag("--search", arguments.search,
               "rank all ways to train on --gpus; values set by other flags are fixed");
  line.integer(app, "--top", arguments.top, 1, 100'000, "number of rows of --search and --score");
  app.add_flag("--max-batch", arguments.max_batch, "the largest batch, by stage and dp");
  app.add_flag("--max-model", arguments.max_model,
               "the largest model with these proportions, by stage and dp");
  app.add_option("--sweep", arguments.sweep,
                 "plan for several values of a flag: dp=1..64 doubles, seq=1024..8192:1024 has a "
                 "step, zero=0,1,2,3 is a list; batch means micro-batch")
      ->type_name("FLAG=VALUES");
  app.add_flag(
      "--topology", arguments.topology,
      "show the links between devices, and where --axis-order puts the ranks of each axis");
  app.add_option("--svg", arguments.svg, "with --sweep and --topology: draw an SVG image")
      ->type_name("FILE");
  app.add_option("--questions", arguments.questions, "plan each line of a JSONL file")
      ->type_name("FILE");
  app.add_option_function<std::string>(
         "--batch",
         [](const std::string& value) {
           throw UsageError(Flag("batch"),
                            str("got ", quote(value),
                                "; use --micro-batch for sequences, or --questions for a file "
                                "with a question per line"));
         })
      ->group("");  // hidden: exists only for this message
  app.add_option("--score", arguments.score, "compare with measured runs: a CSV file with step_ms")
      ->type_name("FILE");
  line.choice(app, "--convention", arguments.convention, {"exact", "megatron"},
              "count parameters and state as Megatron-LM's log does");
  app.add_option("--hardware-file", arguments.hardware_file, "TOML file with your own hardware")
      ->type_name("FILE");
  app.add_flag("--list-models", arguments.list_models, "list the named models");
  app.add_flag("--list-hardware", arguments.list_hardware, "list the named hardware");
  add_plan_flags(app, arguments.settings);
}

void check_modes(const PlanArguments& arguments, bool top_given) {
  std::vector<std::string> modes;
  const auto mode = [&](bool given, const char* name) {
    if (given) modes.emplace_back(name);
  };
  mode(arguments.search, "--search");
  mode(arguments.max_batch, "--max-batch");
  mode(arguments.max_model, "--max-model");
  mode(!arguments.questions.empty(), "--questions");
  mode(!arguments.score.empty(), "--score");
  mode(!arguments.sweep.empty(), "--sweep");
  mode(arguments.topology, "--topology");
  mode(arguments.convention == "megatron", "--convention megatron");
  mode(arguments.list_models, "--list-models");
  mode(arguments.list_hardware, "--list-hardware");
  if (modes.size() > 1) throw UsageError(join(modes, " and ") + ": choose one of them");
  if (arguments.json && (arguments.list_models || arguments.list_hardware)) {
    throw UsageError(Flag("json"), "does not apply to --list-models and --list-hardware; omit it");
  }
  if (top_given && !arguments.search && arguments.score.empty()) {
    throw UsageError(Flag("top"), "needs --search or --score");
  }
  if (!arguments.svg.empty() && arguments.sweep.empty() && !arguments.topology) {
    throw UsageError(Flag("svg"), "needs --sweep or --topology");
  }
}

constexpr std::size_t kLongestQuestion = 64 << 10;  // bytes

bool is_terminal(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  return fd.open() && ::isatty(fd.get()) == 1;
}

int plan_lines(const PlanArguments& arguments, const planner::Catalog& catalog) {
  std::ifstream file;
  if (arguments.questions != "-") {
    // Accepts pipes, whose lines are answered as they arrive. A folder would read as an empty file.
    const std::string kind = kind_of_file(arguments.questions);
    if (kind == "a folder" || (kind == "a character device" && !is_terminal(arguments.questions))) {
      throw UsageError(Flag("questions"),
                       str(quote(arguments.questions), " is ", kind,
                           "; must be a file or a pipe with a JSON object per line"));
    }
    file.open(arguments.questions);
    if (!file)
      throw UsageError(Flag("questions"),
                       str("cannot read ", quote(arguments.questions), ": ", std::strerror(errno),
                           "; must be a file, or - for stdin"));
  }
  std::istream& in = arguments.questions == "-" ? std::cin : file;
  std::string buffer(kLongestQuestion + 1, '\0'), out;
  for (std::int64_t number = 1; in.good(); ++number) {
    // Reads at most the buffer, however long the line is.
    in.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const bool has_end = in.good();  // gcount() counts it
    const std::string line = buffer.substr(0, as_size(in.gcount()) - (has_end ? 1 : 0));
    if (in.fail() && !in.eof() && !in.bad()) {
      if (print_out(out) != 0) return 1;
      throw DataError(str("--questions: line ", number, " of ", quote(arguments.questions),
                          " is longer than ", kLongestQuestion,
                          " bytes; must be a JSON object on one line"));
    }
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    out += planner::answer_line(arguments.settings, catalog, line) + "\n";
    if (out.size() > 1U << 16U) {
      if (print_out(out) != 0) return 1;
      out.clear();
    }
  }
  if (in.bad())
    throw DataError(str("--questions: reading ", quote(arguments.questions), " failed"));
  return print_out(out);
}

int search(const PlanArguments& arguments, const planner::Catalog& catalog) {
  planner::SearchRequest question = planner::search_request(arguments.settings, catalog);
  question.top = arguments.top;
  planner::SearchResult result;
  {
    ProgressOptions options;
    options.label = "searching";
    options.unit = "mesh";
    if (arguments.json) options.mode = ProgressMode::kSilent;
    std::optional<Progress> progress;  // created when the number of meshes is known
    result = planner::search(question, [&](std::int64_t done, std::int64_t total) {
      if (!progress) progress.emplace(total, options);
      progress->update(done);
    });
  }
  return print_out(arguments.json ? planner::to_json(result) + "\n" : report(result));
}

int score(const PlanArguments& arguments, const planner::Catalog& catalog) {
  const planner::Score answer =
      planner::score(planner::read_runs(arguments.score, arguments.settings, catalog));
  return print_out(arguments.json ? planner::to_json(answer) + "\n"
                                  : report(answer, static_cast<std::size_t>(arguments.top)));
}

int sweep(const PlanArguments& arguments, const planner::Catalog& catalog) {
  const planner::PlanSweep asked = planner::parse_plan_sweep(arguments.sweep);
  if (arguments.settings.has(asked.setting)) {
    throw UsageError(Flag("sweep"), str("--", asked.setting, " is given too; omit it"));
  }
  const auto rows = planner::sweep_plans(asked, arguments.settings, catalog);
  write_file("--svg", arguments.svg, [&] { return planner::plan_sweep_svg(asked, rows); });
  return print_out(arguments.json ? planner::to_json(asked, rows) + "\n" : report(asked, rows));
}

template <typename Answer>
int limits(const PlanArguments& arguments, const planner::RunConfig& question,
           const Answer& answer) {
  return print_out(arguments.json ? planner::to_json(answer) + "\n" : report(answer, question));
}

}  // namespace

int plan_command(int argc, char** argv) {
  PlanArguments arguments;
  CommandLine line("plan", "Predicts memory, traffic and time of a training run.", kPlanExamples);
  add_options(line, arguments);
  if (!line.parse(argc, argv)) return 0;
  check_modes(arguments, line.app().count("--top") > 0);
  if (arguments.list_models) return print_out(list_models());
  const planner::Catalog catalog = make_catalog(arguments.hardware_file);
  if (arguments.list_hardware) return print_out(list_hardware(catalog));
  if (!arguments.questions.empty()) return plan_lines(arguments, catalog);
  if (!arguments.score.empty()) return score(arguments, catalog);
  if (arguments.search) return search(arguments, catalog);
  if (!arguments.sweep.empty()) return sweep(arguments, catalog);
  const planner::RunConfig question = planner::look_up(arguments.settings, catalog);
  if (arguments.convention == "megatron") {
    const planner::MegatronReport answer = planner::megatron_report(planner::resolve(question));
    return print_out(arguments.json ? planner::to_json(answer) + "\n" : report(answer));
  }
  if (arguments.max_batch || arguments.max_model) {
    const planner::RunConfig resolved = planner::resolve(question);
    return arguments.max_batch ? limits(arguments, resolved, planner::largest_batches(resolved))
                               : limits(arguments, resolved, planner::largest_models(resolved));
  }
  if (arguments.topology) {
    const planner::RunConfig resolved = planner::resolve(question);
    write_file("--svg", arguments.svg, [&] { return planner::topology_svg(resolved); });
    return print_out(arguments.json ? planner::topology_json(resolved) + "\n"
                                    : planner::topology_text(resolved));
  }
  const planner::Plan plan = planner::make_plan(question);
  return print_out(arguments.json ? planner::to_json(plan) + "\n" : report(plan));
}

}  // namespace tessera::cli
