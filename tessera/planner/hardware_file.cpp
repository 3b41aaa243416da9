// toml++ 3.3 asserts what its parser then reports as an error, a character later: without these
// assertions, as in a release build, a malformed file gets its message.
#define TOML_ASSERT(expr) static_cast<void>(0)
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/hardware.h"
#include "tessera/planner/toml_text.h"

namespace tessera::planner {
namespace {

enum class Unit { bytes, rate, time, number };

struct Key {
  const char* name;
  Unit unit;
  double least, most;
  double* (*at)(Hardware&);
};

#define TESSERA_AT(member) [](Hardware& h) { return &h.member; }
const std::vector<Key>& keys() {
  static const std::vector<Key> all = {
      {"memory", Unit::bytes, 1, 1e18, TESSERA_AT(memory)},
      {"reserve", Unit::bytes, 0, 1e18, TESSERA_AT(reserve)},
      {"usable", Unit::number, 0.01, 1, TESSERA_AT(usable)},
      {"peak_16bit", Unit::number, 1, 1e21, TESSERA_AT(peak_16bit)},
      {"peak_fp32", Unit::number, 1, 1e21, TESSERA_AT(peak_fp32)},
      {"memory_bandwidth", Unit::rate, 1, 1e18, TESSERA_AT(memory_bandwidth)},
      {"product_efficiency", Unit::number, 0.01, 1, TESSERA_AT(product_efficiency)},
      {"attention_efficiency", Unit::number, 0.01, 1, TESSERA_AT(attention_efficiency)},
      {"memory_efficiency", Unit::number, 0.01, 1, TESSERA_AT(memory_efficiency)},
      {"launch", Unit::time, 0, 1, TESSERA_AT(launch)},
      {"kernel_start", Unit::time, 0, 1, TESSERA_AT(kernel_start)},
      {"logit_bytes", Unit::number, 0, 1e4, TESSERA_AT(logit_bytes)},
      {"gradient_passes", Unit::number, 0, 100, TESSERA_AT(gradient_passes)},
      {"rail_share", Unit::number, 0, 1, TESSERA_AT(rail_share)},
      {"interference", Unit::number, 0, 10, TESSERA_AT(interference)},
      {"watts", Unit::number, 0, 1e6, TESSERA_AT(watts)},
      {"price_per_hour", Unit::number, 0, 1e6, TESSERA_AT(price_per_hour)},
      {"inside.bandwidth", Unit::rate, 1, 1e18, TESSERA_AT(inside.bandwidth)},
      {"inside.latency", Unit::time, 0, 1, TESSERA_AT(inside.latency)},
      {"between.bandwidth", Unit::rate, 1, 1e18, TESSERA_AT(between.bandwidth)},
      {"between.latency", Unit::time, 0, 1, TESSERA_AT(between.latency)},
  };
  return all;
}
#undef TESSERA_AT

struct CountKey {
  const char* name;
  int Hardware::*member;
};
constexpr CountKey kCounts[] = {
    {"units", &Hardware::units}, {"per_node", &Hardware::per_node}, {"nics", &Hardware::nics}};

[[noreturn]] void fail(const toml::source_region& at, const std::string& where,
                       const std::string& what) {
  throw UsageError(str(where, ", line ", at.begin.line, ", column ", at.begin.column, ": ", what));
}

double number(const toml::node& node, Unit unit) {
  if (const auto* value = node.as_integer()) return static_cast<double>(value->get());
  if (const auto* value = node.as_floating_point()) return value->get();
  const auto* text = node.as_string();
  if (text == nullptr || unit == Unit::number) {
    throw UsageError(unit == Unit::number ? "wanted a number"
                                          : "wanted a number, or a text with its unit");
  }
  switch (unit) {
    case Unit::bytes: return static_cast<double>(parse_bytes(text->get()));
    case Unit::rate: return parse_rate(text->get());
    default: return parse_time(text->get());
  }
}

// [[nodes, oversubscription], ...], nearest first.
std::vector<SwitchLevel> switch_levels(const toml::node& node) {
  const std::string wanted =
      "wanted [[nodes, oversubscription], ...], each level with more nodes than the one below and "
      "an oversubscription from 1 to 1000";
  const auto* list = node.as_array();
  if (list == nullptr) throw UsageError(wanted);
  std::vector<SwitchLevel> levels;
  for (const toml::node& each : *list) {
    const auto* pair = each.as_array();
    if (pair == nullptr || pair->size() != 2) throw UsageError(wanted);
    const double nodes = number(*pair->get(0), Unit::number);
    const double by = number(*pair->get(1), Unit::number);
    const int before = levels.empty() ? 0 : levels.back().nodes;
    if (!(nodes > before && nodes <= 1e6 && by >= 1 && by <= 1000)) throw UsageError(wanted);
    levels.push_back({static_cast<int>(nodes), by});
  }
  return levels;
}

void set_value(Hardware& entry, const std::string& key, const toml::node& node) {
  for (const Key& known : keys()) {
    if (key != known.name) continue;
    const double value = number(node, known.unit);
    if (!(value >= known.least && value <= known.most)) {
      throw UsageError(str("got ", value, ", wanted ", known.least, " to ", known.most));
    }
    *known.at(entry) = value;
    return;
  }
  if (key == "kind") {
    const auto* value = node.as_string();
    const std::vector<std::string> kinds = {"NVLink", "PCIe", "memory"};
    if (value == nullptr || std::find(kinds.begin(), kinds.end(), value->get()) == kinds.end()) {
      throw UsageError(str("wanted one of ", join(kinds, ", ")));
    }
    entry.kind = value->get();
    return;
  }
  if (key == "switches") {
    entry.switches = switch_levels(node);
    return;
  }
  if (key == "cpu" || key == "tessera") {
    const auto* value = node.as_boolean();
    if (value == nullptr) throw UsageError("wanted true or false");
    (key == "cpu" ? entry.cpu : entry.tessera) = value->get();
    return;
  }
  std::vector<std::string> names = {"like", "cpu", "tessera", "kind", "switches"};
  for (const Key& known : keys()) names.emplace_back(known.name);
  for (const CountKey& known : kCounts) {
    names.emplace_back(known.name);
    if (key != known.name) continue;
    const auto* value = node.as_integer();
    if (value == nullptr || value->get() < 1 || value->get() > 1'000'000) {
      throw UsageError("wanted a whole number from 1 to 1000000");
    }
    entry.*known.member = static_cast<int>(value->get());
    return;
  }
  throw UsageError(str("is unknown", did_you_mean(key, names)));
}

void set_all(Hardware& entry, const toml::table& table, const std::string& prefix,
             const std::string& where) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (name == "like") continue;
    const bool link = prefix.empty() && (name == "inside" || name == "between");
    if (const auto* inner = node.as_table(); link && inner != nullptr) {
      set_all(entry, *inner, name + ".", where);
      continue;
    }
    try {
      set_value(entry, name, node);
    } catch (const UsageError& error) {
      fail(key.source(), where, str(entry.name, ", ", quote(name), ": ", error.what()));
    }
  }
}

