#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tessera/dashboard/http.h"
#include "tessera/dashboard/request_head.h"

namespace tessera::dashboard {

struct ServerOptions {
  std::string address = "127.0.0.1";  // a number, not a name
  int port = 0;                       // 0: a free one
  int connections = 192;              // more are refused
  int threads = 64;                   // that answer, or wait for something
  RequestLimits limits;
  // From the first byte of a request to its last, and for a client that takes nothing of an answer.
  double request_seconds = 10;
  double idle_seconds = 15;  // between requests of a connection
};

// [Note: the server] HTTP/1.1 as far as the page and its API need it, with one strict parser
// ([Note: strict requests]). A connection waits in the lobby, without a thread, until its request
// is complete or its client takes more of an answer. So threads ([Note: who answers]) are held by
// calculations and event streams alone, whose numbers are bounded, and never by a slow client. When
// all connections are taken, the one that has waited longest makes room for a new one.
class Server {
 public:
  // Listens from here on. Throws UsageError for an address or a port that cannot be had.
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
