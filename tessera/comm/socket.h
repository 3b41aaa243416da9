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
// With `taken`, a name that is in use sets it and returns an empty descriptor instead of throwing.
Fd listen_unix(const std::string& name, int backlog, bool* taken = nullptr);
// Empty when nobody listens there (`nobody` says so), or too many wait to be let in.
Fd try_connect_unix(const std::string& name, bool* nobody = nullptr);

// A TCP socket at one numeric address only; with port 0 at a free one, which is written back.
Fd listen_tcp(const std::string& address, std::uint16_t& port);
// Tries the addresses in turn. Detects a host that vanished by keep-alives.
Fd connect_tcp(const std::vector<std::string>& addresses, std::uint16_t port,
               std::chrono::milliseconds timeout);
void keep_alive(const Fd& socket);

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

// 32 hexadecimal digits that nobody has chosen before. Names, not secrets: /proc/net/unix shows
// them.
std::string random_token();

}  // namespace tessera::comm