void check_complete(const Hardware& h, const toml::table& table, const std::string& where) {
  const auto want = [&](bool there, const char* key) {
    if (there) return;
    fail(table.source(), where,
         str(h.name, ": ", key, " is missing; give it, or take the rest from another entry with ",
             "like = \"a100-80\""));
  };
  want(h.memory > 0, "memory");
  want(h.peak_16bit > 0, "peak_16bit");
  want(h.peak_fp32 > 0, "peak_fp32");
  want(h.memory_bandwidth > 0, "memory_bandwidth");
  want(h.inside.bandwidth > 0, "inside.bandwidth");
  want(h.between.bandwidth > 0, "between.bandwidth");
}

}  // namespace

void Catalogue::parse(std::string_view text, const std::string& where) {
  check_toml_text(text, where);
  toml::table table;
  try {
    table = toml::parse(text, where);
  } catch (const toml::parse_error& error) {
    fail(error.source(), where, std::string(error.description()));
  }
  // In the order of the file, so that `like` finds what stands above it.
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [name, node] : table) entries.emplace_back(name.str(), &node);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.second->source().begin < b.second->source().begin;
  });
  std::vector<Hardware> all = all_;  // a file that fails changes nothing
  const auto known = [&](const std::string& name) {
    return std::find_if(all.begin(), all.end(), [&](const Hardware& h) { return h.name == name; });
  };
  for (const auto& [name, node] : entries) {
    const toml::table* entry = node->as_table();
    if (entry == nullptr) {
      fail(node->source(), where, str(quote(name), ": wanted a table, [", name, "]"));
    }
    Hardware hardware;
    if (const auto found = known(name); found != all.end()) hardware = *found;
    if (const toml::node* like = entry->get("like")) {
      const auto* base = like->as_string();
      const auto found = base != nullptr ? known(base->get()) : all.end();
      if (found == all.end()) {
        fail(like->source(), where,
             str(name, ", \"like\": wanted the name of an entry above, or of a built-in one"));
      }
      hardware = *found;
    }
    hardware.name = name;
    set_all(hardware, *entry, "", where);
    check_complete(hardware, *entry, where);
    if (const auto found = known(name); found != all.end()) {
      *found = hardware;
    } else {
      all.push_back(hardware);
    }
  }
  all_ = std::move(all);
}

void Catalogue::read(const std::string& path) {
  parse(read_small_file(path, kMostToml, "a TOML file", "--hardware-file"), path);
}

}  // namespace tessera::planner
