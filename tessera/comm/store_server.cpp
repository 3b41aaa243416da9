#include "tessera/comm/store_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/acceptor.h"
#include "tessera/comm/generation.h"
#include "tessera/comm/socket.h"
#include "tessera/comm/store.h"
#include "tessera/comm/store_wire.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kPerKey = 128;  // bytes charged for a key besides its length
constexpr const char* kStale = "-1 the members of the job have changed";
constexpr int kServedAtOnce = 64;  // so that many requests do not starve new connections

// A rank may join several times at once, within limits.
std::size_t most_members(int size) { return 64 + 8 * static_cast<std::size_t>(size); }

struct Member {
  Fd socket;
  std::string request{};     // received part of the current request
  std::string answer{};      // unsent part
  std::string waits_for{};   // key that it waits for, if any
  bool leaves = false;       // is closed when its answer is sent
  std::uint32_t events = 0;  // for which it is registered
};

}  // namespace

class StoreServer::Service {
 public:
  Service(const StoreServerOptions& options, Fd listener, std::uint16_t port)
      : port_(port),
        most_members_(most_members(options.size)),
        most_bytes_(options.most_bytes),
        on_report_(options.on_report),
        acceptor_(one(std::move(listener)),
                  {Credentials::Purpose::store, options.secret, options.run, options.size, -1}),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        ready_(epoll_create1(EPOLL_CLOEXEC)) {
    if (!wake_.open() || !ready_.open()) throw_errno("cannot make descriptors for the store");
    // Signals are handled by the threads of the program.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Service() {
    ask(Command::end);
    thread_.join();
  }

  int port() const { return port_; }

  void report_failure(int rank, const std::string& how) {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = str(rank, " ", how);
    wake();
  }

  void set(const std::string& key, const std::string& value, const std::string& stale_prefix) {
    std::lock_guard lock(mutex_);
    changes_.push_back({key, value, stale_prefix});
    wake();
  }

