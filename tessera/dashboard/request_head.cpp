#include "tessera/dashboard/request_head.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>

#include "tessera/core/text.h"

namespace tessera::dashboard {
namespace {

constexpr std::string_view kSingle[] = {"authorization",
                                        "content-encoding",
                                        "content-length",
                                        "content-type",
                                        "cookie",
                                        "expect",
                                        "host",
                                        "origin",
                                        "referer",
                                        "sec-fetch-site",
                                        "transfer-encoding",
                                        "user-agent"};

// Thrown only within parse_head().
struct Refused {
  Answer answer;
};

[[noreturn]] void refuse(int status, std::string_view why) { throw Refused{refusal(status, why)}; }

bool is_token_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_character);
}

bool is_value_character(char c) {
  return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return lower;
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Removes and returns the first line of `rest`. find_head_end() guarantees that there is one.
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos || end == 0 || rest[end - 1] != '\r') {
    refuse(400, "a line of the request does not end with CRLF");
  }
  const std::string_view line = rest.substr(0, end - 1);
  rest.remove_prefix(end + 1);
  return line;
}

std::string decoded(std::string_view text, bool plus_is_blank) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_blank) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      unsigned byte = 0;
      const std::string_view digits = text.substr(i + 1, 2);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2) {
        refuse(400, "the address has a % without two hexadecimal digits after it");
      }
      out += static_cast<char>(byte);
      i += 2;
    }
  }
  return out;
}

void read_target(std::string_view target, Request& request) {
  const std::size_t mark = target.find('?');
  request.path = decoded(target.substr(0, mark), false);
  std::string_view query = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const std::size_t equals = pair.find('=');
    if (pair.empty()) continue;
    request.query.emplace(  // the first of several is used
        decoded(pair.substr(0, equals), true),
        equals == std::string_view::npos ? "" : decoded(pair.substr(equals + 1), true));
  }
}

void read_request_line(std::string_view line, const RequestLimits& limits, RequestHead& head) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    refuse(400, "the first line is not METHOD PATH HTTP/1.1");
  }
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!is_token(method)) refuse(400, "the method is not a word");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    refuse(400, "the version must be HTTP/1.1 or HTTP/1.0");
  }
  head.closes = version == "HTTP/1.0";
  if (target.size() > limits.target_bytes) {
    refuse(414, str("the address is too long; the maximum is ", limits.target_bytes, " bytes"));
  }
  if (target.empty() || target.front() != '/' ||
      !std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
    refuse(400, "the address must be a path that starts with / and has only printable characters");
  }
  head.request.method = method;
  read_target(target, head.request);
}

void read_header(std::string_view line, Request& request) {
  const std::size_t colon = line.find(':');
  const std::string_view value =
      colon == std::string_view::npos ? "" : without_blanks(line.substr(colon + 1));
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    refuse(400, "a header is not NAME: VALUE");
  }
  if (!std::all_of(value.begin(), value.end(), is_value_character)) {
    refuse(400, "a header has a control character");
  }
  const std::string name = lower_case(line.substr(0, colon));
  const auto [found, is_new] = request.headers.emplace(name, value);
  if (is_new) return;
  if (std::find(std::begin(kSingle), std::end(kSingle), name) != std::end(kSingle)) {
    refuse(400, str("the header ", name, " occurs twice"));
  }
  found->second += str(", ", value);
}

void read_framing(const RequestLimits& limits, RequestHead& head) {
  const Request& request = head.request;
  const bool chunked = request.headers.contains("transfer-encoding");
  head.has_length = request.headers.contains("content-length");
  if (chunked && head.has_length) {
    refuse(400, "a request has Content-Length or Transfer-Encoding, not both");
  }
  if (chunked) refuse(411, "Transfer-Encoding is not supported; send a Content-Length");
  const std::string_view encoding = request.header("content-encoding");
  if (!encoding.empty() && lower_case(encoding) != "identity") {
    Answer answer = refusal(
        415, str("Content-Encoding: got ", quote(encoding), "; the body must not be compressed"));
    answer.headers["Accept-Encoding"] = "identity";
    throw Refused{std::move(answer)};
  }
  if (head.has_length) {
    const std::string_view length = request.header("content-length");
    const bool digits = !length.empty() && std::all_of(length.begin(), length.end(),
                                                       [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) refuse(400, "Content-Length is not a number of bytes");
    const auto [end, error] =
        std::from_chars(length.data(), length.data() + length.size(), head.body_bytes);
    if (error != std::errc() || head.body_bytes > limits.body_bytes) {
      head.body_bytes = 0;
      refuse(413, str("the body is too large; the maximum is ", limits.body_bytes / 1024,
                      " KiB of JSON"));
    }
  }
  const std::string expected = lower_case(request.header("expect"));
  if (!expected.empty() && expected != "100-continue") {
    refuse(417, "Expect: only 100-continue is supported");
  }
  head.expects_continue = !expected.empty() && head.body_bytes > 0;
  std::string connection = "," + lower_case(request.header("connection")) + ",";
  std::erase_if(connection, [](char c) { return c == ' ' || c == '\t'; });
  head.closes = head.closes || connection.find(",close,") != std::string::npos;
}

}  // namespace

std::size_t find_head_end(std::string_view bytes, std::size_t from) {
  for (std::size_t at = bytes.find('\n', from); at != std::string_view::npos;
       at = bytes.find('\n', at + 1)) {
    const bool ends_line = at > 0 && bytes[at - 1] == '\r';
    if (!ends_line || at == 1 || bytes[at - 2] == '\n') return at + 1;
  }
  return std::string_view::npos;
}

RequestHead parse_head(std::string_view head, const RequestLimits& limits) {
  RequestHead parsed;
  try {
    read_request_line(take_line(head), limits, parsed);
    std::size_t lines = 0;
    for (std::string_view line = take_line(head); !line.empty(); line = take_line(head)) {
      if (++lines > limits.headers) {
        refuse(431, str("there are more than ", limits.headers, " headers"));
      }
      read_header(line, parsed.request);
    }
    read_framing(limits, parsed);
  } catch (Refused& refused) {
    parsed.refused = std::move(refused.answer);
    parsed.closes = true;
  }
  return parsed;
}

}  // namespace tessera::dashboard
