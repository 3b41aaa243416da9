#include "tessera/dashboard/http.h"

#include <nlohmann/json.hpp>

namespace tessera::dashboard {

Answer refusal(int status, std::string_view message, std::string_view field) {
  nlohmann::ordered_json error = {{"message", std::string(message)}};
  if (!field.empty()) error["field"] = std::string(field);
  const nlohmann::ordered_json json = {{"error", std::move(error)}};
  Answer answer;
  answer.status = status;
  answer.body = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return answer;
}

const std::map<std::string, std::string>& safe_headers() {
  static const std::map<std::string, std::string> headers = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
       "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
       "form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"},
  };
  return headers;
}

}  // namespace tessera::dashboard
