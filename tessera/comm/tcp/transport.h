#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/liveness.h"
#include "tessera/comm/point_to_point_queue.h"
#include "tessera/comm/tcp/mail.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/transport.h"

namespace tessera::comm::tcp {

// Throws UsageError if a buffer is too large for this backend.
void check_size(const Collective& call);

// [Note: gathering calls] The ranks first gather all calls in ceil(log2(n)) rounds. In the round of
// distance d = 1, 2, 4, … each rank sends the calls that it has gathered to the rank d after it. So
// all ranks compare all calls, stay synchronized if calls differ, and send to few others. Short
// data that all ranks need is sent with the call, and so are unequal counts of an all-to-all.
// Otherwise every rank then sends every other one the bytes that it needs. A long all-reduce is a
// reduce-scatter and an all-gather.
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
  // Parts of this rank's input that another one needs, in order.
  using Pieces = std::vector<std::string_view>;
  Pieces pieces_for(const Collective& call, int to) const;
  void take_result(const Collective& call, const std::vector<std::string_view>& from);
  bool is_short(const Collective& call) const;
  std::string own_data(const Collective& call) const;
  void check_exchange(const Collective& call) const;
  // Sends each rank its pieces, and combines the letters of the others with this rank's own bytes.
  // `made` is the call that the user made, for errors. `extra` as in wait_for().
  void exchange(const Collective& call, const Collective& made, std::string_view own,
                std::chrono::milliseconds extra);
  // Sends the gathered calls to the rank `distance` after this one.
  void pass_on(int distance);
  void take_gathered(int distance, Letter letter);
  // Throws PeerError after the group's timeout and `extra`.
  Letter wait_for(int from, const Collective& call, std::chrono::milliseconds extra);
  void copy(std::byte* to, const std::byte* from, std::size_t bytes);

  Mail mail_;
  const std::shared_ptr<Liveness> liveness_;
  const std::shared_ptr<TrafficMeter> meter_;
  const int rank_;
  const int ranks_;
  std::uint64_t sequence_ = 0;
  std::vector<Letter> gathered_;  // by distance before this rank
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
