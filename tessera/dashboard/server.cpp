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
#include "tessera/dashboard/idle_connections.h"
#include "tessera/dashboard/worker_pool.h"

namespace tessera::dashboard {
namespace {

// Accepts only numeric addresses, so that no name is resolved.
Fd bound_socket(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw UsageError(Flag("address"),
                     str("got ", quote(address),
                         "; must be a numeric address of this machine, such as 127.0.0.1"));
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
                         taken ? "; use another port, or 0 for a free one" : ""));
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

constexpr double kLastSeconds = 0.5;  // for the last event of a stream

int cores() { return static_cast<int>(std::thread::hardware_concurrency()); }

}  // namespace

class Server::Implementation {
 public:
  Implementation(const ServerOptions& options, Site site)
      : options_(options),
        site_(std::move(site)),
        listener_(bound_socket(options.address, options.port)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        idle_(wake_.get()),
        // At most half of the threads are active: blocked ones need replacements.
        pool_(std::min(cores() + 1, options.threads / 2), options.threads,
              [this] { return work(); }) {}
  ~Implementation() {
    stop();
    pool_.end();
  }

  int port() const { return port_of(listener_.get()); }

  void run() {
    pool_.begin();
    while (!stopping_) {
      pollfd entries[] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      // With open connections, deadlines pass.
      if (::poll(entries, 2, open_ > 0 ? 100 : -1) < 0 && errno != EINTR) break;
      if (stopping_) break;
      for (const auto& overdue : idle_.take_overdue()) {
        if (overdue->is_partial()) send_off(*overdue, 408, "the request took too long");
      }
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (fd.open()) {
        take(std::move(fd));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        ::poll(entries + 1, 1, 20);  // retry later, when a connection may have ended
      }
    }
    stop();
    pool_.end();
  }

  void stop() noexcept {
    stopping_ = true;
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }

 private:
  void take(Fd fd) {
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    auto connection = std::make_unique<Connection>(std::move(fd), open_, options_.request_seconds);
    if (open_ > options_.connections) {
      const std::unique_ptr<Connection> oldest = idle_.take_oldest();
      if (!oldest || oldest->is_partial()) {
        send_off(oldest ? *oldest : *connection, 503, "too many connections; try again later");
      }
      if (!oldest) return;
    }
    idle_.wait(std::move(connection));
  }

  // Sends an error to a connection that is closed next, whether or not the client reads it.
  static void send_off(Connection& connection, int status, const char* why) {
    connection.write(response_text(refusal(status, why), /*closes=*/true));
    connection.flush();
  }

  bool work() {
    std::unique_ptr<Connection> connection = idle_.next();
    if (stopping_) return false;
    if (connection && advance(*connection)) idle_.wait(std::move(connection));
    return true;
  }

  // Reads, answers and sends as far as possible without waiting for the client. Returns false when
  // the connection is over.
  bool advance(Connection& connection) {
    if (connection.is_draining()) return connection.drain();
    if (!connection.flush()) return false;
    bool open = true;
    if (!connection.has_unsent() && !connection.last) {
      open = connection.receive(options_.limits.head_bytes + options_.limits.body_bytes);
    }
    // The next request is not started before the client has received the answer to this one.
    while (!stopping_ && !connection.has_unsent() && !connection.last && serve(connection)) {
      if (!connection.flush()) return false;
    }
    if (connection.has_unsent()) {
      connection.expect_progress(options_.request_seconds);
      return true;
    }
    if (connection.last) return connection.drain();
    if (!open) return false;
    if (connection.head || !connection.unused().empty()) {
      connection.expect_rest(options_.request_seconds);
    } else {
      connection.expect_request(options_.idle_seconds);
    }
    return true;
  }

  // Answers one request. Returns false if it is not complete and nothing was written.
  bool serve(Connection& connection) {
    try {
      return serve_complete(connection);
    } catch (const std::exception&) {
      put(connection, refusal(500, "internal error of the server"), true);
      return true;
    }
  }

  bool serve_complete(Connection& connection) {
    if (!connection.head && !read_head(connection)) return refuse_overdue(connection);
    RequestHead& head = *connection.head;
    if (head.refused) {
      put(connection, *head.refused, head.closes || head.body_bytes > 0);
    } else if (connection.unused().size() < head.body_bytes) {
      if (std::exchange(head.expects_continue, false) && connection.unused().empty()) {
        connection.write("HTTP/1.1 100 Continue\r\n\r\n");
        return true;
      }
      return refuse_overdue(connection);
    } else {
      head.request.body = connection.unused().substr(0, head.body_bytes);
      connection.use(head.body_bytes);
      put(connection, answered(head.request), head.closes);
    }
    connection.head.reset();
    connection.complete_request();
    return true;
  }

  // Returns false if the head is not complete.
  bool read_head(Connection& connection) {
    const std::string_view bytes = connection.unused();
    const std::size_t end = find_head_end(bytes, connection.searched);
    if (end == std::string_view::npos || end > options_.limits.head_bytes) {
      connection.searched = bytes.size();
      if (bytes.size() < options_.limits.head_bytes) return false;
      connection.head.emplace().closes = true;
      connection.head->refused = refusal(431, "the request line and headers are too long");
      return true;
    }
    connection.head = parse_head(bytes.substr(0, end), options_.limits);
    connection.use(end);
    connection.searched = 0;
    RequestHead& head = *connection.head;
    if (head.refused) return true;
    head.refused = refusal_of(head);
    // A foreign request, or a body of unknown length: nothing more is read from this client.
    if (head.refused && (head.refused->status == 403 || head.refused->status == 411)) {
      head.closes = true;
    }
    return true;
  }

  // Needed because a client that sends byte by byte is never overdue in IdleConnections.
  bool refuse_overdue(Connection& connection) {
    if (!connection.is_partial() || !connection.is_overdue()) return false;
    put(connection, refusal(408, "the request took too long"), true);
    return true;
  }

  // Checks a head before its body is read.
  std::optional<Answer> refusal_of(const RequestHead& head) {
    if (auto refused = site_.refuse(head.request)) return refused;
    const bool reads = head.request.method == "GET" || head.request.method == "HEAD";
    if (!reads && !head.has_length) {
      return refusal(411, "Content-Length, the length of the body in bytes, is missing");
    }
    return std::nullopt;
  }

  Answer answered(const Request& request) {
    if (!site_.takes_long || !site_.takes_long(request)) return site_.answer(request);
    const WorkerPool::Blocked blocked(pool_);
    return site_.answer(request);
  }

  void put(Connection& connection, const Answer& answer, bool closes) {
    const bool head_only = connection.head && connection.head->request.method == "HEAD";
    connection.last = closes || answer.events != nullptr;
    connection.write(response_text(answer, connection.last, head_only));
    if (answer.events && !head_only) stream(connection, *answer.events);
  }

  // Holds a thread until the client disconnects: the site limits the number of listeners.
  void stream(Connection& connection, EventSource& events) {
    const WorkerPool::Blocked blocked(pool_);
    while (connection.wait_until_sent(options_.request_seconds) && !connection.gone()) {
      const bool over = events.over() || stopping_;
      const std::string text = over ? events.last() : events.next();
      if (!text.empty()) connection.write(str(hex(text.size()), "\r\n", text, "\r\n"));
      if (!over) continue;
      connection.write("0\r\n\r\n");
      connection.wait_until_sent(kLastSeconds);
      return;
    }
  }

  ServerOptions options_;
  Site site_;
  Fd listener_, wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> open_{0};  // connections
  IdleConnections idle_;
  WorkerPool pool_;
};

Server::Server(const ServerOptions& options, Site site)
    : implementation_(std::make_unique<Implementation>(options, std::move(site))) {}
Server::~Server() = default;
int Server::port() const { return implementation_->port(); }
void Server::run() { implementation_->run(); }
void Server::stop() noexcept { implementation_->stop(); }

}  // namespace tessera::dashboard
