#include "tessera/cli/experiment_run.h"

#include <cmath>
#include <set>

#include "tessera/core/errors.h"
#include "tessera/core/median.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMaxBatch = 1'000'000, kMaxHeads = 10'000;

std::int64_t whole(const RunWords& words, std::string_view name, std::int64_t otherwise) {
  const std::string text = value_of(words, name, "");
  return text.empty() || text == "0" ? otherwise : parse_count(text);
}

class ExperimentRunner {
 public:
  ExperimentRunner(const Experiment& experiment, const ExperimentTools& tools)
      : experiment_(experiment), tools_(tools) {
    const std::string limit = value_of(experiment.scale.settings, "memory-limit", "0");
    limit_ = static_cast<double>(parse_bytes(limit));
    const std::string model = value_of(experiment.scale.settings, "model", "gpt-tiny");
    base_ = find_model_shape(model);
    base_.layers = whole(experiment.scale.settings, "layers", base_.layers);
    base_.hidden = whole(experiment.scale.settings, "hidden", base_.hidden);
    base_.heads = whole(experiment.scale.settings, "heads", base_.heads);
  }

  void of(std::int64_t rows) { total_ = rows; }

  ExperimentResult row(const ExperimentRow& row, std::int64_t zero) {
    ExperimentResult out;
    out.row = &row;
    out.zero = zero;
    const std::string usual = value_of(experiment_.scale.settings, "micro-batch", "1");
    out.words = words_of(row.settings, zero, value_of(row.settings, "micro-batch", usual), out.dry);
    out.dp = whole(out.words, "dp", 1);
    out.accumulation = whole(out.words, "grad-accum", 1);
    doing_ = row.zero.size() > 1 ? str(row.name, " stage ", zero) : row.name;
    const std::int64_t before = runs_;
    if (row.find.empty()) {
      out.facts = train(out.words);
    } else {
      search(row, out);
    }
    out.batch = whole(out.words, "micro-batch", 1);
    out.predicted = tools_.predicts(out.words);
    out.runs = runs_ - before;
    if (row.find == "batch" && found_.count(row.name) == 0) found_[row.name] = out.found;
    ++done_;
    return out;
  }

  PlotPoint point(std::int64_t dp, std::int64_t zero) {
    bool dry = false;
    const RunWords words = words_of({{"dp", str(dp)}}, dp == 1 ? 0 : zero, experiment_.plot.batch,
                                    dry, /*memory_alone=*/true);
    doing_ = str("plot, DP ", dp, " stage ", zero);
    const auto ranks = static_cast<double>(dp);
    PlotPoint out{dp, zero, dp * whole(words, "micro-batch", 1)};
    out.memory = ranks * train(words).memory;
    out.predicted = ranks * tools_.predicts(words).memory;
    ++done_;
    return out;
  }

  // Runs the further rounds. Rows alternate, and each round starts with another row.
  void repeat(std::vector<ExperimentResult>& rows) {
    const ExperimentScale& scale = experiment_.scale;
    std::vector<RunWords> timed;
    const auto want = [&](const RunWords& words) {
      for (const RunWords& each : timed) {
        if (key_of(each) == key_of(words)) return;
      }
      timed.push_back(words);
    };
    for (const ExperimentResult& one : rows) {
      if (!one.dry && one.facts.fits) want(one.words);
    }
    if (scale.simulate) {
      for (ExperimentResult& one : rows) {
        if (!one.dry && one.facts.fits) want(without_overlap(one.words));
      }
    }
    doing_ = "first round";
    for (const RunWords& words : timed) train(words);
    for (int round = 1; round < scale.rounds; ++round) {
      for (std::size_t i = 0; i < timed.size(); ++i) {
        const RunWords& words = timed[(i + static_cast<std::size_t>(round)) % timed.size()];
        tools_.report(done_, total_, str("round ", round + 1, " of ", scale.rounds));
        memory_[key_of(words)].push_back(tools_.trains(words));
      }
    }
    for (ExperimentResult& one : rows) {
      if (one.dry || !one.facts.fits) continue;
      one.facts = median_of(memory_.at(key_of(one.words)));
      if (!scale.simulate) continue;
      const RunFacts computing = median_of(memory_.at(key_of(without_overlap(one.words))));
      one.simulated = tools_.simulates(one.words, computing);
    }
  }

