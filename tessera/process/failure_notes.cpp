#include "tessera/process/failure_notes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::process {
namespace {

using PlainJson = nlohmann::json;
constexpr const char* kVariable = "TESSERA_FAILURE_NOTES";

// Splits a multi-line message into body and advice (its last line). A single line has no advice.
std::pair<std::string_view, std::string_view> split_advice(std::string_view error) {
  const std::size_t end = error.rfind('\n');
  if (end == std::string_view::npos) return {error, {}};
  return {error.substr(0, end), error.substr(end + 1)};
}

// Indents every line after the first.
std::string indented(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  return result;
}

}  // namespace

FailureNotes::FailureNotes() : file_(::memfd_create("tessera-failures", 0)) {
  if (!file_.open()) throw Error(str("cannot create an in-memory file: ", std::strerror(errno)));
}

std::string FailureNotes::environment() const { return str(kVariable, "=", file_.get()); }

FailureNotes::Report FailureNotes::read() const {
  std::string text(as_size(std::max<off_t>(0, ::lseek(file_.get(), 0, SEEK_END))), '\0');
  const ssize_t count = ::pread(file_.get(), text.data(), text.size(), 0);
  text.resize(as_size(std::max<ssize_t>(0, count)));
  Report report;
  struct Failure {
    std::vector<int> ranks;
    bool own = false;
  };
  std::map<std::string, Failure> all;  // by message
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const PlainJson note = PlainJson::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!note.is_object()) continue;  // the rank was killed while writing
    report.last_step = std::max(report.last_step, note.value("last_step", std::int64_t{-1}));
    const int rank = note.value("rank", -1);
    const bool own = note.value("own", false);
    (own ? report.own : report.others).push_back(rank);
    Failure& failure = all[note.value("error", std::string())];
    failure.ranks.push_back(rank);
    failure.own = failure.own || own;
  }
  std::vector<std::tuple<bool, std::vector<int>, std::string>> failures;
  for (auto& [error, failure] : all) {
    std::sort(failure.ranks.begin(), failure.ranks.end());
    failures.emplace_back(!failure.own, failure.ranks, error);
  }
  std::sort(failures.begin(), failures.end());
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const auto& [later, by, error] = failures[i];
    std::vector<std::string> numbers;
    for (const int rank : by) numbers.push_back(str(rank));
    const auto [body, advice] = split_advice(error);
    report.text += str("  ", by.size() == 1 ? "rank " : "ranks ", join(numbers, ", "), ": ",
                       indented(body), "\n");
    // Advice shared by consecutive messages is printed once, after the last of them.
    const bool again =
        i + 1 < failures.size() && split_advice(std::get<2>(failures[i + 1])).second == advice;
    if (!advice.empty() && !again) report.text += str("    ", advice, "\n");
  }
  return report;
}

bool note_failure(int rank, std::int64_t last_step, const std::string& error, bool own_failure) {
  const char* const variable = std::getenv(kVariable);
  const int file = variable == nullptr ? -1 : std::atoi(variable);
  // The descriptor number may refer to another file by now; only memory files have seals.
  if (file <= 2 || ::fcntl(file, F_GET_SEALS) < 0) return false;
  const std::string prefix = str("rank ", rank, ": ");  // the report adds the rank
  const PlainJson note = {
      {"rank", rank},
      {"last_step", last_step},
      {"own", own_failure},
      {"error", visible_lines(error.starts_with(prefix) ? error.substr(prefix.size()) : error)}};
  return write_all(file, note.dump(-1, ' ', false, PlainJson::error_handler_t::replace) + "\n");
}

}  // namespace tessera::process
