#include "tessera/comm/socket_peers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/peers_meeting.h"
#include "tessera/comm/socket.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

class FdSegment final : public Segment {
 public:
  FdSegment(const Fd& fd, std::size_t bytes) {
    void* at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
    if (at == MAP_FAILED) throw_errno(str("cannot map ", bytes, " bytes of shared memory"));
    data_ = static_cast<std::byte*>(at);
    size_ = bytes;
  }
  ~FdSegment() override { munmap(data_, size_); }
};

// A file that has no name, so nothing can stay behind, and cannot shrink under a reader.
Fd make_memory(std::size_t bytes) {
  Fd fd(memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.open() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw_errno(str("cannot make ", bytes, " bytes of shared memory"));
  }
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return fd;
}

enum class Message : std::uint32_t { segment = 1, failure = 2, goodbye = 3 };
struct Frame {
  Message type;
  std::uint32_t bytes;
};
constexpr std::size_t kLongestText = 64 * 1024;  // of a frame; a longer one is no peer's

struct Connection {
  Fd socket;
  Fd process;  // readable when the process is gone, even if a child of its holds the socket open
  std::mutex sending;
  std::string unread;
  std::deque<Fd> descriptors;
};

class SocketPeers final : public Peers {
 public:
  SocketPeers(Store& store, int rank, int size, const PeersOptions& options)
      : rank_(rank),
        size_(size),
        states_(static_cast<std::size_t>(size)),
        stop_(eventfd(0, EFD_CLOEXEC)) {
    for (auto& state : states_) state.store(PeerState::alive);
    for (int r = 0; r < size; ++r) connections_.push_back(std::make_unique<Connection>());
    Meeting met = meet_peers(store, rank, size, options);
    same_host_ = std::move(met.same_host);
    for (int r = 0; r < size; ++r) {
      connection(r).socket = std::move(met.sockets[static_cast<std::size_t>(r)]);
      if (r != rank) admit(r);
    }
    watcher_ = std::thread([this] { watch(); });
  }

  ~SocketPeers() override {
    for (int r = 0; r < size_; ++r) tell(r, Message::goodbye, "");
    const std::uint64_t one = 1;
    if (write(stop_.get(), &one, sizeof(one)) < 0) std::terminate();
    watcher_.join();
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
    for (int r = 0; r < size_; ++r) tell(r, Message::failure, text);
  }
  std::optional<Failure> failure() const override {
    if (!failed_.load()) return std::nullopt;
    std::lock_guard lock(mutex_);
    return failure_;
  }

  std::shared_ptr<Segment> share(const std::string& name, std::span<const int> members,
                                 std::size_t bytes, std::chrono::milliseconds timeout) override {
    const int leader = members.front();
    if (leader == rank_) {
      const Fd fd = make_memory(bytes);
      for (const int member : members) tell(member, Message::segment, name, fd.get());
      return std::make_shared<FdSegment>(fd, bytes);
    }
    std::unique_lock lock(mutex_);
    const auto arrived = [&] { return offers_.count(name) > 0; };
    const bool woken = changed_.wait_for(lock, timeout, [&] {
      return arrived() || failed_.load() || state(leader) != PeerState::alive;
    });
    if (arrived()) {
      const auto offer = offers_.extract(name);
      return std::make_shared<FdSegment>(offer.mapped(), bytes);
    }
    if (failed_.load()) raise(failure_);
    throw PeerError(str("rank ", leader, woken ? " is gone" : " did not come in time",
                        " while rank ", rank_, " waited for memory ", quote(name), " from it"),
                    leader);
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

  void tell(int rank, Message type, const std::string& text, int fd = -1) {
    if (rank == rank_ || state(rank) != PeerState::alive) return;
    Connection& c = connection(rank);
    const Frame frame{type, static_cast<std::uint32_t>(text.size())};
    std::string bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
    bytes += text;
    std::lock_guard lock(c.sending);
    send_all(c.socket, bytes.data(), bytes.size(), fd);
  }

  void set_state(int rank, PeerState state) {
    std::lock_guard lock(mutex_);
    auto& current = states_[static_cast<std::size_t>(rank)];
    if (current.load() == PeerState::alive) current.store(state);
    changed_.notify_all();
  }

  void watch() {
    for (;;) {
      std::vector<pollfd> items{{stop_.get(), POLLIN, 0}};
      std::vector<int> ranks{-1};
      for (int r = 0; r < size_; ++r) {
        if (r == rank_ || state(r) != PeerState::alive) continue;
        items.push_back({connection(r).socket.get(), POLLIN, 0});
        ranks.push_back(r);
        if (connection(r).process.open()) {
          items.push_back({connection(r).process.get(), POLLIN, 0});
          ranks.push_back(r);
        }
      }
      if (poll(items.data(), items.size(), -1) < 0) continue;
      if (items[0].revents != 0) return;
      for (std::size_t i = 1; i < items.size(); ++i) {
        if (items[i].revents == 0) continue;
        const bool closed = !drain(ranks[i]);
        const bool gone = items[i].fd == connection(ranks[i]).process.get();
        if (closed || gone) set_state(ranks[i], PeerState::dead);
      }
    }
  }

  // Takes in what the rank has sent. False if it has closed the connection.
  bool drain(int rank) {
    Connection& c = connection(rank);
    bool open = true;
    for (;;) {
      char buffer[4096];
      iovec part{buffer, sizeof(buffer)};
      alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const ssize_t got = recvmsg(c.socket.get(), &message, MSG_CMSG_CLOEXEC);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        open = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        break;
      }
      for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
          c.descriptors.emplace_back(fd);
        }
      }
      c.unread.append(buffer, static_cast<std::size_t>(got));
      if (c.unread.size() > 2 * kLongestText) break;  // the rest when these are read
    }
    Frame frame{};
    while (c.unread.size() >= sizeof(frame)) {
      std::memcpy(&frame, c.unread.data(), sizeof(frame));
      if (frame.bytes > kLongestText) return false;
      if (c.unread.size() < sizeof(frame) + frame.bytes) break;
      hear(rank, c, frame.type, c.unread.substr(sizeof(frame), frame.bytes));
      c.unread.erase(0, sizeof(frame) + frame.bytes);
    }
    return open;
  }

  void hear(int rank, Connection& c, Message type, const std::string& text) {
    if (type == Message::goodbye) return set_state(rank, PeerState::left);
    std::lock_guard lock(mutex_);
    if (type == Message::segment && !c.descriptors.empty()) {
      offers_.emplace(text, std::move(c.descriptors.front()));
      c.descriptors.pop_front();
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
  Fd stop_;
  std::thread watcher_;
};

}  // namespace

std::shared_ptr<Peers> connect_peers(Store& store, int rank, int size,
                                     const PeersOptions& options) {
  return std::make_shared<SocketPeers>(store, rank, size, options);
}

}  // namespace tessera::comm
