#include "tessera/comm/bootstrap.h"

#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/comm/address.h"
#include "tessera/comm/backend_kind.h"
#include "tessera/comm/c10d_store.h"
#include "tessera/comm/dry/backend.h"
#include "tessera/comm/dry/device_backend.h"
#include "tessera/comm/gpus.h"
#include "tessera/comm/hierarchical/backend.h"
#include "tessera/comm/mpi/backend.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/comm/secret.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/comm/socket.h"
#include "tessera/comm/socket_peers.h"
#include "tessera/comm/store_client.h"
#include "tessera/comm/store_server.h"
#include "tessera/comm/tcp/backend.h"
#include "tessera/core/crypto.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

constexpr std::int64_t kMostInits = 1'000'000'000;

// Everything a world needs besides its backend; gone only after it.
struct WorldState {
  std::shared_ptr<mpi::Runtime> mpi;
  std::shared_ptr<Backend> backend;
};

// How the ranks find each other. Not needed any more when they have.
struct Rendezvous {
  std::unique_ptr<StoreServer> server;  // where this rank hosts it
  std::shared_ptr<Store> store;
  std::string secret;
  std::string address;  // where this rank listens for others
};

// [Note: sources of the secret] A descriptor that the launcher left us, else a file that the user
// named, else MPI brings one, else, on one host, processes of the same user agree on one. Ranks on
// several hosts that were given none have none: they say so and go on, as torchrun's own users do.
std::string find_secret(const Launch& launch, std::chrono::milliseconds timeout) {
  if (launch.secret_fd >= 0) return read_secret_descriptor(launch.secret_fd);
  if (!launch.secret_file.empty()) return read_secret_file(launch.secret_file);
  if (launch.launcher == "mpirun") return "";
  if (launch.one_host) {
    const std::string which = str(launch.run, "/", launch.master_address, "/", launch.master_port);
    return agree_on_secret(str("tessera-", geteuid(), "-", to_hex(sha256(which)).substr(0, 32)),
                           launch.rank, launch.size, timeout);
  }
  if (launch.rank == 0) {
    write_all(2, str("tessera: warning: the ranks are on several hosts and have no secret, so "
                     "whoever reaches them over the network can join or end this job. Make a "
                     "secret, copy it to every host and name it there: ",
                     how_to_make_secret_file("F"), "; export TESSERA_SECRET_FILE=F\n"));
  }
  return "";
}

std::shared_ptr<Store> join_store(const Launch& launch, const Rendezvous& rendezvous,
                                  std::vector<std::string> addresses, int port,
                                  std::chrono::milliseconds timeout) {
  return connect_store({std::move(addresses), port, rendezvous.secret, launch.run, launch.rank,
                        launch.size, timeout});
}

// Under plain mpirun nobody has agreed on an address yet: rank 0 opens a store, MPI spreads where,
// and a secret for those who have none.
Rendezvous rendezvous_through_mpi(mpi::Runtime& runtime, const Launch& launch,
                                  const std::string& interface, std::chrono::milliseconds timeout) {
  Rendezvous rendezvous;
  rendezvous.secret = find_secret(launch, timeout);
  std::string note;
  if (launch.rank == 0) {
    const bool given = !rendezvous.secret.empty();
    if (!given) rendezvous.secret = random_secret();
    const std::vector<std::string> addresses = own_addresses();
    std::string address = "127.0.0.1";
    if (!interface.empty()) {
      address = interface_address(interface);
    } else if (!launch.one_host && !addresses.empty()) {
      address = addresses.front();
    }
    rendezvous.server = std::make_unique<StoreServer>(
        StoreServerOptions{address, 0, rendezvous.secret, launch.run, launch.size});
    note = str(address, " ", rendezvous.server->port(), "\n", given ? "" : rendezvous.secret);
  }
  note = runtime.broadcast_string(note, 0);
  const std::size_t end = note.find('\n');
  std::istringstream in(note.substr(0, end));
  std::string address;
  int port = 0;
  in >> address >> port;
  const std::string brought = note.substr(std::min(note.size(), end + 1));
  if (!brought.empty()) rendezvous.secret = brought;
  rendezvous.address = interface.empty() ? address_towards(address) : interface_address(interface);
  rendezvous.store = join_store(launch, rendezvous, {address}, port, timeout);
  return rendezvous;
}

