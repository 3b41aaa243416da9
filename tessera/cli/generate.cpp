// tessera generate: continues texts with a trained model.

#include <ATen/ops/tensor.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/cli/generate_output.h"
#include "tessera/cli/inference.h"
#include "tessera/cli/json_output.h"
#include "tessera/cli/model_tokenizer.h"
#include "tessera/cli/rank_failure.h"
#include "tessera/comm/launch.h"
#include "tessera/comm/mesh.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/log.h"
#include "tessera/core/most_ranks.h"
#include "tessera/core/progress.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/models/generate.h"
#include "tessera/train/memory_check.h"

namespace tessera::cli {
namespace {

constexpr const char* kGenerateExamples =
    "  tessera generate --from runs/a --prompt '3141592|' --temperature 0\n"
    "  tessera generate --from runs/a --prompt 271 --prompt 828 --tokens 20 --top-k 40 --seed 7\n"
    "  tessera generate --from runs/a --prompts prompts.txt --batch 16 --json > answers.jsonl\n"
    "  tessera generate --from runs/a --top-p 0.9 --min-p 0.05 --stop . < question.txt\n"
    "  tessera generate --from runs/a --tokenizer ids --prompt '3 1 4 10' --dtype bf16\n"
    "  tessera generate --from runs/a --prompt '3141592|' --tp 2\n"
    "  tessera generate --from runs/a --prompts prompts.txt --cp 2\n"
    "\n"
    "--from takes a checkpoint, the folder of a run or a Hugging Face folder. The same seed gives\n"
    "the same texts with any --batch.";

struct GenerateArguments : InferenceArguments {
  std::string tokenizer, prompts_file;
  std::vector<std::string> prompts, stops;
  int tokens = 100, top_k = 0, batch = 8;  // the first two are copied to `options`
  int cp = 1;
  models::GenerateOptions options = {.sampling = {.temperature = 0.8, .top_p = 0.95}};
  bool ignore_end = false;

  std::int64_t ranks() const { return std::int64_t{tp} * cp; }
};

void add_generate_options(CommandLine& line, GenerateArguments& a) {
  CLI::App& app = line.app();
  models::Sampling& sampling = a.options.sampling;
  add_model_options(line, a);
  app.add_option("--prompt", a.prompts, "text to continue; repeat for several texts")
      ->type_name("TEXT")
      ->allow_extra_args(false);  // one value each, even if it looks like a list
  app.add_option("--prompts", a.prompts_file,
                 "file with one text per line; .jsonl: {\"prompt\": TEXT}")
      ->type_name("FILE");
  line.integer(app, "--tokens", a.tokens, 1, 1 << 24, "most tokens to generate per text");
  line.number(app, "--temperature", sampling.temperature, 0, 1e6,
              "0: always the most likely token");
  line.integer(app, "--top-k", a.top_k, 0, 1 << 30,
               "sample only from the K most likely tokens; 0: all");
  line.number(app, "--top-p", sampling.top_p, 0, 1,
              "sample only from the most likely tokens with this total probability");
  line.number(app, "--min-p", sampling.min_p, 0, 1,
              "sample only tokens with at least this fraction of the highest probability");
  app.add_option("--stop", a.stops,
                 "string that ends a text and is not shown; may be repeated. $'\\n' is a line end")
      ->type_name("TEXT")
      ->allow_extra_args(false);  // one value each, even if it looks like a list
  app.add_flag("--ignore-end", a.ignore_end, "continue after the end-of-text token");
  app.add_option("--seed", a.options.seed, "seed of the sampling")->capture_default_str();
  line.integer(app, "--batch", a.batch, 1, 4096, "texts generated at the same time");
  line.dtype(app, "--dtype", a.dtype, train::kComputeTypes,
             "type of matrices and cache; auto: as the model is stored");
  line.integer(app, "--tp", a.tp, 1, 4096, "ranks that share every matrix and the cache");
  line.integer(app, "--cp", a.cp, 1, 4096,
               "ranks that share the tokens of each text: the prompt and the cache");
  add_device_options(line, a);
  app.add_option("--tokenizer", a.tokenizer,
                 "tokenizer.json, a folder with one, bytes, or ids; by default the model's")
      ->type_name("WHERE");
  app.add_flag("--json", a.json, "print a JSON object per text, and a summary");
}

bool takes_stdin(const GenerateArguments& a) { return a.prompts.empty() && a.prompts_file.empty(); }

std::vector<std::string> prompts_of(const GenerateArguments& a) {
  if (!a.prompts.empty() && !a.prompts_file.empty()) {
    throw UsageError(Flag("prompts"), "got --prompt too; use only one of them");
  }
  if (!a.prompts.empty()) return a.prompts;
  if (takes_stdin(a)) {
    if (::isatty(0) != 0) {
      throw UsageError("no text to continue; use --prompt, --prompts or text on stdin");
    }
    std::string text, piece(1 << 16, '\0');
    for (ssize_t got = 0; (got = ::read(0, piece.data(), piece.size())) > 0;) {
      text.append(piece, 0, static_cast<std::size_t>(got));
    }
    while (text.ends_with('\n')) text.pop_back();
    return {text};
  }
  std::vector<std::string> lines;
  const bool jsonl = a.prompts_file.ends_with(".jsonl");
  std::istringstream text(
      read_small_file(a.prompts_file, 1 << 30, "a file with a prompt in each line", "--prompts"));
  std::int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    if (!jsonl) {
      lines.push_back(line);
      continue;
    }
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string()) {
      throw DataError(str("--prompts: line ", number, " of ", quote(a.prompts_file),
                          " is not an object with a string \"prompt\""));
    }
    lines.push_back(json["prompt"]);
  }
  if (lines.empty()) {
    throw DataError(str("--prompts: ", quote(a.prompts_file), " has no line with text"));
  }
  return lines;
}

