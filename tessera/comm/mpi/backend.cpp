#include "tessera/comm/mpi/backend.h"

#include <utility>

#include "tessera/comm/mpi/agreement.h"
#include "tessera/comm/mpi/point_to_point.h"
#include "tessera/comm/mpi/transport.h"
#include "tessera/comm/queued_backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

class MpiBackend final : public QueuedBackend {
 public:
  MpiBackend(std::shared_ptr<Peers> peers, std::shared_ptr<Runtime> runtime,
             std::vector<int> members, std::string name, GroupOptions options)
      : QueuedBackend(std::move(peers), std::move(members), std::move(name), options),
        runtime_(std::move(runtime)) {
    if (runtime_->rank() != peers_->rank() || runtime_->size() != peers_->size()) {
      throw UsageError(str("group ", name_, " over mpi: this process is rank ", peers_->rank(),
                           " of ", peers_->size(), " in the job, but rank ", runtime_->rank(),
                           " of ", runtime_->size(),
                           " in MPI. Start all ranks with one mpirun (or srun --mpi=pmix)"));
    }
    runtime_->watch_peers(peers_);
    const int first_tag = agree_on_tags(runtime_, liveness_, rank_);
    start(std::make_shared<MpiTransport>(runtime_, liveness_, meter_, rank_, size(), first_tag),
          std::make_shared<MpiPointToPoint>(runtime_, liveness_, meter_, rank_, first_tag));
  }

  std::string kind() const override { return "mpi"; }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t bytes) override {
    throw UsageError(str("group ", name_, " over mpi has no symmetric memory (", bytes,
                         " bytes asked for): its ranks may be on different hosts, which cannot map "
                         "the same memory. Use ordinary memory, backend shm on one host, or "
                         "backend two-level, where the ranks of each host share theirs"));
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    return make_backend(peers_, runtime_, job_ranks(members), std::move(name), options_);
  }

 private:
  const std::shared_ptr<Runtime> runtime_;
};

}  // namespace

std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers,
                                      std::shared_ptr<Runtime> runtime, std::vector<int> members,
                                      std::string name, GroupOptions options) {
  return std::make_shared<MpiBackend>(std::move(peers), std::move(runtime), std::move(members),
                                      std::move(name), options);
}

}  // namespace tessera::comm::mpi
