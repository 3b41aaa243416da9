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

// Sockets of the abstract Unix namespace, which have no file and end with the process.
// With `taken`, a name in use sets it and returns an empty descriptor instead of throwing.
Fd listen_unix(const std::string& name, int backlog, bool* taken = nullptr);
// Returns an empty descriptor if no process listens there (sets `no_listener`), or too many
// connections wait to be accepted.
Fd try_connect_unix(const std::string& name, bool* no_listener = nullptr);

// Listens at one numeric address only. Port 0 selects a free port and is overwritten with it.
Fd listen_tcp(const std::string& address, std::uint16_t& port);
// Begins to connect to a numeric address without waiting. The socket does not block, and is
// writable when the attempt has ended; SO_ERROR then holds its error. Sets `error` to errno and
// returns an empty descriptor if the attempt cannot begin. Throws UsageError if no descriptor is
// free.
Fd start_connect_tcp(const std::string& address, std::uint16_t port, int& error);
// Tries the addresses in turn. Detects a host that vanished by keep-alives.
Fd connect_tcp(const std::vector<std::string>& addresses, std::uint16_t port,
               std::chrono::milliseconds timeout);
void keep_alive(const Fd& socket);

// Returns the addresses of this host except those of the loopback interface.
std::vector<std::string> own_addresses();

// Sends the bytes that the socket accepts now, with descriptor `fd` attached to the first byte
// unless it is -1. Returns their number, 0 if the caller must try again later, nullopt if the
// connection is broken.
std::optional<std::size_t> send_some(const Fd& socket, const void* data, std::size_t bytes,
                                     int fd = -1);
bool wait_writable(const Fd& socket, std::chrono::steady_clock::time_point end);

// Send or receive exactly `bytes`. Return false if that fails: the connection is then unusable.
// send_all() fails if the other side accepts no byte for 5 s. For handshakes.
bool send_all(const Fd& socket, const void* data, std::size_t bytes);
bool receive_all(const Fd& socket, void* data, std::size_t bytes,
                 std::chrono::steady_clock::time_point end);

// Returns a key that is equal for two processes if they can pass memory to each other: the same
// kernel, network namespace and host name.
std::string host_key();

// Returns 32 random hexadecimal digits for a unique name. Not secret: /proc/net/unix shows names.
std::string random_token();

// Returns the limit of open files, and how to raise it.
std::string open_files_advice();
// Throws if the process cannot open two files for each of `peers`, one for the socket and one for
// the process, and a few more for listening, handshakes and descriptors in transit.
void require_open_files(int rank, int size, std::size_t peers);

}  // namespace tessera::comm
