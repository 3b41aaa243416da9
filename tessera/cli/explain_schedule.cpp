// tessera explain schedule: draws a pipeline schedule, and shows the bubble of a real run with it.

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/explain_topics.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/schedule/draw.h"

namespace tessera::cli {
namespace {

constexpr const char* kScheduleExamples =
    "  tessera explain schedule --stages 4 --micro-batches 8 --schedule 1f1b\n"
    "  tessera explain schedule --schedule zb-h1 --svg zb.svg\n"
    "  tessera train --pp 2 --grad-accum 8 --metrics run.jsonl\n"
    "  tessera explain schedule --stages 2 --micro-batches 8 --metrics run.jsonl\n"
    "\n"
    "F3 is the forward of micro-batch 3 and B3 its backward; in zero-bubble schedules I3 and W3\n"
    "are its two halves. Dots are the bubble. A rank with several chunks has F3a, F3b, or F3, f3\n"
    "if there is no room.";

constexpr std::int64_t kMaxMetrics = std::int64_t{1} << 30;

struct ScheduleArguments {
  int stages = 4;
  int micros = 8;
  int chunks = 0;  // 0: the schedule's own
  int columns = 120;
  std::string schedule = "1f1b";
  double forward = 1, backward = 2;
  std::string svg, metrics;
};

std::string measured_bubble(const std::string& path) {
  std::istringstream lines(read_small_file(path, kMaxMetrics, "the metrics of a run", "--metrics"));
  std::string line, last;
  while (std::getline(lines, line)) {
    if (!line.empty()) last = line;
  }
  const auto json = nlohmann::json::parse(last, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("summary") || !json["summary"].contains("bubble")) {
    throw UsageError(Flag("metrics"),
                     str(quote(path),
                         " does not end with the summary of a run with a pipeline; must be the "
                         "output of tessera train --pp 2 --metrics"));
  }
  return str("measured in ", path, ": bubble ",
             fixed(100 * json["summary"]["bubble"].get<double>(), 1), "%\n");
}

}  // namespace

int explain_schedule(int argc, char** argv) {
  ScheduleArguments a;
  CommandLine line("explain schedule",
                   "Draws a pipeline schedule: the passes of each rank, the bubble and the "
                   "activations held.",
                   kScheduleExamples);
  CLI::App& app = line.app();
  line.integer(app, "--stages,--pp", a.stages, 1, 64, "ranks of the pipeline");
  line.integer(app, "--micro-batches,--grad-accum", a.micros, 1, 16384, "micro-batches per step");
  line.choice(app, "--schedule", a.schedule, schedule::names(), "schedule");
  line.integer(app, "--chunks", a.chunks, 1, 1024, "interleaved: stages per rank; by default 2")
      ->default_str("");
  line.number(app, "--forward", a.forward, 1e-6, 1e6, "time of a forward pass, in any unit");
  line.number(app, "--backward", a.backward, 1e-6, 1e6,
              "time of a backward pass, in the same unit");
  line.integer(app, "--columns", a.columns, 20, 10000, "width of the drawing");
  app.add_option("--svg", a.svg, "also write an SVG image")->type_name("FILE");
  app.add_option("--metrics", a.metrics, "metrics of a run whose bubble to show")
      ->type_name("FILE");
  if (!line.parse(argc, argv)) return 0;
  const schedule::Schedule schedule = schedule::make(a.schedule, a.stages, a.micros, a.chunks);
  if (a.chunks > 0 && a.chunks != schedule.chunks) {
    throw UsageError(Flag("chunks"),
                     str("got ", a.chunks, ", but --schedule ", a.schedule, " has ",
                         schedule.chunks, " on every rank; use --schedule interleaved"));
  }
  schedule::validate(schedule);
  const double share = 1.0 / schedule.chunks;  // of a rank's layers, per chunk
  const schedule::Durations durations{a.forward * share, a.backward * share / 2,
                                      a.backward * share / 2};
  std::string text = schedule::draw_text(schedule, durations, a.columns);
  if (!a.metrics.empty()) text += measured_bubble(a.metrics);
  write_file("--svg", a.svg, [&] { return schedule::draw_svg(schedule, durations); });
  return print_out(text);
}

}  // namespace tessera::cli
