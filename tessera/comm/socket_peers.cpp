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
#include "tessera/comm/shared_memory.h"
#include "tessera/comm/socket.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

struct Hello {
  char token[32];
  std::int32_t rank;
};

rlim_t open_files_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

std::string open_files_advice() {
  return str("this process may have ", open_files_limit(), " open files; raise that (ulimit -n)");
}

// Before anything is opened: two files for every other rank, and some for what passes.
void require_open_files(int rank, int size) {
  constexpr rlim_t kPassing = 8;
  const rlim_t others = 2 * static_cast<rlim_t>(size - 1);
  const std::filesystem::directory_iterator own("/proc/self/fd");
  const auto open = static_cast<rlim_t>(std::distance(begin(own), end(own)));
  if (open + others + kPassing <= open_files_limit()) return;
  throw Error(str("rank ", rank, " of ", size, " needs ", others + kPassing, " files besides the ",
                  open, " that it has open; ", open_files_advice()));
}

class SocketPeers final : public Peers {
 public:
  SocketPeers(Store& store, int rank, int size, PeersOptions options)
      : rank_(rank),
        size_(size),
        states_(static_cast<std::size_t>(size)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    require_open_files(rank, size);
    if (!wake_.open()) throw_errno("cannot make an event descriptor");
    for (auto& state : states_) state.store(PeerState::alive);
    for (int r = 0; r < size; ++r) connections_.push_back(std::make_unique<Connection>());
    meet(store, Clock::now() + options.timeout);
    watcher_ = std::thread([this] { keep_watch(); });
  }

  ~SocketPeers() override {
    try {
      for (int r = 0; r < size_; ++r) tell(r, Message::goodbye, "");
    } catch (...) {  // no memory: to the others this rank has died, which is near the truth
    }
    stopping_.store(true);
    wake();
    watcher_.join();
    // What peers have yet to take, goodbyes above all. One that stays stopped is not waited for.
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
                                 failure.reporter, " ", failure.text);
    for (int r = 0; r < size_; ++r) tell(r, Message::failure, text);
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
        for (const int member : members) tell(member, Message::segment, name, fd);
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

 private:
  Connection& connection(int rank) { return *connections_[static_cast<std::size_t>(rank)]; }

  // Every rank connects to those before it and accepts those after it. A connection is complete
  // before it is accepted, so no order of arrival can block.
  void meet(Store& store, Clock::time_point end) {
    const auto left = [&] {
      return std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    };
    const std::string token = random_token();
    const std::string here = host_key();
    const Fd local = listen_unix("tessera-" + token, size_);
    store.set(str("peers/", rank_), token + " " + here);
    std::vector<std::string> tokens;
    bool alone = true;
    for (int r = 0; r < size_; ++r) {
      const std::string note = store.get(str("peers/", r), left());
      tokens.push_back(note.substr(0, 32));
      same_host_.push_back(note.substr(33) == here);
      alone = alone && same_host_.back();
    }
    Fd remote;
    if (!alone) {
      std::uint16_t port = 0;
      remote = listen_tcp(size_, port);
      store.set(str("peers/tcp/", rank_), str(port, " ", join(own_addresses(), " ")));
    }
    for (int r = 0; r < rank_; ++r) {
      Connection& c = connection(r);
      c.socket = same_host(r) ? connect_unix("tessera-" + tokens[static_cast<std::size_t>(r)])
                              : connect_far(store.get(str("peers/tcp/", r), left()), left());
      Hello hello{};
      tokens[static_cast<std::size_t>(r)].copy(hello.token, sizeof(hello.token));
      hello.rank = rank_;
      send_all(c.socket, &hello, sizeof(hello));
      char answer = 0;
      if (!receive_all(c.socket, &answer, 1, end)) {
        throw PeerError(str("rank ", r, " did not answer rank ", rank_, " in time"), r);
      }
      admit(r);
    }
    for (int missing = size_ - 1 - rank_; missing > 0;)
      missing -= accept_one(local, remote, token, end);
  }

  static Fd connect_far(const std::string& note, std::chrono::milliseconds timeout) {
    std::istringstream in(note);
    std::uint16_t port = 0;
    in >> port;
    std::vector<std::string> addresses;
    for (std::string address; in >> address;) addresses.push_back(address);
    return connect_tcp(addresses, port, timeout);
  }

