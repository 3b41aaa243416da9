#include "tessera/comm/bootstrap.h"

#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/comm/address.h"
#include "tessera/comm/backend_kind.h"
#include "tessera/comm/c10d_store.h"
#include "tessera/comm/dry/backend.h"
#include "tessera/comm/dry/device_backend.h"
#include "tessera/comm/generation.h"
#include "tessera/comm/gpus.h"
#include "tessera/comm/hierarchical/backend.h"
#include "tessera/comm/launch.h"
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

constexpr std::int64_t kMaxInits = 1'000'000'000;

// Store and secret with which the ranks connect. Destroyed when they are connected.
struct Rendezvous {
  std::unique_ptr<StoreServer> server;  // set if this rank hosts the store
  std::shared_ptr<Store> store;
  std::string secret;
  std::string address;  // at which this rank listens for the others
};

// Returns the name of the Unix socket of rank 0 at which the ranks of one host meet.
std::string meeting_name(const Launch& launch, const std::string& purpose) {
  const std::string which =
      str(launch.run, "/", launch.master_address, "/", launch.master_port, purpose);
  return str("tessera-", geteuid(), "-", to_hex(sha256(which)).substr(0, 32));
}

// [Note: sources of the secret] The secret comes from the first of these that applies: a descriptor
// that the launcher passed, a file that the user named, or, on one host, an agreement between
// processes of the same user. Otherwise, on several hosts, there is none: mpirun's ranks refuse to
// join, and jobs of other launchers print a warning and continue.
std::string find_secret(const Launch& launch, std::chrono::milliseconds timeout) {
  if (launch.secret_fd >= 0) return read_secret_descriptor(launch.secret_fd);
  if (!launch.secret_file.empty()) return read_secret_file(launch.secret_file);
  if (launch.one_host) {
    return agree_on_secret(meeting_name(launch, ""), launch.rank, launch.size, timeout);
  }
  if (launch.launcher == "mpirun") {
    throw UsageError(
        str("mpirun started ranks on several hosts, which need a secret to join. Make "
            "one, copy it to every host and pass its path: ",
            how_to_make_secret_file("F"), "; mpirun -x TESSERA_SECRET_FILE=F …, or ",
            "with MPICH and Intel MPI: mpiexec -genv TESSERA_SECRET_FILE F …"));
  }
  if (launch.rank == 0) {
    write_all(2, str("tessera: warning: the ranks are on several hosts and have no secret, so "
                     "whoever reaches them over the network can join or end this job. Make a "
                     "secret, copy it to every host and name it there: ",
                     how_to_make_secret_file("F"), "; export TESSERA_SECRET_FILE=F\n"));
  }
  return "";
}

// Returns the address at which this rank listens for ranks of other hosts: that of the interface
// that reaches the host of the store.
std::string peer_address(const Launch& launch, const std::string& interface) {
  if (!interface.empty()) return interface_address(interface);
  if (launch.one_host) return "127.0.0.1";
  for (const std::string& address : resolve(launch.master_address)) {
    if (!is_loopback(address)) return address_towards(address);
  }
  // The name resolves to the loopback address, so this is the host of the store.
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
  int port = launch.master_port;
  std::vector<std::string> addresses;
  if (launch.launcher_hosts_store || launch.rank != 0) {
    addresses = resolve(launch.master_address);
    if (!interface.empty()) addresses.push_back(interface_address(interface));
  } else {
    addresses = {store_address(launch.master_address, interface, !launch.one_host)};
    rendezvous.server = std::make_unique<StoreServer>(
        StoreServerOptions{addresses.front(), port, rendezvous.secret, launch.run, launch.size});
    port = rendezvous.server->port();
  }
  if (launch.master_port == 0) {
    port = std::stoi(
        share_on_host(meeting_name(launch, "/port"), launch.rank, launch.size, str(port), timeout));
  }
  rendezvous.store = connect_store({std::move(addresses), port, rendezvous.secret, launch.run,
                                    launch.rank, launch.size, timeout});
  return rendezvous;
}

// Store that puts a prefix before every key, so that no two init() of a job share a key.
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

// Returns the backend that rank 0 chooses from the GPUs of all ranks.
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
  if (options.cuda) return choose_for_gpus(page, launch, one_host, options.join_timeout);
  return one_host ? "shm" : "two-level";
}

std::shared_ptr<Backend> start_nccl(const Launch& launch, const std::shared_ptr<Peers>& peers,
                                    const std::vector<int>& everybody, const InitOptions& options) {
  int here = 0;
  for (int r = 0; r < peers->size(); ++r) here += peers->same_host(r);
  if (here > 1 && !launch.knows_local_rank) {
    throw UsageError(
        str("rank ", launch.rank, " is one of ", here,
            " on its host and has no LOCAL_RANK, which selects its GPU. Start it with ",
            "a launcher, or set LOCAL_RANK to 0 … ", here - 1));
  }
  // For host tensors: the start of NCCL, agreements, and tensors of the program.
  std::shared_ptr<Backend> host = here == peers->size()
                                      ? shm::make_backend(peers, everybody, "world", options.comm)
                                      : tcp::make_backend(peers, everybody, "world", options.comm);
  // In addition to [Note: launch order]. Set before NCCL reads it; a value of the user stays.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  nccl::NcclOptions nccl{options.deterministic};
  if (launch.check_every_call) nccl.check = nccl::NcclOptions::Check::every_call;
  const int gpu = nccl::shares_gpus() && gpu_count() > 0 ? gpu_of(launch.local_rank, gpu_count())
                                                         : launch.local_rank;
  return nccl::make_backend(std::move(host), peers, gpu, options.comm, nccl);
}

