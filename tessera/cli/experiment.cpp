// tessera experiment: runs the rows of an experiment as separate processes and compares them.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/experiment_report.h"
#include "tessera/cli/experiment_run.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/cli/scratch_folder.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/median.h"
#include "tessera/core/progress.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/plan.h"
#include "tessera/process/own_ranks.h"
#include "tessera/process/rank_process.h"
#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"

namespace tessera::cli {
namespace {

constexpr const char* kExperimentExamples =
    "  tessera experiment --list\n"
    "  tessera experiment dp-zero2 --svg memory.svg        about 3 minutes on 2 cores\n"
    "  tessera experiment dp-zero2 --only R3,R6,R7 --json\n"
    "  tessera experiment dp-zero2 --scale gpu             gpt2-xl within 80 GB of a GPU\n"
    "  tessera calibrate --ranks 2 --threads 1 --out mine.toml\n"
    "  tessera experiment ablation --hardware-file mine.toml --hardware this-machine\n"
    "\n"
    "Rows with more ranks than this machine has run as one rank (--backend dry), for memory only.\n"
    "JSON: {experiment, scale, date, rows:[{run, zero, dp, memory, step_s, planned:{…}, …}], "
    "plot:[…],\n"
    "planner_differs:{memory:{…}, step:{…}}}, in bytes and seconds.";

std::atomic<int>& interrupt() {
  static std::atomic<int> signal{0};
  return signal;
}

struct Interrupted {
  int signal;
};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the end of a program's output, for a message.
std::string last_lines(const std::string& text) {
  constexpr std::size_t kMost = 1500;
  return text.size() <= kMost ? text : "…" + text.substr(text.size() - kMost);
}

// Runs `tessera train` as a separate process.
class TrainProcess {
 public:
  explicit TrainProcess(const ScratchFolder& folder) : folder_(folder) {}

  RunFacts operator()(const RunWords& words) const {
    const std::filesystem::path metrics = folder_.file("metrics.jsonl"), out = folder_.file("out"),
                                err = folder_.file("err");
    std::filesystem::remove(metrics);
    std::vector<std::string> command = process::own_command(0, nullptr);
    command.emplace_back("train");
    for (const auto& [name, value] : words) {
      if (value == "true" || value == "false") {
        command.push_back(str(value == "true" ? "--" : "--no-", name));
      } else {
        command.push_back(str("--", name));
        command.push_back(value);
      }
    }
    for (const std::string& word :
         {std::string("--metrics"), metrics.string(), std::string("--samples"), std::string("0"),
          std::string("--force")}) {
      command.push_back(word);
    }
    const int status = run(command, out, err);
    if (status == 0) return facts(metrics);
    RunFacts none;
    const std::string messages = text_of(err);
    const std::size_t at = messages.find("out of memory");
    if (at == std::string::npos) {
      throw Error(str("this command failed with status ", status, ":\n  ", join(command, " "), "\n",
                      last_lines(messages)));
    }
    const std::size_t line = messages.rfind('\n', at) + 1;
    none.why_not = messages.substr(line, messages.find('\n', at) - line);
    return none;
  }

