#include "tessera/comm/bootstrap.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "tessera/comm/dry/backend.h"
#include "tessera/comm/mpi/backend.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/comm/socket.h"
#include "tessera/comm/socket_peers.h"
#include "tessera/comm/two_level/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

const std::vector<std::string> kBackends = {"auto", "shm", "mpi", "two-level", "nccl"};

// Everything a world needs besides its backend; gone only after it.
struct Foundations {
  std::shared_ptr<mpi::Runtime> mpi;
  TcpStore tcp;
  std::shared_ptr<Backend> backend;
};

// Under plain mpirun nobody has agreed on an address yet: rank 0 opens a store, MPI spreads where.
TcpStore store_through_mpi(mpi::Runtime& runtime, const Launch& launch,
                           std::chrono::milliseconds timeout) {
  TcpStore hosted;
  std::string note;
  if (launch.rank == 0) {
    const std::vector<std::string> addresses = own_addresses();
    const bool one_host = launch.local_size == launch.size || addresses.empty();
    const std::string address = one_host ? "127.0.0.1" : addresses.front();
    hosted = open_tcp_store(address, 0, /*host=*/true, timeout, "");
    note = str(address, " ", hosted.port);
  }
  std::istringstream in(runtime.broadcast_string(note, 0));
  std::string address;
  int port = 0;
  in >> address >> port;
  return launch.rank == 0 ? hosted : open_tcp_store(address, port, false, timeout, "");
}

// The same store under another prefix: every init() of a job gets a page of its own.
class Page final : public Store {
 public:
  Page(std::shared_ptr<Store> book, std::string prefix)
      : book_(std::move(book)), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) override {
    book_->set(prefix_ + key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return book_->get(prefix_ + key, timeout);
  }
  std::int64_t count(const std::string& key) override { return book_->count(prefix_ + key); }

 private:
  std::shared_ptr<Store> book_;
  std::string prefix_;
};

std::string choose(const std::string& asked, const Peers& peers) {
  if (asked != "auto") return asked;
  for (int r = 0; r < peers.size(); ++r) {
    if (!peers.same_host(r)) return "two-level";
  }
  return "shm";
}

}  // namespace

Group init(const InitOptions& options) {
  if (std::find(kBackends.begin(), kBackends.end(), options.backend) == kBackends.end()) {
    throw UsageError(str("backend ", quote(options.backend), " does not exist",
                         did_you_mean(options.backend, kBackends),
                         "; there are: ", join(kBackends, ", ")));
  }
  const Launch launch = detect_launch();
  const auto timeout = options.comm.timeout;
  auto base = std::make_shared<Foundations>();
  if (launch.size == 1) {
    base->backend = dry::make_backend(0, 1, "world");
    if (options.backend == "nccl") {
      base->backend = nccl::make_backend(base->backend, nullptr, launch.local_rank, options.comm,
                                         {options.deterministic});
    }
    return Group(base->backend);
  }

  if (launch.launcher == "mpirun") {
    base->mpi = mpi::Runtime::start();
    base->tcp = store_through_mpi(*base->mpi, launch, timeout);
  } else {
    const bool host = launch.rank == 0 && !launch.launcher_hosts_store;
    base->tcp = open_tcp_store(launch.master_address, launch.master_port, host, timeout, "");
  }
  const std::string own = str("tessera/", launch.run, "/");
  const auto times = base->tcp.store->count(str(own, "init/", launch.rank));
  Page page(base->tcp.store, str(own, times, "/"));
  auto peers = connect_peers(page, launch.rank, launch.size, {timeout});
  if (base->mpi) base->mpi->attend(peers);  // so that MPI's end does not wait for a dead rank

  std::vector<int> everybody(static_cast<std::size_t>(launch.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  const std::string kind = choose(options.backend, *peers);
  const auto runtime = [&] {
    if (!base->mpi) {
      throw UsageError(str("backend ", kind, " needs MPI, but this process was started by ",
                           launch.launcher, "; start it with mpirun"));
    }
    return base->mpi;
  };
  if (kind == "mpi") {
    base->backend = mpi::make_backend(peers, runtime(), everybody, "world", options.comm);
  } else if (kind == "two-level") {
    base->backend = two_level::make_backend(peers, runtime(), everybody, "world", options.comm);
  } else {
    base->backend = shm::make_backend(peers, everybody, "world", options.comm);
    if (kind == "nccl") {
      base->backend = nccl::make_backend(base->backend, peers, launch.local_rank, options.comm,
                                         {options.deterministic});
    }
  }
  Group world(std::shared_ptr<Backend>(base, base->backend.get()));
  world.barrier();  // nobody still reads the store
  return world;
}

}  // namespace tessera::comm
