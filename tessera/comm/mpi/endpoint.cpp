#include "tessera/comm/mpi/endpoint.h"

#include <algorithm>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookAtPeers = 50ms;  // how often a sleeper looks at its peers
constexpr std::size_t kTransferPieceBytes = 4 << 20;
constexpr std::size_t kPiecesInFlight = 4;

}  // namespace

Endpoint::Endpoint(std::shared_ptr<Runtime> runtime, std::shared_ptr<Liveness> liveness,
                   int first_tag)
    : runtime_(std::move(runtime)), liveness_(std::move(liveness)), first_tag_(first_tag) {}

TransferPtr Endpoint::send(const void* data, std::size_t bytes, int rank, Tag tag,
                           std::shared_ptr<void> keep) {
  return runtime_->send(data, bytes, world(rank), first_tag_ + static_cast<int>(tag), events_,
                        std::move(keep));
}

TransferPtr Endpoint::receive(void* data, std::size_t bytes, int rank, Tag tag,
                              std::shared_ptr<void> keep) {
  return runtime_->receive(data, bytes, world(rank), first_tag_ + static_cast<int>(tag), events_,
                           std::move(keep));
}

void Endpoint::verify(const Transfer& transfer, int rank, const Doing& doing) const {
  if (transfer.error().empty()) return;
  liveness_->fail(
      Failure::Kind::peer, world(rank),
      str("MPI failed between rank ", liveness_->peers().rank(), " and rank ", world(rank), " in ",
          doing(), " of group ", liveness_->group(), ": ", transfer.error()));
}

// The end of a rank is heard over its control connection; what it sent before that over MPI may
// still be on its way.
bool Endpoint::last_look(const Transfer& transfer, int rank) {
  const bool left = liveness_->peers().state(world(rank)) == PeerState::left;
  const auto end = Liveness::Clock::now() + (left ? 500ms : 100ms);
  while (!runtime_->broken()) {
    const std::uint64_t seen = events_->count();
    if (transfer.done() || Liveness::Clock::now() > end) break;
    events_->wait(seen, 10ms);
  }
  return transfer.done();
}

void Endpoint::check(const TransferPtr& transfer, int rank, Liveness::Clock::time_point since,
                     const Doing& doing) {
  if (transfer->done()) return verify(*transfer, rank, doing);
  liveness_->check(rank, since, doing, [&] { return last_look(*transfer, rank); });
  if (runtime_->broken() && !transfer->done()) {
    throw Error(str("rank ", liveness_->peers().rank(), ": ", doing(), " of group ",
                    liveness_->group(),
                    " cannot finish, because MPI was given up after an earlier error"));
  }
}

void Endpoint::await(const TransferPtr& transfer, int rank, const Doing& doing) {
  if (!transfer) return;
  const auto since = Liveness::Clock::now();
  auto looked = since;
  for (;;) {
    const std::uint64_t seen = events_->count();
    if (transfer->done()) return verify(*transfer, rank, doing);
    const auto now = Liveness::Clock::now();
    if (now - looked >= kLookAtPeers) {
      looked = now;
      check(transfer, rank, since, doing);
      continue;
    }
    events_->wait(seen, kLookAtPeers);
  }
}

bool PiecewiseTransfer::advance(Endpoint& endpoint) {
  bool moved = false;
  while (!open_.empty() && open_.front()->done() && open_.front()->error().empty()) {
    moved_ += open_.front()->bytes;
    open_.pop_front();
    moved = true;
  }
  while (begun_ < bytes_ && open_.size() < kPiecesInFlight) {
    const std::size_t piece = std::min(kTransferPieceBytes, bytes_ - begun_);
    open_.push_back(kind_ == Transfer::Kind::send
                        ? endpoint.send(data_ + begun_, piece, rank_, tag_)
                        : endpoint.receive(data_ + begun_, piece, rank_, tag_));
    begun_ += piece;
  }
  return moved;
}

void run(std::span<PiecewiseTransfer> transfers, Endpoint& endpoint, const Endpoint::Doing& doing) {
  auto since = Liveness::Clock::now();
  auto looked = since;
  for (;;) {
    const std::uint64_t seen = endpoint.events().count();
    bool moved = false;
    const PiecewiseTransfer* awaited = nullptr;
    for (PiecewiseTransfer& transfer : transfers) {
      moved = transfer.advance(endpoint) || moved;
      if (awaited == nullptr && !transfer.finished()) awaited = &transfer;
    }
    if (awaited == nullptr) return;
    const auto now = Liveness::Clock::now();
    if (moved) {
      since = looked = now;
      continue;
    }
    if (now - looked >= kLookAtPeers) {
      looked = now;
      // A failed message never finishes, so it is looked at here at the latest.
      for (const PiecewiseTransfer& transfer : transfers) {
        if (!transfer.finished()) endpoint.check(transfer.oldest(), transfer.rank(), since, doing);
      }
      continue;
    }
    endpoint.events().wait(seen, kLookAtPeers);
  }
}

}  // namespace tessera::comm::mpi
