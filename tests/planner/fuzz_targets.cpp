#include "tests/planner/fuzz_targets.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/planner/json.h"
#include "tessera/planner/score.h"
#include "tests/fuzz.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {

void fuzz_line(std::string_view input) {
  const std::string answer = answer_line(RunConfig::for_plan(), built_in(), input);
  must(answer.find('\n') == std::string::npos, "more than one line", input);
  const auto json = nlohmann::json::parse(answer, nullptr, false);
  must(json.is_object(), "no JSON object", input);
  if (json.contains("error")) return;
  const bool sized = json.contains("assumed");  // only the size is known, so only state is counted
  for (const char* key : {"params", "grads", "optimizer", "total"}) {
    const auto& value = json["memory"][key];
    must(value.is_number() && value.get<double>() >= 0, key, input);
  }
  for (const char* key : {"activations", "buffers", "temporary"}) {
    const auto& value = json["memory"][key];
    must(sized ? value.is_null() : value.is_number() && value.get<double>() >= 0, key, input);
  }
  for (const char* key : {"dp", "tp", "pp", "total"}) {
    must(json["traffic"][key].is_number() && json["traffic"][key].get<double>() >= 0, key, input);
  }
  if (json["time"].is_null()) return;
  const auto& step = json["time"]["step"];
  must(step.is_number() && step.get<double>() > 0, "time", input);
  must(json["mfu"].is_number() && json["mfu"].get<double>() <= 1, "mfu", input);
}

void fuzz_runs(std::string_view input) {
  try {
    for (const ScoredRow& row : parse_runs(input, "runs.csv", {}, built_in())) {
      must(row.measured > 0 && std::isfinite(row.measured), "measured", input);
      must(row.question.world() >= 1, "world", input);
    }
  } catch (const UsageError&) {
  }
}

void fuzz_hardware(std::string_view input) {
  Catalog own = built_in();
  const std::size_t before = own.all().size();
  try {
    own.parse(input, "own.toml");
    for (const Hardware& each : own.all()) {
      must(each.memory > 0 && std::isfinite(each.memory), "memory", input);
      must(each.inside.bandwidth > 0 && each.between.bandwidth > 0, "links", input);
    }
  } catch (const UsageError&) {
    must(own.all().size() == before, "half-read file", input);
  }
}

}  // namespace tessera::planner
