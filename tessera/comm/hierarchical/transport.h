#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/count_matrix.h"
#include "tessera/comm/hierarchical/group_peers.h"
#include "tessera/comm/hierarchical/layout.h"
#include "tessera/comm/hierarchical/memory.h"
#include "tessera/comm/hierarchical/partial.h"
#include "tessera/comm/pieces.h"
#include "tessera/comm/record.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/transport.h"

namespace tessera::comm::hierarchical {

// Components of one rank of a hierarchical group.
struct Levels {
  std::shared_ptr<GroupPeers> peers;
  std::shared_ptr<Backend> local;       // the ranks of this host
  std::shared_ptr<Backend> inter_host;  // the ranks of all hosts with this rank's local rank
  std::shared_ptr<HostMemories> memories;
  std::shared_ptr<TrafficMeter> meter;
  Layout layout;
  std::string name;
  int rank = 0;
};

// Collectives among equal numbers of ranks on several hosts. Only shards are sent between hosts,
// each once, and each by the inter-host group of the rank that it belongs to.
//
// A call is announced inside the host, then between hosts, so that every rank has the records of
// all ranks before data is processed. The data of a small call is sent with them. Larger buffers
// pass in pieces through memory that the ranks of a host share: see [Note: ticks] in
// collectives.cpp.
class HierarchicalTransport final : public Transport {
 public:
  explicit HierarchicalTransport(Levels levels);

  bool quick(const Collective&) const override { return false; }
  void post(const Collective& call) override;
  bool finish(const Collective& call, bool may_give_up) override;
  void abandon() override { levels_.peers->give_up(); }

 private:
  struct LocalHeader;

  void carry_out(const Collective& call);
  void exchange_records(const Collective& call);
  bool is_small(const Collective& call) const;
  bool host_agrees() const;
  void fill_host_payload(const Collective& call);
  void small(const Collective& call);
  const LocalHeader& local_header(int local) const;
  const std::byte* payload(int local) const;
  const Record& record(int rank) const;
  std::byte* host_record(int host) const;
  std::byte* host_payload(int host) const;

  void large(const Collective& call);
  void reduction(const Collective& call);
  void gather(const Collective& call);
  void broadcast(const Collective& call);
  void exchange(const Collective& call, const CountMatrix& counts);
  CountMatrix gather_counts(const Collective& call) const;
  bool direct_sources(const Collective& call, std::vector<const std::byte*>& bases) const;

  Pieces cut(const Collective& call) const;
  std::byte* stage(int local, std::size_t piece) const;
  std::byte* result(int local, std::size_t piece) const;
  void pack(const Collective& call, const Pieces& cut, std::size_t piece);
  void copy_out(const Collective& call, const Pieces& cut, std::size_t piece);

  Work between_hosts(Op op, DType dtype, ReduceOp reduce, const void* in, void* out,
                     std::size_t count, int root = -1) const;
  void host_barrier() const;
  void copy(void* to, const void* from, std::size_t bytes) const;

  int ranks() const { return levels_.layout.ranks(); }
  int host() const { return levels_.layout.host(levels_.rank); }
  int local() const { return levels_.layout.local(levels_.rank); }

  // Declared before levels_, because the backends there may still use these buffers until they are
  // destroyed.
  std::vector<std::byte> local_headers_;  // of the ranks of this host
  std::vector<std::byte> host_records_;   // of all hosts
  std::vector<std::byte> partials_[2], combined_[2];
  std::shared_ptr<SymmetricMemory> shared_;
  const Levels levels_;
  std::uint32_t sequence_ = 0;
};

}  // namespace tessera::comm::hierarchical
