#include "tessera/dashboard/guard.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "tessera/core/crypto.h"
#include "tessera/core/text.h"

namespace tessera::dashboard {
namespace {

constexpr const char* kCookie = "tessera_token";

bool is_number(const std::string& host) {
  in_addr four{};
  in6_addr six{};
  return ::inet_pton(AF_INET, host.c_str(), &four) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &six) == 1;
}

bool is_ours(const GuardOptions& options, const std::string& host) {
  if (host == "localhost" || is_loopback(host)) return true;
  if (options.any_number && is_number(host)) return true;
  return std::find(options.hosts.begin(), options.hosts.end(), host) != options.hosts.end();
}

// Returns true for ":" and the digits of a port.
bool is_port(std::string_view text) {
  int port = 0;
  const char* const end = text.data() + text.size();
  if (text.size() < 2 || text.front() != ':' || text[1] < '0' || text[1] > '9') return false;
  const auto [rest, error] = std::from_chars(text.data() + 1, end, port);
  return error == std::errc() && rest == end && port <= 65535;
}

bool is_token(const GuardOptions& options, std::string_view text) {
  return equal_in_constant_time(sha256(text), sha256(options.token));
}

std::string_view cookie_of(std::string_view header) {
  const std::string name = str(kCookie, "=");
  std::size_t at = 0;
  while (at < header.size()) {
    const std::size_t end = std::min(header.find(';', at), header.size());
    std::string_view part = header.substr(at, end - at);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    if (part.substr(0, name.size()) == name) return part.substr(name.size());
    at = end + 1;
  }
  return "";
}

std::optional<Answer> refuse_without_token(const GuardOptions& options, const Request& head) {
  const auto given = head.query.find("token");
  if (given != head.query.end() && is_token(options, given->second) && head.path == "/") {
    // Redirects to remove it from the address, which histories and screenshots keep.
    Answer answer;
    answer.status = 303;
    answer.headers["Location"] = "/";
    answer.headers["Set-Cookie"] =
        str(kCookie, "=", options.token, "; Path=/; HttpOnly; SameSite=Strict");
    return answer;
  }
  const std::string_view bearer = head.header("authorization");
  if (bearer.rfind("Bearer ", 0) == 0 && is_token(options, bearer.substr(7))) return std::nullopt;
  if (is_token(options, cookie_of(head.header("cookie")))) return std::nullopt;
  Answer answer =
      refusal(401, "this dashboard needs its token: open the address that it printed at startup");
  answer.headers["WWW-Authenticate"] = "Bearer";
  return answer;
}

}  // namespace

std::string host_of(std::string_view header) {
  std::string host(header);
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  const bool six = !host.empty() && host.front() == '[';
  const std::size_t end = six ? host.find(']') : host.find(':');
  if (six && end == std::string::npos) return "";
  const std::string rest = end == std::string::npos ? "" : host.substr(six ? end + 1 : end);
  if (!rest.empty() && !is_port(rest)) return "";
  host = six ? host.substr(1, end - 1) : host.substr(0, end);
  in6_addr address{};
  if (six) return ::inet_pton(AF_INET6, host.c_str(), &address) == 1 ? host : "";
  if (!std::all_of(host.begin(), host.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
      })) {
    return "";
  }
  if (!host.empty() && host.back() == '.') host.pop_back();
  return host;
}

bool is_loopback(std::string_view address) {
  const std::string text(address);
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24U) == 127;
  return ::inet_pton(AF_INET6, text.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

std::optional<Answer> refuse_stranger(const GuardOptions& options, const Request& head) {
  const std::string host = host_of(head.header("host"));
  if (!is_ours(options, host)) {
    return refusal(403, str("Host: got ", quote(head.header("host")),
                            "; must be the address that the dashboard printed at startup"));
  }
  const std::string_view origin = head.header("origin");
  const std::size_t slashes = origin.find("://");
  const std::string_view scheme = origin.substr(0, slashes);
  const bool is_page = slashes != std::string_view::npos && (scheme == "http" || scheme == "https");
  if (!origin.empty() && (!is_page || origin.substr(slashes + 3) != head.header("host"))) {
    return refusal(403, str("Origin: got ", quote(origin), "; must be the dashboard's own"));
  }
  const std::string_view site = head.header("sec-fetch-site");
  if (head.path.rfind("/api/", 0) == 0 && (site == "cross-site" || site == "same-site")) {
    return refusal(403, "requests from other sites are not allowed");
  }
  if (!options.token.empty()) return refuse_without_token(options, head);
  return std::nullopt;
}

std::optional<Answer> refuse_other_type(const Request& head) {
  const std::string_view type = head.header("content-type");
  if (head.method != "POST" || type.substr(0, type.find(';')) == "application/json") {
    return std::nullopt;
  }
  return refusal(415, str("Content-Type: got ", quote(type), "; must be application/json"));
}

}  // namespace tessera::dashboard