 private:
  static std::string key_of(RunWords words) {
    std::sort(words.begin(), words.end());
    std::string key;
    for (const auto& [name, value] : words) key += str(name, "=", value, "\n");
    return key;
  }

  RunWords words_of(const RunWords& settings, std::int64_t zero, const std::string& batch,
                    bool& dry, bool memory_alone = false) {
    const ExperimentScale& scale = experiment_.scale;
    RunWords words = scale.settings;
    for (const auto& [name, value] : settings) put(words, name, value);
    const BatchReference reference = parse_batch(batch);
    const std::int64_t size =
        reference.number + (reference.row.empty() ? 0 : found_.at(reference.row));
    if (size < 1) {
      throw Error(str(reference.row, " found no batch that fits in ", format_bytes_of(limit_),
                      "; raise memory-limit"));
    }
    put(words, "micro-batch", str(size));
    const std::int64_t dp = whole(words, "dp", 1);
    put(words, "dp", str(dp));
    put(words, "zero", str(zero));
    dry = dp > scale.real_ranks || (memory_alone && dp > 1);
    if (dry) put(words, "backend", "dry");
    put(words, "steps", str(dry || memory_alone ? 2 : scale.steps));
    return words;
  }
  static std::string format_bytes_of(double bytes) {
    return format_bytes(static_cast<std::int64_t>(bytes));
  }

  RunFacts train(const RunWords& words) {
    std::vector<RunFacts>& known = memory_[key_of(words)];
    if (!known.empty()) return known.front();
    ++runs_;
    tools_.report(done_, total_, str(doing_, ", batch ", value_of(words, "micro-batch", "1")));
    known.push_back(tools_.trains(words));
    return known.front();
  }

  void search(const ExperimentRow& row, ExperimentResult& out) {
    if (limit_ <= 0) {
      throw UsageError(str("row ", quote(row.name), ": find needs memory-limit in its scale"));
    }
    const bool model = row.find == "model";
    const RunWords start = out.words;
    const auto with = [&](std::int64_t n) {
      RunWords words = start;
      if (model) {
        grow_model(words, base_.heads, base_.hidden, base_.layers, n);
      } else {
        put(words, "micro-batch", str(n));
      }
      return words;
    };
    // Two steps are enough to see whether a run fits.
    const auto probe = [&](std::int64_t n) {
      RunWords words = with(n);
      put(words, "steps", "2");
      return train(words).fits;
    };
    const std::int64_t most = model ? kMaxHeads : kMaxBatch;
    const std::int64_t first = model ? base_.heads : 1;
    out.predicted_found = largest_that_fits(first, most, [&](std::int64_t n) {
      const Predicted all = tools_.predicts(with(n));
      return all.memory + all.reserve <= limit_;
    });
    out.found = largest_that_fits(std::max<std::int64_t>(1, out.predicted_found), most, probe);
    out.words = with(std::max<std::int64_t>(1, out.found));
    out.facts = train(out.words);
  }

  const Experiment& experiment_;
  const ExperimentTools& tools_;
  double limit_ = 0;
  ModelShape base_;
  std::map<std::string, std::vector<RunFacts>> memory_;  // rounds of a run, by its settings
  std::map<std::string, std::int64_t> found_;            // by row
  std::int64_t runs_ = 0, done_ = 0, total_ = 0;
  std::string doing_;
};

}  // namespace

