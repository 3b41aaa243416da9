// tessera explain collective: an all-reduce step by step, by ring, by tree or on two levels.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/explain_topics.h"
#include "tessera/core/errors.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/collective.h"

namespace tessera::cli {
namespace {

constexpr const char* kCollectiveExamples =
    "  tessera explain collective --ranks 8 --bytes 200MB --bandwidth 100GB/s\n"
    "  tessera explain collective --algorithm tree --bytes 10kB --latency 5us\n"
    "  tessera explain collective --algorithm two-level --ranks 16 --per-node 8 "
    "--between-bandwidth 25GB/s\n"
    "  tessera explain collective --ranks 4 --json\n";

// Formats the steps. Consecutive equal steps share a row.
std::string steps_text(const planner::CollectiveTrace& trace) {
  Table table("lrrr");
  table.row({"phase", "steps", "sent by a rank in each", "time of each"});
  for (std::size_t first = 0, last = 0; first < trace.steps.size(); first = last) {
    const planner::CollectiveTrace::Step& step = trace.steps[first];
    const auto alike = [&](const planner::CollectiveTrace::Step& other) {
      return other.phase == step.phase && other.bytes == step.bytes &&
             other.seconds == step.seconds;
    };
    while (last < trace.steps.size() && alike(trace.steps[last])) ++last;
    table.row(
        {step.phase, str(last - first), planner::size(step.bytes), format_time(step.seconds)});
  }
  return table.text();
}

// Lists the bytes sent by each rank if they differ: "600 MB by rank 0, 200 MB by ranks 1, 3".
std::string sent_text(const planner::CollectiveTrace& trace) {
  std::map<double, std::vector<std::string>, std::greater<>> ranks;
  for (std::size_t r = 0; r < trace.sent.size(); ++r) ranks[trace.sent[r]].push_back(str(r));
  if (ranks.size() < 2) return "";
  std::vector<std::string> groups;
  for (const auto& [bytes, all] : ranks) {
    groups.push_back(
        str(planner::size(bytes), all.size() > 1 ? " by ranks " : " by rank ", join(all, ", ")));
  }
  return "Sent: " + join(groups, "; ") + ".\n";
}

}  // namespace

int explain_collective(int argc, char** argv) {
  planner::CollectiveInput ask;
  ask.ranks = 8;
  std::int64_t bytes = 200'000'000;
  double between_bandwidth = 0;
  bool json = false;
  CommandLine line("explain collective",
                   "Shows an all-reduce step by step: what each step sends and how long it takes.",
                   kCollectiveExamples);
  CLI::App& app = line.app();
  line.choice(app, "--algorithm", ask.algorithm, planner::collective_algorithms(), "algorithm");
  line.integer(app, "--ranks", ask.ranks, 1, 64, "number of ranks");
  line.bytes(app, "--bytes", bytes, "size of the buffer");
  line.rate(app, "--bandwidth", ask.bandwidth, "of a link, in one direction");
  line.seconds(app, "--latency", ask.latency, "of a step");
  line.integer(app, "--per-node", ask.per_node, 1, 1024, "ranks on a node");
  line.rate(app, "--between-bandwidth", between_bandwidth,
            "of a link between nodes; by default --bandwidth");
  CLI::Option* const between_latency = line.seconds(app, "--between-latency", ask.between_latency,
                                                    "between nodes; by default --latency");
  app.add_flag("--json", json, "print JSON, with the values in every cell");
  if (!line.parse(argc, argv)) return 0;
  if (bytes < 1) throw UsageError(Flag("bytes"), str("got ", bytes, "; must be at least 1"));
  ask.bytes = static_cast<double>(bytes);
  ask.between_bandwidth = between_bandwidth > 0 ? between_bandwidth : ask.bandwidth;
  if (between_latency->count() == 0) ask.between_latency = ask.latency;
  const planner::CollectiveTrace trace = planner::trace_collective(ask);
  if (json) return print_out(planner::to_json(ask, trace) + "\n");
  return print_out(str(ask.algorithm, " all-reduce of ", planner::size(ask.bytes), " over ",
                       plural(ask.ranks, "rank"), "\n\n", steps_text(trace), "\nA rank sends ",
                       planner::size(trace.bytes_per_rank), " at most in ",
                       plural(static_cast<std::int64_t>(trace.steps.size()), "step"),
                       ", which take ", format_time(trace.seconds), "; the closed form gives ",
                       format_time(trace.closed_form), ".\n", sent_text(trace)));
}

}  // namespace tessera::cli
