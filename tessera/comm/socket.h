#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
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

// Sends what the socket takes now, with a descriptor attached to the first byte if `fd` is one.
// Returns how much that was, 0 for try again later; nothing if the connection is broken.
std::optional<std::size_t> send_some(const Fd& socket, const void* data, std::size_t bytes,
                                     int fd = -1);
bool wait_writable(const Fd& socket, std::chrono::steady_clock::time_point end);

// Send or receive exactly `bytes`, `send_all` as long as the other side takes some within 5 s;
// false otherwise. For handshakes: after a failure the connection is of no use.
bool send_all(const Fd& socket, const void* data, std::size_t bytes);
bool receive_all(const Fd& socket, void* data, std::size_t bytes,
                 std::chrono::steady_clock::time_point end);

// Equal for two processes exactly if one can pass memory to the other: the same kernel, and the
// same network and host name.
std::string host_key();

// 32 hexadecimal digits that nobody can guess.
std::string random_token();

}  // namespace tessera::comm
