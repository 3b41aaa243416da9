// tessera explain: shows a formula with its numbers. `explain sync` runs the engine on a small
// network and is part of tessera-torch.

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/explain_topics.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

constexpr const char* kExplainExamples =
    "  tessera explain zero --params 7B --dp 8\n"
    "  tessera explain parallel --model gpt3-1.3b --gpus 8\n"
    "  tessera explain tensor --model llama2-7b --tp 8 --bandwidth 300GB/s\n"
    "  tessera explain context --cp 4 --seq 8192\n"
    "  tessera explain experts --model qwen3-30b-a3b --dp 16 --ep 8 --zero 3 --recompute full\n"
    "  tessera explain limits --memory 80GB --layout bf16\n"
    "  tessera explain batch --micro-batch 4 --grad-accum 32 --dp 8 --seq 4096\n"
    "  tessera explain memory --model gpt2-xl --dp 8 --zero 1\n"
    "  tessera explain memory --params 70B --dp 64 --zero 3 --layout bf16-nomaster\n"
    "  tessera explain traffic --params 10B --dp 64 --zero 3\n"
    "  tessera explain ring --bytes 14GB --ranks 8 --bandwidth 600GB/s\n"
    "  tessera explain collective --algorithm tree --bytes 10kB --latency 5us\n"
    "  tessera explain bubble --pp 8 --grad-accum 32\n"
    "  tessera explain step --model llama3-8b --dp 8 --zero 1 --global-batch 64\n"
    "  tessera explain schedule --stages 4 --micro-batches 8 --schedule 1f1b\n"
    "  tessera explain sync --ranks 3\n";

// Topics that parse their own options.
struct OwnTopic {
  std::string_view name, summary;
  int (*run)(int argc, char** argv);
};
constexpr OwnTopic kOwnTopics[] = {
    {"zero", "DDP and the ZeRO stages side by side", explain_zero},
    {"parallel", "data, tensor, context and pipeline parallelism compared", explain_parallel},
    {"collective", "an all-reduce, step by step", explain_collective},
    {"schedule", "a drawing of a pipeline schedule", explain_schedule},
};

// Option that only some topics use.
struct TopicOption {
  const CLI::Option* option;
  std::string topics;  // "ring, tensor"
};

struct Words {
  std::string topic;
  planner::RunConfig settings = planner::RunConfig::for_plan();
  ExplainArguments arguments;
  std::vector<TopicOption> options;
};

void add_explain_options(CommandLine& line, Words& words) {
  CLI::App& app = line.app();
  std::vector<std::string> names;
  std::string help = "one of:";
  for (const ExplainTopic& topic : explain_topics()) {
    names.emplace_back(topic.name);
    help += str("\n", topic.name, ": ", topic.summary);
  }
  for (const OwnTopic& topic : kOwnTopics) {
    names.emplace_back(topic.name);
    help +=
        str("\n", topic.name, ": ", topic.summary, " (tessera explain ", topic.name, " --help)");
  }
  names.emplace_back("sync");
  help +=
      "\nsync: gradients of a small network before and after synchronization (tessera explain "
      "sync --help)";
  ExplainArguments& a = words.arguments;
  line.choice(app, "topic", words.topic, names, help)->required();
  const auto of = [&words](const char* topics, CLI::Option* option) {
    option->description(str(topics, ": ", option->get_description()));
    words.options.push_back({option, topics});
  };
  of("ring", line.bytes(app, "--bytes", a.bytes, "size of the buffer"));
  of("ring, overlap",
     line.integer(app, "--ranks", a.ranks, 1, 1'000'000, "number of ranks; by default --dp"));
  of("ring, tensor", line.rate(app, "--bandwidth", a.bandwidth, "of a link, in one direction"));
  of("ring, tensor", line.seconds(app, "--latency", a.latency, "of a step"));
  of("limits",
     line.bytes(app, "--memory", a.memory, "of a device; 0: the usable memory of the hardware"));
  of("overlap", line.seconds(app, "--transfer", a.transfer, "time of the communication"));
  of("overlap", line.seconds(app, "--hiding", a.hiding, "time of the concurrent computation"));
  of("overlap",
     line.number(app, "--overhead", a.overhead, 0, 10, "cost of each doubling, as a fraction"));
  of("bubble", line.seconds(app, "--forward", a.forward, "forward of a stage and micro-batch"));
  of("bubble", line.seconds(app, "--backward", a.backward, "backward of a stage and micro-batch"));
  of("bubble", line.seconds(app, "--hop", a.hop, "transfer between stages"));
  add_plan_flags(app, words.settings);
}

// Throws UsageError for options of other topics, which would be ignored silently.
void check_options(const Words& words) {
  for (const TopicOption& each : words.options) {
    if (each.option->count() == 0 || each.topics.find(words.topic) != std::string::npos) continue;
    throw UsageError(str(each.option->get_name(), ": applies only to ", each.topics, ", not to ",
                         words.topic, "; omit it"));
  }
}

}  // namespace

int explain_command(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "sync") {
    static char part[] = "explain_sync";
    std::vector<char*> arguments = {part};
    arguments.insert(arguments.end(), argv + 2, argv + argc);
    return execute_torch_program("explain sync", arguments);
  }
  for (const OwnTopic& topic : kOwnTopics) {
    if (argc < 2 || argv[1] != topic.name) continue;
    // Errors then refer to the help of the topic.
    return guarded(str("tessera explain ", topic.name),
                   [&] { return topic.run(argc - 1, argv + 1); });
  }
  Words words;
  CommandLine line("explain", "Prints a formula with its numbers, step by step.", kExplainExamples);
  add_explain_options(line, words);
  if (!line.parse(argc, argv)) return 0;
  const bool own = std::any_of(std::begin(kOwnTopics), std::end(kOwnTopics),
                               [&](const OwnTopic& topic) { return topic.name == words.topic; });
  if (own || words.topic == "sync") {
    throw UsageError(
        str(words.topic, ": must be the first argument: tessera explain ", words.topic));
  }
  check_options(words);
  if (words.settings.has("dp") && line.app().count("--ranks") == 0) {
    words.arguments.ranks = planner::look_up(words.settings, make_catalog()).dp();
  }
  // The formulas of a pipeline need no model: avoid an error because the default has few layers.
  const bool modelled = words.settings.has("model") || words.settings.has("layers") ||
                        words.settings.has("hidden") || words.settings.has("heads");
  if (words.topic == "bubble" && !modelled) words.settings.set("params", "1B");
  if (words.topic == "tensor" && !modelled && !words.settings.has("params")) {
    words.settings.set("model", "llama2-7b");
    if (!words.settings.has("tp")) words.settings.set("tp", "8");
  }
  if (words.topic == "context" && !modelled && !words.settings.has("params")) {
    words.settings.set("model", "llama3-8b");
    if (!words.settings.has("cp")) words.settings.set("cp", "4");
  }
  if (words.topic == "experts" && !modelled && !words.settings.has("params")) {
    words.settings.set("model", "mixtral-8x7b");
    const bool sized = words.settings.has("dp") || words.settings.has("gpus");
    if (!sized && !words.settings.has("ep")) words.settings.set("dp", "8");
    if (!sized && !words.settings.has("ep")) words.settings.set("ep", "8");
  }
  words.arguments.plan = planner::make_plan(planner::look_up(words.settings, make_catalog()));
  for (const ExplainTopic& topic : explain_topics()) {
    if (topic.name == words.topic) return print_out(topic.text(words.arguments));
  }
  return 1;
}

}  // namespace tessera::cli
