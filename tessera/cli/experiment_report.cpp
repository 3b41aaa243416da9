#include "tessera/cli/experiment_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/cli/json_output.h"
#include "tessera/core/errors.h"
#include "tessera/core/median.h"
#include "tessera/core/svg.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string size_text(double bytes) {
  return bytes > 0 ? format_bytes(static_cast<std::int64_t>(bytes)) : "";
}
std::string time_text(double seconds) { return seconds > 0 ? format_time(seconds) : ""; }
std::string signed_percent(double share) {
  return str(share < 0 ? "−" : "+", fixed(100 * std::fabs(share), 1), "%");
}

bool timed(const ExperimentResult& one) { return one.facts.fits && !one.dry; }

std::string label_of(const ExperimentResult& one) {
  return one.row->zero.size() > 1 ? str(one.row->name, ", stage ", one.zero) : one.row->name;
}

const ExperimentResult* base_of(const ExperimentResult& one, const ExperimentResults& all) {
  const ExperimentResult* first = nullptr;
  for (const ExperimentResult& other : all.rows) {
    if (one.row->base.empty() || other.row->name != one.row->base) continue;
    if (other.zero == one.zero) return &other;
    if (first == nullptr) first = &other;
  }
  return first;
}

std::string found_text(const ExperimentResult& one) {
  if (one.row->find.empty()) return one.facts.fits ? "" : "out of memory";
  if (one.row->find == "batch") {
    return str("largest ", one.found * one.dp, ", planned ", one.predicted_found * one.dp);
  }
  const auto params = static_cast<std::int64_t>(one.predicted.parameters);
  return str("largest ", format_count(params), ": ", one.found, " heads, planned ",
             one.predicted_found);
}

// Compares a row with its base in a sentence.
std::string sentence(const ExperimentResult& one, const ExperimentResult& base) {
  if (!one.facts.fits || !base.facts.fits) return "";
  const double memory = one.facts.memory - base.facts.memory;
  std::string text = str("  ", label_of(one), " against ", label_of(base), ": a rank holds ");
  text += std::fabs(memory) < 0.002 * base.facts.memory
              ? std::string("as much")
              : str(size_text(std::fabs(memory)), memory < 0 ? " less" : " more", " (",
                    signed_percent(memory / base.facts.memory), ")");
  if (!timed(one) || !timed(base)) return text + ".\n";
  const double time = one.facts.step - base.facts.step;
  const double waiting = one.facts.exposed - base.facts.exposed;
  text += str("; a step takes ", signed_percent(time / base.facts.step), " (",
              time_text(base.facts.step), " → ", time_text(one.facts.step), ")");
  if (one.facts.sent > 0 || base.facts.sent > 0) {
    text += str(", waits ", one.facts.exposed > 0 ? time_text(one.facts.exposed) : "0 s",
                " of it for communication instead of ",
                base.facts.exposed > 0 ? time_text(base.facts.exposed) : "0 s");
    // Attributes the time difference to waiting if the two are close.
    if (std::fabs(time) > 0.02 * base.facts.step) {
      text += std::fabs(time - waiting) < 0.35 * std::fabs(time)
                  ? ", which is where the difference comes from"
                  : ", which does not account for the difference";
    }
  }
  if (one.simulated > 0 && base.simulated > 0) {
    text += str("; simulated ", signed_percent(one.simulated / base.simulated - 1));
  } else if (one.predicted.step > 0 && base.predicted.step > 0) {
    text += str("; planned ", signed_percent(one.predicted.step / base.predicted.step - 1));
  }
  return text + ".\n";
}

PredictionError error_of(const std::vector<double>& errors) {
  PredictionError out;
  out.count = static_cast<int>(errors.size());
  if (errors.empty()) return out;
  out.most = *std::max_element(errors.begin(), errors.end());
  out.median = median(errors);
  return out;
}

const char* stage_color(std::int64_t zero) {
  constexpr const char* kColors[] = {colors::kParams, colors::kOptimizer, colors::kGrads,
                                     colors::kActivations};
  return kColors[std::clamp<std::int64_t>(zero, 0, 3)];
}

}  // namespace

PredictionError memory_error(const ExperimentResults& results) {
  std::vector<double> errors;
  for (const ExperimentResult& one : results.rows) {
    if (!one.facts.fits || one.facts.memory <= 0 || one.predicted.memory <= 0) continue;
    errors.push_back(std::fabs(one.predicted.memory / one.facts.memory - 1));
  }
  return error_of(errors);
}

