#pragma once

#include <string>
#include <vector>

namespace tessera::comm {

// Where a job listens: at one address of this machine, never at all of them.

// The numeric addresses of a host's name, IPv4 first. Throws UsageError when there are none.
std::vector<std::string> resolve(const std::string& name);

bool is_loopback(const std::string& numeric);

// The address of a network interface of this machine ("eth0"), or the numeric address itself.
// Throws UsageError that lists the interfaces.
std::string interface_address(const std::string& name_or_address);

// The address from which this machine talks to `numeric`.
std::string address_towards(const std::string& numeric);

// Where the store of a job listens: at the interface if one is named, otherwise at what `master`
// resolves to. Throws UsageError when that is an address which the job's other hosts cannot reach.
std::string store_address(const std::string& master, const std::string& interface,
                          bool several_hosts);

}  // namespace tessera::comm
