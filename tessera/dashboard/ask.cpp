#include "tessera/dashboard/ask.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"
#include "tessera/planner/json.h"

namespace tessera::dashboard {
namespace {

std::string flag_name(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

[[noreturn]] void refuse_value(const std::string& key, const Json& got,
                               const std::string& allowed) {
  throw UsageError(
      Flag(flag_name(key)),
      str("got ", got.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60),
          "; must be ", allowed));
}

}  // namespace

Ask::Ask(const std::string& body) : body_(Json::object()) {
  try {
    if (!body.empty()) body_ = Json::parse(body);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(str("the body is not valid JSON: ", json_error_text(error.what())));
  }
  if (!body_.is_object()) {
    throw UsageError(
        str("the body: got ", body_.type_name(), "; must be an object such as {\"dp\":8}"));
  }
}

bool Ask::has(std::string_view key) const {
  const auto found = body_.find(key);
  return found != body_.end() && !found->is_null();
}

const Json* Ask::take(const std::string& key) {
  taken_.insert(key);
  const auto found = body_.find(key);
  return found == body_.end() || found->is_null() ? nullptr : &*found;
}

double Ask::number(const std::string& key, double otherwise, double least, double most) {
  const Json* const value = take(key);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= least && number <= most)) {
    refuse_value(key, *value, str("a number from ", least, " to ", most));
  }
  return number;
}

std::int64_t Ask::integer(const std::string& key, std::int64_t otherwise, std::int64_t least,
                          std::int64_t most) {
  const Json* const value = take(key);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= static_cast<double>(least) && number <= static_cast<double>(most)) ||
      number != std::floor(number)) {
    refuse_value(key, *value, str("an integer from ", least, " to ", most));
  }
  return static_cast<std::int64_t>(number);
}

bool Ask::flag(const std::string& key, bool otherwise) {
  const Json* const value = take(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse_value(key, *value, "true or false");
  return value->get<bool>();
}

std::string Ask::word(const std::string& key, const std::string& otherwise,
                      const std::vector<std::string>& choices) {
  const Json* const value = take(key);
  if (value == nullptr) return otherwise;
  const std::string text = value->is_string() ? value->get<std::string>() : std::string();
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    refuse_value(key, *value, "one of " + join(choices, ", "));
  }
  return text;
}

Json Ask::list(const std::string& key, std::size_t most) {
  const Json* const value = take(key);
  if (value == nullptr) return Json::array();
  if (!value->is_array() || value->size() > most) {
    refuse_value(key, *value, str("a list of at most ", most, " elements"));
  }
  return *value;
}

std::vector<std::string> Ask::words(const std::string& key, const std::vector<std::string>& choices,
                                    std::size_t most) {
  std::vector<std::string> all;
  for (const Json& each : list(key, most)) {
    const std::string text = each.is_string() ? each.get<std::string>() : std::string();
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      refuse_value(key, each, "one of " + join(choices, ", "));
    }
    all.push_back(text);
  }
  return all;
}

std::string Ask::object_text(const std::string& key) {
  const auto found = body_.find(key);
  if (found == body_.end()) return "";
  const Json value = *found;
  body_.erase(found);
  taken_.insert(key);
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) refuse_value(key, value, "an object");
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Ask::otherwise(const std::string& key, const std::string& text) {
  if (!has(key)) body_[key] = text;
}

planner::RunConfig Ask::settings() const {
  // Sorted by name, like planner::read_json(), so that both report the same of two errors.
  std::vector<const Json::object_t::value_type*> rest;
  for (const auto& each : body_.get_ref<const Json::object_t&>()) {
    if (!each.second.is_null() && taken_.count(each.first) == 0) rest.push_back(&each);
  }
  std::sort(rest.begin(), rest.end(), [](auto* a, auto* b) { return a->first < b->first; });
  planner::RunConfig settings = planner::RunConfig::for_plan();
  for (const auto* each : rest) {
    settings.set(each->first, planner::setting_text(each->first, each->second));
  }
  return settings;
}

planner::RunConfig Ask::question(const planner::Catalog& catalog, const Limits& limits) const {
  planner::RunConfig resolved = planner::resolve(planner::look_up(settings(), catalog));
  check_limits(resolved, limits);
  return resolved;
}

void Ask::nothing_else() const {
  for (const auto& [key, value] : body_.items()) {
    if (taken_.count(key) > 0) continue;
    throw UsageError(
        Flag(flag_name(key).substr(0, 60)),
        str("is not a key of this view", did_you_mean(key, {taken_.begin(), taken_.end()})));
  }
}

std::string Ask::command(const std::string& words, const std::set<std::string>& without) const {
  std::string text = "tessera " + words;
  for (const auto& [key, value] : body_.items()) {
    if (value.is_null() || without.count(key) > 0 || value.is_structured()) continue;
    const std::string name = flag_name(key);
    if (value.is_boolean()) {
      text += str(value.get<bool>() ? " --" : " --no-", shell_word(name));
    } else {
      text += str(" --", shell_word(name), " ",
                  shell_word(value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
  return text;
}

void check_limits(const planner::RunConfig& q, const Limits& limits) {
  if (q.axes.world() > limits.ranks) {
    throw UsageError(Flag("gpus"), str("got ", q.axes.world(), "; must be at most ", limits.ranks,
                                       " on this page. tessera plan accepts more."));
  }
  if (q.pipelined()) {
    check_passes(q, limits.slots,
                 str("their product must be at most ", limits.slots,
                     " on this page. tessera plan accepts more."));
  }
}

void check_passes(const planner::RunConfig& q, std::int64_t most, const std::string& rule) {
  if (q.passes() <= most) return;
  throw UsageError(Flag("grad-accum"),
                   str("got ", q.micros(), " micro-batches in ", q.pp(), " stages; ", rule));
}

std::string exact_word(double value) { return Json(value).dump(); }

std::string rate_word(double bytes_per_second) {
  for (const auto& [unit, size] : {std::pair("GB/s", 1e9), {"MB/s", 1e6}, {"B/s", 1.0}}) {
    const double count = bytes_per_second / size;
    if (count >= 1 && count == std::floor(count) && count * size == bytes_per_second) {
      return str(static_cast<std::int64_t>(count), unit);
    }
  }
  return exact_word(bytes_per_second) + "B/s";
}

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_.,:/+=@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace tessera::dashboard