PredictionError time_error(const ExperimentResults& results) {
  std::vector<double> errors;
  for (const ExperimentResult& one : results.rows) {
    if (!timed(one) || one.facts.step <= 0 || one.predicted.step <= 0) continue;
    errors.push_back(std::fabs(one.predicted.step / one.facts.step - 1));
  }
  return error_of(errors);
}

PredictionError simulator_error(const ExperimentResults& results) {
  std::vector<double> errors;
  for (const ExperimentResult& one : results.rows) {
    if (one.simulated > 0) errors.push_back(std::fabs(one.simulated / one.facts.step - 1));
  }
  return error_of(errors);
}

std::string experiment_text(const Experiment& experiment, const ExperimentResults& results) {
  std::string text = str(experiment.title, "\n");
  if (!experiment.about.empty()) text += str(experiment.about, "\n");
  bool reported = false, dry = false;
  for (const ExperimentResult& one : results.rows) {
    reported = reported || !one.row->reported.empty();
    dry = dry || one.dry;
  }
  const bool simulated = experiment.scale.simulate;
  Table table(simulated ? "llrrrrrrrr" : reported ? "lllrrrrrrrl" : "llrrrrrrrl");
  std::vector<std::string> head = {"run", "what"};
  if (reported && !simulated) head.emplace_back("reported");
  for (const char* name : {"stage", "DP", "batch", "memory", "planned", "step"}) {
    head.emplace_back(name);
  }
  head.emplace_back(simulated ? "simulated" : "planned");
  head.emplace_back(simulated ? "off" : "found");
  text += "\n";
  table.row(head);
  for (const ExperimentResult& one : results.rows) {
    std::vector<std::string> cells = {one.row->name, one.row->what};
    if (reported && !simulated) cells.push_back(one.row->reported);
    const std::int64_t global = one.batch * one.dp * one.accumulation;
    cells.push_back(str(one.zero));
    cells.push_back(str(one.dp, one.dry ? "*" : ""));
    cells.push_back(str(global));
    cells.push_back(one.facts.fits ? size_text(one.facts.memory) : "");
    cells.push_back(size_text(one.predicted.memory));
    cells.push_back(timed(one) ? time_text(one.facts.step) : "");
    if (simulated) {
      cells.push_back(time_text(one.simulated));
      cells.push_back(one.simulated > 0 ? signed_percent(one.simulated / one.facts.step - 1)
                                        : found_text(one));
    } else {
      cells.push_back(one.dry ? "" : time_text(one.predicted.step));
      cells.push_back(found_text(one));
    }
    table.row(cells);
  }
  text += table.text();
  text += "  memory: peak of a rank; batch: of all ranks and micro-batches\n";
  if (dry) text += "  *: only one of the ranks ran (--backend dry), for its memory\n";
  std::string sentences;
  for (const ExperimentResult& one : results.rows) {
    if (const ExperimentResult* base = base_of(one, results)) sentences += sentence(one, *base);
  }
  if (!sentences.empty()) text += "\n" + sentences;
  text += "\n";
  const std::pair<PredictionError, const char*> errors[] = {
      {memory_error(results), "planner's memory"},
      {simulated ? PredictionError{} : time_error(results), "planner's step time"},
      {simulator_error(results), "simulator's step time"}};
  for (const auto& [error, what] : errors) {
    if (error.count == 0) continue;
    text +=
        str("  The ", what, " differs from the measurement by at most ", fixed(100 * error.most, 1),
            "%, median ", fixed(100 * error.median, 1), "% of ", plural(error.count, "run"), ".\n");
  }
  for (const ExperimentResult& one : results.rows) {
    if (one.row->find.empty() && one.facts.fits == one.row->out_of_memory) {
      text += str("  ", label_of(one),
                  one.facts.fits ? " fits, but was expected not to.\n"
                                 : " does not fit, but was expected to.\n");
    }
  }
  return text;
}

