#include "tessera/comm/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <memory>

#include "tessera/comm/socket.h"
#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Found look_up(const std::string& name, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), "1", &hints, &list) != 0) list = nullptr;
  return Found(list, &freeaddrinfo);
}

bool is_numeric(const std::string& text) { return look_up(text, AI_NUMERICHOST) != nullptr; }

}  // namespace

std::vector<std::string> resolve(const std::string& name) {
  const Found list = look_up(name, 0);
  std::vector<std::string> all;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* i = list.get(); i != nullptr; i = i->ai_next) {
      const std::string text = numeric(i->ai_addr, i->ai_addrlen);
      if (i->ai_family == family && !text.empty() &&
          std::find(all.begin(), all.end(), text) == all.end()) {
        all.push_back(text);
      }
    }
  }
  if (all.empty()) {
    throw UsageError(str("the host name ", quote(name),
                         " does not resolve on this host; use an address, or a name that resolves "
                         "on every host of the job"));
  }
  return all;
}

bool is_loopback(const std::string& text) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::string interface_address(const std::string& name_or_address) {
  if (is_numeric(name_or_address)) return name_or_address;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw_errno("cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::map<std::string, std::string> addresses;  // by interface
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      if (family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(i->ifa_addr)->sin6_addr)) {
        continue;  // has no meaning on another host
      }
      addresses.emplace(
          i->ifa_name,
          numeric(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
    }
  }
  const auto found = addresses.find(name_or_address);
  if (found != addresses.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, address] : addresses) names.push_back(name);
  throw UsageError(str("there is no network interface ", quote(name_or_address),
                       " with an address on this host", did_you_mean(name_or_address, names),
                       "; available: ", join(names, ", ")));
}

std::string address_towards(const std::string& target) {
  const Found list = look_up(target, AI_NUMERICHOST);
  if (list == nullptr) throw UsageError(str(quote(target), " is not an address"));
  // Connecting a datagram socket sends nothing; it only chooses a route.
  const Fd probe(socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (!probe.open() || connect(probe.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    throw_errno(str("this machine has no route to ", target));
  }
  return numeric(reinterpret_cast<sockaddr*>(&own), length);
}

std::string store_address(const std::string& master, const std::string& interface,
                          bool several_hosts) {
  if (!interface.empty()) return interface_address(interface);
  const std::vector<std::string> all = resolve(master);
  // Many systems map a machine's own name to a loopback address, besides or instead of its real
  // one.
  for (const std::string& address : all) {
    if (!is_loopback(address)) return address;
  }
  if (several_hosts && !is_numeric(master) && master != "localhost") {
    throw UsageError(str("the host ", quote(master), " is ", all.front(),
                         " here, which no other host can reach; give its address in the network "
                         "of the job, or name the interface (TESSERA_INTERFACE, or tessera run "
                         "--interface); if all ranks are on this host, use 127.0.0.1"));
  }
  return all.front();
}

}  // namespace tessera::comm
