#include "tessera/dashboard/server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/connection.h"
#include "tessera/dashboard/crew.h"
#include "tessera/dashboard/lobby.h"

namespace tessera::dashboard {
namespace {

// Numeric alone: nothing is looked up.
Fd bound_socket(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw UsageError(str("--address: got ", quote(address),
                         ", wanted an address of this machine in numbers, such as 127.0.0.1"));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd.open() || ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(fd.get(), 256) != 0) {
    const int problem = errno;
    const bool taken = problem == EADDRINUSE;
    throw UsageError(str(taken ? "--port: " : "--address: ", "cannot listen at ", address, " port ",
                         port, ": ", std::strerror(problem),
                         taken ? "; wanted another port, or 0 for a free one" : ""));
  }
  return fd;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

// For what never gets as far as httplib.
std::string plain_answer(int status, const char* words, const char* reason) {
  const std::string body = refusal(status, reason).body;
  std::string text = str("HTTP/1.1 ", status, " ", words, "\r\nContent-Type: application/json\r\n",
                         "Connection: close\r\nContent-Length: ", body.size(), "\r\n");
  for (const auto& [name, value] : safe_headers()) text += str(name, ": ", value, "\r\n");
  return text + "\r\n" + body;
}

// Several headers as the value of the first, lines and all: httplib copies and prints one by one
// what it is given, for every answer: 5% of the time of one that is known already.
httplib::Headers all_in_one(const std::map<std::string, std::string>& headers) {
  std::string first, lines;
  for (const auto& [name, value] : headers) {
    if (first.empty()) {
      first = name;
      lines = value;
    } else {
      lines += str("\r\n", name, ": ", value);
    }
  }
  return {{first, lines}};
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return text;
}

// All but the body, which is not there yet.
Request taken_from(const httplib::Request& from) {
  Request request;
  request.method = from.method;
  request.path = from.path;
  request.query.insert(from.params.begin(), from.params.end());
  // The first of several counts; a second Host or Content-Length is refused below.
  for (const auto& [name, value] : from.headers) request.headers.emplace(lower(name), value);
  return request;
}

const char* reason_of(int status) {
  switch (status) {
    case 400: return "this is no HTTP request that can be read";
    case 413: return "the body is too large; wanted at most 64 KiB of JSON";
    case 414: return "the address is too long; wanted at most 8192 bytes";
    case 416: return "no such range";
    default: return "the request cannot be answered";
  }
}

bool is_whole_number(std::string_view text) {
  return !text.empty() && text.size() < 16 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int cores() { return static_cast<int>(std::thread::hardware_concurrency()); }

}  // namespace

class Server::Implementation : private httplib::Server {
 public:
  Implementation(const ServerOptions& options, Site site)
      : options_(options),
        site_(std::move(site)),
        listener_(bound_socket(options.address, options.port)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        lobby_(wake_.get()),
        // Half of the threads at most: those that step aside need others.
        crew_(std::min(cores() + 1, options.threads / 2), options.threads,
              [this] { return work(); }) {
    svr_sock_ = listener_.get();  // httplib ends long answers when this is gone
    set_payload_max_length(options_.body_bytes);
    set_default_headers(all_in_one(safe_headers()));
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      return at_head(request, response) ? HandlerResponse::Handled : HandlerResponse::Unhandled;
    });
    Post(".*", [this](const httplib::Request& request, httplib::Response& response) {
      Request& asked = serving()->request;
      asked.body = request.body;
      put(answered(asked), request, response);
    });
    set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      close_this(response);
      put(refusal(response.status, reason_of(response.status)), request, response);
    });
    set_exception_handler([this](const httplib::Request& request, httplib::Response& response,
                                 const std::exception_ptr&) {
      put(refusal(500, "this is a fault of the server"), request, response);
    });
  }
  ~Implementation() override {
    stop();
    crew_.end();
    svr_sock_ = INVALID_SOCKET;
  }

  int port() const { return port_of(listener_.get()); }

  void run() {
    crew_.begin();
    while (!stopping_) {
      pollfd entries[] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      // Where somebody is there, somebody may have been silent for too long.
      if (::poll(entries, 2, open_ > 0 ? 100 : -1) < 0 && errno != EINTR) break;
      if (stopping_) break;
      lobby_.sweep();
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (fd.open()) {
        take(std::move(fd));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        ::poll(entries + 1, 1, 20);  // those that are served will end
      }
    }
    stop();
    crew_.end();
  }

  void stop() noexcept {
    stopping_ = true;
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
    svr_sock_ = INVALID_SOCKET;
  }

 private:
  // What a thread is at.
  struct Serving {
    Connection& connection;
    Request request = {};
  };
  static Serving*& serving() {
    static thread_local Serving* now = nullptr;
    return now;
  }

  void take(Fd fd) {
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (open_ >= options_.connections && !lobby_.dismiss_one()) {
      static const std::string full =
          plain_answer(503, "Service Unavailable", "too many connections; try again later");
      (void)!::send(fd.get(), full.data(), full.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      return;
    }
    lobby_.wait(
        std::make_unique<Connection>(std::move(fd), options_.head_bytes + options_.body_bytes,
                                     options_.request_seconds, crew_, open_),
        options_.request_seconds);
  }

  bool work() {
    std::unique_ptr<Connection> connection = lobby_.next();
    if (stopping_) return false;
    if (!connection) return true;
    bool goes_on = true;
    do {
      goes_on = serve(*connection) && !stopping_;
    } while (goes_on && connection->buffered());
    if (goes_on) {
      lobby_.wait(std::move(connection), options_.idle_seconds);
    } else {
      connection->finish();
    }
    return true;
  }

  // One request; false if it was the last of its connection.
  bool serve(Connection& connection) {
    Serving now{connection};
    serving() = &now;
    connection.begin_request();
    bool closed = false;
    const bool good = process_request(connection, stopping_, closed, [](httplib::Request& request) {
      request.ranges.clear();  // files are small, and are sent whole
      // What is compressed already must not be compressed again.
      const auto encoding = request.headers.find("Accept-Encoding");
      if (encoding == request.headers.end()) return;
      request.headers.emplace("X-Accepted", encoding->second);
      request.headers.erase("Accept-Encoding");
    });
    serving() = nullptr;
    if (!connection.answered() && connection.timed_out()) {
      connection.write_plainly(plain_answer(408, "Request Timeout", "the request took too long"));
    } else if (!connection.answered() && connection.too_long()) {
      connection.write_plainly(
          plain_answer(431, "Request Header Fields Too Large", "the request is too long"));
    }
    const bool sent = connection.flush();
    return good && sent && !closed && !connection.closes() && !connection.timed_out() &&
           !connection.too_long();
  }

  // The connection cannot go on: there may be a body that nobody has read.
  static void close_this(httplib::Response& response) {
    if (serving() != nullptr) serving()->connection.close_after();
    if (!response.has_header("Connection")) response.set_header("Connection", "close");
  }

  std::string awaited(EventSource& events) {
    const Crew::Aside aside(crew_);
    return events.next();
  }

  Answer answered(const Request& request) {
    if (!site_.takes_long || !site_.takes_long(request)) return site_.answer(request);
    const Crew::Aside aside(crew_);
    return site_.answer(request);
  }

  bool at_head(const httplib::Request& head, httplib::Response& response) {
    Request& request = serving()->request = taken_from(head);
    const bool has_body =
        head.has_header("Transfer-Encoding") ||
        (head.has_header("Content-Length") && request.header("content-length") != "0");
    std::optional<Answer> answer;
    if (head.get_header_value_count("Host") > 1 ||
        head.get_header_value_count("Content-Length") > 1) {
      answer = refusal(400, "a header that counts is there twice");
    }
    if (!answer) answer = site_.refuse(request);
    const bool reads = request.method == "GET" || request.method == "HEAD";
    if (!answer && reads) {
      if (has_body) close_this(response);
      put(answered(request), head, response);
      return true;
    }
    if (!answer && !is_whole_number(request.header("content-length"))) {
      answer = refusal(411, "Content-Length: wanted the length of the body in bytes");
    }
    if (!answer && std::stoll(std::string(request.header("content-length"))) >
                       static_cast<long long>(options_.body_bytes)) {
      answer = refusal(413, reason_of(413));
    }
    if (!answer) return false;
    if (has_body || !reads) close_this(response);
    put(*answer, head, response);
    return true;
  }

  void put(Answer answer, const httplib::Request& request, httplib::Response& response) {
    response.status = answer.status;
    for (auto& [name, value] : answer.headers) response.set_header(name, value);
    if (!answer.events || request.method == "HEAD") {
      response.set_content(std::move(answer.body), answer.type);
      return;
    }
    close_this(response);
    serving()->connection.write_at_once();
    response.set_chunked_content_provider(
        answer.type, [this, events = answer.events](std::size_t, httplib::DataSink& sink) {
          const std::string text = awaited(*events);
          if (!text.empty() && !sink.write(text.data(), text.size())) return false;
          if (events->over() || stopping_) sink.done();
          return true;
        });
  }

  ServerOptions options_;
  Site site_;
  Fd listener_, wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> open_{0};  // connections
  Lobby lobby_;
  Crew crew_;
};

Server::Server(const ServerOptions& options, Site site)
    : implementation_(std::make_unique<Implementation>(options, std::move(site))) {}
Server::~Server() = default;
int Server::port() const { return implementation_->port(); }
void Server::run() { implementation_->run(); }
void Server::stop() noexcept { implementation_->stop(); }

}  // namespace tessera::dashboard
