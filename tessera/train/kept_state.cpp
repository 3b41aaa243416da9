#include "tessera/train/kept_state.h"

#include <bit>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::train {
namespace {

using StateJson = nlohmann::json;

// As an integer, because JSON has no infinities.
std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

StateJson parse_object(const std::string& text) {
  StateJson json = StateJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  throw Error(str(
      "A rank sent ", quote(text),
      " as its progress, which this version cannot read. Run the same version of Tessera on all "
      "ranks."));
}

}  // namespace

std::string KeptState::numbers() const {
  return StateJson{
      {"steps", steps},           {"shift", sample_shift},     {"found", found_non_finite},
      {"counted", counts.steps},  {"updates", counts.updates}, {"scale", bits(counts.loss_scale)},
      {"good", counts.good_steps}}
      .dump();
}

KeptState KeptState::from_numbers(const std::string& text) {
  const StateJson json = parse_object(text);
  KeptState state;
  state.steps = json.at("steps");
  state.sample_shift = json.at("shift");
  state.found_non_finite = json.at("found");
  state.counts.steps = json.at("counted");
  state.counts.updates = json.at("updates");
  state.counts.loss_scale = std::bit_cast<double>(json.at("scale").get<std::uint64_t>());
  state.counts.good_steps = json.at("good");
  return state;
}

std::string StepStatus::text() const {
  StateJson json = {{"steps", steps}, {"waits", is_waiting}};
  if (outcome) {
    std::string used;
    for (const bool each : outcome->used) used += each ? '1' : '0';
    json["outcome"] = {{"step", outcome->step},
                       {"loss", bits(outcome->loss)},
                       {"squares", bits(outcome->squares)},
                       {"used", used}};
  }
  return json.dump();
}

StepStatus StepStatus::parse(const std::string& text) {
  const StateJson json = parse_object(text);
  StepStatus status;
  status.steps = json.at("steps");
  status.is_waiting = json.at("waits");
  if (json.contains("outcome")) {
    const StateJson& last = json["outcome"];
    zero::StepOutcome& outcome = status.outcome.emplace();
    outcome.step = last.at("step");
    outcome.loss = std::bit_cast<double>(last.at("loss").get<std::uint64_t>());
    outcome.squares = std::bit_cast<double>(last.at("squares").get<std::uint64_t>());
    for (const char each : last.at("used").get<std::string>()) outcome.used.push_back(each == '1');
  }
  return status;
}

}  // namespace tessera::train
