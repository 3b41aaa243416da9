#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/fd.h"
#include "tessera/dashboard/request_head.h"

namespace tessera::dashboard {

// Socket of a client, with the bytes received but not used and the bytes written but not sent. Only
// wait_until_sent() waits for the client.
class Connection {
 public:
  using Clock = std::chrono::steady_clock;
  // Counts itself in `open` while it exists. A first request is expected within `seconds`.
  Connection(Fd fd, std::atomic<int>& open, double seconds);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int socket() const { return fd_.get(); }
  // Receives what has arrived, while fewer than `most` bytes are unused. Returns false if the
  // client will not send more.
  bool receive(std::size_t most);
  std::string_view unused() const { return std::string_view(in_).substr(at_); }
  void use(std::size_t bytes) { at_ += bytes; }
  // Returns true if there are no unread bytes and the client has not closed.
  bool silent() const;
  // Returns true if the client has closed its side or the connection is broken.
  bool gone() const;

  // Appends to the unsent bytes.
  void write(std::string_view text) { out_ += text; }
  // Sends what the socket accepts now. Returns false if the connection is broken.
  bool flush();
  bool has_unsent() const { return !out_.empty(); }
  // Waits until everything is sent. Returns false if that takes longer than `seconds`, or if the
  // connection is broken.
  bool wait_until_sent(double seconds);

  // Shuts down sending and discards what still arrives: closing a socket with unread bytes would
  // reset it, and the client could lose the answer. Returns false if the client has closed too, or
  // sent too much.
  bool drain();
  bool is_draining() const { return draining_; }

  // Head of the request whose body is awaited.
  std::optional<RequestHead> head;
  std::size_t searched = 0;  // unused bytes in which find_head_end() found nothing
  bool last = false;         // the connection ends when everything is sent

  // States of a waiting connection, each with its deadline. A partial request keeps the deadline
  // that it got with its first byte.
  void expect_request(double seconds);
  void expect_rest(double seconds);
  void expect_progress(double seconds);  // while the client receives an answer
  // A request has begun and is not complete.
  bool is_partial() const { return partial_; }
  void complete_request() { partial_ = false; }
  // Returns the start of the current state; for a client that receives, the last progress.
  Clock::time_point since() const { return since_; }
  bool is_overdue() const { return Clock::now() >= deadline_; }

 private:
  Fd fd_;
  std::atomic<int>& open_;
  std::string in_, out_;
  std::size_t at_ = 0;  // first unused byte of in_
  Clock::time_point since_, deadline_;
  bool partial_ = false, draining_ = false;
  std::size_t drained_ = 0;
};

}  // namespace tessera::dashboard
