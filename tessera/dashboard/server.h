#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tessera/dashboard/http.h"

namespace tessera::dashboard {

struct ServerOptions {
  std::string address = "127.0.0.1";  // a number, not a name
  int port = 0;                       // 0: a free one
  int connections = 192;              // more are refused
  int threads = 64;                   // that answer, or wait for something
  std::size_t head_bytes = 16 << 10;  // of a request line with its headers
  std::size_t body_bytes = 64 << 10;
  double request_seconds = 10;  // for a request to be there whole, and for each write
  double idle_seconds = 15;     // that a connection is kept between requests
};

// [Note: the server] cpp-httplib reads requests and writes answers; connections are looked after
// here: it would let a client take 5 s for each byte, keep any number of connections waiting, and
// stop for good when one is aborted at the wrong moment. Between requests they wait in the lobby; a
// thread of the crew ([Note: who answers]) takes the one that spoke first, answers, and brings it
// back. One that is silent makes room where others want in.
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
