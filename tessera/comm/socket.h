#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/fd.h"

namespace tessera::comm {

// Throws Error: "what: reason of errno".
[[noreturn]] void throw_errno(const std::string& what);

// Sockets of the abstract Unix name space: no file, gone with the process.
Fd listen_unix(const std::string& name, int backlog);
Fd connect_unix(const std::string& name);

// A TCP socket on every interface, at a free port that is written to `port`.
Fd listen_tcp(int backlog, std::uint16_t& port);
// Tries the addresses in turn. Detects a host that vanished by keep-alives.
Fd connect_tcp(const std::vector<std::string>& addresses, std::uint16_t port,
               std::chrono::milliseconds timeout);
void keep_alive(const Fd& socket);

// Accepts one connection before `end`; empty when the time is over.
Fd accept_before(const Fd& listener, std::chrono::steady_clock::time_point end);

// This host's addresses except the loopback's.
std::vector<std::string> own_addresses();

// Sends all of it, with a descriptor attached to the first byte if `fd` is one. False if the other
// side is gone.
bool send_all(const Fd& socket, const void* data, std::size_t bytes, int fd = -1);

// Receives exactly `bytes` before `end`; false otherwise. For handshakes.
bool receive_all(const Fd& socket, void* data, std::size_t bytes,
                 std::chrono::steady_clock::time_point end);

// Equal for two processes exactly if one can pass memory to the other: the same kernel, and the
// same network and host name.
std::string host_key();

// 32 hexadecimal digits that nobody can guess.
std::string random_token();

}  // namespace tessera::comm
