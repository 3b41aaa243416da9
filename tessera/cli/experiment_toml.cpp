// Experiments as TOML files: see [Note: experiments].

#include <set>

#include "tessera/cli/experiment_file.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/toml_reader.h"

namespace tessera::cli {
namespace {

class ExperimentReader {
 public:
  ExperimentReader(const std::string& where, std::string scale)
      : where_(where), scale_(std::move(scale)) {}

  Experiment read(const toml::table& file) {
    Experiment out;
    bool found = false;
    std::vector<std::string> scales;
    for (const auto& [key, node] : file) {
      if (key == "title") {
        out.title = text(node, "title");
      } else if (key == "about") {
        out.about = text(node, "about");
      } else if (key == "scale") {
        for (const auto& [name, content] : table(node, "scale")) {
          scales.emplace_back(name.str());
          if (name != scale_) continue;
          found = true;
          out.scale = scale(table(content, "scale"));
        }
      } else if (key == "row") {
        const auto* rows = node.as_array();
        if (rows == nullptr) fail(node, "row: must be [[row]], one per run");
        for (const toml::node& each : *rows) out.rows.push_back(row(table(each, "row")));
      } else if (key == "plot") {
        out.plot = plot(table(node, "plot"));
      } else {
        unknown(node, key.str(), {"title", "about", "scale", "row", "plot"});
      }
    }
    if (!found) {
      throw UsageError(Flag("scale"), str("got ", scale_, ", but ", where_, " has ",
                                          scales.empty() ? "none" : join(scales, ", ")));
    }
    if (out.rows.empty())
      throw UsageError(str(where_, " has no [[row]]; at least one is required"));
    check_references(out);
    return out;
  }

 private:
  [[noreturn]] void fail(const toml::node& node, const std::string& problem) const {
    throw UsageError(str(where_, ", line ", node.source().begin.line, ": ", problem));
  }
  [[noreturn]] void unknown(const toml::node& node, std::string_view key,
                            const std::vector<std::string>& allowed) const {
    fail(node, str(quote(key), " is not a key here; must be one of ", join(allowed, ", "),
                   did_you_mean(key, allowed)));
  }
  const toml::table& table(const toml::node& node, std::string_view key) const {
    if (const auto* inner = node.as_table()) return *inner;
    fail(node, str(key, ": must be a table"));
  }
  std::string text(const toml::node& node, std::string_view key) const {
    if (const auto* value = node.as_string()) return value->get();
    fail(node, str(key, ": must be a string"));
  }
  std::int64_t whole(const toml::node& node, std::string_view key, std::int64_t least,
                     std::int64_t most) const {
    const auto* value = node.as_integer();
    if (value != nullptr && value->get() >= least && value->get() <= most) return value->get();
    fail(node, str(key, ": must be an integer from ", least, " to ", most));
  }
  std::vector<std::int64_t> wholes(const toml::node& node, std::string_view key, std::int64_t least,
                                   std::int64_t most) const {
    if (const auto* list = node.as_array()) {
      std::vector<std::int64_t> all;
      for (const toml::node& each : *list) all.push_back(whole(each, key, least, most));
      if (all.empty()) fail(node, str(key, ": must have at least one number"));
      return all;
    }
    return {whole(node, key, least, most)};
  }

  // Reads a setting of train. Checks its value, but not its combination with other settings.
  void setting(RunWords& words, std::string_view key, const toml::node& node) const {
    const std::optional<std::string> given = planner::flag_text(node);
    if (!given) fail(node, str(key, ": ", planner::kWantedFlagText));
    try {
      const planner::Field& field = planner::find_field(planner::Command::train, key);
      if (field.name == "micro-batch") {
        parse_batch(*given);
      } else {
        planner::RunConfig tried;
        planner::set(tried, field, *given);
      }
      put(words, field.name, *given);
    } catch (const UsageError& error) {
      fail(node, error.what());
    }
  }

