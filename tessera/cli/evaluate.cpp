// tessera evaluate: measures the loss of a trained model, on one rank or a mesh.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/cli/commands.h"
#include "tessera/cli/inference.h"
#include "tessera/cli/json_output.h"
#include "tessera/cli/rank_failure.h"
#include "tessera/comm/launch.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/most_ranks.h"
#include "tessera/core/progress.h"
#include "tessera/core/text.h"
#include "tessera/data/data_set.h"
#include "tessera/data/tokenizer.h"
#include "tessera/train/evaluate.h"
#include "tessera/train/memory_check.h"

namespace tessera::cli {
namespace {

constexpr const char* kEvaluateExamples =
    "  tessera evaluate --from runs/a --data synthetic --batches 20\n"
    "  tessera evaluate --from runs/a --data synthetic --batches 20 --dp 2 --json\n"
    "  tessera evaluate --from runs/a --data synthetic --batches 4 --tp 2 --dtype bf16\n"
    "  tessera evaluate --from runs/a --data synthetic --batches 4 --cp 2\n"
    "  tessera evaluate --from runs/moe --data synthetic --batches 4 --dp 2 --ep 2\n"
    "  tessera evaluate --from runs/b --data book.txt --seq 64 --batch 4\n"
    "\n"
    "--from takes a checkpoint of any mesh, the folder of a run or a Hugging Face folder; --data\n"
    "takes the same as --val-data of tessera train. The result is the same on every mesh.";

struct EvaluateArguments : InferenceArguments {
  std::string data, documents = "join";
  std::string cp_kind = "auto";
  int batch = 8, batches = 0, seq = 0, dp = 1, cp = 1, ep = 1, pp = 1;

