#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/liveness.h"
#include "tessera/comm/mpi/endpoint.h"
#include "tessera/comm/record.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/transport.h"

namespace tessera::comm::mpi {

// Collectives made of messages between two ranks, so that their bits are ours to define; MPI's own
// collectives add in an order of their choosing.
//
// A call is announced to every other rank by a header message: its record, and behind it the data
// if the call is small. No rank goes on before it has, and has compared, the records of all. Larger
// data then travels straight between the callers' buffers:
//   all_reduce, reduce_scatter, reduce   rank r gets shard r of everybody, in pieces, reduces it in
//                                        rank order, and (all_reduce, reduce) sends the result on;
//   all_gather, all_to_all               everybody sends everybody what it needs;
//   broadcast                            a chain of ranks that begins at the root, in pieces.
class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<Runtime> runtime, std::shared_ptr<Liveness> liveness,
               std::shared_ptr<TrafficMeter> meter, int rank, int ranks, int first_tag);

  bool quick(const Collective& call) const override;
  void post(const Collective& call) override;
  bool finish(const Collective& call, bool may_give_up) override;
  void abandon() override { liveness_->abandon(); }

 private:
  // Header messages to and from every rank. Shared with the runtime, which may outlive the
  // transport.
  struct HeaderBuffers {
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
  };

  // What a small call sends to rank `to` behind its record.
  std::span<const std::byte> outgoing(const Collective& call, int to) const;
  const Record& record(int rank) const;
  const std::byte* payload(int rank) const;  // what came behind its record

  void small(const Collective& call);
  void large(const Collective& call);
  void reduction(const Collective& call);
  void gather(const Collective& call);
  void exchange(const Collective& call);
  void broadcast(const Collective& call);

  std::string doing(const Collective& call) const;
  void reduce_into(const Collective& call, const std::vector<const void*>& sources, void* to,
                   std::size_t count);
  void copy(void* to, const void* from, std::size_t bytes);

  const std::shared_ptr<Runtime> runtime_;
  const std::shared_ptr<Liveness> liveness_;
  const std::shared_ptr<TrafficMeter> meter_;
  const int rank_;
  const int ranks_;
  Endpoint endpoint_;
  const std::shared_ptr<HeaderBuffers> headers_;
  std::vector<TransferPtr> headers_out_;
  std::vector<TransferPtr> headers_in_;
  std::vector<std::byte> stage_;  // what others sent to be reduced here
  std::uint32_t sequence_ = 0;
};

}  // namespace tessera::comm::mpi