// Where this rank listens for those of other hosts: where the store's host is reached from.
std::string peer_address(const Launch& launch, const std::string& interface) {
  if (!interface.empty()) return interface_address(interface);
  if (launch.one_host) return "127.0.0.1";
  for (const std::string& address : resolve(launch.master_address)) {
    if (!is_loopback(address)) return address_towards(address);
  }
  // A host whose own name means its loopback: it is that of the store.
  const std::vector<std::string> own = own_addresses();
  return own.empty() ? "127.0.0.1" : own.front();
}

Rendezvous rendezvous_at_store(const Launch& launch, const std::string& interface,
                               std::chrono::milliseconds timeout) {
  Rendezvous rendezvous;
  rendezvous.secret = find_secret(launch, timeout);
  rendezvous.address = peer_address(launch, interface);
  if (launch.c10d_store) {
    rendezvous.store = connect_c10d_store(launch.master_address, launch.master_port, timeout);
    if (!rendezvous.secret.empty()) {
      rendezvous.store = make_sealed_store(rendezvous.store, rendezvous.secret);
    }
    return rendezvous;
  }
  std::vector<std::string> addresses;
  if (launch.launcher_hosts_store || launch.rank != 0) {
    addresses = resolve(launch.master_address);
    if (!interface.empty()) addresses.push_back(interface_address(interface));
  } else {
    addresses = {store_address(launch.master_address, interface, !launch.one_host)};
    rendezvous.server = std::make_unique<StoreServer>(StoreServerOptions{
        addresses.front(), launch.master_port, rendezvous.secret, launch.run, launch.size});
  }
  rendezvous.store =
      join_store(launch, rendezvous, std::move(addresses), launch.master_port, timeout);
  return rendezvous;
}

// The same store with a prefix before every key, so that no two init() of a job share a key.
class PrefixedStore final : public Store {
 public:
  PrefixedStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->get(prefix_ + key, timeout);
  }
  std::int64_t count(const std::string& key) override { return store_->count(prefix_ + key); }

 private:
  std::shared_ptr<Store> store_;
  std::string prefix_;
};

// What all ranks know of their GPUs: rank 0 decides for all.
std::string choose_for_gpus(Store& page, const Launch& launch, bool one_host,
                            std::chrono::milliseconds timeout) {
  const GpuFacts mine{gpu_count(), launch.local_size, nccl::why_not()};
  page.set(str("gpus/", launch.rank), to_text(mine));
  if (launch.rank == 0) {
    std::vector<GpuFacts> all;
    for (int r = 0; r < launch.size; ++r) {
      all.push_back(gpu_facts(page.get(str("gpus/", r), timeout)));
    }
    const BackendChoice choice = choose_for_gpus(all, one_host);
    if (!choice.note.empty()) write_all(2, str("tessera: ", choice.note, "\n"));
    page.set("backend", choice.kind);
  }
  return page.get("backend", timeout);
}

std::string choose(const InitOptions& options, const Launch& launch, const Peers& peers,
                   Store& page) {
  if (options.backend != "auto") return options.backend;
  bool one_host = true;
  for (int r = 0; r < peers.size(); ++r) one_host = one_host && peers.same_host(r);
  if (options.cuda) return choose_for_gpus(page, launch, one_host, options.comm.timeout);
  return one_host ? "shm" : "two-level";
}

std::shared_ptr<Backend> start_nccl(const Launch& launch, const std::shared_ptr<Peers>& peers,
                                    const std::shared_ptr<mpi::Runtime>& mpi,
                                    const std::vector<int>& everybody, const InitOptions& options) {
  int here = 0;
  for (int r = 0; r < peers->size(); ++r) here += peers->same_host(r);
  if (here > 1 && !launch.knows_local_rank) {
    throw UsageError(str("rank ", launch.rank, " is one of ", here,
                         " on its host and does not know which GPU is its own; start it with a ",
                         "launcher, or set LOCAL_RANK to 0 … ", here - 1));
  }
  // What is in host memory: the start of NCCL, agreements, whatever the program keeps there.
  std::shared_ptr<Backend> host =
      here == peers->size() ? shm::make_backend(peers, everybody, "world", options.comm)
      : mpi                 ? mpi::make_backend(peers, mpi, everybody, "world", options.comm)
                            : tcp::make_backend(peers, everybody, "world", options.comm);
  // A guard besides [Note: launch order]. Before NCCL reads it, and not over what the user says.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  nccl::NcclOptions nccl{options.deterministic};
  if (launch.check_every_call) nccl.check = nccl::NcclOptions::Check::every_call;
  const int gpu = nccl::shares_gpus() && gpu_count() > 0 ? gpu_of(launch.local_rank, gpu_count())
                                                         : launch.local_rank;
  return nccl::make_backend(std::move(host), peers, gpu, options.comm, nccl);
}

