#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "tessera/dashboard/http.h"

namespace tessera::dashboard {

// Largest request that is read. Bytes.
struct RequestLimits {
  std::size_t head_bytes = 16 << 10;  // request line and headers
  std::size_t target_bytes = 8192;    // path and query
  std::size_t headers = 100;          // number of lines
  std::size_t body_bytes = 64 << 10;
};

// A parsed head: the request without its body, and how the connection goes on.
struct RequestHead {
  Request request;
  std::size_t body_bytes = 0;     // that follow the head
  bool has_length = false;        // Content-Length was given
  bool expects_continue = false;  // the client waits for "100 Continue" before it sends the body
  bool closes = false;            // the connection ends with the answer
  std::optional<Answer> refused;  // set: answer this, read no body, and close
};

// Position behind the blank line that ends the head, or npos while the head is incomplete. A line
// feed without a carriage return ends the head at once, so that parse_head() refuses it. Bytes
// before `from` were searched by an earlier call.
std::size_t find_head_end(std::string_view bytes, std::size_t from);

// [Note: strict requests] The only parser of requests. It accepts less than HTTP allows, since
// every leniency is a way to disagree with a proxy in front of this server about where a request
// ends:
//  - lines end with CRLF; header names are tokens that touch their colon; no line is continued on
//    the next; values have no control characters and are not decoded in any way;
//  - a body has a Content-Length of digits. Transfer-Encoding is refused: with a length it is the
//    classic way to smuggle a request, without one the body has no bound;
//  - a body is never decompressed: Content-Encoding is refused (415) before a byte of it is read;
//  - headers with one meaning (Host, Content-Length, Cookie, …) come once;
//  - the target is a path; http://host/path would be a second name of the host.
RequestHead parse_head(std::string_view head, const RequestLimits& limits = {});

}  // namespace tessera::dashboard
