// tessera explain zero: plain data parallelism and the ZeRO stages side by side.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/explain_topics.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/core/errors.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/stages.h"

namespace tessera::cli {
namespace {

using planner::RunConfig;
using planner::StageAnswer;

constexpr const char* kZeroExamples =
    "  tessera explain zero --params 7B --dp 8\n"
    "  tessera explain zero --params 70B --dp 64 --layout bf16-nomaster\n"
    "  tessera explain zero --model gpt2-xl --dp 8 --micro-batch 4 --svg zero.svg\n"
    "  tessera explain zero --params 13B --dp 8 --grad-accum 4 --json\n";

constexpr std::size_t kBarWidth = 56;

// Draws a bar of letters (p, g, o and a) instead of colors.
std::string stage_bar(const std::vector<std::pair<char, double>>& parts, double most) {
  std::string bar;
  double sum = 0;
  for (const auto& [letter, bytes] : parts) {
    sum += bytes;
    const auto end = static_cast<std::size_t>(
        std::llround(static_cast<double>(kBarWidth) * (most > 0 ? sum / most : 0)));
    if (end > bar.size()) bar.append(end - bar.size(), letter);
  }
  return bar;
}

std::string sharded_text(const StageAnswer& s) {
  std::vector<std::string> sharded;
  if (s.sharded.params) sharded.emplace_back("params");
  if (s.sharded.grads) sharded.emplace_back("grads");
  if (s.sharded.optimizer) sharded.emplace_back("optimizer");
  return sharded.empty() ? "nothing" : join(sharded, ", ");
}

std::string bytes_of_stages(const std::vector<StageAnswer>& stages) {
  const RunConfig& q = stages.front().plan.question;
  const bool sized = !q.state_only();
  Table table(sized ? "llrrrrrrl" : "llrrrr");
  std::vector<std::string> head = {"", "sharded", "params", "grads", "optimizer", "state"};
  if (sized) head.insert(head.end(), {"activations", "total", ""});
  table.row(head);
  for (const StageAnswer& s : stages) {
    const planner::Memory& m = s.plan.memory;
    std::vector<std::string> row = {s.name,
                                    sharded_text(s),
                                    planner::size(m.params),
                                    planner::size(m.grads),
                                    planner::size(m.optimizer),
                                    planner::size(m.params + m.grads + m.optimizer)};
    if (sized) {
      row.push_back(planner::size(m.activations));
      row.push_back(planner::size(m.total()));
      row.push_back(s.plan.fits ? "" : "too much");
    }
    table.row(row);
  }
  std::string text = str("Memory of a rank", sized ? " (total: with buffers and temporaries)" : "",
                         "\n", table.text());
  double most = 0;
  const auto kept = [&](const StageAnswer& s) {
    const planner::Memory& m = s.plan.memory;
    return m.params + m.grads + m.optimizer + (sized ? m.activations : 0);
  };
  for (const StageAnswer& s : stages) most = std::max(most, kept(s));
  Table bars("ll");
  for (const StageAnswer& s : stages) {
    const planner::Memory& m = s.plan.memory;
    bars.row({s.name, stage_bar({{'p', m.params},
                                 {'g', m.grads},
                                 {'o', m.optimizer},
                                 {'a', sized ? m.activations : 0}},
                                most)});
  }
  return text + "\n" + bars.text();
}

std::string traffic_of_stages(const std::vector<StageAnswer>& stages) {
  const RunConfig& q = stages.front().plan.question;
  const double least = stages.front().sent();
  Table table("lrrrrr");
  table.row({"", "forward", "backward", "optimizer step", "total", "of DDP"});
  for (const StageAnswer& s : stages) {
    table.row({s.name, planner::size(s.forward), planner::size(s.backward),
               planner::size(s.optimizer), planner::size(s.sent()),
               least > 0 ? fixed(s.sent() / least, 2) + "×" : "-"});
  }
  return str("\nBytes that a rank sends along dp in a step of ", q.micros(),
             q.micros() > 1 ? " micro-batches" : " micro-batch", " (ring)\n", table.text(),
             "  backward reduces gradients; forward and backward of stage 3 gather parameters; "
             "after the\n  step stages 1 and 2 gather the updated parameters\n");
}

std::string copies_of_stages(const std::vector<StageAnswer>& stages) {
  const RunConfig& q = stages.front().plan.question;
  Table table("lrr");
  table.row({"", "total state", "copies"});
  for (const StageAnswer& s : stages) {
    table.row({s.name, planner::size(s.held), fixed(s.copies(), 2)});
  }
  return str("\nThe whole cluster of ", plural(q.world(), "GPU"), "; one copy of the state is ",
             planner::size(stages.front().one_copy), "\n", table.text());
}

// Draws one cell per shard, at most eight.
std::string shard_cells(bool sharded, int rank, int dp, int cells) {
  std::string text;
  for (int c = 0; c < cells; ++c) {
    const bool own = static_cast<std::int64_t>(rank) * cells / dp == c;
    text += !sharded || own ? "█" : "·";
  }
  return text;
}

std::string owners_of_stages(const std::vector<StageAnswer>& stages) {
  const RunConfig& q = stages.back().plan.question;
  const int dp = q.copies(), shards = q.shards(), cells = std::min(shards, 8);
  if (dp == 1) return "\nOne replica owns everything: there is nothing to shard over.\n";
  std::vector<int> shown;
  for (int r = 0; r < std::min(dp, 4); ++r) shown.push_back(r);
  if (dp > 4) shown.push_back(dp - 1);
  Table table("llllll");
  table.row({"", "rank", "params", "grads", "optimizer", ""});
  for (const StageAnswer& s : stages) {
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const int r = shown[i];
      if (dp > 5 && i + 1 == shown.size()) table.row({"", "…"});
      table.row({i == 0 ? s.name : "", str(r),
                 shard_cells(s.sharded.params, r % shards, shards, cells),
                 shard_cells(s.sharded.grads, r % shards, shards, cells),
                 shard_cells(s.sharded.optimizer, r % shards, shards, cells)});
    }
  }
  const auto params =
      static_cast<std::int64_t>(std::min(std::round(stages.front().plan.on_a_rank), 9e18));
  const planner::OwnedRange first = planner::owned_range(params, shards, 0);
  const planner::OwnedRange last = planner::owned_range(params, shards, shards - 1);
  return str("\nOwned shards (█ on this rank, · on another)\n", table.text(), "  of ",
             format_grouped(params), " parameters dp rank 0 owns 0 to ",
             format_grouped(std::max<std::int64_t>(first.last - 1, 0)), ", the last rank ",
             format_grouped(last.first), " to ", format_grouped(params - 1), "\n");
}

// Returns a paragraph on hybrid sharding, or "" if there is one replica.
std::string hybrid_words(const RunConfig& q) {
  if (q.replicas() == 1) return "";
  return str("\nHybrid sharding: ", q.copies(), " data-parallel ranks are ", q.replicas(),
             " replicas of ", q.shards(), ". State is sharded over the ", q.shards(),
             "\nranks of a replica, so a rank keeps ", q.replicas(),
             " times its share of all ranks. Parameters are gathered inside\na replica; gradients "
             "are reduce-scattered inside it, and then the shards all-reduced over the\n",
             q.replicas(),
             " replicas. Between nodes only those shards travel, if a replica is a "
             "node. DDP has no replicas:\nthere every rank holds everything.\n");
}

std::string zero_text(const std::vector<StageAnswer>& stages) {
  const planner::Plan& plan = stages.back().plan;
  const RunConfig& q = plan.question;
  return str(q.state_only() || q.model.name.empty() ? "" : q.model.name + ", ",
             format_grouped(std::llround(std::min(plan.parameters, 9e18))), " parameters, layout ",
             q.layout.name, " = ", q.layout.param, " + ", q.layout.grad, " + ",
             q.layout.optimizer(), " bytes, ", q.axes.words(" · "), "\n\n", bytes_of_stages(stages),
             traffic_of_stages(stages), copies_of_stages(stages), owners_of_stages(stages),
             hybrid_words(q),
             "\nFSDP calls stage 0 NO_SHARD, 2 SHARD_GRAD_OP, 3 FULL_SHARD; Megatron-LM's "
             "distributed optimizer\nis stage 1 in memory. --dp-replicate is FSDP's "
             "HYBRID_SHARD.\n");
}

}  // namespace

