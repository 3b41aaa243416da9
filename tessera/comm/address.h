#pragma once

#include <string>
#include <vector>

namespace tessera::comm {

// Addresses at which a job listens. It binds one address of this machine, never all of them.

// Returns the numeric addresses of a host name, IPv4 first. Throws UsageError if there are none.
std::vector<std::string> resolve(const std::string& name);

bool is_loopback(const std::string& numeric);

// Returns the address of a network interface of this machine ("eth0"); returns a numeric address
// unchanged. Throws a UsageError that lists the interfaces if none has this name.
std::string interface_address(const std::string& name_or_address);

// Returns the local address that the kernel uses for connections to `numeric`.
std::string address_towards(const std::string& numeric);

// Returns the address at which a job's store listens: that of `interface` if it is not empty,
// otherwise what `master` resolves to. Throws UsageError if the other hosts cannot reach it.
std::string store_address(const std::string& master, const std::string& interface,
                          bool several_hosts);

}  // namespace tessera::comm
