#include "tessera/dashboard/api.h"

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::dashboard {
namespace {

// Returns the field that a message is about: it starts with "--name: " or with the quoted name.
std::string field_of(const std::string& message) {
  std::string name;
  if (message.rfind("--", 0) == 0) {
    name = message.substr(2, message.find_first_of(": ", 2) - 2);
  } else if (message.rfind('"', 0) == 0) {
    name = message.substr(1, message.find('"', 1) - 1);
  }
  if (name.size() > 40) return "";
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

}  // namespace

Answer guarded_answer(const std::function<Answer()>& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    return refusal(400, error.what(), field_of(error.what()));
  } catch (const Unavailable& error) {
    return refusal(503, error.what());
  } catch (const std::exception& error) {
    return refusal(500, error.what());
  }
}

}  // namespace tessera::dashboard
