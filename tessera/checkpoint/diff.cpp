#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/checkpoint/reshard.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t kDiffElements = std::int64_t{1} << 20;

// Compares two states of the same shape, a chunk at a time.
void compare_values(Checkpoint& a, Checkpoint& b, DType type_a, DType type_b, std::int64_t elements,
                    StateDifference& out, const std::function<void(std::int64_t)>& done) {
  std::vector<std::byte> left(static_cast<std::size_t>(kDiffElements * bytes_of(type_a)));
  std::vector<std::byte> right(static_cast<std::size_t>(kDiffElements * bytes_of(type_b)));
  for (std::int64_t at = 0; at < elements; at += kDiffElements) {
    const std::int64_t count = std::min(kDiffElements, elements - at);
    a.load({{out.param, out.state, type_a, {{at, 0, count}}, left.data()}});
    b.load({{out.param, out.state, type_b, {{at, 0, count}}, right.data()}});
    done(count * bytes_of(type_a));
    const std::int64_t size = bytes_of(type_a);
    if (type_a == type_b &&
        std::memcmp(left.data(), right.data(), static_cast<std::size_t>(count * size)) == 0) {
      continue;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const double x = value_at(type_a, left.data(), i), y = value_at(type_b, right.data(), i);
      const bool equal = type_a == type_b
                             ? std::memcmp(left.data() + i * size, right.data() + i * size,
                                           static_cast<std::size_t>(size)) == 0
                             : x == y;
      if (equal) continue;
      if (out.first < 0) out.first = at + i;
      ++out.elements;
      const double distance = std::fabs(x - y);
      // Keep a NaN once there is one.
      if (!std::isnan(out.largest) && !(distance <= out.largest)) out.largest = distance;
    }
  }
}

// Returns the differences of two model descriptions: "model.heads: 2 in A, 4 in B".
std::vector<std::string> model_differences(const std::string& a, const std::string& b) {
  using Json = nlohmann::json;
  const Json left = Json::parse(a).flatten(), right = Json::parse(b).flatten();
  std::set<std::string> keys;
  for (const Json* fields : {&left, &right}) {
    for (const auto& [key, value] : fields->items()) keys.insert(key);
  }
  std::vector<std::string> lines;
  for (const std::string& key : keys) {
    const auto text = [&](const Json& fields) {
      return fields.contains(key) ? fields[key].dump(-1, ' ', false, Json::error_handler_t::replace)
                                  : std::string("nothing");
    };
    if (text(left) == text(right)) continue;
    std::string name = "model" + key;
    std::replace(name.begin(), name.end(), '/', '.');
    lines.push_back(str(name, ": ", text(left), " in A, ", text(right), " in B"));
  }
  return lines;
}

}  // namespace

Difference diff(Checkpoint& a, Checkpoint& b, const BytesDone& progress) {
  Difference out;
  const auto about = [&](const char* what, const auto& x, const auto& y) {
    if (x != y) out.about.push_back(str(what, ": ", x, " in A, ", y, " in B"));
  };
  about("step", a.about().step, b.about().step);
  about("samples", a.about().samples, b.about().samples);
  about("seed", a.about().seed, b.about().seed);
  about("mesh", a.about().mesh.words(" "), b.about().mesh.words(" "));
  about("stage", a.about().stage, b.about().stage);
  about("layout", a.about().layout, b.about().layout);
  for (const std::string& line : model_differences(a.about().model, b.about().model)) {
    out.about.push_back(line);
  }
  std::set<std::string> keys;
  for (const Checkpoint* c : {&a, &b}) {
    for (const auto& [key, value] : c->about().extra) keys.insert(key);
  }
  for (const std::string& key : keys) {
    const auto text = [&](const Checkpoint& c) {
      const auto found = c.about().extra.find(key);
      const bool present = found != c.about().extra.end() && !found->second.empty();
      return present ? found->second : std::string("nothing");
    };
    about(key.c_str(), text(a), text(b));
  }

  std::vector<std::string> names;
  for (const ParamSpec& spec : a.about().params) names.push_back(spec.name);
  for (const ParamSpec& spec : b.about().params) {
    if (a.find(spec.name) == nullptr) names.push_back(spec.name);
  }
  std::int64_t total = 0;
  const auto done = [&](std::int64_t bytes) {
    total += bytes;
    if (progress) progress(total);
  };
  for (const std::string& param : names) {
    const ParamSpec *in_a = a.find(param), *in_b = b.find(param);
    if (in_a == nullptr || in_b == nullptr) {
      out.states.push_back({param, "", in_a != nullptr ? "only in A" : "only in B"});
      continue;
    }
    if (in_a->shape != in_b->shape) {
      out.states.push_back({param, "", "different shapes"});
      continue;
    }
    std::map<std::string, DType> states_a = a.states(param), states_b = b.states(param);
    std::set<std::string> states;
    for (const auto& [state, dtype] : states_a) states.insert(state);
    for (const auto& [state, dtype] : states_b) states.insert(state);
    for (const std::string& state : states) {
      StateDifference difference{param, state, ""};
      const bool has_a = states_a.count(state) != 0, has_b = states_b.count(state) != 0;
      if (!has_a || !has_b) {
        difference.reason = has_a ? "only in A" : "only in B";
      } else {
        const DType type_a = states_a[state], type_b = states_b[state];
        if (type_a != type_b) {
          difference.reason = str(stored_name(type_a), " in A, ", stored_name(type_b), " in B");
        }
        compare_values(a, b, type_a, type_b, elements_of(in_a->shape), difference, done);
      }
      if (difference.reason.empty() && difference.elements == 0) {
        ++out.equal;
      } else {
        out.states.push_back(std::move(difference));
      }
    }
  }
  return out;
}

}  // namespace tessera::checkpoint
