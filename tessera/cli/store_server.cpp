#include "tessera/cli/store_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

// Listening ourselves, and handing the socket over, leaves no moment in which another process can
// take the port that we have chosen.
Fd listen_on(bool only_here, int port) {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(only_here ? INADDR_LOOPBACK : INADDR_ANY);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    throw UsageError(str("cannot listen on port ", port, ": ", std::strerror(errno),
                         "; choose another with --master-port"));
  }
  return listener;
}

int port_of(const Fd& listener) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

}  // namespace

struct StoreServer::Store {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer(bool only_here, int port) : store_(std::make_unique<Store>()) {
  Fd listener = listen_on(only_here, port);
  port_ = port_of(listener);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port_);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.get();
  store_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  listener.release();  // the store closes it
}

StoreServer::~StoreServer() = default;

}  // namespace tessera::cli
