#include "tessera/comm/socket_peers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/connection.h"
#include "tessera/comm/notes.h"
#include "tessera/comm/peers_rendezvous.h"
#include "tessera/comm/shared_memory.h"
#include "tessera/comm/socket.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

rlim_t open_files_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

std::string open_files_advice() {
  return str("this process may have ", open_files_limit(), " open files; raise that (ulimit -n)");
}

// Called before anything is opened. A rank needs two files for every other one, and a few for
// descriptors that it passes on.
void require_open_files(int rank, int size) {
  constexpr rlim_t kPassing = 8;
  const rlim_t others = 2 * static_cast<rlim_t>(size - 1);
  std::error_code full;  // not even this can be opened
  const std::filesystem::directory_iterator own("/proc/self/fd", full);
  const auto open =
      full ? open_files_limit() : static_cast<rlim_t>(std::distance(begin(own), end(own)));
  if (open + others + kPassing <= open_files_limit()) return;
  throw Error(str("rank ", rank, " of ", size, " needs ", others + kPassing, " files besides the ",
                  open, " that it has open; ", open_files_advice()));
}

class SocketPeers final : public Peers {
 public:
  SocketPeers(Store& store, int rank, int size, const PeersOptions& options)
      : rank_(rank),
        size_(size),
        states_(static_cast<std::size_t>(size)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    require_open_files(rank, size);
    if (!wake_.open()) throw_errno("cannot make an event descriptor");
    for (auto& state : states_) state.store(PeerState::alive);
    for (int r = 0; r < size; ++r) connections_.push_back(std::make_unique<Connection>());
    PeerSockets met = connect_sockets(store, rank, size, options);
    same_host_ = std::move(met.same_host);
    for (int r = 0; r < size; ++r) {
      connection(r).socket = std::move(met.sockets[static_cast<std::size_t>(r)]);
      if (r != rank) admit(r);
    }
    watcher_ = std::thread([this] { keep_watch(); });
  }

