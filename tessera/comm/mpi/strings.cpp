// The exchanges of Runtime that need no store and no group.

#include <cstring>

#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/mpi/wire.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// Transfers own their memory, so that giving one up is safe.
using Box = std::shared_ptr<std::string>;

void await(const TransferPtr& transfer, EventCount& events, Clock::time_point end, int own,
           const char* what) {
  for (;;) {
    const std::uint64_t seen = events.count();
    if (transfer->done()) break;
    if (Clock::now() > end) {
      throw PeerError(str("rank ", transfer->rank, " did not come in time while rank ", own,
                          " waited for it in ", what, " over MPI; did all ranks start?"),
                      transfer->rank);
    }
    events.wait(seen, std::chrono::milliseconds(50));
  }
  if (!transfer->error().empty()) {
    throw PeerError(str(what, " over MPI between rank ", own, " and rank ", transfer->rank,
                        " failed: ", transfer->error()),
                    transfer->rank);
  }
}

class Exchange {
 public:
  Exchange(Runtime& runtime, std::chrono::milliseconds timeout, const char* what)
      : runtime_(runtime), end_(Clock::now() + timeout), what_(what) {}

  // A string travels as its length and its bytes.
  void send(const Box& text, int to) {
    const std::uint64_t length = text->size();
    auto size = std::make_shared<std::string>(reinterpret_cast<const char*>(&length), 8);
    pending_.push_back(runtime_.send(size->data(), 8, to, kStringTag, events_, size));
    pending_.push_back(runtime_.send(text->data(), text->size(), to, kStringTag, events_, text));
  }
  std::string receive(int from) {
    auto size = std::make_shared<std::string>(8, '\0');
    await(runtime_.receive(size->data(), 8, from, kStringTag, events_, size));
    std::uint64_t length = 0;
    std::memcpy(&length, size->data(), 8);
    auto text = std::make_shared<std::string>(length, '\0');
    await(runtime_.receive(text->data(), length, from, kStringTag, events_, text));
    return *text;
  }
  void finish() {
    for (const TransferPtr& transfer : pending_) await(transfer);
  }

 private:
  void await(const TransferPtr& transfer) {
    mpi::await(transfer, *events_, end_, runtime_.rank(), what_);
  }
  Runtime& runtime_;
  const Clock::time_point end_;
  const char* what_;
  std::shared_ptr<EventCount> events_ = std::make_shared<EventCount>();
  std::vector<TransferPtr> pending_;
};

}  // namespace

std::string Runtime::broadcast_string(std::string text, int root,
                                      std::chrono::milliseconds timeout) {
  if (root < 0 || root >= size_) {
    throw UsageError(
        str("broadcast_string: there is no rank ", root, "; ranks are 0 to ", size_ - 1));
  }
  Exchange exchange(*this, timeout, "broadcast_string");
  if (rank_ != root) return exchange.receive(root);
  const Box box = std::make_shared<std::string>(text);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) exchange.send(box, r);
  }
  exchange.finish();
  return text;
}

std::vector<std::string> Runtime::all_gather_strings(const std::string& text,
                                                     std::chrono::milliseconds timeout) {
  Exchange exchange(*this, timeout, "all_gather_strings");
  const Box box = std::make_shared<std::string>(text);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) exchange.send(box, r);
  }
  std::vector<std::string> all;
  for (int r = 0; r < size_; ++r) all.push_back(r == rank_ ? text : exchange.receive(r));
  exchange.finish();
  return all;
}

}  // namespace tessera::comm::mpi
