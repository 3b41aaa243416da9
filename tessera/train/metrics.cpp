#include "tessera/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/log.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"

namespace tessera::train {

std::string to_json(const Evaluation& evaluation) {
  nlohmann::ordered_json json = {{"loss", evaluation.loss()},
                                 {"perplexity", evaluation.perplexity()}};
  if (evaluation.bytes > 0) json["bits_per_byte"] = evaluation.bits_per_byte();
  json["tokens"] = evaluation.tokens;
  return json.dump();
}

std::string describe(const Evaluation& evaluation) {
  return str(
      "loss ", fixed(evaluation.loss(), 4), ", perplexity ", fixed(evaluation.perplexity(), 2),
      evaluation.bytes > 0 ? str(", ", fixed(evaluation.bits_per_byte(), 4), " bits per byte")
                           : std::string(),
      " (", plural(evaluation.tokens, "token"), ")");
}

namespace {

using Json = nlohmann::ordered_json;

Json json_number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json outcome(const Outcome& from) {
  Json memory = Json::object();
  for (const std::string_view name : kMemoryCategoryNames) {
    const auto found = from.memory.find(std::string(name));
    if (found != from.memory.end()) memory[found->first] = found->second;
  }
  for (const auto& [name, bytes] : from.memory) memory[name] = bytes;
  Json json = {{"memory", std::move(memory)}};
  if (from.step_s) json["step_s"] = json_number(*from.step_s);
  if (from.sent) {
    json["sent_bytes"] = sum(*from.sent);
    for (const Axis axis : kPrintedAxes)
      json["sent"][std::string(axis_name(axis))] = (*from.sent)[axis];
  }
  return json;
}

// Adds an array by rank for each phase that is not 0 on some rank. Times are rounded to 0.1 µs to
// keep the lines of many ranks short.
void put_ranks(Json& json, const std::vector<RankPhases>& ranks,
               const std::vector<SlowRank>& slow_ranks) {
  for (std::size_t p = 0; p < kPhaseNames.size(); ++p) {
    const auto has = [p](const RankPhases& rank) { return rank[p] != 0; };
    if (std::none_of(ranks.begin(), ranks.end(), has)) continue;
    Json& column = json["ranks"][std::string(kPhaseNames[p])] = Json::array();
    for (const RankPhases& rank : ranks) {
      column.push_back(json_number(std::round(rank[p] * 1e7) / 1e7));
    }
  }
  for (const SlowRank& slow : slow_ranks) {
    json["slow_ranks"].push_back(
        {{"rank", slow.rank}, {"phase", slow.phase}, {"factor", json_number(slow.factor)}});
  }
}

}  // namespace

std::string to_json(const StepMetrics& step) {
  Json json = {
      {"step", step.step},
      {"loss", json_number(step.loss)},
      {"grad_norm", json_number(step.grad_norm)},
      {"lr", json_number(step.lr)},
      {"tokens", step.tokens},
      {"tokens_per_s", json_number(step.tokens_per_s())},
      {"step_s", json_number(step.step_s)},
      {"forward_s", json_number(step.forward_s)},
      {"backward_s", json_number(step.backward_s)},
      {"comm_s", json_number(step.comm_s)},
      {"comm_exposed_s", json_number(step.comm_exposed_s)},
      {"optimizer_s", json_number(step.optimizer_s)},
      {"data_s", json_number(step.data_s)},
      {"data_prepare_s", json_number(step.data_prepare_s)},
      {"mem_bytes", step.mem_bytes},
      {"mem_peak_bytes", step.mem_peak_bytes},
      {"sent_bytes", step.sent_bytes},
      {"control_bytes", step.control_bytes},
  };
  if (step.bubble_s > 0) json["bubble_s"] = json_number(step.bubble_s);
  if (step.graph_s > 0) json["graph_s"] = json_number(step.graph_s);
  if (step.gpu) {
    json["gpu"] = {{"utilization", step.gpu->utilization},
                   {"memory_used_bytes", step.gpu->memory_used},
                   {"sm_mhz", step.gpu->sm_mhz},
                   {"power_w", json_number(step.gpu->power_w)},
                   {"temperature_c", step.gpu->temperature_c}};
  }
  if (step.loss_scale != 1) json["loss_scale"] = json_number(step.loss_scale);
  if (step.skipped) json["skipped"] = true;
  if (!step.non_finite.empty()) json["non_finite"] = step.non_finite;
  if (step.save_exposed_s) json["save_exposed_s"] = json_number(*step.save_exposed_s);
  if (step.evaluation) json["eval"] = Json::parse(to_json(*step.evaluation));
  for (const ExpertLoad& load : step.experts) {
    Json& layer = json["experts"].emplace_back();
    layer = {{"layer", load.layer},
             {"tokens", load.tokens},
             {"imbalance", json_number(load.imbalance())},
             {"dropped", json_number(load.dropped)},
             {"entropy", json_number(load.entropy)},
             {"balance", json_number(load.balance)},
             {"z", json_number(load.z)}};
  }
  put_ranks(json, step.ranks, step.slow_ranks);
  return json.dump();
}

std::string first_line(const StepMetrics& step, const Summary& expected, std::int64_t steps,
                       const std::string& trace, double unix_seconds) {
  Json json = Json::parse(to_json(step));
  Json& start = json["start"] = {{"run", expected.run},
                                 {"predicted", outcome(expected.predicted)},
                                 {"measured", outcome(expected.measured)},
                                 {"steps", steps},
                                 {"time", unix_seconds}};
  if (!trace.empty()) start["trace"] = trace;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const Summary& summary) {
  Json inner = {
      {"predicted", outcome(summary.predicted)},
      {"measured", outcome(summary.measured)},
      {"params_hash", summary.params_hash},
      {"tokens_per_s", json_number(summary.tokens_per_s)},
      {"step_s", json_number(summary.step_s)},
      {"data_s", json_number(summary.data_s)},
      {"data_prepare_s", json_number(summary.data_prepare_s)},
      {"data_times_training", json_number(summary.data_rate())},
      {"first_loss", json_number(summary.first_loss)},
      {"last_loss", json_number(summary.last_loss)},
      {"steps", summary.steps},
      {"skipped", summary.skipped},
      {"interrupted", summary.interrupted},
      {"run", summary.run},
  };
  if (summary.bubble) {
    inner["bubble"] = json_number(*summary.bubble);
    inner["predicted_bubble"] = json_number(*summary.predicted_bubble);
  }
  if (summary.saves > 0) {
    inner["saves"] = summary.saves;
    inner["save_exposed_s"] = json_number(summary.save_exposed_s);
    inner["save_exposed_percent"] = json_number(summary.save_exposed_percent());
  }
  if (summary.evaluation) inner["eval"] = Json::parse(to_json(*summary.evaluation));
  put_ranks(inner, summary.ranks, summary.slow_ranks);
  return Json{{"summary", std::move(inner)}}.dump();
}

namespace {

// Opens a file for writing, without waiting for the reader of a pipe.
Fd open_lines(const std::string& path, std::string_view flag, int flags) {
  // The process's own streams are duplicated, not opened again: a file behind them would be written
  // from its beginning, and a socket cannot be opened.
  if (path == "/dev/stdout" || path == "/dev/stderr") {
    return Fd(::fcntl(path == "/dev/stdout" ? 1 : 2, F_DUPFD_CLOEXEC, 3));
  }
  Fd file(
      ::open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags, 0666));
  const int problem = errno;
  const std::string kind = kind_of_file(path);
  if (kind == "a folder" || kind == "a block device" || kind == "a socket") {
    throw UsageError(str(flag, ": ", quote(path), " is ", kind, "; must be a file or a pipe"));
  }
  if (!file.open()) {
    throw UsageError(problem == ENXIO && kind == "a pipe"
                         ? str(flag, ": ", quote(path),
                               " is a pipe that no process reads; start its reader first")
                         : str(flag, ": cannot write ", quote(path), ": ", std::strerror(problem),
                               "; must be a file in an existing folder"));
  }
  ::fcntl(file.get(), F_SETFL, O_APPEND);  // wait for slow readers
  if (::write(file.get(), "", 0) != 0) {   // some devices reject even this: /dev/full
    throw UsageError(str(flag, ": cannot write ", quote(path), ": ", std::strerror(errno)));
  }
  return file;
}

// Returns true if the last complete line of the file is a summary.
bool ends_with_summary(const std::string& path) {
  std::ifstream file(path);
  std::string line, last;
  while (std::getline(file, line)) last = file.eof() ? "" : line;  // not a line that was cut off
  return last.starts_with(R"({"summary")");
}

}  // namespace

