#pragma once

#include <memory>

#include "tessera/comm/liveness.h"
#include "tessera/comm/mpi/endpoint.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/point_to_point_queue.h"
#include "tessera/comm/traffic.h"

namespace tessera::comm::mpi {

// Sends and receives of one group over MPI. The record of the call goes first, with the data if
// there is little; the receiver compares it with its own call before it lets anything into its
// buffer.
class MpiPointToPoint final : public PointToPointTransport {
 public:
  MpiPointToPoint(std::shared_ptr<Runtime> runtime, std::shared_ptr<Liveness> liveness,
                  std::shared_ptr<TrafficMeter> meter, int rank, int first_tag);

  std::shared_ptr<PointToPointMessage> make_message(Collective call) const override;
  bool move(PointToPointMessage& message) override;
  void on_error() noexcept override { endpoint_.abandon_mpi(); }
  std::uint64_t events() override { return endpoint_.events().count(); }
  void wait(std::uint64_t seen) override;
  void notify() override { endpoint_.events().notify(); }
  void abandon() override { liveness_->abandon(); }

 private:
  struct MpiMessage;

  void begin(MpiMessage& message);
  void read_header(MpiMessage& message);

  const std::shared_ptr<Liveness> liveness_;
  const std::shared_ptr<TrafficMeter> meter_;
  const int rank_;
  Endpoint endpoint_;
};

}  // namespace tessera::comm::mpi