  // 1 if a rank of this job came in; strangers are turned away.
  int accept_one(const Fd& local, const Fd& remote, const std::string& token,
                 Clock::time_point end) {
    pollfd listeners[2] = {{local.get(), POLLIN, 0}, {remote.get(), POLLIN, 0}};
    const int ready = poll(listeners, remote.open() ? 2 : 1, 1000);
    if (Clock::now() > end) {
      std::string absent;
      for (int r = rank_ + 1; r < size_; ++r) {
        if (!connection(r).socket.open()) absent += str(absent.empty() ? "" : ", ", r);
      }
      throw PeerError(str("rank ", rank_, " waited in vain for rank ", absent, " to connect"));
    }
    if (ready <= 0) return 0;
    const bool far = !(listeners[0].revents & POLLIN);
    Fd socket = accept_before(far ? remote : local, end);
    Hello hello{};
    const auto patience = std::min(end, Clock::now() + std::chrono::seconds(5));
    if (!socket.open() || !receive_all(socket, &hello, sizeof(hello), patience)) return 0;
    if (token.compare(0, 32, hello.token, sizeof(hello.token)) != 0) return 0;
    if (hello.rank <= rank_ || hello.rank >= size_ || connection(hello.rank).socket.open())
      return 0;
    if (far) keep_alive(socket);
    connection(hello.rank).socket = std::move(socket);
    const char welcome = 1;
    send_all(connection(hello.rank).socket, &welcome, 1);
    admit(hello.rank);
    return 1;
  }

  void admit(int rank) {
    Connection& c = connection(rank);
    fcntl(c.socket.get(), F_SETFL, fcntl(c.socket.get(), F_GETFL) | O_NONBLOCK);
    ucred other{};
    socklen_t length = sizeof(other);
    if (same_host(rank) &&
        getsockopt(c.socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
        other.pid > 0) {
      c.process = Fd(static_cast<int>(syscall(SYS_pidfd_open, other.pid, 0)));
    }
  }

  // Returns at once: [Note: unsent] in connection.h.
  void tell(int rank, Message type, const std::string& text,
            std::shared_ptr<const Fd> descriptor = nullptr) {
    if (rank == rank_ || state(rank) != PeerState::alive) return;
    if (!connection(rank).send(type, text, std::move(descriptor))) wake();
  }

  void wake() noexcept {
    const std::uint64_t one = 1;
    while (write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) continue;
  }

  void set_state(int rank, PeerState state) {
    std::lock_guard lock(mutex_);
    auto& current = states_[static_cast<std::size_t>(rank)];
    if (current.load() == PeerState::alive) current.store(state);
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
        while (read(wake_.get(), &count, sizeof(count)) < 0 && errno == EINTR) continue;
        if (stopping_.load()) return;
      }
      bool refused = false;  // perhaps for want of something else than room: not again at once
      for (std::size_t i = 1; i < items.size(); ++i) {
        if ((items[i].revents & POLLOUT) != 0 && !connection(ranks[i]).flush()) refused = true;
        if ((items[i].revents & ~POLLOUT) == 0) continue;
        const bool closed = !drain(ranks[i]);
        const bool gone = items[i].fd == connection(ranks[i]).process.get();
        if (closed || gone) set_state(ranks[i], PeerState::dead);
      }
      if (refused) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // Takes in what the rank has sent. False if it has closed the connection.
  bool drain(int rank) {
    const auto end =
        connection(rank).receive([&](Message type, const std::string& text, Fd descriptor) {
          hear(rank, type, text, std::move(descriptor));
        });
    if (end == Connection::End::descriptor_lost) {
      throw Error(str("the shared memory that rank ", rank, " passes does not arrive; ",
                      open_files_advice()));
    }
    return end != Connection::End::closed;
  }

  void hear(int rank, Message type, const std::string& text, Fd descriptor) {
    if (type == Message::goodbye) return set_state(rank, PeerState::left);
    std::lock_guard lock(mutex_);
    if (type == Message::segment && descriptor.open()) {
      offers_.emplace(text, std::move(descriptor));
    } else if (type == Message::failure && !failed_.load()) {
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
  std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  Failure failure_;
  std::map<std::string, Fd> offers_;
  Fd wake_;  // readable when the watcher has to look around
  std::atomic<bool> stopping_{false};
  std::thread watcher_;
};

}  // namespace

std::shared_ptr<Peers> connect_peers(Store& store, int rank, int size, PeersOptions options) {
  return std::make_shared<SocketPeers>(store, rank, size, options);
}

}  // namespace tessera::comm