std::int64_t largest_that_fits(std::int64_t guess, std::int64_t most,
                               const std::function<bool(std::int64_t)>& fits) {
  if (most < 1) return 0;
  std::int64_t good = 0, bad = most + 1;
  std::int64_t next = std::clamp<std::int64_t>(guess, 1, most), stride = 1;
  bool up = true;
  // Moves away from the guess in growing strides until one fits and a larger one does not.
  for (bool first = true; bad - good > 1; first = false) {
    const bool fit = fits(next);
    (fit ? good : bad) = next;
    if (!first && fit != up) break;
    up = fit;
    next = up ? good + std::min(stride, bad - 1 - good) : bad - std::min(stride, bad - 1 - good);
    stride *= 2;
  }
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

RunFacts median_of(const std::vector<RunFacts>& rounds) {
  RunFacts out = rounds.front();
  const auto of = [&](double RunFacts::*number) {
    std::vector<double> all;
    for (const RunFacts& each : rounds) all.push_back(each.*number);
    return all;
  };
  for (double RunFacts::*number : {&RunFacts::step, &RunFacts::exposed, &RunFacts::forward,
                                   &RunFacts::backward, &RunFacts::optimizer}) {
    out.*number = median(of(number));
  }
  for (const double step : of(&RunFacts::step)) {
    out.least = std::min(out.least > 0 ? out.least : step, step);
    out.most = std::max(out.most, step);
  }
  return out;
}

RunWords without_overlap(RunWords words) {
  put(words, "overlap-grad-reduce", "false");
  put(words, "overlap-param-gather", "false");
  std::erase_if(words, [](const auto& each) {
    return each.first == "bucket-mb" || each.first == "bucket-size";
  });
  if (value_of(words, "zero", "0") == "3") put(words, "prefetch", "false");
  return words;
}

void grow_model(RunWords& words, std::int64_t base_heads, std::int64_t base_hidden,
                std::int64_t base_layers, std::int64_t heads) {
  const std::int64_t hidden = base_hidden / base_heads * heads;
  const double layers =
      static_cast<double>(base_layers * hidden) / static_cast<double>(base_hidden);
  put(words, "heads", str(heads));
  put(words, "hidden", str(hidden));
  put(words, "layers", str(std::max<std::int64_t>(1, std::llround(layers))));
}

ExperimentResults run_experiment(const Experiment& experiment, const std::vector<std::string>& only,
                                 bool with_plot, const ExperimentTools& tools) {
  std::set<std::string> wanted(only.begin(), only.end());
  std::vector<std::string> names;
  for (const ExperimentRow& row : experiment.rows) names.push_back(row.name);
  for (const std::string& name : only) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw UsageError(Flag("only"), str("got ", quote(name), "; must be some of ",
                                         join(names, ", "), did_you_mean(name, names)));
    }
  }
  const bool plotting = with_plot && !experiment.plot.dp.empty();
  // Rows refer only to earlier rows, so one backward pass finds all of them.
  const auto want = [&](const std::string& name) {
    if (!name.empty()) wanted.insert(name);
  };
  if (!only.empty()) {
    if (plotting) want(parse_batch(experiment.plot.batch).row);
    for (auto row = experiment.rows.rbegin(); row != experiment.rows.rend(); ++row) {
      if (wanted.count(row->name) == 0) continue;
      want(row->base);
      want(parse_batch(value_of(row->settings, "micro-batch", "1")).row);
    }
  }
  ExperimentRunner runner(experiment, tools);
  std::int64_t total = 0;
  const auto skipped = [&](const ExperimentRow& row) {
    return !only.empty() && wanted.count(row.name) == 0;
  };
  for (const ExperimentRow& row : experiment.rows) {
    if (!skipped(row)) total += static_cast<std::int64_t>(row.zero.size());
  }
  if (plotting) {
    total += static_cast<std::int64_t>(experiment.plot.dp.size() * experiment.plot.zero.size());
  }
  runner.of(total);
  ExperimentResults results;
  for (const ExperimentRow& row : experiment.rows) {
    if (skipped(row)) continue;
    for (const std::int64_t zero : row.zero) results.rows.push_back(runner.row(row, zero));
  }
  runner.repeat(results.rows);
  if (!plotting) return results;
  for (const std::int64_t zero : experiment.plot.zero) {
    for (const std::int64_t dp : experiment.plot.dp) {
      results.plot.push_back(runner.point(dp, zero));
    }
  }
  return results;
}

}  // namespace tessera::cli
