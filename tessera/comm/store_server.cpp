#include "tessera/comm/store_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/acceptor.h"
#include "tessera/comm/socket.h"
#include "tessera/comm/store.h"
#include "tessera/comm/store_wire.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kPerKey = 128;  // what a key costs besides its bytes

// A rank may join several times at once, but not without end.
std::size_t most_members(int size) { return 64 + 8 * static_cast<std::size_t>(size); }

struct Member {
  Fd socket;
  std::string request{};    // as far as it has come; never more than one
  std::string answer{};     // as far as it has not gone
  std::string waits_for{};  // the key, while it waits for one
  bool leaves = false;      // when its answer has gone
};

}  // namespace

class StoreServer::Service {
 public:
  Service(const StoreServerOptions& options, Fd listener, std::uint16_t port)
      : port_(port),
        most_members_(most_members(options.size)),
        most_bytes_(options.most_bytes),
        acceptor_(one(std::move(listener)),
                  {Credentials::Purpose::store, options.secret, options.run, options.size, -1}),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    // The program's signals are for its own threads.
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

  void tell_failure(int rank, const std::string& how) {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = str(rank, " ", how);
    wake();
  }

  void stop_listening() {
    ask(Command::close);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_; });
  }

 private:
  enum class Command { none, close, end };

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

  // False when the service has to end.
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
      for (Member& member : members_) {
        if (member.waits_for.empty()) continue;
        member.waits_for.clear();
        member.leaves = true;
        member.answer = framed(StoreVerdict::rank_failed, told_);  // sent by the loop
      }
    }
    return true;
  }

  void serve() {
    for (;;) {
      std::vector<pollfd> polls{{wake_.get(), POLLIN, 0}};
      for (const Member& member : members_) {
        short events = POLLIN;
        if (!member.waits_for.empty()) events = POLLRDHUP;
        if (!member.answer.empty()) events = POLLOUT;
        polls.push_back({member.socket.get(), events, 0});
      }
      const std::size_t inside = polls.size();
      acceptor_.add_to(polls);
      if (poll(polls.data(), polls.size(), acceptor_.wait_ms()) < 0) {
        if (errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      std::size_t i = 1;
      for (auto member = members_.begin(); member != members_.end(); ++i) {
        const bool stays = polls[i].revents == 0 || serve_member(*member, polls[i].revents);
        member = stays ? std::next(member) : members_.erase(member);
      }
      for (Accepted& peer : acceptor_.act_on(std::span(polls).subspan(inside))) {
        if (members_.size() < most_members_) members_.push_back({std::move(peer.socket)});
      }
      if (polls[0].revents != 0 && !run_command()) return;
    }
  }

  // False when the member has gone.
  bool serve_member(Member& member, short events) {
    if (!member.answer.empty()) return send_answer(member);
    if (!member.waits_for.empty()) return false;  // hung up while it waited
    if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) return true;
    // No more than the request at hand, so that nobody makes us hold what we have not asked for.
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
                                  header.value_bytes, "; the longest are ", kLongestKey, " and ",
                                  kLongestValue));
      }
      return true;  // the rest comes
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
    if (op == StoreOp::get) {
      const auto found = values_.find(key);
      if (found == values_.end()) {
        member.waits_for = key;
        return true;
      }
      return answer(member, StoreVerdict::good, found->second);
    }
    const auto found = values_.find(key);
    const bool known = op == StoreOp::set ? found != values_.end() : counts_.contains(key);
    const std::size_t freed = op == StoreOp::set && known ? found->second.size() : 0;
    const std::size_t after = bytes_ - freed + value.size() + (known ? 0 : key.size() + kPerKey);
    if (after > most_bytes_) {
      return refuse(member, str("the store is full: it holds ", bytes_, " bytes"));
    }
    bytes_ = after;
    if (op == StoreOp::count) {
      const std::int64_t times = ++counts_[key];
      return answer(member, StoreVerdict::good,
                    std::string(reinterpret_cast<const char*>(&times), sizeof(times)));
    }
    values_[key] = value;
    for (Member& other : members_) {
      if (other.waits_for != key) continue;
      other.waits_for.clear();
      other.answer = framed(StoreVerdict::good, value);  // sent by the loop
    }
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
  Acceptor acceptor_;
  Fd wake_;
  std::list<Member> members_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counts_;
  std::size_t bytes_ = 0;
  std::string told_;  // what members are told of a rank that failed; "" while none has
  std::mutex mutex_;
  std::condition_variable changed_;
  Command command_ = Command::none;
  std::string failure_;  // as it was told to us
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
void StoreServer::tell_failure(int rank, const std::string& how) {
  service_->tell_failure(rank, how);
}

}  // namespace tessera::comm