// Replaces stdin by a file with this text: rank 0 inherits it and reads it again.
void put_back_on_stdin(const std::string& text) {
  const Fd file(::memfd_create("prompt", 0));
  if (!file.open() || !write_all(file.get(), text) || ::lseek(file.get(), 0, SEEK_SET) != 0 ||
      ::dup2(file.get(), 0) != 0) {
    throw Error(str("cannot pass stdin to rank 0: ", std::strerror(errno)));
  }
}

std::vector<Answer> answers_for(const std::vector<std::string>& prompts,
                                const data::Tokenizer& tokenizer,
                                const std::vector<std::string>& stops) {
  std::vector<Answer> answers;
  for (const std::string& prompt : prompts) {
    std::string storage;
    const auto clean = data::clean_utf8(prompt, data::BadUtf8::replace, storage);
    std::vector<data::TokenId> ids;
    // [Note: beginning of a text]; no end token, since the text continues.
    ids = tokenizer.before_text();
    tokenizer.encode(clean.text, ids, {.special = true, .around = false});
    if (ids.empty()) {
      const auto start =
          tokenizer.begin_of_text() ? tokenizer.begin_of_text() : tokenizer.end_of_text();
      if (!start) throw UsageError("a prompt is empty, and the model has no begin-of-text token");
      ids.push_back(*start);
    }
    answers.push_back({std::string(clean.text),
                       {ids.begin(), ids.end()},
                       {},
                       models::TextStream(stops),
                       {},
                       {},
                       ""});
  }
  return answers;
}

std::unique_ptr<models::Decoder> load_decoder(train::ModelFiles& files,
                                              const models::DecoderOptions& options) {
  const ModelShape& shape = files.shape();
  ProgressOptions shown;
  shown.label = "loading";
  shown.unit = "M parameters";
  // No bar for small models, which load quickly.
  const std::int64_t own = shape.params() / options.tp.size();  // nearly
  if (own < 50'000'000 || options.tp.rank() != 0 || options.cp.rank() != 0) {
    shown.mode = ProgressMode::kSilent;
  }
  Progress bar(own / 1'000'000, shown);
  std::int64_t done = 0;
  auto decoder = models::make_decoder(shape, options,
                                      [&](const ParamSpec& spec, const at::Tensor& into,
                                          const Axes& axes, const Coordinate& coordinate) {
                                        files.read(spec, into, axes, coordinate);
                                        bar.update(std::min(own, done += into.numel()) / 1'000'000);
                                      });
  bar.finish();
  return decoder;
}

// Sets the number of concurrent texts and their maximum length.
void set_cache_size(const GenerateArguments& a, const ModelShape& shape,
                    const std::vector<Answer>& answers, models::DecoderOptions& options) {
  std::int64_t longest = 0;
  for (const Answer& answer : answers) {
    const auto length = static_cast<std::int64_t>(answer.ids.size());
    if (shape.longest() > 0 && length >= shape.longest()) {
      throw UsageError(str("a prompt has ", length, " tokens, but ", longest_reason(shape),
                           "; use a shorter prompt"));
    }
    longest = std::max(longest, length);
  }
  options.slots = std::min<std::int64_t>(a.batch, static_cast<std::int64_t>(answers.size()));
  options.capacity = longest + a.tokens;
  if (shape.longest() > 0) options.capacity = std::min(options.capacity, shape.longest());
}

