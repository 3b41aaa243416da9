#include "tessera/comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

sockaddr_un abstract_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Returns whether the descriptor has `events` before the end.
bool wait_for(int fd, short events, Clock::time_point end) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() < 0) return false;
    pollfd item{fd, events, 0};
    const int ready = poll(&item, 1, static_cast<int>(std::min<long long>(left.count() + 1, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

void throw_errno(const std::string& what) { throw Error(str(what, ": ", std::strerror(errno))); }

Fd listen_unix(const std::string& name, int backlog, bool* taken) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, length);
  if (!fd.open() || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), backlog) != 0) {
    if (taken != nullptr && (*taken = errno == EADDRINUSE)) return Fd();
    throw_errno("cannot listen on a Unix socket");
  }
  return fd;
}

Fd try_connect_unix(const std::string& name, bool* no_listener) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, length);
  if (!fd.open()) throw_errno("cannot make a Unix socket");
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (no_listener != nullptr) *no_listener = errno == ECONNREFUSED;
    if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return Fd();
    throw_errno("cannot reach a rank of this host through its Unix socket");
  }
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

Fd listen_tcp(const std::string& address, std::uint16_t& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw UsageError(str("cannot listen on ", quote(address), ": it is not an address"));
  }
  Fd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  const bool bound = fd.open() && bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (!bound || listen(fd.get(), SOMAXCONN) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    throw_errno(str("cannot listen on ", address, " port ", port));
  }
  port = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(own).sin_port);
  return fd;
}

void keep_alive(const Fd& socket) {
  const int on = 1, idle = 2, interval = 2, probes = 3, unacknowledged_ms = 10000;
  setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms,
             sizeof(unacknowledged_ms));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Fd start_connect_tcp(const std::string& address, std::uint16_t port, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    error = EADDRNOTAVAIL;
    return Fd();
  }
  Fd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.open() && (errno == EMFILE || errno == ENFILE)) {  // retrying would not help
    const std::string reason = std::strerror(errno);
    freeaddrinfo(found);
    throw UsageError(
        str("cannot make a socket: ", reason, "; raise the limit of open files (ulimit -n)"));
  }
  const int begun = fd.open() ? connect(fd.get(), found->ai_addr, found->ai_addrlen) : -1;
  error = begun != 0 && errno != EINPROGRESS ? errno : 0;
  freeaddrinfo(found);
  return error == 0 ? std::move(fd) : Fd();
}

Fd connect_tcp(const std::vector<std::string>& addresses, std::uint16_t port,
               std::chrono::milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  const auto step = timeout / static_cast<int>(addresses.size() + 1);
  for (const std::string& text : addresses) {
    int error = 0;
    Fd fd = start_connect_tcp(text, port, error);
    socklen_t size = sizeof(error);
    if (!fd.open() || !wait_for(fd.get(), POLLOUT, std::min(end, Clock::now() + step)) ||
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      continue;
    }
    fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
    keep_alive(fd);
    return fd;
  }
  throw Error(str("no connection to port ", port, " at any of: ", join(addresses, ", "),
                  "; do firewalls let the ranks reach each other?"));
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> all;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return all;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_LOOPBACK) || !(i->ifa_flags & IFF_UP)) {
      continue;
    }
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(i->ifa_addr)->sin6_addr)) {
      continue;
    }
    char text[NI_MAXHOST];
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(i->ifa_addr, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
      all.emplace_back(text);
    }
  }
  freeifaddrs(list);
  return all;
}

std::optional<std::size_t> send_some(const Fd& socket, const void* data, std::size_t bytes,
                                     int fd) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  // Includes errors that pass when receivers have read: too many descriptors in transit, no
  // buffers.
  const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS ||
                     errno == ENOBUFS || errno == ENOMEM;
  return later ? std::optional<std::size_t>(0) : std::nullopt;
}

bool wait_writable(const Fd& socket, Clock::time_point end) {
  return wait_for(socket.get(), POLLOUT, end);
}

bool send_all(const Fd& socket, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto sent = send_some(socket, at, bytes);
    if (!sent) return false;
    if (*sent == 0 && !wait_writable(socket, Clock::now() + std::chrono::seconds(5))) return false;
    at += *sent;
    bytes -= *sent;
  }
  return true;
}

bool receive_all(const Fd& socket, void* data, std::size_t bytes, Clock::time_point end) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (!wait_for(socket.get(), POLLIN, end)) return false;
    const ssize_t got = recv(socket.get(), at, bytes, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

std::string host_key() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[64] = {};
  if (readlink("/proc/self/ns/net", network, sizeof(network) - 1) < 0) network[0] = '\0';
  utsname names{};
  uname(&names);
  return str(boot, "/", network, "/", names.nodename);
}

std::string random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) throw_errno("getrandom");
  std::string token;
  for (const unsigned char byte : bytes) {
    token += "0123456789abcdef"[byte >> 4];
    token += "0123456789abcdef"[byte & 15];
  }
  return token;
}

namespace {

rlim_t open_files_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

std::string open_files_advice() {
  return str("this process may have ", open_files_limit(),
             " open files; raise the limit (ulimit -n)");
}

void require_open_files(int rank, int size, std::size_t peers) {
  constexpr rlim_t kBesides = 16;
  const rlim_t wanted = 2 * static_cast<rlim_t>(peers) + kBesides;
  std::error_code full;  // set if no file can be opened at all
  const std::filesystem::directory_iterator own("/proc/self/fd", full);
  const auto open =
      full ? open_files_limit() : static_cast<rlim_t>(std::distance(begin(own), end(own)));
  if (open + wanted <= open_files_limit()) return;
  throw Error(str("rank ", rank, " of ", size, " needs ", wanted, " files besides the ", open,
                  " that are open; ", open_files_advice()));
}

}  // namespace tessera::comm
