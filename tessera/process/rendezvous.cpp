#include "tessera/process/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "tessera/comm/address.h"
#include "tessera/comm/secret.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::process {
namespace {

// Reserves a free port. While it is bound here, the kernel does not hand it out as an ephemeral
// port, but a rank can bind it explicitly and listen: both sockets set SO_REUSEADDR, and this one
// never listens.
Fd reserve_port(int& port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error(str("cannot find a free port: ", std::strerror(errno)));
  }
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

Rendezvous::Rendezvous(LaunchOptions& launch, const RendezvousOptions& options) {
  const bool several = launch.nodes > 1;
  const std::string secret = options.secret_file.empty()
                                 ? comm::random_secret()
                                 : comm::read_secret_file(options.secret_file);
  secret_ = comm::secret_descriptor(secret);
  launch.secret_fd = secret_.get();
  launch.interface = options.interface;
  std::string address = launch.master_addr;
  int port = several ? launch.master_port + 1 : 0;
  if (launch.node_rank == 0) {
    if (launch.master_port == 0) reserved_ = reserve_port(launch.master_port);
    address = comm::store_address(launch.master_addr, several ? options.interface : "", several);
    server_.emplace(
        comm::StoreServerOptions{address, port, secret, launch.run(), launch.nodes * launch.ranks});
    port = server_->port();
    launch.on_failure = [this](int rank, const std::string& how) {
      server_->report_failure(rank, how);
    };
  }
  launch.store = str(address, ":", port);
}

}  // namespace tessera::process
