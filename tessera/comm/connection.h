#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tessera/core/fd.h"

namespace tessera::comm {

// `gone` carries departures and deaths, of the sender and of ranks that it has learned about.
enum class ControlMessage : std::uint32_t { segment = 1, failure = 2, gone = 3, note = 4 };
inline constexpr std::size_t kLongestText = 64 * 1024;  // of a message; a longer one is invalid

// Control connection to one peer. Messages have a type and a text; segments also a descriptor.
// Messages may be sent before the connection has a socket; they wait until connect().
//
// [Note: unsent] If the socket does not accept a message at once (its reader is stopped), the rest
// is kept and sent before later messages when the socket is writable. So no sender waits for a slow
// peer, no message is cut off, and a rank that continues after a stop receives everything.
class Connection {
 public:
  Fd socket;   // does not block
  Fd process;  // readable when the process has ended, even if a child holds the socket open

  // Sends a message after those that are unsent. Returns whether all are sent: if not, call flush()
  // when the socket is writable. Thread-safe.
  // The text is that of `parts`, one after another.
  bool send(ControlMessage type, std::initializer_list<std::string_view> parts,
            std::shared_ptr<const Fd> descriptor = nullptr);
  // Returns the same for unsent messages. `progress` is set if the socket accepted any bytes.
  bool flush(bool* progress = nullptr);
  // Sets the socket. Messages that wait for it are sent by the next flush().
  void connect(Fd connected);
  bool has_unsent() const;

  // Receives, and calls `handle` with every complete message. One thread only. `more`: it stopped
  // after many bytes so that other connections get their turn.
  enum class End { none, more, closed, descriptor_lost };
  using Handler = std::function<void(ControlMessage, std::string_view text, Fd descriptor)>;
  End receive(const Handler& handle);

 private:
  struct Outgoing {
    std::string bytes;
    std::size_t sent = 0;
    std::shared_ptr<const Fd> descriptor;  // travels with the first byte
  };
  mutable std::mutex sending_;
  std::deque<Outgoing> unsent_;
  std::string unread_;
  std::deque<Fd> descriptors_;
};

}  // namespace tessera::comm
