// tessera explain parallel: data, tensor, context and pipeline parallelism compared for one model.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/explain_topics.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/core/errors.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/ways.h"

namespace tessera::cli {
namespace {

constexpr const char* kParallelExamples =
    "  tessera explain parallel --model llama2-7b --gpus 8\n"
    "  tessera explain parallel --model gpt3-13b --gpus 16 --hardware a100-80\n"
    "  tessera explain parallel --model gpt3-1.3b --gpus 8 --global-batch 128 --svg ways.svg\n"
    "  tessera explain parallel --model llama3-8b --gpus 8 --json\n"
    "\n"
    "All ways have the same global batch (8 sequences per GPU by default). Each has the\n"
    "micro-batch, recomputation and schedule that are fastest for it.";

// Wraps text at 88 columns.
std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t column = 0, at = 0;
  while (at < text.size()) {
    const std::size_t space = std::min(text.find(' ', at), text.size());
    const std::size_t word = space - at;
    if (column > 0 && column + 1 + word > 88) out += "\n", column = 0;
    if (column > 0) out += " ", ++column;
    out.append(text, at, word);
    column += word;
    at = space + 1;
  }
  return out + "\n";
}

std::string ways_text(const planner::WaysCompared& compared) {
  Table table("lrrrrrrl");
  table.row({"", "memory", "sent", "step", "waits", "bubble", "tokens/s", "with"});
  std::string refused;
  const planner::Plan* any = nullptr;
  for (const planner::Way& way : compared.ways) {
    if (!way.refused.empty()) {
      table.row({way.name, "-"});
      refused += str("  ", way.name, ": ", way.refused, "\n");
      continue;
    }
    const planner::Plan& plan = way.plan;
    const planner::RunConfig& q = plan.question;
    any = &plan;
    std::string with = str("micro-batch ", q.micro_batch, " × ", q.grad_accum);
    if (&way == &compared.ways.back()) {
      with = str(q.axes.words(" · "), ", ZeRO ", q.zero, ", ", with);
    }
    if (q.pipelined()) with += str(", ", q.schedule, q.chunks > 1 ? str("×", q.chunks) : "");
    if (q.sequence_parallel) with += ", sequence parallel";
    if (q.recompute != Recompute::none) with += str(", recompute ", name(q.recompute));
    if (!plan.fits) with = "does not fit";
    const auto of_step = [&](double seconds) {
      return plan.fits ? planner::percent(seconds / plan.time.step()) : "-";
    };
    table.row({way.name, planner::size(plan.needed()), planner::size(plan.traffic.total()),
               plan.fits ? format_time(plan.time.step()) : "-", of_step(plan.time.exposed()),
               of_step(plan.time.bubble),
               plan.fits ? format_grouped(std::llround(plan.tokens_per_s)) : "-", with});
  }
  std::string text;
  if (any != nullptr) {
    const planner::RunConfig& q = any->question;
    text = str(q.model.name.empty() ? format_count(q.model.params()) + " parameters" : q.model.name,
               " on ", q.world(), " × ", q.hardware.name, " (",
               planner::size(usable_memory(q.hardware)), " usable each), layout ", q.layout.name,
               ", seq ", q.seq, ", global batch ", q.global_batch, "\n\n");
  }
  text += table.text();
  if (!refused.empty()) text += "\nNot possible\n" + refused;
  return text + "\n" + wrapped(compared.conclusion);
}

}  // namespace

int explain_parallel(int argc, char** argv) {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  std::string svg;
  bool json = false;
  CommandLine line(
      "explain parallel",
      "Compares data, tensor, context and pipeline parallelism, and the best mix of them.",
      kParallelExamples);
  CLI::App& app = line.app();
  app.add_flag("--json", json, "print JSON");
  app.add_option("--svg", svg, "also write an SVG image")->type_name("FILE");
  add_plan_flags(app, settings);
  constexpr std::array kChosen = {"dp", "tp", "cp", "pp", "zero", "grad-accum", "micro-batch"};
  for (const char* own : kChosen) app.get_option(str("--", own))->group("");
  app.get_option("--model")->default_str("llama2-7b");
  app.get_option("--gpus")->default_str("8");
  app.get_option("--global-batch")->default_str("8 · gpus");
  if (!line.parse(argc, argv)) return 0;
  const bool modelled = settings.has("model") || settings.has("layers") || settings.has("hidden") ||
                        settings.has("params");
  if (!modelled) settings.set("model", "llama2-7b");
  for (const char* own : kChosen) {
    if (settings.has(own)) {
      throw UsageError(str("--", own, " is chosen for each way; use --gpus instead"), own);
    }
  }
  const auto compared = planner::compare_ways(planner::look_up(settings, make_catalog()));
  write_file("--svg", svg, [&] { return planner::ways_svg(compared); });
  return print_out(json ? planner::to_json(compared) + "\n" : ways_text(compared));
}

}  // namespace tessera::cli