  void stop_listening() {
    ask(Command::close);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_; });
  }

 private:
  enum class Command { none, close, end };
  struct Change {
    std::string key, value, stale_prefix;
  };

  static std::vector<Fd> one(Fd fd) {
    std::vector<Fd> result;
    result.push_back(std::move(fd));
    return result;
  }

  void ask(Command command) {
    std::lock_guard lock(mutex_);
    command_ = command;
    wake();
  }

  void wake() {
    const std::uint64_t one = 1;
    if (::write(wake_.get(), &one, sizeof(one)) < 0) std::terminate();
  }

  // Returns false if the service must end.
  bool run_command() {
    std::uint64_t count = 0;
    if (::read(wake_.get(), &count, sizeof(count)) < 0) return true;
    std::lock_guard lock(mutex_);
    if (command_ == Command::end) return false;
    if (command_ == Command::close && !closed_) {
      acceptor_.close();
      closed_ = true;
      changed_.notify_all();
    }
    if (told_.empty() && !failure_.empty()) {
      told_ = failure_;
      fail_waiting("", told_);
    }
    for (const Change& change : std::exchange(changes_, {})) {
      if (!change.stale_prefix.empty()) make_stale(change.stale_prefix);
      const auto old = values_.find(change.key);
      bytes_ += change.value.size();
      bytes_ -= old == values_.end() ? 0 : std::min(bytes_, old->second.size());
      bytes_ += old == values_.end() ? change.key.size() + kPerKey : 0;
      keep(change.key, change.value);
    }
    return true;
  }

  // Answers the members that wait for a key with this prefix with a failure.
  void fail_waiting(const std::string& prefix, const std::string& failure) {
    for (auto& [fd, member] : members_) {
      if (member.waits_for.empty() || !member.waits_for.starts_with(prefix)) continue;
      auto [entry, end] = waiting_.equal_range(member.waits_for);
      while (entry != end && entry->second != fd) ++entry;
      if (entry != end) waiting_.erase(entry);
      member.waits_for.clear();
      member.leaves = true;
      member.answer = framed(StoreVerdict::rank_failed, failure);  // sent by the loop
      watch(member);
    }
  }

  void make_stale(const std::string& prefix) {
    stale_.push_back(prefix);
    fail_waiting(prefix, kStale);
    for (auto entry = values_.lower_bound(prefix);
         entry != values_.end() && entry->first.starts_with(prefix);) {
      bytes_ -= std::min(bytes_, entry->second.size() + entry->first.size() + kPerKey);
      entry = values_.erase(entry);
    }
  }

  bool is_stale(const std::string& key) const {
    return std::any_of(stale_.begin(), stale_.end(),
                       [&](const std::string& prefix) { return key.starts_with(prefix); });
  }

  // Stores a value and answers the members that wait for it.
  void keep(const std::string& key, const std::string& value) {
    values_[key] = value;
    const auto [begin, end] = waiting_.equal_range(key);
    for (auto entry = begin; entry != end; ++entry) {
      Member& other = members_[entry->second];
      other.waits_for.clear();
      answer(other, StoreVerdict::good, value);  // the loop finds out if that fails
      watch(other);
    }
    waiting_.erase(begin, end);
  }

  void serve() {
    for (;;) {
      // Members are polled through one descriptor: a job has thousands of them.
      std::vector<pollfd> polls{{wake_.get(), POLLIN, 0}, {ready_.get(), POLLIN, 0}};
      const std::size_t inside = polls.size();
      acceptor_.add_to(polls);
      if (poll(polls.data(), polls.size(), acceptor_.wait_ms()) < 0) {
        if (errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      if (polls[1].revents != 0) serve_members();
      for (Accepted& peer : acceptor_.act_on(std::span(polls).subspan(inside))) {
        if (members_.size() >= most_members_) continue;
        const int fd = peer.socket.get();
        if (!watch(members_[fd] = {std::move(peer.socket)})) members_.erase(fd);
      }
      if (polls[0].revents != 0 && !run_command()) return;
    }
  }

  void serve_members() {
    epoll_event events[kServedAtOnce];
    const int count = epoll_wait(ready_.get(), events, kServedAtOnce, 0);
    for (int i = 0; i < count; ++i) {
      const auto member = members_.find(events[i].data.fd);
      if (member == members_.end()) continue;
      if (!serve_member(member->second, events[i].events) || !watch(member->second)) {
        remove(member->first);
      }
    }
  }

  // Registers the events that a member needs. Returns false if the kernel refuses that.
  bool watch(Member& member) {
    std::uint32_t events = EPOLLIN;
    if (!member.waits_for.empty()) events = EPOLLRDHUP;
    if (!member.answer.empty()) events = EPOLLOUT;
    if (events == member.events) return true;
    epoll_event event{};
    event.events = events;
    event.data.fd = member.socket.get();
    const int change = member.events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    member.events = events;
    return epoll_ctl(ready_.get(), change, event.data.fd, &event) == 0;
  }

  void remove(int fd) {
    auto [entry, end] = waiting_.equal_range(members_[fd].waits_for);
    while (entry != end && entry->second != fd) ++entry;
    if (entry != end) waiting_.erase(entry);
    // Closing does not suffice while a process that was forked holds the socket too.
    epoll_ctl(ready_.get(), EPOLL_CTL_DEL, fd, nullptr);
    members_.erase(fd);
  }

  // Returns false if the member must be removed.
  bool serve_member(Member& member, std::uint32_t events) {
    if (!member.answer.empty()) return send_answer(member);
    if (!member.waits_for.empty()) return false;  // it closed the connection while it waited
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return true;
    // Reads one request at most, so that unread requests stay in the kernel.
    StoreRequest header{};
    std::size_t wanted = sizeof(header);
    if (member.request.size() >= sizeof(header)) {
      std::memcpy(&header, member.request.data(), sizeof(header));
      wanted += header.key_bytes + header.value_bytes;
    }
    char buffer[4096];
    const ssize_t got = recv(member.socket.get(), buffer,
                             std::min(sizeof(buffer), wanted - member.request.size()), 0);
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (got == 0) return false;
    member.request.append(buffer, static_cast<std::size_t>(got));
    if (member.request.size() < wanted) return true;
    if (wanted == sizeof(header)) {
      std::memcpy(&header, member.request.data(), sizeof(header));
      const bool sets = header.op == StoreOp::set;
      const bool known = sets || header.op == StoreOp::get || header.op == StoreOp::count;
      if (!known || header.key_bytes == 0 || header.key_bytes > kLongestKey ||
          header.value_bytes > (sets ? kLongestValue : 0)) {
        return refuse(member, str("a request of kind ", static_cast<std::uint32_t>(header.op),
                                  " with a key of ", header.key_bytes, " bytes and a value of ",
                                  header.value_bytes, " bytes; must be 1 to ", kLongestKey,
                                  " and at most ", kLongestValue));
      }
      return serve_member(member, events);  // the rest may have arrived too
    }
    const std::string key = member.request.substr(sizeof(header), header.key_bytes);
    const std::string value = member.request.substr(sizeof(header) + header.key_bytes);
    member.request.clear();
    return carry_out(member, header.op, key, value);
  }

  bool carry_out(Member& member, StoreOp op, const std::string& key, const std::string& value) {
    if (!told_.empty()) {
      member.leaves = true;
      return answer(member, StoreVerdict::rank_failed, told_);
    }
    if (is_stale(key)) {
      member.leaves = true;
      return answer(member, StoreVerdict::rank_failed, kStale);
    }
    if (op == StoreOp::set && on_report_ && key.starts_with(kReportPrefix)) {
      on_report_(key, value);
      return answer(member, StoreVerdict::good, "");
    }
    if (op == StoreOp::get) {
      const auto found = values_.find(key);
      if (found == values_.end()) {
        member.waits_for = key;
        waiting_.emplace(key, member.socket.get());
        return true;
      }
      return answer(member, StoreVerdict::good, found->second);
    }
    const auto found = values_.find(key);
    const bool known = op == StoreOp::set ? found != values_.end() : counts_.contains(key);
    const std::size_t freed = op == StoreOp::set && known ? found->second.size() : 0;
    const std::size_t after = bytes_ - freed + value.size() + (known ? 0 : key.size() + kPerKey);
    if (after > most_bytes_) {
      return refuse(member, str("the store is full: it holds ", bytes_, " of at most ", most_bytes_,
                                " bytes"));
    }
    bytes_ = after;
    if (op == StoreOp::count) {
      const std::int64_t times = ++counts_[key];
      return answer(member, StoreVerdict::good,
                    std::string(reinterpret_cast<const char*>(&times), sizeof(times)));
    }
    keep(key, value);
    return answer(member, StoreVerdict::good, "");
  }

  static std::string framed(StoreVerdict verdict, const std::string& text) {
    const StoreAnswer header{verdict, static_cast<std::uint32_t>(text.size())};
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + text;
  }

  bool answer(Member& member, StoreVerdict verdict, const std::string& text) {
    member.answer = framed(verdict, text);
    return send_answer(member);
  }

  bool refuse(Member& member, const std::string& why) {
    member.leaves = true;
    return answer(member, StoreVerdict::refused, why);
  }

  static bool send_answer(Member& member) {
    const ssize_t sent = send(member.socket.get(), member.answer.data(), member.answer.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    member.answer.erase(0, static_cast<std::size_t>(sent));
    return !(member.answer.empty() && member.leaves);
  }

  const int port_;
  const std::size_t most_members_;
  const std::size_t most_bytes_;
  const std::function<void(const std::string&, const std::string&)> on_report_;
  Acceptor acceptor_;
  Fd wake_;
  Fd ready_;                                 // epoll of the members
  std::map<int, Member> members_;            // by descriptor
  std::multimap<std::string, int> waiting_;  // descriptors of the members that wait for a key
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counts_;
  std::size_t bytes_ = 0;
  std::vector<std::string> stale_;  // prefixes of set()
  std::string told_;                // sent to members after a rank has failed; empty before
  std::mutex mutex_;
  std::condition_variable changed_;
  Command command_ = Command::none;
  std::vector<Change> changes_;  // arguments of set()
  std::string failure_;          // argument of report_failure()
  bool closed_ = false;
  std::thread thread_;
};

StoreServer::StoreServer(const StoreServerOptions& options) {
  auto port = static_cast<std::uint16_t>(options.port);
  Fd listener;
  try {
    listener = listen_tcp(options.address, port);
  } catch (const Error& error) {
    throw UsageError(
        str("the store of the job ", error.what(),
            "; is the port taken, is rank 0 running already, or is the address not one of "
            "this machine?"));
  }
  service_ = std::make_unique<Service>(options, std::move(listener), port);
}

StoreServer::~StoreServer() = default;
int StoreServer::port() const { return service_->port(); }
void StoreServer::stop_listening() { service_->stop_listening(); }
void StoreServer::report_failure(int rank, const std::string& how) {
  service_->report_failure(rank, how);
}
void StoreServer::set(const std::string& key, const std::string& value,
                      const std::string& stale_prefix) {
  service_->set(key, value, stale_prefix);
}

}  // namespace tessera::comm
