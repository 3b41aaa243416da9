// tessera generate: continues texts with a trained model.

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/generate_text.h"
#include "tessera/cli/json_text.h"
#include "tessera/comm/gpus.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/log.h"
#include "tessera/core/progress.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/models/generate.h"
#include "tessera/train/model_files.h"

namespace tessera::cli {
namespace {

constexpr const char* kGenerateExamples =
    "  tessera generate --from runs/a --prompt '3141592|' --temperature 0\n"
    "  tessera generate --from runs/a --prompt 271 --prompt 828 --tokens 20 --top-k 40 --seed 7\n"
    "  tessera generate --from runs/a --prompts prompts.txt --batch 16 --json > answers.jsonl\n"
    "  tessera generate --from runs/a --top-p 0.9 --min-p 0.05 --stop . < question.txt\n"
    "  tessera generate --from runs/a --tokenizer ids --prompt '3 1 4 10' --dtype bf16\n"
    "\n"
    "--from takes a checkpoint, the folder of a run or a Hugging Face folder. The same seed gives\n"
    "the same texts, whatever --batch is.";

struct GenerateArguments {
  std::string from, tokenizer, prompts_file, dtype = "auto", device = "cpu";
  std::vector<std::string> prompts, stops;
  models::GenerateOptions options;
  int tokens = 100, top_k = 0, batch = 8, threads = 0;
  double temperature = 0.8, top_p = 0.95, min_p = 0;
  std::uint64_t seed = 0;
  bool ignore_end = false, json = false;
};

void add_generate_options(CommandLine& line, GenerateArguments& a) {
  CLI::App& app = line.app();
  app.add_option("--from", a.from, "the trained model")->required()->type_name("FOLDER");
  app.add_option("--prompt", a.prompts, "a text to continue; several times: several texts")
      ->type_name("TEXT")
      ->allow_extra_args(false);  // one each, also where it looks like a list
  app.add_option("--prompts", a.prompts_file,
                 "a file with a text in each line; .jsonl: {\"prompt\": TEXT}")
      ->type_name("FILE");
  line.integer(app, "--tokens", a.tokens, 1, 1 << 24, "to write for each text, at most");
  line.number(app, "--temperature", a.temperature, 0, 1e6, "0: always the likeliest token");
  line.integer(app, "--top-k", a.top_k, 0, 1 << 30, "only the so many likeliest tokens; 0: all");
  line.number(app, "--top-p", a.top_p, 0, 1,
              "only the likeliest tokens that together have this probability");
  line.number(app, "--min-p", a.min_p, 0, 1,
              "only tokens with this share of the likeliest's probability");
  app.add_option("--stop", a.stops, "ends a text, and is not shown; several times: any of them")
      ->type_name("TEXT")
      ->allow_extra_args(false);  // one each, also where it looks like a list
  app.add_flag("--ignore-end", a.ignore_end, "write on past the token that ends a text");
  app.add_option("--seed", a.seed, "of what is drawn")->capture_default_str();
  line.integer(app, "--batch", a.batch, 1, 4096, "texts that are written side by side");
  line.choice(app, "--dtype", a.dtype, {"auto", "bf16", "fp32"},
              "of matrices and cache; auto: as the model is stored");
  line.choice(app, "--device", a.device, {"cpu", "cuda"}, "where to compute");
  line.integer(app, "--threads", a.threads, 0, 4096, "0: as many as cores");
  app.add_option("--tokenizer", a.tokenizer,
                 "tokenizer.json, a folder with one, bytes, or ids; otherwise the model's")
      ->type_name("WHERE");
  app.add_flag("--json", a.json, "print a JSON object for each text, and one for all");
}

std::vector<std::string> prompts_of(const GenerateArguments& a) {
  if (!a.prompts.empty() && !a.prompts_file.empty()) {
    throw UsageError("--prompts: got --prompt too; wanted one of them");
  }
  if (!a.prompts.empty()) return a.prompts;
  if (a.prompts_file.empty()) {
    if (::isatty(0) != 0) {
      throw UsageError("there is nothing to continue; wanted --prompt, --prompts or text on stdin");
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
                          " is no object with a text \"prompt\""));
    }
    lines.push_back(json["prompt"]);
  }
  if (lines.empty()) {
    throw DataError(str("--prompts: ", quote(a.prompts_file), " has no line with a text"));
  }
  return lines;
}

// A text on its way: shown as it comes if it is the first that is not done, else later.
struct Answer {
  std::string prompt;
  std::vector<std::int64_t> ids;  // of the prompt
  std::vector<std::int64_t> written;
  models::TextStream stream;
  std::string shown, waiting;
  const char* ended = "";
};

// What the last token adds. It depends on the one before: some begin with a space, but for those
// that begin a text.
std::string text_of(const data::Tokenizer& tokenizer, const Answer& answer) {
  const auto id = [](std::int64_t token) { return static_cast<data::TokenId>(token); };
  const std::size_t count = answer.written.size();
  const data::TokenId last[] = {id(count > 1 ? answer.written[count - 2] : answer.ids.back()),
                                id(answer.written[count - 1])};
  // A vocabulary that is larger than the tokenizer's has tokens that stand for nothing.
  const auto known = [&](data::TokenId token) { return token < tokenizer.vocab(); };
  if (!known(last[1])) return "";
  if (!known(last[0])) return tokenizer.decode({&last[1], 1}, /*skip_special=*/true);
  const std::size_t before = tokenizer.decode({last, 1}, true).size();
  const std::string both = tokenizer.decode(last, true);
  return both.substr(std::min(before, both.size()));  // a decoder may take both for less
}