  Axes axes() const {
    return Axes(
        {{Axis::dp_shard, dp}, {Axis::cp, cp}, {Axis::ep, ep}, {Axis::tp, tp}, {Axis::pp, pp}});
  }
  // "--dp 2 × --tp 2 × --pp 1 = 4"
  std::string product() const {
    return str("--dp ", dp, cp > 1 ? str(" × --cp ", cp) : "", " × --tp ", tp, " × --pp ", pp,
               " = ", axes().world());
  }
  int ranks() const { return static_cast<int>(axes().world()); }  // after the kMaxRanks check
};

// Throws UsageError if the data was tokenized differently from the model's training data.
void check_same_tokenizer(const EvaluateArguments& a, const train::ModelFiles& files,
                          const data::Source& source) {
  if (source.vocab() > files.shape().vocab) {
    throw UsageError(Flag("data"), str(source.name(), " has ", source.vocab(),
                                       " different tokens; must be at most the ",
                                       files.shape().vocab, " of the model in ", files.folder()));
  }
  // Token ids of the sorting task have another meaning than those of text.
  const bool digits = files.data() == "synthetic";
  const bool known = !files.data().empty() && files.data() != "unknown";
  if (known && digits != (a.data == "synthetic")) {
    throw UsageError(digits ? str("--data: got ", quote(a.data), ", but the model of ",
                                  files.folder(), " was trained to sort digits; must be synthetic")
                            : str("--data: got synthetic (digits to sort), but the model of ",
                                  files.folder(), " was trained on ", quote(files.data()),
                                  "; must be tokens or text of that kind"));
  }
  std::string own = files.tokenizer();
  if (own.empty() && files.huggingface() && !source.fingerprint().empty()) {
    own = data::load_tokenizer(files.tokenizer_folder())->fingerprint();
  }
  if (own == source.fingerprint() || (own.empty() && !files.huggingface())) return;
  if (source.fingerprint().empty() && !data::has_tokens(a.data)) {
    throw UsageError(
        Flag("data"),
        str(quote(a.data), " would be read byte by byte, but the model of ", files.folder(),
            " was trained with a tokenizer. Tokenize the text with it: "
            "tessera data prepare"));
  }
  if (own.empty() || source.fingerprint().empty()) return;  // the tokens have no fingerprint
  throw UsageError(Flag("data"),
                   str(source.name(), " was made with another tokenizer (", source.fingerprint(),
                       ") than the model of ", files.folder(), " (", own, "); must be the same"));
}

// Throws UsageError if --ep does not fit the model.
void check_ep(const EvaluateArguments& a, const ModelShape& shape) {
  const std::int64_t count = shape.experts.count;
  if (a.ep == 1 || a.ep <= count) return;
  throw UsageError(Flag("ep"), str("got ", a.ep, ", but ",
                                   count == 0 ? std::string("the model has no experts. Omit --ep")
                                              : str("each layer has ", count,
                                                    " experts; must be at most their number")));
}

struct Opened {
  std::unique_ptr<train::ModelFiles> files;
  std::unique_ptr<data::Source> source;
};
Opened open_all(const EvaluateArguments& a) {
  Opened all;
  all.files = open_model(a);
  const ModelShape& shape = all.files->shape();
  check_ep(a, shape);
  data::DataOptions options;
  options.val_data = a.data;
  options.documents = a.documents;
  options.seq = a.seq > 0              ? a.seq
                : all.files->seq() > 0 ? all.files->seq()
                : shape.longest() > 0  ? std::min<std::int64_t>(shape.longest(), 1024)
                                       : 1024;
  if (shape.longest() > 0 && options.seq > shape.longest()) {
    throw UsageError(Flag("seq"), str("got ", options.seq, ", but ", longest_reason(shape),
                                      "; must be at most ", shape.longest()));
  }
  all.source = data::validation_source(options);
  check_same_tokenizer(a, *all.files, *all.source);
  all.source->check(shape.vocab);
  train::batches_of(*all.source, a.batch, a.batches);
  return all;
}

void check_batch_memory(const EvaluateArguments& a, const Opened& all, c10::Device device,
                        int ranks) {
  const auto bytes =
      static_cast<std::int64_t>(at::elementSize(train::compute_type(a.dtype, *all.files)));
  const std::int64_t need = train::need_of_inference(
      all.files->shape(),
      {.axes = a.axes(), .element_bytes = bytes, .tokens = a.batch * all.source->seq() / a.cp});
  check_memory(a, need, device, ranks, "a smaller --batch or --seq");
}

int evaluate_on_rank(const EvaluateArguments& a, Opened all) {
  comm::InitOptions init;
  init.backend = a.backend;
  init.cuda = a.device == "cuda";
  const comm::Group world = comm::init(init);
  const comm::Mesh mesh(world, a.axes());
  train::EvaluateOptions options;
  options.batch = a.batch;
  options.batches = a.batches;
  options.type = train::compute_type(a.dtype, *all.files);
  options.context = find_named<ContextKind>(a.cp_kind).value();
  options.device = own_device(a, world);
  if (!options.device.is_cpu()) check_batch_memory(a, all, options.device, 1);
  std::optional<Progress> bar;
  const auto show = [&](std::int64_t done, std::int64_t total) {
    if (world.rank() != 0) return;
    if (!bar) {
      ProgressOptions shown;
      shown.label = "evaluating";
      shown.unit = "batch";
      bar.emplace(total, shown);
    }
    bar->update(done);
  };
  const train::Evaluation result = train::evaluate(*all.files, *all.source, mesh, options, show);
  if (bar) bar->finish();
  if (world.rank() == 0) {
    if (a.json) {
      auto json = nlohmann::ordered_json::parse(train::to_json(result));
      json["from"] = all.files->folder();
      json["data"] = all.source->name();
      json["seq"] = all.source->seq();
      json["dtype"] = options.type == at::kFloat ? "fp32" : "bf16";
      json["mesh"] = {{"dp", a.dp}, {"cp", a.cp}, {"ep", a.ep}, {"tp", a.tp}, {"pp", a.pp}};
      print_out(json_text(json, -1));
    } else {
      print_out(str(all.source->name(), ": ", train::describe(result), "\n"));
    }
  }
  world.barrier();
  return 0;
}

}  // namespace

int evaluate_command(int argc, char** argv) {
  EvaluateArguments a;
  CommandLine line("evaluate", "Measures the loss of a trained model on tokens or text.",
                   kEvaluateExamples);
  CLI::App& app = line.app();
  add_model_options(line, a);
  app.add_option("--data", a.data, "tokens or a text file that the model was not trained on")
      ->required()
      ->type_name("PATH");
  line.integer(app, "--batches", a.batches, 0, 1 << 30,
               "most batches to evaluate; 0: all of the data");
  line.integer(app, "--batch", a.batch, 1, 1 << 20, "sequences computed at once");
  line.integer(app, "--seq", a.seq, 0, 1 << 24,
               "tokens in a sequence; 0: as in training, or at most 1024");
  line.choice(app, "--documents", a.documents, {"join", "separate"},
              "join: tokens attend to earlier documents of their sequence; separate: they do not");
  line.integer(app, "--dp", a.dp, 1, 4096, "replicas, which share the data");
  line.integer(app, "--cp", a.cp, 1, 4096, "ranks that share the tokens of each sequence");
  line.choice(app, "--cp-kind", a.cp_kind, {"auto", "ring", "ulysses"},
              "attention with --cp; auto: ulysses if --cp divides the heads, otherwise ring");
  line.integer(app, "--ep", a.ep, 1, 4096,
               "ranks that share the experts of each layer; must divide --dp times --cp");
  line.integer(app, "--tp", a.tp, 1, 4096, "ranks that share every matrix");
  line.integer(app, "--pp", a.pp, 1, 4096, "ranks that share the layers");
  line.dtype(app, "--dtype", a.dtype, train::kComputeTypes, "auto: as the model is stored");
  add_device_options(line, a);
  app.add_flag("--json", a.json, "print JSON");
  if (!line.parse(argc, argv)) return 0;

  if (a.axes().world() > kMaxRanks) {
    throw UsageError(str(a.product(), " ranks; must be at most ", kMaxRanks, ": ", kMaxRanksWhy),
                     "dp");
  }
  a.axes().check_experts();
  const comm::Launch launch = comm::detect_launch();
  check_device_options(a);
  if (launch.launcher != "alone" && launch.size != a.ranks()) {
    throw UsageError(str(a.product(), ", but ", launch.launcher, " started ", launch.size,
                         " ranks; the two must be equal"),
                     "dp");
  }
  // Reports errors once, before ranks are started.
  Opened all = open_all(a);
  if (a.device == "cpu") {
    // Before the OOM killer ends a rank.
    check_batch_memory(a, all, c10::kCPU,
                       launch.launcher == "alone" ? a.ranks() : launch.local_size);
  }
  if (a.ranks() == 1 || (launch.launcher != "alone" && launch.rank == 0)) {
    std::vector<std::string> notes = all.files->notes();
    notes.push_back(context_note(all.files->shape(), all.source->seq()));
    print_notes("evaluate", notes);
  }
  if (launch.launcher != "alone" || a.ranks() == 1) {
    return report_to_launcher([&] { return evaluate_on_rank(a, std::move(all)); });
  }
  return start_own_ranks(a, a.ranks(), "evaluate", argc, argv);
}

}  // namespace tessera::cli
