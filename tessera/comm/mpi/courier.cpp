#include "tessera/comm/mpi/courier.h"

#include <algorithm>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookAtPeers = 50ms;                 // how often a sleeper looks at its peers
constexpr std::size_t kStreamPieceBytes = 4 << 20;  // of a stream
constexpr std::size_t kPiecesInFlight = 4;

}  // namespace

Courier::Courier(std::shared_ptr<Runtime> runtime, std::shared_ptr<Watch> watch, int first_tag)
    : runtime_(std::move(runtime)), watch_(std::move(watch)), first_tag_(first_tag) {}

Ticket Courier::send(const void* data, std::size_t bytes, int rank, Channel channel,
                     std::shared_ptr<void> keep) {
  return runtime_->send(data, bytes, world(rank), first_tag_ + static_cast<int>(channel), bell_,
                        std::move(keep));
}

Ticket Courier::receive(void* data, std::size_t bytes, int rank, Channel channel,
                        std::shared_ptr<void> keep) {
  return runtime_->receive(data, bytes, world(rank), first_tag_ + static_cast<int>(channel), bell_,
                           std::move(keep));
}

void Courier::verify(const Transfer& transfer, int rank, const Doing& doing) const {
  if (transfer.error().empty()) return;
  watch_->fail(Failure::Kind::peer, world(rank),
               str("MPI failed between rank ", watch_->peers().rank(), " and rank ", world(rank),
                   " in ", doing(), " of group ", watch_->group(), ": ", transfer.error()));
}

// What a rank sent before it went may still be on its way, while its goodbye came by another road.
bool Courier::last_look(const Transfer& transfer, int rank) {
  const bool left = watch_->peers().state(world(rank)) == PeerState::left;
  const auto end = Watch::Clock::now() + (left ? 500ms : 100ms);
  while (!runtime_->broken()) {
    const std::uint64_t seen = bell_->count();
    if (transfer.done() || Watch::Clock::now() > end) break;
    bell_->wait(seen, 10ms);
  }
  return transfer.done();
}

void Courier::check(const Ticket& transfer, int rank, Watch::Clock::time_point since,
                    const Doing& doing) {
  if (transfer->done()) return verify(*transfer, rank, doing);
  watch_->check(rank, since, doing, [&] { return last_look(*transfer, rank); });
  if (runtime_->broken() && !transfer->done()) {
    throw Error(str("rank ", watch_->peers().rank(), ": ", doing(), " of group ", watch_->group(),
                    " cannot finish, because MPI was given up after an earlier error"));
  }
}

void Courier::await(const Ticket& transfer, int rank, const Doing& doing) {
  if (!transfer) return;
  const auto since = Watch::Clock::now();
  auto looked = since;
  for (;;) {
    const std::uint64_t seen = bell_->count();
    if (transfer->done()) return verify(*transfer, rank, doing);
    const auto now = Watch::Clock::now();
    if (now - looked >= kLookAtPeers) {
      looked = now;
      check(transfer, rank, since, doing);
      continue;
    }
    bell_->wait(seen, kLookAtPeers);
  }
}

bool Stream::advance(Courier& courier) {
  bool moved = false;
  while (!open_.empty() && open_.front()->done() && open_.front()->error().empty()) {
    moved_ += open_.front()->bytes;
    open_.pop_front();
    moved = true;
  }
  while (begun_ < bytes_ && open_.size() < kPiecesInFlight) {
    const std::size_t piece = std::min(kStreamPieceBytes, bytes_ - begun_);
    open_.push_back(kind_ == Transfer::Kind::send
                        ? courier.send(data_ + begun_, piece, rank_, channel_)
                        : courier.receive(data_ + begun_, piece, rank_, channel_));
    begun_ += piece;
  }
  return moved;
}

void run(std::span<Stream> streams, Courier& courier, const Courier::Doing& doing) {
  auto since = Watch::Clock::now();
  auto looked = since;
  for (;;) {
    const std::uint64_t seen = courier.bell().count();
    bool moved = false;
    const Stream* awaited = nullptr;
    for (Stream& stream : streams) {
      moved = stream.advance(courier) || moved;
      if (awaited == nullptr && !stream.finished()) awaited = &stream;
    }
    if (awaited == nullptr) return;
    const auto now = Watch::Clock::now();
    if (moved) {
      since = looked = now;
      continue;
    }
    if (now - looked >= kLookAtPeers) {
      looked = now;
      // A failed message never finishes, so it is looked at here at the latest.
      for (const Stream& stream : streams) {
        if (!stream.finished()) courier.check(stream.oldest(), stream.rank(), since, doing);
      }
      continue;
    }
    courier.bell().wait(seen, kLookAtPeers);
  }
}

}  // namespace tessera::comm::mpi