int explain_zero(int argc, char** argv) {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  std::string svg;
  bool json = false;
  CommandLine line("explain zero",
                   "Compares DDP and ZeRO-1, 2, 3: what is sharded, memory, traffic and owners.",
                   kZeroExamples);
  CLI::App& app = line.app();
  app.add_flag("--json", json, "print JSON");
  app.add_option("--svg", svg, "also write an SVG image")->type_name("FILE");
  add_plan_flags(app, settings);
  // Defaults of this topic. --zero is hidden because all stages are compared.
  app.get_option("--model")->default_str("");
  app.get_option("--params")->default_str("7B");
  app.get_option("--dp")->default_str("8");
  app.get_option("--zero")->group("");
  if (!line.parse(argc, argv)) return 0;
  if (settings.has("zero")) {
    throw UsageError(Flag("zero"), "all stages are shown side by side; omit it");
  }
  const bool modelled = settings.has("model") || settings.has("layers") || settings.has("hidden");
  if (!modelled && !settings.has("params")) settings.set("params", "7B");
  if (!settings.has("dp") && !settings.has("gpus") && !settings.has("nodes")) {
    settings.set("dp", "8");
  }
  if (settings.has("dp-replicate")) settings.set("zero", "3");  // stage 0 has no replicas
  const auto stages =
      planner::compare_stages(planner::resolve(planner::look_up(settings, make_catalog())));
  write_file("--svg", svg, [&] { return planner::stages_svg(stages); });
  return print_out(json ? planner::to_json(stages) + "\n" : zero_text(stages));
}

}  // namespace tessera::cli
