#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "tessera/dashboard/http.h"

namespace tessera::dashboard {

// Limits of a request, in bytes unless noted.
struct RequestLimits {
  std::size_t head_bytes = 16 << 10;  // request line and headers
  std::size_t target_bytes = 8192;    // path and query
  std::size_t headers = 100;          // number of lines
  std::size_t body_bytes = 64 << 10;
};

// Parsed head: the request without its body, and how the connection continues.
struct RequestHead {
  Request request;
  std::size_t body_bytes = 0;     // length of the body
  bool has_length = false;        // Content-Length was given
  bool expects_continue = false;  // the client waits for "100 Continue" before it sends the body
  bool closes = false;            // the connection ends with the answer
  std::optional<Answer> refused;  // if set: answer with it, read no body, and close
};

// Returns the position after the blank line that ends the head, or npos while the head is
// incomplete. A line feed without a carriage return ends the head, so that parse_head() refuses it.
// Bytes before `from` were searched by an earlier call.
std::size_t find_head_end(std::string_view bytes, std::size_t from);

// [Note: strict requests] Parses a request head; the only parser of requests. It accepts less than
// HTTP allows, since leniency could make it disagree with a proxy about where a request ends:
//  - lines end with CRLF; header names are tokens followed directly by a colon; no line is
//  continued
//    on the next; values have no control characters and are not decoded;
//  - a body has a Content-Length of digits. Transfer-Encoding is refused: with a length it is the
//    classic way to smuggle a request, without one the body is unbounded;
//  - a body is never decompressed: Content-Encoding is refused (415) before any of it is read;
//  - headers with a single value (Host, Content-Length, Cookie, …) may occur only once;
//  - the target is a path; http://host/path would be a second name of the host.
RequestHead parse_head(std::string_view head, const RequestLimits& limits = {});

}  // namespace tessera::dashboard
