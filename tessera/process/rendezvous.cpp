#include "tessera/process/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

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

// Reports of ranks, from the thread of the store to that of the launcher.
class Rendezvous::Reports {
 public:
  Reports() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_.open()) throw Error(str("cannot create an eventfd: ", std::strerror(errno)));
  }

  int fd() const { return event_.get(); }

  void add(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    try {
      reports_.push_back(comm::parse_report(key, value));
    } catch (const DataError&) {
      return;  // no rank of this version sends it
    }
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof(one));  // the counter cannot overflow
  }

  std::vector<comm::MemberReport> take() {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    (void)!::read(event_.get(), &count, sizeof(count));
    return std::exchange(reports_, {});
  }

 private:
  Fd event_;
  std::mutex mutex_;
  std::vector<comm::MemberReport> reports_;
};

Rendezvous::~Rendezvous() = default;

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
    comm::StoreServerOptions served{address, port, secret, launch.run(),
                                    launch.nodes * launch.ranks};
    if (launch.recovery.coordinator) {
      reports_ = std::make_shared<Reports>();
      served.on_report = [reports = reports_](const std::string& key, const std::string& value) {
        reports->add(key, value);
      };
      launch.recovery.reports_fd = reports_->fd();
      launch.recovery.take_reports = [reports = reports_] { return reports->take(); };
      launch.recovery.publish = [this, run = launch.run()](const comm::Generation& generation) {
        server_->set(comm::kGenerationKey, comm::to_text(generation),
                     comm::generation_prefix(run, generation.number - 1));
      };
    }
    server_.emplace(served);
    port = server_->port();
    launch.on_failure = [this](int rank, const std::string& how) {
      server_->report_failure(rank, how);
    };
  }
  launch.store = str(address, ":", port);
}

}  // namespace tessera::process