  ~SocketPeers() override {
    try {
      for (int r = 0; r < size_; ++r) tell(r, ControlMessage::leave, "");
    } catch (...) {  // no memory: to the others this rank has died, which is near the truth
    }
    stopping_.store(true);
    wake();
    watcher_.join();
    // Sends what peers have yet to take, above all that we leave. One that stays stopped is not
    // waited for.
    const auto end = Clock::now() + std::chrono::seconds(5);
    for (int r = 0; r < size_; ++r) {
      Connection& c = connection(r);
      while (state(r) == PeerState::alive && !c.flush() && Clock::now() < end) {
        wait_writable(c.socket, end);
      }
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool same_host(int rank) const override { return same_host_[static_cast<std::size_t>(rank)]; }
  PeerState state(int rank) const override {
    return states_[static_cast<std::size_t>(rank)].load();
  }

  void report(const Failure& failure) override {
    {
      std::lock_guard lock(mutex_);
      if (failed_.load()) return;
      failure_ = failure;
      failed_.store(true);
      changed_.notify_all();
    }
    const std::string text = str(static_cast<int>(failure.kind), " ", failure.rank, " ",
                                 failure.reporter, " ", failure.text.substr(0, kLongestText / 2));
    for (int r = 0; r < size_; ++r) tell(r, ControlMessage::failure, text);
  }
  std::optional<Failure> failure() const override {
    if (!failed_.load()) return std::nullopt;
    std::lock_guard lock(mutex_);
    return failure_;
  }

  std::shared_ptr<Segment> share(const std::string& name, std::span<const int> members,
                                 std::size_t bytes, Pages pages,
                                 std::chrono::milliseconds timeout) override {
    const int leader = members.front();
    // What this rank cannot do is told to all: they would wait for it, or use what is not there.
    const auto or_report = [&](const auto& make) {
      try {
        return make();
      } catch (const Error& error) {
        const std::string text = str("rank ", rank_, ", for ", quote(name), ": ", error.what());
        report({Failure::Kind::peer, rank_, rank_, text});
        if (dynamic_cast<const OutOfMemoryError*>(&error) != nullptr) throw OutOfMemoryError(text);
        throw Error(text);
      }
    };
    const auto take = [&](const Fd& fd) {
      if (pages == Pages::reserved) {
        const auto own = static_cast<std::size_t>(std::find(members.begin(), members.end(), rank_) -
                                                  members.begin());
        const std::size_t part = bytes / members.size(), begin = own * part;
        reserve(fd, begin, own + 1 == members.size() ? bytes - begin : part);
      }
      return map_shared_memory(fd, bytes);
    };
    if (leader == rank_) {
      return or_report([&] {
        const auto fd = std::make_shared<const Fd>(make_shared_memory(bytes, pages));
        for (const int member : members) tell(member, ControlMessage::segment, name, fd);
        return take(*fd);
      });
    }
    std::unique_lock lock(mutex_);
    const auto arrived = [&] { return offers_.count(name) > 0; };
    const bool woken = changed_.wait_for(lock, timeout, [&] {
      return arrived() || failed_.load() || state(leader) != PeerState::alive;
    });
    if (arrived()) {
      const auto offer = offers_.extract(name);
      lock.unlock();
      return or_report([&] { return take(offer.mapped()); });
    }
    if (failed_.load()) raise(failure_);
    throw PeerError(str("rank ", leader, woken ? " is gone" : " did not come in time",
                        " while rank ", rank_, " waited for memory ", quote(name), " from it"),
                    leader);
  }

  void send_note(int rank, const std::string& topic, const std::string& bytes) override {
    check_note(topic, bytes);
    std::string text = topic;
    text += '\0';
    tell(rank, ControlMessage::note, text += bytes);
  }
  std::optional<std::string> take_note(int rank, const std::string& topic) override {
    std::lock_guard lock(mutex_);
    return notes_.take(rank, topic);
  }
  std::uint64_t notes_heard() const override {
    std::lock_guard lock(mutex_);
    return notes_.heard();
  }
  void wait_for_notes(std::uint64_t seen, std::chrono::milliseconds longest) const override {
    std::unique_lock lock(mutex_);
    const std::uint64_t gone = gone_;
    changed_.wait_for(lock, longest,
                      [&] { return notes_.heard() != seen || gone_ != gone || failed_.load(); });
  }

 private:
  Connection& connection(int rank) { return *connections_[static_cast<std::size_t>(rank)]; }

  void admit(int rank) {
    Connection& c = connection(rank);
    ucred other{};
    socklen_t length = sizeof(other);
    if (same_host(rank) &&
        getsockopt(c.socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
        other.pid > 0) {
      c.process = Fd(static_cast<int>(syscall(SYS_pidfd_open, other.pid, 0)));
    }
  }

  // Returns at once: [Note: unsent] in connection.h.
  void tell(int rank, ControlMessage type, const std::string& text,
            std::shared_ptr<const Fd> descriptor = nullptr) {
    if (rank == rank_ || state(rank) != PeerState::alive) return;
    if (!connection(rank).send(type, text, std::move(descriptor))) wake();
  }

  void wake() noexcept {
    const std::uint64_t one = 1;
    while (::write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) continue;
  }

  void set_state(int rank, PeerState state) {
    std::lock_guard lock(mutex_);
    auto& current = states_[static_cast<std::size_t>(rank)];
    if (current.load() == PeerState::alive) current.store(state);
    ++gone_;
    changed_.notify_all();
  }

  // Without a watcher no death would be seen: what ends it ends the job.
  void keep_watch() noexcept {
    try {
      try {
        watch();
      } catch (const std::exception& error) {
        report({Failure::Kind::peer, rank_, rank_,
                str("rank ", rank_, " cannot watch its peers any more: ", error.what())});
      }
    } catch (...) {  // no memory even for that; our end tells the others
    }
  }

  void watch() {
    for (;;) {
      std::vector<pollfd> items{{wake_.get(), POLLIN, 0}};
      std::vector<int> ranks{-1};
      for (int r = 0; r < size_; ++r) {
        if (r == rank_ || state(r) != PeerState::alive) continue;
        const bool more = connection(r).has_unsent();
        items.push_back(
            {connection(r).socket.get(), static_cast<short>(more ? POLLIN | POLLOUT : POLLIN), 0});
        ranks.push_back(r);
        if (connection(r).process.open()) {
          items.push_back({connection(r).process.get(), POLLIN, 0});
          ranks.push_back(r);
        }
      }
      if (poll(items.data(), items.size(), -1) < 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        const std::string reason = std::strerror(errno);
        throw Error(
            str("poll of ", items.size(), " descriptors: ", reason, "; ", open_files_advice()));
      }
      if (items[0].revents != 0) {
        std::uint64_t count = 0;
        while (::read(wake_.get(), &count, sizeof(count)) < 0 && errno == EINTR) continue;
        if (stopping_.load()) return;
      }
      bool refused = false;  // perhaps not because the buffer is full: not again at once
      for (std::size_t i = 1; i < items.size(); ++i) {
        if ((items[i].revents & POLLOUT) != 0 && !connection(ranks[i]).flush()) refused = true;
        if ((items[i].revents & ~POLLOUT) == 0) continue;
        Connection::End end = drain(ranks[i]);
        const bool gone = items[i].fd == connection(ranks[i]).process.get();
        // Its last words, that it leaves and is not dead, may stand behind much else.
        while (gone && end == Connection::End::more) end = drain(ranks[i]);
        if (gone || end == Connection::End::closed) set_state(ranks[i], PeerState::dead);
      }
      if (refused) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // Takes in what the rank has sent.
  Connection::End drain(int rank) {
    const auto end =
        connection(rank).receive([&](ControlMessage type, const std::string& text, Fd descriptor) {
          handle(rank, type, text, std::move(descriptor));
        });
    if (end == Connection::End::descriptor_lost) {
      throw Error(str("the shared memory that rank ", rank, " passes does not arrive; ",
                      open_files_advice()));
    }
    return end;
  }

  void handle(int rank, ControlMessage type, const std::string& text, Fd descriptor) {
    if (type == ControlMessage::leave) return set_state(rank, PeerState::left);
    std::lock_guard lock(mutex_);
    if (type == ControlMessage::segment && descriptor.open()) {
      offers_.emplace(text, std::move(descriptor));
    } else if (type == ControlMessage::note) {
      const std::size_t end = text.find('\0');
      if (end != std::string::npos) notes_.keep(rank, text.substr(0, end), text.substr(end + 1));
    } else if (type == ControlMessage::failure && !failed_.load()) {
      std::istringstream in(text);
      int kind = 0;
      in >> kind >> failure_.rank >> failure_.reporter;
      failure_.kind = static_cast<Failure::Kind>(kind);
      in.ignore(1);
      std::getline(in, failure_.text, '\0');
      failed_.store(true);
    }
    changed_.notify_all();
  }

  const int rank_;
  const int size_;
  std::vector<std::atomic<PeerState>> states_;
  std::vector<bool> same_host_;
  std::vector<std::unique_ptr<Connection>> connections_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::uint64_t gone_ = 0;  // ranks
  NoteBox notes_;
  std::atomic<bool> failed_{false};
  Failure failure_;
  std::map<std::string, Fd> offers_;
  Fd wake_;  // readable when the watcher has to look around
  std::atomic<bool> stopping_{false};
  std::thread watcher_;
};

}  // namespace

std::shared_ptr<Peers> connect_peers(Store& store, int rank, int size,
                                     const PeersOptions& options) {
  return std::make_shared<SocketPeers>(store, rank, size, options);
}

}  // namespace tessera::comm
