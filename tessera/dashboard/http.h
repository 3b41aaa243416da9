#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

// Requests and answers, independent of the transport.
namespace tessera::dashboard {

struct Request {
  std::string method = "GET";
  std::string path = "/";                                   // decoded, without the query
  std::map<std::string, std::string> query;                 // decoded
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case
  std::string body;

  // Returns "" if the header is absent.
  std::string_view header(std::string_view name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string_view() : std::string_view(found->second);
  }
};

// Source of server-sent events. next() waits for a limited time and returns the text to send, or ""
// if there is nothing new. last() returns the text to send when the server stops. over() ends the
// stream.
class EventSource {
 public:
  virtual ~EventSource() = default;
  virtual std::string next() = 0;
  virtual std::string last() { return ""; }
  virtual bool over() const = 0;
};

struct Answer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::map<std::string, std::string> headers;
  std::shared_ptr<EventSource> events;  // instead of a body
};

// Handlers of requests. May be called by several threads concurrently.
struct Site {
  // Checks a request before its body is read. Returns the answer if it is refused.
  std::function<std::optional<Answer>(const Request& head)> refuse;
  std::function<Answer(const Request&)> answer;
  // Returns true if the answer is slow, so that other requests must not wait for it.
  std::function<bool(const Request&)> takes_long = {};
};

// Returns {"error":{"message":…,"field":…}}. The message may contain invalid UTF-8.
Answer refusal(int status, std::string_view message, std::string_view field = "");

// Formats an answer as HTTP/1.1, with the headers of every answer (content security policy and
// others). `closes`: the connection ends after it. `head_only`: omits the body but gives its
// length. For an answer with events returns only the head; chunks follow. Throws Error if a header
// has a control character, which could end it.
std::string response_text(const Answer& answer, bool closes, bool head_only = false);

}  // namespace tessera::dashboard
