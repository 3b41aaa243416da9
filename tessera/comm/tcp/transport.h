#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/liveness.h"
#include "tessera/comm/point_to_point_queue.h"
#include "tessera/comm/tcp/mail.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/transport.h"

namespace tessera::comm::tcp {

// Throws UsageError that says what larger buffers need.
void check_size(const Collective& call);

// Every rank sends every other one a letter with its call and the bytes that the other needs, and
// goes on when it has theirs. So all have compared the calls, and a disagreement leaves them in
// step.
class TcpTransport final : public Transport {
 public:
  TcpTransport(Mail mail, std::shared_ptr<Liveness> liveness, std::shared_ptr<TrafficMeter> meter,
               int rank, int ranks)
      : mail_(std::move(mail)),
        liveness_(std::move(liveness)),
        meter_(std::move(meter)),
        rank_(rank),
        ranks_(ranks) {}

  bool quick(const Collective&) const override { return false; }
  void post(const Collective& call) override;
  bool finish(const Collective& call, bool may_give_up) override;
  void abandon() override { liveness_->abandon(); }

 private:
  // The pieces of a rank's input that another one needs, in order.
  using Pieces = std::vector<std::pair<const std::byte*, std::size_t>>;
  Pieces pieces_for(const Collective& call, int to) const;
  void take_result(const Collective& call, const std::vector<const std::byte*>& from);
  Letter wait_for(int from, const Collective& call);
  void copy(std::byte* to, const std::byte* from, std::size_t bytes);

  Mail mail_;
  const std::shared_ptr<Liveness> liveness_;
  const std::shared_ptr<TrafficMeter> meter_;
  const int rank_;
  const int ranks_;
  std::uint64_t sequence_ = 0;
};

class TcpPointToPoint final : public PointToPointTransport {
 public:
  TcpPointToPoint(Mail mail, std::shared_ptr<Liveness> liveness,
                  std::shared_ptr<TrafficMeter> meter, int rank)
      : mail_(std::move(mail)),
        liveness_(std::move(liveness)),
        meter_(std::move(meter)),
        rank_(rank) {}

  std::shared_ptr<PointToPointMessage> make_message(Collective call) const override;
  bool move(PointToPointMessage& message) override;
  std::uint64_t events() override { return mail_.peers().notes_heard(); }
  void wait(std::uint64_t seen) override;
  void notify() override {}  // a wait() is short
  void abandon() override { liveness_->abandon(); }

 private:
  Mail mail_;
  const std::shared_ptr<Liveness> liveness_;
  const std::shared_ptr<TrafficMeter> meter_;
  const int rank_;
};

}  // namespace tessera::comm::tcp