std::string experiment_json(const Experiment& experiment, const ExperimentResults& results,
                            const std::string& date) {
  Json rows = Json::array(), points = Json::array();
  const auto known = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  for (const ExperimentResult& one : results.rows) {
    Json settings = Json::object();
    for (const auto& [name, value] : one.words) settings[name] = value;
    Json row = {{"run", one.row->name},
                {"what", one.row->what},
                {"reported", one.row->reported},
                {"zero", one.zero},
                {"dp", one.dp},
                {"micro_batch", one.batch},
                {"grad_accum", one.accumulation},
                {"dry", one.dry},
                {"fits", one.facts.fits},
                {"memory", one.facts.fits ? known(one.facts.memory) : Json(nullptr)},
                {"step_s", timed(one) ? known(one.facts.step) : Json(nullptr)},
                {"least_s", timed(one) ? known(one.facts.least) : Json(nullptr)},
                {"most_s", timed(one) ? known(one.facts.most) : Json(nullptr)},
                {"simulated_s", known(one.simulated)},
                {"comm_exposed_s", timed(one) ? Json(one.facts.exposed) : Json(nullptr)},
                {"sent_bytes", one.facts.sent},
                {"planned",
                 {{"memory", known(one.predicted.memory)}, {"step_s", known(one.predicted.step)}}},
                {"runs", one.runs},
                {"settings", settings}};
    if (!one.row->find.empty()) {
      row["found"] = {
          {"what", one.row->find}, {"largest", one.found}, {"planned", one.predicted_found}};
    }
    rows.push_back(std::move(row));
  }
  for (const PlotPoint& at : results.plot) {
    points.push_back({{"dp", at.dp},
                      {"zero", at.zero},
                      {"batch", at.batch},
                      {"memory", at.memory},
                      {"planned", at.predicted}});
  }
  const auto error = [](const PredictionError& of) {
    return Json{{"runs", of.count}, {"most", of.most}, {"median", of.median}};
  };
  Json all = {{"experiment", experiment.name},
              {"scale", experiment.scale.name},
              {"date", date},
              {"rows", rows},
              {"plot", points},
              {"planner_differs",
               {{"memory", error(memory_error(results))}, {"step", error(time_error(results))}}}};
  if (experiment.scale.simulate) all["simulator_differs"] = error(simulator_error(results));
  return json_text(all);
}

std::string experiment_svg(const Experiment& experiment, const ExperimentResults& results) {
  const std::vector<PlotPoint>& points = results.plot;
  if (points.empty()) {
    throw UsageError(Flag("svg"), "this experiment has no [plot], so there is nothing to draw");
  }
  constexpr double kLeft = 84, kTop = 62, kWidth = 520, kHeight = 300;
  double widest = 1, highest = 0;
  for (const PlotPoint& at : points) {
    widest = std::max(widest, static_cast<double>(at.dp));
    highest = std::max({highest, at.memory, at.predicted});
  }
  const auto x = [&](double dp) { return kLeft + kWidth * dp / widest; };
  const auto y = [&](double bytes) { return kTop + kHeight * (1 - bytes / (highest * 1.05)); };
  Svg svg(kLeft + kWidth + 60, kTop + kHeight + 70,
          str("Memory of all ranks against DP, the batch growing with it (", experiment.scale.name,
              " scale)"));
  for (int tick = 0; tick <= 4; ++tick) {
    const double bytes = highest * tick / 4;
    svg.line(kLeft, y(bytes), kLeft + kWidth, y(bytes), colors::kRule);
    svg.text(kLeft - 8, y(bytes) + 4, format_bytes(static_cast<std::int64_t>(bytes)),
             Svg::Anchor::end);
  }
  std::vector<std::int64_t> named;
  for (const PlotPoint& at : points) {
    if (std::find(named.begin(), named.end(), at.dp) != named.end()) continue;
    named.push_back(at.dp);
    const double center = x(static_cast<double>(at.dp));
    svg.text(center, y(0) + 18, str("DP ", at.dp), Svg::Anchor::middle);
    svg.text(center, y(0) + 34, str("batch ", at.batch), Svg::Anchor::middle);
  }
  double legend = kLeft;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const PlotPoint& at = points[i];
    const bool first = i == 0 || points[i - 1].zero != at.zero;
    const char* const color = stage_color(at.zero);
    const auto dp = static_cast<double>(at.dp);
    if (first) {
      legend = svg.legend(legend, 44, color,
                          at.zero == 0 ? std::string("plain (stage 0)") : str("stage ", at.zero));
    } else {
      const PlotPoint& last = points[i - 1];
      const auto before = static_cast<double>(last.dp);
      svg.line(x(before), y(last.memory), x(dp), y(at.memory), color);
      svg.line(x(before), y(last.predicted), x(dp), y(at.predicted), color, "3 4");
    }
    svg.dot(x(dp), y(at.memory), color,
            str("DP ", at.dp, ", stage ", at.zero, ": ", size_text(at.memory), ", planned ",
                size_text(at.predicted)));
  }
  svg.text(kLeft, y(0) + 56, "dots and lines: measured; dashed: planned");
  return svg.finish();
}

}  // namespace tessera::cli