// Throws if model and cache of `ranks` ranks do not fit into this host or the GPU.
void check_memory_of(const GenerateArguments& a, const train::ModelFiles& files,
                     const models::DecoderOptions& options, int ranks) {
  const ModelShape& shape = files.shape();
  const auto bytes = static_cast<std::int64_t>(at::elementSize(options.type));
  const double of_a_token = 2.0 * static_cast<double>(shape.layers * shape.kv_width() * bytes);
  const double cache = of_a_token * static_cast<double>(options.slots) *
                       static_cast<double>((options.capacity + a.cp - 1) / a.cp) / a.tp;
  const std::int64_t need =
      train::need_of_inference(shape, {.axes = {{Axis::tp, a.tp}},
                                       .element_bytes = bytes,
                                       .tokens = options.slots,
                                       .cache = static_cast<std::int64_t>(std::min(9e18, cache))});
  check_memory(a, need, options.device, ranks,
               "a smaller --batch or --tokens, or more --tp or --cp");
}

// Broadcasts the cache size from rank 0, which alone reads the prompts.
void share_sizes(const comm::Group& world, models::DecoderOptions& options) {
  if (world.size() == 1) return;
  const at::Tensor sizes =
      at::tensor(std::vector<std::int64_t>{options.slots, options.capacity}, at::kLong);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "sizes of the cache";
  world.broadcast(sizes, 0, call).wait();
  options.slots = sizes.data_ptr<std::int64_t>()[0];
  options.capacity = sizes.data_ptr<std::int64_t>()[1];
}

// Returns the group of all ranks.
comm::Group start_comm(const GenerateArguments& a) {
  if (a.ranks() == 1) return {};
  comm::InitOptions init;
  init.backend = a.backend;
  init.cuda = a.device == "cuda";
  init.deterministic = true;
  // Rank 0 may block on a slow reader of stdout.
  init.comm.timeout = std::chrono::hours(24);
  return comm::init(init);
}

// Returns the device, type and groups of this rank.
models::DecoderOptions rank_options(const GenerateArguments& a, const train::ModelFiles& files,
                                    const comm::Group& world) {
  models::DecoderOptions options;
  options.type = train::compute_type(a.dtype, files);
  const comm::Mesh mesh(world, Axes({{Axis::tp, a.tp}, {Axis::cp, a.cp}}));
  options.tp = mesh.tp();
  options.cp = mesh.group(Axis::cp);
  options.device = own_device(a, world);
  return options;
}

