#include "tessera/comm/mpi/backend.h"

#include <algorithm>
#include <utility>

#include "tessera/comm/mpi/agreement.h"
#include "tessera/comm/mpi/point_to_point.h"
#include "tessera/comm/mpi/transport.h"
#include "tessera/comm/queue.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

class MpiBackend final : public Backend {
 public:
  MpiBackend(std::shared_ptr<Peers> peers, std::shared_ptr<Runtime> runtime,
             std::vector<int> members, std::string name, Options options)
      : peers_(std::move(peers)),
        runtime_(std::move(runtime)),
        members_(std::move(members)),
        name_(std::move(name)),
        options_(options),
        rank_(position()),
        meter_(std::make_shared<TrafficMeter>()),
        watch_(std::make_shared<Watch>(peers_, members_, name_, options.timeout)),
        first_tag_(agree_on_tags(runtime_, watch_, rank_)),
        queue_(std::make_shared<MpiTransport>(runtime_, watch_, meter_, rank_, size(), first_tag_),
               name_),
        point_to_point_(runtime_, watch_, meter_, rank_, size(), first_tag_) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string kind() const override { return "mpi"; }
  std::string name() const override { return name_; }
  TrafficCounts traffic() const override { return meter_->counts(); }

  Work submit(Collective call, Attachments attachments) override {
    check(call, size(), rank_);
    meter_->charge(call, size(), rank_);
    if (is_point_to_point(call.op)) {
      return point_to_point_.submit(std::move(call), std::move(attachments));
    }
    return queue_.submit(std::move(call), std::move(attachments));
  }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    throw UsageError(str("group ", name_, " over mpi has no symmetric memory (", bytes,
                         " bytes asked for): its ranks may be on different hosts, which cannot map "
                         "the same memory. Use ordinary memory, backend shm on one host, or "
                         "backend two-level, where the ranks of each host share theirs"));
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    std::vector<int> world;
    for (const int member : members) world.push_back(members_.at(static_cast<std::size_t>(member)));
    return make_backend(peers_, runtime_, std::move(world), std::move(name), options_);
  }

 private:
  int position() const {
    if (runtime_->rank() != peers_->rank() || runtime_->size() != peers_->size()) {
      throw UsageError(str("group ", name_, " over mpi: this process is rank ", peers_->rank(),
                           " of ", peers_->size(), " in the job, but rank ", runtime_->rank(),
                           " of ", runtime_->size(),
                           " in MPI. Start all ranks with one mpirun (or srun --mpi=pmix)"));
    }
    runtime_->attend(peers_);
    const auto found = std::find(members_.begin(), members_.end(), peers_->rank());
    if (found == members_.end()) {
      throw UsageError(str("rank ", peers_->rank(), " is not a member of group ", name_));
    }
    return static_cast<int>(found - members_.begin());
  }

  const std::shared_ptr<Peers> peers_;
  const std::shared_ptr<Runtime> runtime_;
  const std::vector<int> members_;
  const std::string name_;
  const Options options_;
  const int rank_;
  const std::shared_ptr<TrafficMeter> meter_;
  const std::shared_ptr<Watch> watch_;
  const int first_tag_;
  Queue queue_;
  PointToPoint point_to_point_;
};

}  // namespace

std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers,
                                      std::shared_ptr<Runtime> runtime, std::vector<int> members,
                                      std::string name, Options options) {
  return std::make_shared<MpiBackend>(std::move(peers), std::move(runtime), std::move(members),
                                      std::move(name), options);
}

}  // namespace tessera::comm::mpi
