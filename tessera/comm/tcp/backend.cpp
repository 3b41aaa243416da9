#include "tessera/comm/tcp/backend.h"

#include <utility>

#include "tessera/comm/queued_backend.h"
#include "tessera/comm/tcp/transport.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::tcp {
namespace {

class TcpBackend final : public QueuedBackend {
 public:
  TcpBackend(std::shared_ptr<Peers> peers, std::vector<int> members, std::string name,
             GroupOptions options)
      : QueuedBackend(std::move(peers), std::move(members), std::move(name), options) {
    start(std::make_shared<TcpTransport>(Mail(peers_, members_, "tcp " + name_), liveness_, meter_,
                                         rank_, size()),
          std::make_shared<TcpPointToPoint>(Mail(peers_, members_, "tcp messages " + name_),
                                            liveness_, meter_, rank_));
  }

  std::string kind() const override { return "tcp"; }
  bool takes_parts() const override { return true; }

  std::shared_ptr<SymmetricMemory> symmetric(std::size_t) override {
    throw UsageError(str("group ", name_,
                         " over tcp has no memory that all ranks map; only ranks of one host do "
                         "(backend shm)"));
  }

  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    return make_backend(peers_, job_ranks(members), std::move(name), options_);
  }
};

}  // namespace

std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers, std::vector<int> members,
                                      std::string name, GroupOptions options) {
  return std::make_shared<TcpBackend>(std::move(peers), std::move(members), std::move(name),
                                      options);
}

}  // namespace tessera::comm::tcp
