#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/mpi/courier.h"
#include "tessera/comm/record.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/transport.h"
#include "tessera/comm/watch.h"

namespace tessera::comm::mpi {

// Collectives made of messages between two ranks, so that their bits are ours to define; MPI's own
// collectives add in an order of their choosing.
//
// A call is announced to every other rank by a letter: a header, and behind it the data if the call
// is small. No rank goes on before it has, and has compared, the headers of all. Larger data then
// travels straight between the callers' buffers:
//   all_reduce, reduce_scatter, reduce   rank r gets shard r of everybody, in pieces, reduces it in
//                                        rank order, and (all_reduce, reduce) sends the result on;
//   all_gather, all_to_all               everybody sends everybody what it needs;
//   broadcast                            a chain of ranks that begins at the root, in pieces.
class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<Runtime> runtime, std::shared_ptr<Watch> watch,
               std::shared_ptr<TrafficMeter> meter, int rank, int ranks, int first_tag);

  bool quick(const Collective& call) const override;
  void post(const Collective& call) override;
  bool finish(const Collective& call, bool may_give_up) override;
  void abandon() override { watch_->abandon(); }

 private:
  // Letters to and from every rank. Shared with the runtime, which may outlive the transport.
  struct Mail {
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
  };
  struct Part {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  Part payload(const Collective& call, int to) const;
  const Record& record(int rank) const;
  const std::byte* letter(int rank) const;  // what came behind the header

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
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<TrafficMeter> meter_;
  const int rank_;
  const int ranks_;
  Courier courier_;
  const std::shared_ptr<Mail> mail_;
  std::vector<Ticket> letters_out_;
  std::vector<Ticket> letters_in_;
  std::vector<std::byte> stage_;  // what others sent to be reduced here
  std::uint32_t sequence_ = 0;
};

}  // namespace tessera::comm::mpi
