#include "tessera/comm/socket_peers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/acceptor.h"
#include "tessera/comm/control_graph.h"
#include "tessera/comm/membership.h"
#include "tessera/comm/notes.h"
#include "tessera/comm/peers_rendezvous.h"
#include "tessera/comm/shared_memory.h"
#include "tessera/comm/socket.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{20};             // interval of the watcher while something is due
constexpr std::chrono::seconds kAnnounce{2};  // of kGoodbye, for announcing the departure
constexpr std::chrono::seconds kGoodbye{5};   // for sending the last messages
constexpr milliseconds kNeighborPause{500};   // before neighbors that have not dialed are dialed
constexpr milliseconds kHandOver{500};        // for peers to close after the last message is sent
constexpr std::string_view kTopicEnd{"\0", 1};

class SocketPeers final : public Peers {
 public:
  SocketPeers(Store& store, int rank, int size, const PeersOptions& options)
      : rank_(rank),
        size_(size),
        neighbors_(control_neighbors(rank, size)),
        members_(rank, size),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    require_open_files(rank, size, neighbors_.size());
    if (!wake_.open()) throw_errno("cannot make an event descriptor");
    const auto end = Clock::now() + options.timeout;
    PeerContacts contacts = exchange_contacts(store, rank, size, options);
    same_host_ = std::move(contacts.same_host);
    addresses_ = std::move(contacts.addresses);
    const auto local = std::count(same_host_.begin(), same_host_.end(), true);
    require_open_files(rank, size, neighbors_.size() + as_size(local));  // memory goes to the host
    const Credentials credentials{Credentials::Purpose::peer, options.secret, options.run, size,
                                  rank};
    acceptor_.emplace(std::move(contacts.listeners), credentials);
    dialer_.emplace(rank, credentials);
    // The higher of two neighbors dials.
    for (const int neighbor : neighbors_) {
      if (neighbor < rank) members_.connection_to(neighbor);
    }
    watcher_ = std::thread([this] { keep_watch(); });
    try {
      wait_for_neighbors(end);
    } catch (const PeerError& error) {
      // Ranks that have started would name this one, which ends now.
      if (error.rank() >= 0) report({Failure::Kind::peer, error.rank(), rank, error.what()});
      stop_watching();
      throw;
    } catch (...) {
      stop_watching();
      throw;
    }
  }

  ~SocketPeers() override {
    const auto end = Clock::now() + kGoodbye;
    stop_watching();
    try {
      std::lock_guard lock(mutex_);
      if (!left_at_) members_.leave();
      flood();
      // A rank that stays stopped is not awaited beyond `end`.
      for (const auto& link : members_.links()) {
        while (!link->flush() && Clock::now() < end) wait_writable(link->socket, end);
      }
    } catch (...) {  // no memory: the other ranks see a death
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool same_host(int rank) const override { return same_host_[as_size(rank)]; }
  PeerState state(int rank) const override { return members_.state(rank); }

  void watch(int rank) override {
    std::lock_guard lock(mutex_);
    if (rank != rank_ && members_.watch(rank)) wake();
  }

  void report(const Failure& failure) override {
    std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    keep(failure);
    if (!flood()) wake();
  }
  std::optional<Failure> failure() const override {
    if (!failed_.load()) return std::nullopt;
    std::lock_guard lock(mutex_);
    return failure_;
  }

  std::shared_ptr<Segment> share(const std::string& name, std::span<const int> members,
                                 std::size_t bytes, Pages pages, milliseconds timeout) override {
    const int leader = members.front();
    // An error is reported to all ranks: they would wait for this one, or use missing memory.
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
        for (const int member : members) tell(member, ControlMessage::segment, {name}, fd);
        return take(*fd);
      });
    }
    std::unique_lock lock(mutex_);
    const auto arrived = [&] { return offers_.count(name) > 0; };
    bool woken = false;
    for (const auto end = Clock::now() + timeout; !woken && Clock::now() < end;) {
      woken = changed_.wait_until(lock, std::min(end, Clock::now() + milliseconds(500)), [&] {
        return arrived() || failed_.load() || state(leader) != PeerState::alive;
      });
      if (!woken && members_.watch(leader)) wake();
    }
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
    tell(rank, ControlMessage::note, {topic, kTopicEnd, bytes});
  }
  std::optional<std::string> take_note(int rank, const std::string& topic) override {
    std::lock_guard lock(mutex_);
    return notes_.take(rank, topic);
  }
  std::uint64_t notes_heard() const override {
    std::lock_guard lock(mutex_);
    return notes_.heard();
  }
  void wait_for_notes(std::uint64_t seen, milliseconds longest) const override {
    std::unique_lock lock(mutex_);
    const std::uint64_t gone = members_.gone();
    changed_.wait_for(lock, longest, [&] {
      return notes_.heard() != seen || members_.gone() != gone || failed_.load();
    });
  }

 private:
  // Waits until all neighbors are connected.
  void wait_for_neighbors(Clock::time_point end) {
    std::unique_lock lock(mutex_);
    const auto missing = [&] {
      std::vector<std::string> ranks;
      for (const int r : neighbors_) {
        if (!members_.was_connected(r)) ranks.push_back(str(r));
      }
      return ranks;
    };
    const auto is_over = [&] { return start_error_ || failed_.load() || missing().empty(); };
    bool woken = is_over();
    while (!woken && Clock::now() < end) {
      woken = changed_.wait_until(lock, std::min(end, Clock::now() + kNeighborPause), is_over);
      if (woken) break;
      // A higher neighbor may have ended before it dialed this rank.
      bool dials = false;
      for (const int r : neighbors_) {
        if (!members_.was_connected(r)) dials = members_.watch(r) || dials;
      }
      if (dials) wake();
    }
    if (start_error_) raise(*start_error_);
    if (failed_.load()) raise(failure_);
    if (woken) return started_.store(true);
    const std::vector<std::string> ranks = missing();
    throw PeerError(str("rank ", rank_, " was not connected to rank ", join(ranks, ", "),
                        " in time. Check that firewalls let the ranks reach each other."),
                    std::stoi(ranks.front()));
  }

  void stop_watching() {
    stop_by_ = Clock::now() + kGoodbye;
    stopping_.store(true);
    wake();
    watcher_.join();
  }

  // Returns at once: [Note: unsent] in connection.h.
  void tell(int rank, ControlMessage type, std::initializer_list<std::string_view> parts,
            std::shared_ptr<const Fd> descriptor = nullptr) {
    if (rank == rank_ || state(rank) != PeerState::alive) return;
    std::shared_ptr<Link> link;
    {
      std::lock_guard lock(mutex_);
      link = members_.connection_to(rank);
    }
    if (link && !link->send(type, parts, std::move(descriptor))) wake();
  }

  void wake() noexcept {
    const std::uint64_t one = 1;
    while (::write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) continue;
  }

  // The functions below are called with the mutex locked.

  void keep(const Failure& failure) {
    failure_ = failure;
    failed_.store(true);
    changed_.notify_all();
  }

  // Sends each connection the facts that it was not sent yet. Returns whether all is sent.
  bool flood() {
    bool all = true;
    for (const auto& link : members_.links()) {
      if (failed_.load() && !std::exchange(link->has_failure, true)) {
        all =
            link->send(ControlMessage::failure,
                       {str(static_cast<int>(failure_.kind), " ", failure_.rank, " ",
                            failure_.reporter, " ", failure_.text.substr(0, kLongestText / 2))}) &&
            all;
      }
      for (const std::string& text : members_.unsent_facts(*link)) {
        all = link->send(ControlMessage::gone, {text}) && all;
      }
    }
    return all;
  }

  void handle(int rank, Link& link, ControlMessage type, std::string_view text, Fd descriptor) {
    if (type == ControlMessage::gone) {
      members_.take_facts(rank, link, std::string(text));
      if (members_.is_believed_dead() && !failed_.load()) {
        keep({Failure::Kind::peer, rank_, rank,
              str("rank ", rank, " reports that rank ", rank_,
                  " died: the connection between this rank and another one was lost")});
      }
    } else if (type == ControlMessage::segment && descriptor.open()) {
      offers_.emplace(std::string(text), std::move(descriptor));
    } else if (type == ControlMessage::note) {
      const std::size_t end = text.find(kTopicEnd);
      if (end == std::string_view::npos) return;  // no rank of this version sends it
      notes_.keep(rank, std::string(text.substr(0, end)), std::string(text.substr(end + 1)));
    } else if (type == ControlMessage::failure) {
      link.has_failure = true;
      if (failed_.load()) return;
      std::istringstream in{std::string(text)};
      int kind = 0;
      Failure failure;
      in >> kind >> failure.rank >> failure.reporter;
      failure.kind = static_cast<Failure::Kind>(kind);
      in.ignore(1);
      std::getline(in, failure.text, '\0');
      keep(failure);
    }
    changed_.notify_all();
  }

  // The functions below run on the watcher's thread.

  // Without a watcher no death would be noticed, so an error of the watcher ends the job.
  void keep_watch() noexcept {
    try {
      try {
        watch_all();
      } catch (const std::exception& error) {
        report({Failure::Kind::peer, rank_, rank_,
                str("rank ", rank_, " cannot watch its peers any more: ", error.what())});
      }
    } catch (...) {  // no memory to report it; other ranks notice the end of this one
    }
  }

  struct Polled {
    int rank = -1;
    std::shared_ptr<Link> link;
    bool is_process = false;
  };

  void watch_all() {
    while (!may_stop()) {
      std::vector<pollfd> polls{{wake_.get(), POLLIN, 0}};
      std::vector<Polled> polled(1);
      int wait = prepare(polls, polled);
      const std::size_t accepts = polls.size();
      acceptor_->add_to(polls);
      const std::size_t dials = polls.size();
      dialer_->add_to(polls);
      for (const int due : {acceptor_->wait_ms(), dialer_->wait_ms()}) {
        if (due >= 0) wait = wait < 0 ? due : std::min(wait, due);
      }
      if (poll(polls.data(), polls.size(), wait) < 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        const std::string reason = std::strerror(errno);
        throw Error(
            str("poll of ", polls.size(), " descriptors: ", reason, "; ", open_files_advice()));
      }
      if (polls[0].revents != 0) {
        std::uint64_t count = 0;
        while (::read(wake_.get(), &count, sizeof(count)) < 0 && errno == EINTR) continue;
      }
      bool refused = false;  // may have another reason than a full buffer, so pause before retrying
      for (std::size_t i = 1; i < accepts; ++i) {
        bool progress = (polls[i].revents & POLLOUT) == 0;
        if (!progress && !polled[i].link->flush(&progress) && !progress) refused = true;
        if ((polls[i].revents & ~POLLOUT) != 0) drain(polled[i]);
      }
      const auto all = std::span<const pollfd>(polls);
      for (Accepted& peer : acceptor_->act_on(all.subspan(accepts, dials - accepts))) {
        if (peer.rank != rank_) admit(peer.rank, std::move(peer.socket), false);
      }
      for (Dialer::Result& result : dialer_->act_on(all.subspan(dials))) finish_dial(result);
      {
        std::lock_guard lock(mutex_);
        for (const int rank : members_.apply_due()) {
          dialer_->cancel(rank);
          fail_start(rank,
                     str("rank ", rank, " ended before rank ", rank_, " was connected to it"));
        }
        flood();
        changed_.notify_all();
      }
      if (refused) std::this_thread::sleep_for(milliseconds(5));
    }
  }

  // Starts dials, appends the connections to `polls`, and returns the timeout for poll().
  int prepare(std::vector<pollfd>& polls, std::vector<Polled>& polled) {
    std::lock_guard lock(mutex_);
    for (const int rank : members_.take_dials()) dialer_->dial(rank, addresses_[as_size(rank)]);
    members_.for_each_link([&](int rank, const std::shared_ptr<Link>& link) {
      const short events = link->has_unsent() ? POLLIN | POLLOUT : POLLIN;
      polls.push_back({link->socket.get(), events, 0});
      polled.push_back({rank, link, false});
      if (!link->process.open()) return;
      polls.push_back({link->process.get(), POLLIN, 0});
      polled.push_back({rank, link, true});
    });
    return stopping_.load() || members_.is_waiting() ? static_cast<int>(kTick.count()) : -1;
  }

  // A rank that stops opens the connections for which messages wait, and then leaves. It
  // continues to receive and forward until its peers, having received everything, close their
  // connections: data that arrives at a closed socket would make TCP discard the rest.
  bool may_stop() {
    if (!stopping_.load()) return false;
    const auto now = Clock::now();
    if (now > stop_by_ || !started_) return true;
    std::lock_guard lock(mutex_);
    if (!left_at_) {
      members_.cancel_idle_dials([&](int rank) { return dialer_->cancel_unless_accepted(rank); });
      // A rank that does not answer must not keep this one from announcing that it leaves.
      if (members_.is_dialing() && now < stop_by_ - kAnnounce) return false;
      left_at_ = now;
      members_.leave();
      flood();
    }
    const auto links = members_.links();
    return links.empty() || (now > *left_at_ + kHandOver &&
                             std::none_of(links.begin(), links.end(),
                                          [](const auto& link) { return link->has_unsent(); }));
  }

  // Receives messages of a connection, and all of them if the process of the rank has ended.
  void drain(const Polled& from) {
    if (from.link->has_ended) return;
    Connection::End end = Connection::End::none;
    do {
      end = from.link->receive([&](ControlMessage type, std::string_view text, Fd descriptor) {
        std::lock_guard lock(mutex_);
        handle(from.rank, *from.link, type, text, std::move(descriptor));
      });
      if (end == Connection::End::descriptor_lost) {
        throw Error(str("the shared memory that rank ", from.rank, " passes does not arrive; ",
                        open_files_advice()));
      }
    } while (from.is_process && end == Connection::End::more);
    if (end != Connection::End::closed && !from.is_process && !from.link->has_ended) return;
    std::vector<std::shared_ptr<Link>> others;
    {
      std::lock_guard lock(mutex_);
      others = members_.remove(from.rank, from.link);
    }
    if (left_at_) return;  // it closed because this rank leaves
    // Another connection may bring that the rank has left.
    for (const auto& other : others) drain({from.rank, other, from.is_process});
    std::lock_guard lock(mutex_);
    members_.lost(from.rank);
  }

  void admit(int rank, Fd socket, bool dialed) {
    Fd process;
    if (same_host(rank)) {
      ucred other{};
      socklen_t length = sizeof(other);
      if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
          other.pid > 0) {
        process = Fd(static_cast<int>(syscall(SYS_pidfd_open, other.pid, 0)));
      }
    } else {
      keep_alive(socket);
    }
    std::shared_ptr<Link> link;
    {
      std::lock_guard lock(mutex_);
      link = members_.add(rank, std::move(socket), std::move(process), dialed);
    }
    if (link) link->flush();
  }

  void finish_dial(Dialer::Result& result) {
    if (result.outcome == Dialer::Outcome::connected) {
      return admit(result.rank, std::move(result.socket), true);
    }
    std::lock_guard lock(mutex_);
    members_.unreachable(result.rank);
    fail_start(result.rank, dialer_->explain(result));
  }

  // Ends the start if the rank is a neighbor that was never connected.
  void fail_start(int rank, const std::string& text) {
    const bool needed = std::binary_search(neighbors_.begin(), neighbors_.end(), rank);
    if (start_error_ || !needed || members_.was_connected(rank)) return;
    start_error_.emplace(Failure{Failure::Kind::peer, rank, rank_, text});
  }

  const int rank_;
  const int size_;
  const std::vector<int> neighbors_;
  std::vector<bool> same_host_;
  std::vector<PeerAddress> addresses_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Membership members_;
  NoteBox notes_;
  std::atomic<bool> failed_{false};
  Failure failure_;
  std::optional<Failure> start_error_;
  std::map<std::string, Fd> offers_;
  Fd wake_;  // readable when the watcher has something to do
  std::optional<Acceptor> acceptor_;
  std::optional<Dialer> dialer_;
  std::atomic<bool> started_{false};
  Clock::time_point stop_by_{};
  std::optional<Clock::time_point> left_at_;  // set by the watcher
  std::atomic<bool> stopping_{false};
  std::thread watcher_;
};

}  // namespace

std::shared_ptr<Peers> connect_peers(Store& store, int rank, int size,
                                     const PeersOptions& options) {
  return std::make_shared<SocketPeers>(store, rank, size, options);
}

}  // namespace tessera::comm