void print_speed(const models::Generated& done, double load_s, bool json) {
  const auto rate = [](std::int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  if (json) {
    print_out(json_text({{"summary",
                          {{"tokens", done.tokens},
                           {"prompt_tokens", done.read},
                           {"load_s", load_s},
                           {"prompt_s", done.read_s},
                           {"write_s", done.write_s},
                           {"tokens_per_s", rate(done.stepped, done.write_s)}}}},
                        -1));
    return;
  }
  write_all(2, str(plural(done.tokens, "token"), " in ", format_time(done.read_s + done.write_s),
                   ": ", format_time(done.read_s), " for ", plural(done.read, "token"),
                   " of prompts, then ", fixed(rate(done.stepped, done.write_s), 1),
                   " tokens/s; loaded in ", format_time(load_s), "\n"));
}

std::vector<std::string> notes_on(const GenerateArguments& a, const train::ModelFiles& files,
                                  const data::Tokenizer& tokenizer, std::int64_t longest) {
  std::vector<std::string> notes = files.notes();
  for (const std::string& note : tokenizer.notes()) notes.push_back(note);
  for (const std::string& stop : a.stops) {
    if (stop.find("\\n") == std::string::npos) continue;
    notes.push_back(
        str("--stop ", stop, " is a backslash and an n, as typed; in bash a line end is $'\\n'"));
  }
  notes.push_back(context_note(files.shape(), longest));
  return notes;
}

int generate_on_rank(const GenerateArguments& a, train::ModelFiles& files,
                     std::chrono::steady_clock::time_point began) {
  const comm::Group world = start_comm(a);
  models::DecoderOptions options = rank_options(a, files, world);
  if (world.rank() != 0) {
    share_sizes(world, options);
    load_decoder(files, options)->follow();
    world.barrier();
    return 0;
  }
  const std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_for(a.tokenizer, files);
  std::vector<Answer> answers = answers_for(prompts_of(a), *tokenizer, a.stops);
  std::vector<std::int64_t> ends = files.end_tokens();
  if (const auto end = tokenizer->end_of_text()) ends.push_back(*end);
  set_cache_size(a, files.shape(), answers, options);
  print_notes("generate", notes_on(a, files, *tokenizer, options.capacity));
  if (a.ranks() == 1 || !options.device.is_cpu()) check_memory_of(a, files, options, 1);
  share_sizes(world, options);
  const auto decoder = load_decoder(files, options);
  const double load_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  GenerateOutput output(answers, a.json);
  bool read = output.flush();
  std::vector<std::vector<std::int64_t>> texts;
  for (const Answer& answer : answers) texts.push_back(answer.ids);
  const models::Generated done =
      models::generate(*decoder, texts, a.options, [&](std::size_t i, std::int64_t token) {
        Answer& answer = answers[i];
        const bool last = !a.ignore_end && std::find(ends.begin(), ends.end(), token) != ends.end();
        if (!last) {
          answer.written.push_back(token);
          const std::string text = answer.stream.push(text_of(*tokenizer, answer));
          if (!text.empty()) read = read && output.more(i, text);
        }
        const auto length = static_cast<std::int64_t>(answer.written.size());
        const auto all = static_cast<std::int64_t>(answer.ids.size()) + length;
        answer.ended = last                                ? "end"
                       : answer.stream.stopped()           ? "stop"
                       : length >= a.tokens                ? "tokens"
                       : all > decoder->options().capacity ? "positions"
                                                           : "";
        if (*answer.ended != '\0') read = read && output.more(i, answer.stream.finish());
        return read && *answer.ended == '\0';
      });
  decoder->finish();
  world.barrier();
  print_speed(done, load_s, a.json);
  return 0;
}

// Reports errors once, before ranks are started.
void check_ranks(const GenerateArguments& a, const comm::Launch& launch) {
  check_device_options(a);
  const std::string product =
      a.cp == 1 ? str(a.tp) : str(a.tp, " × --cp ", a.cp, " = ", a.ranks(), " ranks");
  if (a.ranks() > kMaxRanks) {
    throw UsageError(Flag("tp"),
                     str("got ", product, "; must be at most ", kMaxRanks, ": ", kMaxRanksWhy));
  }
  if (a.ranks() > 1 && launch.launcher != "alone" && launch.size != a.ranks()) {
    throw UsageError(Flag("tp"), str("got ", product, ", but ", launch.launcher, " started ",
                                     launch.size, " ranks; the two must be equal"));
  }
}

}  // namespace

int generate_command(int argc, char** argv) {
  GenerateArguments a;
  CommandLine line("generate", "Continues texts with a trained model.", kGenerateExamples);
  add_generate_options(line, a);
  if (!line.parse(argc, argv)) return 0;
  a.options.tokens = a.tokens;
  a.options.sampling.top_k = a.top_k;
  try {
    check(a.options.sampling);
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()));
  }
  const comm::Launch launch = a.ranks() > 1 ? comm::detect_launch() : comm::Launch{};
  check_ranks(a, launch);
  const auto began = std::chrono::steady_clock::now();
  const std::unique_ptr<train::ModelFiles> files = open_model(a);
  if (a.ranks() == 1 || launch.launcher != "alone") {
    return report_to_launcher([&] { return generate_on_rank(a, *files, began); });
  }

  // Checks the inputs before starting the ranks, which read them again.
  const std::vector<std::string> prompts = prompts_of(a);
  models::DecoderOptions planned;
  planned.type = train::compute_type(a.dtype, *files);
  set_cache_size(a, files->shape(),
                 answers_for(prompts, *tokenizer_for(a.tokenizer, *files), a.stops), planned);
  const int ranks = static_cast<int>(a.ranks());
  if (a.device == "cpu") check_memory_of(a, *files, planned, ranks);
  if (takes_stdin(a)) put_back_on_stdin(prompts.front());
  return start_own_ranks(a, ranks, "generate", argc, argv);
}

}  // namespace tessera::cli