// As PyTorch does for Python: errors of LibTorch have their message alone, unless the environment
// asks for the C++ stack.
void hide_stacks_of_errors() {
  const char* const shown = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (shown != nullptr && std::string_view(shown) == "1") return;
  c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));
}

}  // namespace

Group init(const InitOptions& options) {
  hide_stacks_of_errors();
  const std::vector<std::string> known = backend_names();
  if (std::find(known.begin(), known.end(), options.backend) == known.end()) {
    throw UsageError(str("backend ", quote(options.backend), " does not exist",
                         did_you_mean(options.backend, known), "; there are: ", join(known, ", ")));
  }
  const Launch launch = detect_launch();
  const auto timeout = options.comm.timeout;
  auto base = std::make_shared<WorldState>();
  if (backend_kind(options.backend).simulated) {
    if (launch.size > 1) {
      throw UsageError(str("backend ", options.backend, " plays one rank of many in one process, ",
                           "and ", launch.launcher, " started ", launch.size,
                           "; start it once, alone"));
    }
    std::shared_ptr<Backend> backend =
        dry::make_backend(options.dry_rank, options.dry_ranks, "world");
    if (!options.cuda) return Group(std::move(backend));
    const auto gpu = static_cast<c10::DeviceIndex>(gpu_of(launch.local_rank, gpu_count()));
    return Group(dry::make_device_backend(std::move(backend), {c10::kCUDA, gpu}));
  }
  if (launch.size == 1) {
    base->backend = dry::make_backend(0, 1, "world");
    if (options.backend == "nccl") {
      base->backend = nccl::make_backend(base->backend, nullptr, launch.local_rank, options.comm,
                                         {options.deterministic});
    }
    return Group(base->backend);
  }

  const std::string& interface = options.interface.empty() ? launch.interface : options.interface;
  if (launch.launcher == "mpirun") base->mpi = mpi::Runtime::start();
  const Rendezvous rendezvous = base->mpi
                                    ? rendezvous_through_mpi(*base->mpi, launch, interface, timeout)
                                    : rendezvous_at_store(launch, interface, timeout);
  const std::string own = str("tessera/", launch.run, "/");
  const std::string counter = str(own, "init/", launch.rank);
  const std::int64_t times = rendezvous.store->count(counter);
  if (times < 1 || times > kMostInits) {
    throw DataError(str("the store has counted ", quote(counter), " to ", times, ", but rank ",
                        launch.rank, " alone does; who else can write to it?"));
  }
  const std::string prefix = str(own, times, "/");
  PrefixedStore page(rendezvous.store, prefix);
  auto peers = connect_peers(page, launch.rank, launch.size,
                             {timeout, rendezvous.secret, prefix, rendezvous.address});
  const std::string kind = choose(options, launch, *peers, page);
  if (options.comm.link.slowed() && kind != "shm") {
    throw UsageError(str("a slowed link: got backend ", kind,
                         ", but only ranks that share memory, over shm, have one; wanted shm"));
  }
  // All are in. Whoever comes from now on comes for the next init().
  if (rendezvous.server) rendezvous.server->stop_listening();
  if (base->mpi) base->mpi->watch_peers(peers);  // so that MPI's end does not wait for a dead rank

  std::vector<int> everybody(static_cast<std::size_t>(launch.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto runtime = [&] {
    if (!base->mpi) {
      throw UsageError(str("backend ", kind, " needs MPI, but this process was started by ",
                           launch.launcher,
                           "; start it with mpirun. Without MPI ranks on several hosts can use "
                           "backend nccl if they have GPUs, and backend tcp for small tensors"));
    }
    return base->mpi;
  };
  if (kind == "mpi") {
    base->backend = mpi::make_backend(peers, runtime(), everybody, "world", options.comm);
  } else if (kind == "two-level") {
    base->backend = hierarchical::make_backend(peers, runtime(), everybody, "world", options.comm);
  } else if (kind == "tcp") {
    base->backend = tcp::make_backend(peers, everybody, "world", options.comm);
  } else if (kind == "nccl") {
    base->backend = start_nccl(launch, peers, base->mpi, everybody, options);
  } else {
    base->backend = shm::make_backend(peers, everybody, "world", options.comm);
  }
  Group world(std::shared_ptr<Backend>(base, base->backend.get()));
  world.barrier();  // nobody still reads the store
  return world;
}

}  // namespace tessera::comm