 private:
  static Fd create(const std::filesystem::path& path) {
    Fd file(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
    if (!file.open()) throw Error(str("cannot write ", path.string(), ": ", std::strerror(errno)));
    return file;
  }

  static int run(const std::vector<std::string>& command, const std::filesystem::path& out,
                 const std::filesystem::path& err) {
    const Fd to_out = create(out), to_err = create(err);
    process::ProcessSpec spec;
    spec.path = command.front();
    spec.arguments = command;
    for (char** entry = environ; *entry != nullptr; ++entry) spec.environment.emplace_back(*entry);
    spec.out = to_out.get();
    spec.err = to_err.get();
    ::sigemptyset(&spec.signal_mask);
    const process::Started started = process::start_process(spec);
    if (started.exec_errno != 0) {
      throw Error(str("cannot start ", command.front(), ": ", std::strerror(started.exec_errno)));
    }
    int status = 0;
    bool terminated = false;
    for (;;) {
      if (interrupt() != 0 && !terminated) {
        terminated = true;
        ::kill(-started.pid, SIGTERM);
      }
      // Polls: a signal that arrives just before a blocking wait would be seen only when it
      // returns.
      const pid_t ended = ::waitpid(started.pid, &status, WNOHANG);
      if (ended == started.pid) break;
      if (ended < 0 && errno != EINTR) throw Error(str("waitpid: ", std::strerror(errno)));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (interrupt() != 0) throw Interrupted{interrupt()};
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  static RunFacts facts(const std::filesystem::path& metrics) {
    RunFacts out;
    out.fits = true;
    std::ifstream lines(metrics);
    std::map<std::string, std::vector<double>> seconds;
    bool ended = false;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (json.is_discarded()) continue;
      if (json.contains("summary")) {
        const auto& measured = json["summary"]["measured"];
        out.memory = measured["memory"].value("peak", 0.0);
        out.sent = measured.value("sent_bytes", 0.0);
        out.step = json["summary"].value("step_s", 0.0);
        ended = true;
      } else if (json.value("step", 0) > 1) {  // the first one warms up
        for (const char* name : {"comm_exposed_s", "forward_s", "backward_s", "optimizer_s"}) {
          seconds[name].push_back(json.value(name, 0.0));
        }
      }
    }
    if (!ended) throw Error(str("the run did not write a summary to ", metrics.string()));
    out.exposed = median(seconds["comm_exposed_s"]);
    out.forward = median(seconds["forward_s"]);
    out.backward = median(seconds["backward_s"]);
    out.optimizer = median(seconds["optimizer_s"]);
    return out;
  }

  const ScratchFolder& folder_;
};

// Predicts runs with the planner and the simulator.
class PlannerAnswers {
 public:
  PlannerAnswers(std::string hardware, const std::string& file)
      : catalog_(make_catalog(file)), hardware_(std::move(hardware)) {
    if (!hardware_.empty()) catalog_.find(hardware_);  // throws for a wrong name
  }

  Predicted operator()(const RunWords& words) const {
    const planner::RunConfig question = question_of(words);
    const planner::Plan plan = planner::plan_numbers(question);
    Predicted out;
    out.reserve = question.hardware.reserve;
    out.memory = plan.memory.total() - out.reserve;
    out.parameters = plan.parameters;
    out.step = plan.time.step();
    return out;
  }

  // Simulates the same step with the computing times of a run. Returns seconds.
  double simulated(const RunWords& words, const RunFacts& computing) const {
    simulator::Scenario scenario = simulator::scenario_of(question_of(words));
    const double micros = static_cast<double>(scenario.micros);
    for (planner::StepChunk& chunk : scenario.chunks.front()) {
      chunk.forward = computing.forward / micros;
      chunk.backward_input = chunk.backward_weight = computing.backward / micros / 2;
    }
    scenario.optimizer = computing.optimizer;
    return simulator::simulate(scenario).step;
  }

 private:
  planner::RunConfig question_of(const RunWords& words) const {
    planner::RunConfig settings = planner::RunConfig::for_plan();
    for (const auto& [name, value] : words) {
      if (name != "hardware") take_run_setting(name, value, settings);
    }
    const bool gpu = value_of(words, "device", "cpu") == "cuda";
    const std::string hardware = hardware_.empty() ? (gpu ? "h200" : "cpu") : hardware_;
    settings.set("hardware", hardware);
    settings.set("software", "tessera");
    if (value_of(words, "layout", "").empty()) settings.set("layout", "fp32");
    if (!gpu) settings.set("gpus-per-node", value_of(words, "dp", "1"));
    planner::RunConfig question = planner::look_up(settings, catalog_);
    throttle_link(question.hardware, words);
    return planner::resolve(question);
  }

  // Applies the link limits of the run. Transfers slow concurrent kernels down only while they
  // copy, which takes as long as without the limit.
  static void throttle_link(planner::Hardware& hardware, const RunWords& words) {
    const std::string rate = value_of(words, "link-bandwidth", ""),
                      time = value_of(words, "link-latency", "");
    if (!rate.empty()) {
      const double bandwidth = std::min(parse_rate(rate), hardware.inside.bandwidth);
      hardware.interference *= bandwidth / hardware.inside.bandwidth;
      hardware.inside.bandwidth = bandwidth;
    }
    if (!time.empty())
      hardware.inside.latency = std::max(hardware.inside.latency, parse_time(time));
  }

  planner::Catalog catalog_;
  std::string hardware_;
};

std::string today() {
  const time_t now = ::time(nullptr);
  struct tm parts {};
  ::gmtime_r(&now, &parts);
  char text[32];
  ::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

std::string list_of_experiments() {
  std::string text;
  for (const BuiltInExperiment& each : built_in_experiments()) {
    for (const char* scale : {"cpu", "gpu"}) {
      try {
        const Experiment found = parse_experiment(each.toml, each.name, scale);
        text += str(each.name, " --scale ", scale, "  ", found.title, "\n");
        for (const ExperimentRow& row : found.rows) {
          text += str("    ", row.name, ": ", row.what, "\n");
        }
      } catch (const UsageError&) {
        continue;  // does not have this scale
      }
    }
  }
  return text;
}

struct ExperimentArguments {
  std::string name, scale = "cpu", svg, hardware, hardware_file;
  std::vector<std::string> only;
  int ranks = 0;
  bool list = false, json = false;
};

void watch_interrupts() {
  interrupt().store(0);
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    action.sa_handler = [](int signal) { interrupt().store(signal); };
    ::sigaction(number, &action, nullptr);  // without SA_RESTART: interrupts waits
  }
}

ExperimentResults run_all(const Experiment& experiment, const ExperimentArguments& given) {
  const ScratchFolder folder("tessera-experiment");
  const TrainProcess train(folder);
  const PlannerAnswers planner(experiment.scale.hardware, given.hardware_file);
  watch_interrupts();
  ProgressOptions shown;
  shown.label = experiment.name;
  shown.unit = "row";
  std::optional<Progress> progress;
  ExperimentTools tools;
  tools.trains = train;
  tools.predicts = planner;
  tools.simulates = [&](const RunWords& words, const RunFacts& computing) {
    return planner.simulated(words, computing);
  };
  tools.report = [&](std::int64_t done, std::int64_t of, const std::string& what) {
    if (interrupt() != 0) throw Interrupted{interrupt()};
    if (!progress) progress.emplace(of, shown);
    progress->update(done, what);
  };
  // The points of the plot are also part of the JSON of all rows, so compute them without --svg.
  const bool plot = !given.svg.empty() || given.only.empty();
  ExperimentResults results = run_experiment(experiment, given.only, plot, tools);
  if (progress) progress->finish();
  return results;
}

}  // namespace

int experiment_command(int argc, char** argv) {
  ExperimentArguments given;
  CommandLine line("experiment",
                   "Runs an experiment: trains its rows, finds what fits, and compares with the "
                   "reported and planned figures.",
                   kExperimentExamples);
  CLI::App& app = line.app();
  app.add_option("name", given.name, "one of --list, or a TOML file")->type_name("NAME");
  line.choice(app, "--scale", given.scale, {"cpu", "gpu"},
              "small models on the CPU, or large ones on a GPU");
  app.add_flag("--list", given.list, "list the experiments with their rows and exit");
  app.add_flag("--json", given.json, "print the results as JSON");
  app.add_option("--svg", given.svg, "plot memory against DP into this file")->type_name("FILE");
  app.add_option("--only", given.only, "run only these rows and those that they refer to")
      ->delimiter(',')
      ->type_name("ROWS");
  app.add_option("--hardware", given.hardware, "hardware to plan with, instead of the experiment's")
      ->type_name("NAME");
  app.add_option("--hardware-file", given.hardware_file, "entries such as tessera calibrate writes")
      ->type_name("FILE");
  line.integer(app, "--ranks", given.ranks, 0, 4096,
               "most ranks to run at once; 0: as in the experiment");
  if (!line.parse(argc, argv)) return 0;
  if (given.list) return print_out(list_of_experiments());
  if (given.name.empty()) {
    throw UsageError(
        "the name of an experiment is missing; tessera experiment --list shows the names");
  }
  if (!given.svg.empty()) check_publishable(given.svg, "--svg");
  Experiment experiment = find_experiment(given.name, given.scale);
  if (given.ranks > 0) experiment.scale.real_ranks = given.ranks;
  if (!given.hardware.empty()) experiment.scale.hardware = given.hardware;
  if (!given.svg.empty() && experiment.plot.dp.empty()) {
    throw UsageError(Flag("svg"), str(experiment.name, " has no [plot]; omit --svg"));
  }
  ExperimentResults results;
  try {
    results = run_all(experiment, given);
  } catch (const Interrupted& by) {
    write_all(2, "tessera experiment: interrupted; nothing is left running\n");
    return 128 + by.signal;
  }
  write_file("--svg", given.svg, [&] { return experiment_svg(experiment, results); });
  if (given.json) return print_out(experiment_json(experiment, results, today()));
  return print_out(str(experiment_text(experiment, results), "  ", today(), ", ",
                       experiment.scale.name, " scale\n"));
}

}  // namespace tessera::cli
