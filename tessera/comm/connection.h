#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::comm {

enum class ControlMessage : std::uint32_t { segment = 1, failure = 2, leave = 3, note = 4 };
inline constexpr std::size_t kLongestText = 64 * 1024;  // of a message; a longer one is no peer's

// The control connection to one peer, once it stands: messages of a type and a text, one of them
// with a descriptor.
//
// [Note: unsent] A message that the socket does not take at once (its reader is stopped) is kept,
// and the rest is sent when the socket takes it, before anything else. So nobody waits for a slow
// peer to be told, no message is ever broken off in the middle, and a rank that goes on after a
// stop hears everything.
class Connection {
 public:
  Fd socket;   // does not block
  Fd process;  // readable when the process is gone, even if a child of its holds the socket open

  // Sends it behind what is still unsent. Whether all is sent: if not, call flush() again when the
  // socket can be written to. Any thread may send.
  bool send(ControlMessage type, const std::string& text,
            std::shared_ptr<const Fd> descriptor = nullptr);
  bool flush();
  bool has_unsent() const;

  // Takes in what has come, and hands on every whole message. By one thread only. `more`: it took
  // in much, and there may be more; others should have their turn.
  enum class End { none, more, closed, descriptor_lost };
  using Handler = std::function<void(ControlMessage, const std::string& text, Fd descriptor)>;
  End receive(const Handler& handle);

 private:
  struct Outgoing {
    std::string bytes;
    std::shared_ptr<const Fd> descriptor;  // travels with the first byte
  };
  mutable std::mutex sending_;
  std::deque<Outgoing> unsent_;
  std::string unread_;
  std::deque<Fd> descriptors_;
};

}  // namespace tessera::comm
