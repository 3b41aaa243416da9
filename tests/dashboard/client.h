#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "tessera/dashboard/server.h"
#include "tessera/dashboard/site.h"

namespace tessera::dashboard {

// A server in this process, at a free port.
class Served {
 public:
  explicit Served(SiteOptions site = {}, ServerOptions options = {});
  ~Served();
  int port() const { return server_->port(); }

 private:
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

// A connection of which every byte is the test's own.
class RawClient {
 public:
  explicit RawClient(int port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool send(const std::string& text);
  // One answer, or what there is of it when the other side closes.
  std::string answer();
  // What comes until `part` is among it, or the other side closes.
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
