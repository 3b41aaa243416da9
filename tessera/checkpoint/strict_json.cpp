#include "tessera/checkpoint/strict_json.h"

#include <set>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {

nlohmann::json parse_strictly(std::string_view text, int most_depth, const std::string& where) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> keys;  // of the objects around
  int depth = 0;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start: keys.emplace_back(); [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (++depth > most_depth) throw DataError(where + " is nested too deeply");
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(value.get_ref<const std::string&>()).second) {
          throw DataError(
              str(where, " has ", quote(value.get_ref<const std::string&>()), " twice"));
        }
        break;
      case Json::parse_event_t::object_end: keys.pop_back(); [[fallthrough]];
      case Json::parse_event_t::array_end: --depth; break;
      case Json::parse_event_t::value: break;
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& error) {
    throw DataError(str(where, " is no JSON: ", error.what()));
  }
}

}  // namespace tessera::checkpoint
