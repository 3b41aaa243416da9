#include "tessera/dashboard/api.h"

#include <algorithm>

#include "tessera/core/errors.h"

namespace tessera::dashboard {
Answer calculator_answer(const Knowledge& known, std::string_view method, std::string_view path,
                         const std::string& body) {
  static const std::vector<Route> routes = calculator_routes();
  return guarded_answer([&] {
    for (const Route& route : routes) {
      if (route.method != method || route.path != path) continue;
      Ask ask(body);
      Answer answer;
      answer.body = route.answer(known, ask);
      return answer;
    }
    return refusal(404, "not found");
  });
}

Answer guarded_answer(const std::function<Answer()>& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    std::string field = error.field();
    std::replace(field.begin(), field.end(), '-', '_');  // as keys of JSON
    return refusal(400, error.what(), field);
  } catch (const Unavailable& error) {
    return refusal(503, error.what());
  } catch (const std::exception& error) {
    return refusal(500, error.what());
  }
}

}  // namespace tessera::dashboard
