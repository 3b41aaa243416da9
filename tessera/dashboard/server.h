#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tessera/dashboard/http.h"
#include "tessera/dashboard/request_head.h"

namespace tessera::dashboard {

struct ServerOptions {
  std::string address = "127.0.0.1";  // numeric, not a name
  int port = 0;                       // 0: a free one
  int connections = 192;              // more are refused
  int threads = 64;                   // most threads, including blocked ones
  RequestLimits limits;
  // Limit from the first byte of a request to its last, and for a client that receives nothing.
  double request_seconds = 10;
  double idle_seconds = 15;  // between requests of a connection
};

// [Note: the server] HTTP/1.1 server with what the page and its API need, and one strict parser
// ([Note: strict requests]). A connection waits in IdleConnections, without a thread, until its
// request is complete or its client receives more of an answer. So threads ([Note: worker threads])
// are held only by calculations and event streams, whose numbers are bounded, and never by a slow
// client. When all connections are taken, the one that has waited longest is closed for a new one.
class Server {
 public:
  // Starts to listen. Throws UsageError if the address or the port cannot be used.
  Server(const ServerOptions& options, Site site);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  // Serves until stop(), which any thread and any signal handler may call.
  void run();
  void stop() noexcept;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera::dashboard
