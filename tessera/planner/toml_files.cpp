// The TOML files of the planner: hardware catalogs and settings.

#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/hardware.h"
#include "tessera/planner/toml_reader.h"

namespace tessera::planner {
namespace {

enum class Unit { bytes, rate, time, number };

template <class Entry>
struct Key {
  const char* name;
  Unit unit;
  double least, most;
  double* (*at)(Entry&);
};

#define TESSERA_AT(member) [](Hardware& h) { return &h.member; }
const std::vector<Key<Hardware>>& hardware_keys() {
  static const std::vector<Key<Hardware>> all = {
      {"memory", Unit::bytes, 1, 1e18, TESSERA_AT(memory)},
      {"reserve", Unit::bytes, 0, 1e18, TESSERA_AT(reserve)},
      {"usable", Unit::number, 0.01, 1, TESSERA_AT(usable)},
      {"peak_16bit", Unit::number, 1, 1e21, TESSERA_AT(peak_16bit)},
      {"peak_fp32", Unit::number, 1, 1e21, TESSERA_AT(peak_fp32)},
      {"peak_tf32", Unit::number, 0, 1e21, TESSERA_AT(peak_tf32)},
      {"peak_fp8", Unit::number, 0, 1e21, TESSERA_AT(peak_fp8)},
      {"memory_bandwidth", Unit::rate, 1, 1e18, TESSERA_AT(memory_bandwidth)},
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

#define TESSERA_AT(member) [](SoftwareFigures& f) { return &f.member; }
const std::vector<Key<SoftwareFigures>>& figure_keys() {
  static const std::vector<Key<SoftwareFigures>> all = {
      {"product_efficiency", Unit::number, 0.01, 1, TESSERA_AT(product_efficiency)},
      {"attention_efficiency", Unit::number, 0.01, 1, TESSERA_AT(attention_efficiency)},
      {"memory_efficiency", Unit::number, 0.01, 1, TESSERA_AT(memory_efficiency)},
      {"launch", Unit::time, 0, 1, TESSERA_AT(launch)},
      {"kernel_start", Unit::time, 0, 1, TESSERA_AT(kernel_start)},
      {"launch_skew", Unit::time, 0, 1, TESSERA_AT(launch_skew)},
      {"logit_bytes", Unit::number, 0, 1e4, TESSERA_AT(logit_bytes)},
      {"gradient_passes", Unit::number, 0, 100, TESSERA_AT(gradient_passes)},
      {"accumulate_passes", Unit::number, 0, 100, TESSERA_AT(accumulate_passes)},
      {"layer_launches", Unit::number, 0, 10, TESSERA_AT(layer_launches)},
  };
  return all;
}
#undef TESSERA_AT

const std::vector<std::string>& software_names() {
  static const std::vector<std::string> all = {"megatron", "pytorch", "tessera"};
  return all;
}

struct CountKey {
  const char* name;
  int Hardware::*member;
};
constexpr CountKey kCounts[] = {{"units", &Hardware::units},
                                {"per_node", &Hardware::per_node},
                                {"nics", &Hardware::nics},
                                {"cores", &Hardware::cores}};

double number(const toml::node& node, Unit unit) {
  if (const auto* value = node.as_integer()) return static_cast<double>(value->get());
  if (const auto* value = node.as_floating_point()) return value->get();
  const auto* text = node.as_string();
  if (text == nullptr || unit == Unit::number) {
    throw UsageError(unit == Unit::number ? "must be a number"
                                          : "must be a number, or a string with a unit");
  }
  switch (unit) {
    case Unit::bytes: return static_cast<double>(parse_bytes(text->get()));
    case Unit::rate: return parse_rate(text->get());
    default: return parse_time(text->get());
  }
}

// [[nodes, oversubscription], ...], nearest first.
std::vector<SwitchLevel> switch_levels(const toml::node& node) {
  const std::string rule =
      "must be [[nodes, oversubscription], ...], each level with more nodes than the one below and "
      "an oversubscription from 1 to 1000";
  const auto* list = node.as_array();
  if (list == nullptr) throw UsageError(rule);
  std::vector<SwitchLevel> levels;
  for (const toml::node& each : *list) {
    const auto* pair = each.as_array();
    if (pair == nullptr || pair->size() != 2) throw UsageError(rule);
    const double nodes = number(*pair->get(0), Unit::number);
    const double by = number(*pair->get(1), Unit::number);
    const int before = levels.empty() ? 0 : levels.back().nodes;
    if (!(nodes > before && nodes <= 1e6 && by >= 1 && by <= 1000)) throw UsageError(rule);
    levels.push_back({static_cast<int>(nodes), by});
  }
  return levels;
}

template <class Entry>
bool set_key(const std::vector<Key<Entry>>& keys, Entry& entry, const std::string& key,
             const toml::node& node) {
  for (const Key<Entry>& known : keys) {
    if (key != known.name) continue;
    const double value = number(node, known.unit);
    if (!(value >= known.least && value <= known.most)) {
      throw UsageError(str("must be ", known.least, " to ", known.most, ", not ", value));
    }
    *known.at(entry) = value;
    return true;
  }
  return false;
}

std::string one_of(const toml::node& node, const std::vector<std::string>& words) {
  const auto* value = node.as_string();
  if (value == nullptr || std::find(words.begin(), words.end(), value->get()) == words.end()) {
    throw UsageError(str("must be one of ", join(words, ", ")));
  }
  return value->get();
}

bool boolean_of(const toml::node& node) {
  const auto* value = node.as_boolean();
  if (value == nullptr) throw UsageError("must be true or false");
  return value->get();
}

bool set_count(Hardware& entry, const std::string& key, const toml::node& node) {
  for (const CountKey& known : kCounts) {
    if (key != known.name) continue;
    const auto* value = node.as_integer();
    if (value == nullptr || value->get() < 1 || value->get() > 1'000'000) {
      throw UsageError("must be a whole number from 1 to 1000000");
    }
    entry.*known.member = static_cast<int>(value->get());
    return true;
  }
  return false;
}

[[noreturn]] void unknown_key(const std::string& key, std::vector<std::string> names) {
  for (const auto& known : figure_keys()) names.emplace_back(known.name);
  throw UsageError(str("is unknown", did_you_mean(key, names)));
}

void set_value(Hardware& entry, const std::string& key, const toml::node& node) {
  if (set_key(hardware_keys(), entry, key, node) || set_count(entry, key, node)) return;
  if (set_key<SoftwareFigures>(figure_keys(), entry, key, node)) {
    // A value set outside a software table applies to all software.
    for (auto& [name, figures] : entry.figures) set_key(figure_keys(), figures, key, node);
  } else if (key == "kind") {
    entry.kind = one_of(node, {"NVLink", "PCIe", "memory"});
  } else if (key == "switches") {
    entry.switches = switch_levels(node);
  } else if (key == "software") {
    entry.run_by(one_of(node, software_names()));
  } else if (key == "caution") {
    const auto* value = node.as_string();
    if (value == nullptr || value->get().size() > 1000)
      throw UsageError("must be a string of at most 1000 characters");
    entry.caution = value->get();
  } else if (key == "cpu") {
    entry.cpu = boolean_of(node);
  } else if (key == "fused_attention") {
    entry.fused_attention = boolean_of(node);
  } else if (key == "bf16") {
    entry.bf16 = boolean_of(node);
  } else if (key == "tessera") {  // written by older versions
    if (boolean_of(node)) entry.run_by("tessera");
  } else if (key == "rail_share") {  // written by older versions; replaced by nics
    number(node, Unit::number);
  } else {
    std::vector<std::string> names = {"like", "caution",  "cpu",  "fused_attention",
                                      "bf16", "software", "kind", "switches"};
    for (const auto& known : hardware_keys()) names.emplace_back(known.name);
    for (const CountKey& known : kCounts) names.emplace_back(known.name);
    for (const std::string& known : software_names()) names.push_back(known);
    unknown_key(key, std::move(names));
  }
}

[[noreturn]] void fail_at(const toml::key& key, const std::string& where, const Hardware& entry,
                          const std::string& name, const UsageError& error) {
  fail_in_toml(key.source(), where, str(entry.name, ", ", quote(name), ": ", error.what()));
}

// Reads [entry.software]: figures of that software on the device.
void set_figures(Hardware& entry, const std::string& software, const toml::table& table,
                 const std::string& where) {
  auto found = std::find_if(entry.figures.begin(), entry.figures.end(),
                            [&](const auto& each) { return each.first == software; });
  if (found == entry.figures.end()) {
    entry.figures.emplace_back(software, static_cast<const SoftwareFigures&>(entry));
    found = std::prev(entry.figures.end());
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    try {
      if (!set_key(figure_keys(), found->second, name, node)) unknown_key(name, {});
    } catch (const UsageError& error) {
      fail_at(key, where, entry, software + "." + name, error);
    }
  }
  if (entry.software == software) static_cast<SoftwareFigures&>(entry) = found->second;
}

void set_all(Hardware& entry, const toml::table& table, const std::string& prefix,
             const std::string& where) {
  std::vector<std::pair<std::string, const toml::table*>> by_software;
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (name == "like") continue;
    if (const auto* inner = node.as_table(); prefix.empty() && inner != nullptr) {
      const auto& known = software_names();
      if (std::find(known.begin(), known.end(), name) != known.end()) {
        by_software.emplace_back(name, inner);
        continue;
      }
      if (name == "inside" || name == "between") {
        set_all(entry, *inner, name + ".", where);
        continue;
      }
    }
    try {
      set_value(entry, name, node);
    } catch (const UsageError& error) {
      fail_at(key, where, entry, name, error);
    }
  }
  for (const auto& [name, inner] : by_software) set_figures(entry, name, *inner, where);
}

void check_complete(const Hardware& h, const toml::table& table, const std::string& where) {
  const auto require_key = [&](bool there, const char* key) {
    if (there) return;
    fail_in_toml(table.source(), where,
                 str(h.name, ": ", key,
                     " is missing; set it, or copy the missing keys from another entry with ",
                     "like = \"a100-80\""));
  };
  require_key(h.memory > 0, "memory");
  require_key(h.peak_16bit > 0, "peak_16bit");
  require_key(h.peak_fp32 > 0, "peak_fp32");
  require_key(h.memory_bandwidth > 0, "memory_bandwidth");
  require_key(h.inside.bandwidth > 0, "inside.bandwidth");
  require_key(h.between.bandwidth > 0, "between.bandwidth");
}

}  // namespace

void Catalog::parse(std::string_view text, const std::string& where) {
  const toml::table table = parse_toml(text, where);
  // In the order of the file, so that `like` can refer to earlier entries.
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [name, node] : table) entries.emplace_back(name.str(), &node);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.second->source().begin < b.second->source().begin;
  });
  std::vector<Hardware> all = all_;  // an invalid file changes nothing
  const auto known = [&](const std::string& name) {
    return std::find_if(all.begin(), all.end(), [&](const Hardware& h) { return h.name == name; });
  };
  for (const auto& [name, node] : entries) {
    const toml::table* entry = node->as_table();
    if (entry == nullptr) {
      fail_in_toml(node->source(), where, str(quote(name), ": must be a table, [", name, "]"));
    }
    Hardware hardware;
    if (const auto found = known(name); found != all.end()) hardware = *found;
    if (const toml::node* like = entry->get("like")) {
      const auto* base = like->as_string();
      const auto found = base != nullptr ? known(base->get()) : all.end();
      if (found == all.end()) {
        fail_in_toml(
            like->source(), where,
            str(name, ", \"like\": must be the name of an earlier entry or of a built-in one"));
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

void Catalog::read(const std::string& path) {
  parse(read_small_file(path, kMaxToml, "a TOML file", "--hardware-file"), path);
}

std::vector<FileSetting> parse_settings(std::string_view text, const std::string& where) {
  const toml::table table = parse_toml(text, where);
  std::vector<FileSetting> all;
  const auto take = [&](std::string_view key, const toml::node& node) {
    const std::int64_t line = node.source().begin.line;
    const std::optional<std::string> value = flag_text(node);
    if (!value) throw UsageError(str(where, ", line ", line, ": ", key, ": ", kWantedFlagText));
    all.push_back({std::string(key), *value, line});
  };
  for (const auto& [group, content] : table) {
    if (const auto* inner = content.as_table()) {
      for (const auto& [key, node] : *inner) take(key.str(), node);
    } else {
      take(group.str(), content);
    }
  }
  return all;
}

}  // namespace tessera::planner