  ExperimentScale scale(const toml::table& from) const {
    ExperimentScale out;
    out.name = scale_;
    for (const auto& [key, node] : from) {
      if (key == "real-ranks") {
        out.real_ranks = static_cast<int>(whole(node, "real-ranks", 1, 4096));
      } else if (key == "steps") {
        out.steps = static_cast<int>(whole(node, "steps", 2, 1000000));
      } else if (key == "rounds") {
        out.rounds = static_cast<int>(whole(node, "rounds", 1, 1000));
      } else if (key == "simulate") {
        const auto* truth = node.as_boolean();
        if (truth == nullptr) fail(node, "simulate: must be true or false");
        out.simulate = truth->get();
      } else if (key == "hardware") {
        out.hardware = text(node, "hardware");
      } else {
        setting(out.settings, key.str(), node);
      }
    }
    return out;
  }

  void row_key(ExperimentRow& out, std::string_view key, const toml::node& node) const {
    if (key == "name") {
      out.name = text(node, key);
    } else if (key == "what") {
      out.what = text(node, key);
    } else if (key == "reported") {
      out.reported = text(node, key);
    } else if (key == "base") {
      out.base = text(node, key);
    } else if (key == "find") {
      out.find = text(node, key);
      if (out.find != "batch" && out.find != "model") {
        fail(node, str("find: got ", quote(out.find), "; must be batch or model"));
      }
    } else if (key == "out-of-memory") {
      const auto* truth = node.as_boolean();
      if (truth == nullptr) fail(node, "out-of-memory: must be true or false");
      out.out_of_memory = truth->get();
    } else if (key == "zero") {
      out.zero = wholes(node, key, 0, 3);
    } else {
      setting(out.settings, key, node);
    }
  }

  ExperimentRow row(const toml::table& from) const {
    ExperimentRow out;
    for (const auto& [key, node] : from) {
      if (key == "cpu" || key == "gpu") {
        table(node, key.str());
      } else {
        row_key(out, key.str(), node);
      }
    }
    if (const auto* own = from.get_as<toml::table>(scale_)) {
      for (const auto& [key, node] : *own) row_key(out, key.str(), node);
    }
    if (out.name.empty()) fail(from, "row: name is missing");
    return out;
  }

  ExperimentPlot plot(const toml::table& from) const {
    ExperimentPlot out;
    for (const auto& [key, node] : from) {
      if (key == "dp") {
        out.dp = wholes(node, "dp", 1, 4096);
      } else if (key == "zero") {
        out.zero = wholes(node, "zero", 0, 3);
      } else if (key == "batch") {
        out.batch = text(node, "batch");
        try {
          parse_batch(out.batch);
        } catch (const UsageError& error) {
          fail(node, error.what());
        }
      } else {
        unknown(node, key.str(), {"dp", "zero", "batch"});
      }
    }
    if (out.dp.empty() || out.zero.empty() || out.batch.empty()) {
      fail(from, "plot: needs dp, zero and batch");
    }
    return out;
  }

  void check_references(const Experiment& all) const {
    std::set<std::string> before, finding;
    const auto check = [&](const std::string& batch, const std::string& who) {
      const BatchReference to = parse_batch(batch);
      if (to.row.empty() || finding.count(to.row) > 0) return;
      throw UsageError(str(where_, ": ", who, " refers to the batch of ", quote(to.row),
                           ", which is not an earlier row with find = \"batch\""));
    };
    for (const ExperimentRow& each : all.rows) {
      check(value_of(each.settings, "micro-batch", "1"), str("row ", quote(each.name)));
      if (!each.base.empty() && before.count(each.base) == 0) {
        throw UsageError(str(where_, ": row ", quote(each.name), " has the base ", quote(each.base),
                             ", which is not an earlier row"));
      }
      if (!before.insert(each.name).second) {
        throw UsageError(str(where_, ": two rows have the name ", quote(each.name)));
      }
      if (each.find == "batch") finding.insert(each.name);
    }
    if (!all.plot.dp.empty()) check(all.plot.batch, "plot");
  }

  const std::string& where_;
  const std::string scale_;
};

}  // namespace

Experiment parse_experiment(std::string_view toml, const std::string& where,
                            const std::string& scale) {
  return ExperimentReader(where, scale).read(planner::parse_toml(toml, where));
}

}  // namespace tessera::cli
