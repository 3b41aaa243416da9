#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

// Requests and answers, whatever carries them.
namespace tessera::dashboard {

struct Request {
  std::string method = "GET";
  std::string path = "/";                                   // decoded, without the query
  std::map<std::string, std::string> query;                 // decoded
  std::map<std::string, std::string, std::less<>> headers;  // names in small letters
  std::string body;

  // Empty where there is none.
  std::string_view header(std::string_view name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string_view() : std::string_view(found->second);
  }
};

// What a page listens to. next() waits a while and returns the text to send, "" for nothing new;
// `over` ends it.
class EventSource {
 public:
  virtual ~EventSource() = default;
  virtual std::string next() = 0;
  virtual bool over() const = 0;
};

struct Answer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::map<std::string, std::string> headers;
  std::shared_ptr<EventSource> events;  // instead of a body
};

// Who answers. Each may be called by several threads at once.
struct Site {
  // Looks at a request whose body has not been read: what is not to go on is answered here.
  std::function<std::optional<Answer>(const Request& head)> refuse;
  std::function<Answer(const Request&)> answer;
  // Is the answer one that others must not wait for?
  std::function<bool(const Request&)> takes_long = {};
};

// {"error":{"message":…,"field":…}}; what a message quotes need not be UTF-8.
Answer refusal(int status, std::string_view message, std::string_view field = "");

// The answer as HTTP/1.1 sends it, with the headers that every answer has (what a page may load,
// run and embed). `closes`: the connection ends with it. `head_only`: without the body, whose
// length is told. An answer with events has a head alone; chunks follow. Throws Error if a header
// has a control character, which would end it.
std::string response_text(const Answer& answer, bool closes, bool head_only = false);

}  // namespace tessera::dashboard