// Removes the C++ stack from the messages of LibTorch's errors unless the environment requests it,
// as PyTorch does for Python.
void hide_stacks_of_errors() {
  const char* const shown = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (shown != nullptr && std::string_view(shown) == "1") return;
  c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));
}

}  // namespace

std::shared_ptr<Store> connect_launcher_store(std::chrono::milliseconds timeout) {
  const Launch launch = detect_launch();
  if (!launch.launcher_hosts_store || launch.c10d_store) {
    throw UsageError("This process was not started by a launcher of Tessera, which hosts a store");
  }
  return rendezvous_at_store(launch, launch.interface, timeout).store;
}

Group init(const InitOptions& options) {
  hide_stacks_of_errors();
  const std::vector<std::string> known = backend_names();
  if (std::find(known.begin(), known.end(), options.backend) == known.end()) {
    throw UsageError(str("backend ", quote(options.backend), " does not exist",
                         did_you_mean(options.backend, known), "; must be one of ",
                         join(known, ", ")));
  }
  const Launch launch = detect_launch();
  const auto timeout = options.join_timeout;
  if (backend_kind(options.backend).simulated) {
    if (launch.size > 1) {
      throw UsageError(str("backend ", options.backend, " simulates one rank of many, but ",
                           launch.launcher, " started ", launch.size,
                           " processes. Start one process without a launcher."));
    }
    std::shared_ptr<Backend> backend =
        dry::make_backend(options.dry_rank, options.dry_ranks, "world");
    if (!options.cuda) return Group(std::move(backend));
    const auto gpu = static_cast<c10::DeviceIndex>(gpu_of(launch.local_rank, gpu_count()));
    return Group(dry::make_device_backend(std::move(backend), {c10::kCUDA, gpu}));
  }
  const Generation* const generation = options.generation.get();
  const int rank = generation != nullptr ? generation->rank_of(launch.rank) : launch.rank;
  const int size =
      generation != nullptr ? static_cast<int>(generation->members.size()) : launch.size;
  if (size == 1) {
    std::shared_ptr<Backend> alone = dry::make_backend(0, 1, "world");
    if (options.backend != "nccl") return Group(std::move(alone));
    return Group(nccl::make_backend(std::move(alone), nullptr, launch.local_rank, options.comm,
                                    {options.deterministic}));
  }

  const std::string& interface = options.interface.empty() ? launch.interface : options.interface;
  const Rendezvous rendezvous = rendezvous_at_store(launch, interface, timeout);
  const std::string own = str("tessera/", launch.run, "/");
  std::string prefix;
  if (generation != nullptr) {
    prefix = generation_prefix(launch.run, generation->number);
  } else {
    const std::string counter = str(own, "init/", launch.rank);
    const std::int64_t times = rendezvous.store->count(counter);
    if (times < 1 || times > kMaxInits) {
      throw DataError(str("Store key ", quote(counter), " is ", times, ", expected 1 to ",
                          kMaxInits, ". Another process is writing to this store."));
    }
    prefix = str(own, times, "/");
  }
  PrefixedStore page(rendezvous.store, prefix);
  auto peers =
      connect_peers(page, rank, size, {timeout, rendezvous.secret, prefix, rendezvous.address});
  const std::string kind = choose(options, launch, *peers, page);
  if (options.comm.link.slowed() && kind != "shm") {
    throw UsageError(str("link limits with backend ", kind,
                         ": only the shm backend can limit links; must be shm"));
  }

  std::vector<int> everybody(static_cast<std::size_t>(size));
  std::iota(everybody.begin(), everybody.end(), 0);
  if (!launch.launcher_hosts_store && !launch.c10d_store) {
    // Rank 0 hosts the store, and is connected before other ranks have read everything from it.
    // Ranks that connect to the store after this barrier do so for the next init().
    tcp::make_backend(peers, everybody, "join", options.comm)->submit({}).wait();
    if (rendezvous.server) rendezvous.server->stop_listening();
  }
  std::shared_ptr<Backend> backend;
  if (kind == "two-level") {
    backend =
        hierarchical::make_backend(peers, tcp::make_backend, everybody, "world", options.comm);
  } else if (kind == "tcp") {
    backend = tcp::make_backend(peers, everybody, "world", options.comm);
  } else if (kind == "nccl") {
    backend = start_nccl(launch, peers, everybody, options);
  } else {
    backend = shm::make_backend(peers, everybody, "world", options.comm);
  }
  Group world(std::move(backend));
  world.barrier();  // no rank reads the store any more
  return world;
}

}  // namespace tessera::comm