class GenerateOutput {
 public:
  GenerateOutput(std::vector<Answer>& answers, bool json) : answers_(answers), json_(json) {}

  // More of a text, or its end. False where nobody reads any more.
  bool more(std::size_t i, const std::string& text) {
    std::string storage;
    Answer& answer = answers_[i];
    const std::string clean(data::clean_utf8(text, data::BadUtf8::replace, storage).text);
    answer.shown += clean;
    answer.waiting += clean;
    return flush();
  }
  bool flush() {
    while (next_ < answers_.size()) {
      Answer& answer = answers_[next_];
      const bool done = *answer.ended != '\0';
      std::string text;
      if (json_) {
        if (!done) return true;
        text = json_text({{"prompt", answer.prompt},
                          {"text", answer.shown},
                          {"ended", answer.ended},
                          {"prompt_tokens", answer.ids.size()},
                          {"tokens", answer.written}},
                         -1);
      } else {
        if (!begun_) text = (next_ > 0 ? "\n" : "") + answer.prompt;
        begun_ = true;
        text += std::exchange(answer.waiting, {});
        if (done) text += "\n";
      }
      if (!text.empty() && !write_all(1, text)) {
        if (errno == EPIPE) return false;
        throw Error(str("cannot write to stdout: ", std::strerror(errno)));
      }
      if (!done) return true;
      begun_ = false;
      ++next_;
    }
    return true;
  }

 private:
  std::vector<Answer>& answers_;
  const bool json_;
  std::size_t next_ = 0;  // the first that is not done
  bool begun_ = false;    // its prompt has been shown
};

std::unique_ptr<models::Decoder> load_decoder(train::ModelFiles& files,
                                              const models::DecoderOptions& options) {
  const ModelShape& shape = files.shape();
  ProgressOptions shown;
  shown.label = "loading";
  shown.unit = "M parameters";
  // Small ones are there before a bar could be drawn.
  if (shape.params() < 50'000'000) shown.mode = ProgressMode::kSilent;
  Progress bar(shape.params() / 1'000'000, shown);
  std::int64_t done = 0;
  auto decoder =
      models::make_decoder(shape, options, [&](const std::string& name, const at::Tensor& into) {
        ParamSpec spec;
        spec.name = name;
        spec.shape = into.sizes().vec();
        files.read(spec, into);
        bar.update((done += into.numel()) / 1'000'000);
      });
  bar.finish();
  return decoder;
}

models::DecoderOptions decoder_options(const GenerateArguments& a, const train::ModelFiles& files,
                                       const std::vector<Answer>& answers) {
  const ModelShape& shape = files.shape();
  std::int64_t longest = 0;
  for (const Answer& answer : answers) {
    const auto length = static_cast<std::int64_t>(answer.ids.size());
    if (shape.longest() > 0 && length >= shape.longest()) {
      throw UsageError(str("a prompt has ", length, " tokens, and ", longest_reason(shape),
                           "; wanted a shorter one"));
    }
    longest = std::max(longest, length);
  }
  models::DecoderOptions options;
  options.type = a.dtype == "auto" ? files.type() : a.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  if (a.device == "cuda") {
    if (comm::gpu_count() == 0) {
      throw UsageError("--device: got cuda, but LibTorch finds no CUDA device; wanted cpu");
    }
    options.device = c10::Device(c10::kCUDA, 0);
  }
  options.slots = std::min<std::int64_t>(a.batch, static_cast<std::int64_t>(answers.size()));
  options.capacity = longest + a.tokens;
  if (shape.longest() > 0) options.capacity = std::min(options.capacity, shape.longest());
  return options;
}

void tell_speed(const models::Generated& done, double load_s, bool json) {
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

}  // namespace

int generate_command(int argc, char** argv) {
  GenerateArguments a;
  CommandLine line("generate", "Continues texts with a trained model.", kGenerateExamples);
  add_generate_options(line, a);
  if (!line.parse(argc, argv)) return 0;
  a.options.tokens = a.tokens;
  a.options.seed = a.seed;
  a.options.sampling = {a.temperature, a.top_k, a.top_p, a.min_p};
  try {
    check(a.options.sampling);
  } catch (const UsageError& error) {
    throw UsageError(str("--", error.what()));
  }
  if (a.threads > 0) at::set_num_threads(a.threads);

  const auto began = std::chrono::steady_clock::now();
  const std::unique_ptr<train::ModelFiles> files = train::open_model(a.from);
  const std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_for(a.tokenizer, *files);
  std::vector<Answer> answers;
  for (const std::string& prompt : prompts_of(a)) {
    std::string storage;
    const auto clean = data::clean_utf8(prompt, data::BadUtf8::replace, storage);
    std::vector<data::TokenId> ids;
    tokenizer->encode(clean.text, ids, {.special = true, .around = true});
    if (ids.empty()) {
      const auto start =
          tokenizer->begin_of_text() ? tokenizer->begin_of_text() : tokenizer->end_of_text();
      if (!start) throw UsageError("a prompt is empty, and no token of the model begins a text");
      ids.push_back(*start);
    }
    answers.push_back({std::string(clean.text),
                       {ids.begin(), ids.end()},
                       {},
                       models::TextStream(a.stops),
                       {},
                       {},
                       ""});
  }
  std::vector<std::int64_t> ends = files->end_tokens();
  if (const auto end = tokenizer->end_of_text()) ends.push_back(*end);

  const auto decoder = load_decoder(*files, decoder_options(a, *files, answers));
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
  tell_speed(done, load_s, a.json);
  return 0;
}

}  // namespace tessera::cli