void write_failure(const std::string& path, const std::string& reason) {
  if (kind_of_file(path) != "a regular file" || ends_with_summary(path)) return;
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const Json end = {{"state", "failed"}, {"reason", reason}, {"time", now.count()}};
  try {
    LineFile(path, "--metrics", /*goes_on=*/true)
        .write(Json{{"end", end}}.dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (const Error&) {
    // The failure itself is reported on stderr.
  }
}

std::int64_t last_step_in(const std::string& path) {
  if (kind_of_file(path) != "a regular file") return 0;
  std::ifstream file(path);
  std::int64_t last = 0;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) last = std::max(last, json.value("step", std::int64_t{0}));
  }
  return last;
}

Fd check_lines(const std::string& path, std::string_view flag) {
  if (kind_of_file(path) != "nothing") return open_lines(path, flag, 0);
  check_publishable(path, flag);
  return Fd();
}

LineFile::LineFile(const std::string& path, std::string_view flag, bool goes_on)
    : file_(open_lines(path, flag, O_CREAT | (goes_on ? 0 : O_TRUNC))), path_(path) {}

void LineFile::write(const std::string& line) {
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);  // -1 for a pipe
  if (write_all(file_.get(), line + "\n")) return;
  const int error = errno;
  // A partial line would be read as damage. A device cannot be truncated.
  if (before >= 0) (void)!::ftruncate(file_.get(), before);
  throw DataError(str("cannot write ", line.size() + 1, " bytes to ", quote(path_), ": ",
                      std::strerror(error), advice_on(error)));
}

}  // namespace tessera::train
