#include "tessera/comm/local_peers.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "tessera/comm/notes.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

class LocalSegment final : public Segment {
 public:
  explicit LocalSegment(std::size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      throw Error(str("cannot map ", bytes, " bytes: ", std::strerror(errno)));
    }
    data_ = static_cast<std::byte*>(at);
    size_ = bytes;
  }
  ~LocalSegment() override { munmap(data_, size_); }
};

// State shared by the threads.
struct SharedState {
  explicit SharedState(int ranks)
      : states(static_cast<std::size_t>(ranks)), notes(static_cast<std::size_t>(ranks)) {
    for (auto& state : states) state.store(PeerState::alive);
  }

  std::vector<std::atomic<PeerState>> states;
  std::atomic<bool> failed{false};
  mutable std::mutex mutex;
  std::condition_variable changed;
  Failure failure;
  struct Offer {
    std::shared_ptr<Segment> segment;
    std::size_t takers;
  };
  std::map<std::string, Offer> offers;
  std::uint64_t gone = 0;      // number of ranks that left
  std::vector<NoteBox> notes;  // by receiver
};

class LocalPeers final : public Peers {
 public:
  LocalPeers(std::shared_ptr<SharedState> shared, int rank)
      : shared_(std::move(shared)), rank_(rank) {}
  ~LocalPeers() override {
    std::lock_guard lock(shared_->mutex);
    shared_->states[static_cast<std::size_t>(rank_)].store(PeerState::left);
    ++shared_->gone;
    shared_->changed.notify_all();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->states.size()); }
  bool same_host(int) const override { return true; }
  PeerState state(int rank) const override {
    return shared_->states[static_cast<std::size_t>(rank)].load();
  }

  void report(const Failure& failure) override {
    std::lock_guard lock(shared_->mutex);
    if (shared_->failed.load()) return;
    shared_->failure = failure;
    shared_->failed.store(true);
    shared_->changed.notify_all();
  }
  std::optional<Failure> failure() const override {
    if (!shared_->failed.load()) return std::nullopt;
    std::lock_guard lock(shared_->mutex);
    return shared_->failure;
  }

  std::shared_ptr<Segment> share(const std::string& name, std::span<const int> members,
                                 std::size_t bytes, Pages,
                                 std::chrono::milliseconds timeout) override {
    const int leader = members.front();
    if (rank_ == leader) {
      auto segment = std::make_shared<LocalSegment>(bytes);
      std::lock_guard lock(shared_->mutex);
      if (members.size() > 1) shared_->offers[name] = {segment, members.size() - 1};
      shared_->changed.notify_all();
      return segment;
    }
    std::unique_lock lock(shared_->mutex);
    const auto arrived = [&] { return shared_->offers.count(name) > 0; };
    const bool woken = shared_->changed.wait_for(lock, timeout, [&] {
      return arrived() || shared_->failed.load() || state(leader) != PeerState::alive;
    });
    if (arrived()) {
      auto& offer = shared_->offers[name];
      auto segment = offer.segment;
      if (--offer.takers == 0) shared_->offers.erase(name);
      return segment;
    }
    if (shared_->failed.load()) raise(shared_->failure);
    throw PeerError(str("rank ", leader, woken ? " left" : " did not come in time", " while rank ",
                        rank_, " waited for memory \"", name, "\" from it"),
                    leader);
  }

  void send_note(int rank, const std::string& topic, const std::string& bytes) override {
    check_note(topic, bytes);
    std::lock_guard lock(shared_->mutex);
    shared_->notes[static_cast<std::size_t>(rank)].keep(rank_, topic, bytes);
    shared_->changed.notify_all();
  }
  std::optional<std::string> take_note(int rank, const std::string& topic) override {
    std::lock_guard lock(shared_->mutex);
    return own_notes().take(rank, topic);
  }
  std::uint64_t notes_heard() const override {
    std::lock_guard lock(shared_->mutex);
    return own_notes().heard();
  }
  void wait_for_notes(std::uint64_t seen, std::chrono::milliseconds longest) const override {
    std::unique_lock lock(shared_->mutex);
    const std::uint64_t gone = shared_->gone;
    shared_->changed.wait_for(lock, longest, [&] {
      return own_notes().heard() != seen || shared_->gone != gone || shared_->failed.load();
    });
  }

 private:
  NoteBox& own_notes() const { return shared_->notes[static_cast<std::size_t>(rank_)]; }

  const std::shared_ptr<SharedState> shared_;
  const int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Peers>> make_local_peers(int ranks) {
  if (ranks < 1) throw UsageError(str("a group of ", ranks, " ranks: must have at least 1 rank"));
  auto shared = std::make_shared<SharedState>(ranks);
  std::vector<std::shared_ptr<Peers>> peers;
  for (int r = 0; r < ranks; ++r) peers.push_back(std::make_shared<LocalPeers>(shared, r));
  return peers;
}

}  // namespace tessera::comm
