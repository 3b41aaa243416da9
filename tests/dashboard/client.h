#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "tessera/dashboard/server.h"
#include "tessera/dashboard/site.h"

namespace tessera::dashboard {

// Server in this process on a free port.
class Served {
 public:
  explicit Served(SiteOptions site = {}, ServerOptions options = {});
  ~Served();
  int port() const { return server_->port(); }

 private:
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

// Connection on which the test controls every byte.
class RawClient {
 public:
  explicit RawClient(int port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool send(const std::string& text);
  // Returns one answer, or what was received when the server closes.
  std::string answer();
  // Receives until `part` arrives or the server closes.
  std::string until(const std::string& part);
  void end_sending();

 private:
  bool more();
  int fd_ = -1;
  std::string got_;
};

struct Reply {
  int status = 0;
  std::string head, body;
};
Reply parse_reply(const std::string& text);
Reply get(int port, const std::string& path, const std::string& headers = "");
Reply post(int port, const std::string& path, const std::string& body,
           const std::string& headers = "Content-Type: application/json\r\n");

}  // namespace tessera::dashboard
