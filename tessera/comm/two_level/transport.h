#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/pieces.h"
#include "tessera/comm/record.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/transport.h"
#include "tessera/comm/two_level/group_peers.h"
#include "tessera/comm/two_level/layout.h"
#include "tessera/comm/two_level/memory.h"
#include "tessera/comm/two_level/partial.h"

namespace tessera::comm::two_level {

// What a two-level group is made of, as one rank sees it.
struct Parts {
  std::shared_ptr<GroupPeers> peers;
  std::shared_ptr<Backend> local;  // the ranks of this host
  std::shared_ptr<Backend> lane;   // the ranks that have this rank's number on their hosts
  std::shared_ptr<Memories> memories;
  std::shared_ptr<TrafficMeter> meter;
  Layout layout;
  std::string name;
  int rank = 0;
};

// Collectives among equal numbers of ranks on several hosts, such that between hosts only shards
// travel, each once, and each on the lane of the rank that it belongs to.
//
// A call is announced inside the host, then along the lanes, so that every rank has the records of
// all before anything else happens. The data of a small call travels with them. Larger buffers go
// through memory that the ranks of a host share, in pieces: see [Note: ticks] in collectives.cpp.
class TwoLevelTransport final : public Transport {
 public:
  explicit TwoLevelTransport(Parts parts);

  bool quick(const Collective&) const override { return false; }
  void post(const Collective& call) override;
  bool finish(const Collective& call, bool may_give_up) override;
  void abandon() override { parts_.peers->give_up(); }

 private:
  struct Notice;

  void carry_out(const Collective& call);
  void exchange_records(const Collective& call);
  bool is_small(const Collective& call) const;
  bool host_agrees() const;
  void fill_host_payload(const Collective& call);
  void small(const Collective& call);
  const Notice& notice(int local) const;
  const std::byte* payload(int local) const;
  const Record& record(int rank) const;
  std::byte* host_record(int host) const;
  std::byte* host_payload(int host) const;

  void large(const Collective& call);
  void reduction(const Collective& call);
  void gather(const Collective& call);
  void broadcast(const Collective& call);
  void exchange(const Collective& call);
  bool direct_sources(const Collective& call, std::vector<const std::byte*>& bases) const;

  Pieces cut(const Collective& call) const;
  std::byte* stage(int local, std::size_t piece) const;
  std::byte* result(int local, std::size_t piece) const;
  void pack(const Collective& call, const Pieces& cut, std::size_t piece);
  void copy_out(const Collective& call, const Pieces& cut, std::size_t piece);

  Work on_lane(Op op, DType dtype, ReduceOp reduce, const void* in, void* out, std::size_t count,
               int root = -1) const;
  void meet() const;  // a barrier of this host
  void copy(void* to, const void* from, std::size_t bytes) const;

  int ranks() const { return parts_.layout.ranks(); }
  int host() const { return parts_.layout.host(parts_.rank); }
  int local() const { return parts_.layout.local(parts_.rank); }

  // Buffers first: the backends in parts_, which may still be at work on them, are destroyed first.
  std::vector<std::byte> notices_;       // of the ranks of this host
  std::vector<std::byte> host_records_;  // of all hosts
  std::vector<std::byte> partials_[2], combined_[2];
  std::shared_ptr<SymmetricMemory> shared_;
  const Parts parts_;
  std::uint32_t sequence_ = 0;
};

}  // namespace tessera::comm::two_level
