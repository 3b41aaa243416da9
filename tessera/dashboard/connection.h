#pragma once

#include <httplib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "tessera/core/fd.h"
#include "tessera/dashboard/crew.h"

namespace tessera::dashboard {

// A connection as cpp-httplib reads and writes it, with a bound on the bytes and on the time that a
// request may take. An answer travels whole: httplib writes its head and its body one by one, and
// each would be a packet that wakes the client up. A thread that waits for the client steps aside.
class Connection : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;
  // Counts itself among those that are open.
  Connection(Fd fd, std::size_t most_bytes, double seconds, Crew& crew, std::atomic<int>& open);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Is there more of it already read?
  bool buffered() const { return at_ < end_; }
  // The client has said nothing that nobody has read.
  bool silent() const;
  void begin_request();
  // From here on to the end of the request what is written is sent at once: events.
  void write_at_once() { gathers_ = false; }
  // Sends what is left of the answer.
  bool flush();
  bool timed_out() const { return timed_out_; }  // while the request was read
  bool too_long() const { return too_long_; }
  bool answered() const { return answered_; }
  void close_after() { close_after_ = true; }
  bool closes() const { return close_after_; }
  // What cannot be served by httplib is answered with this text.
  void write_plainly(const std::string& text);
  // Ends it so that what was written arrives: a client may still be sending.
  void finish();

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return fd_.get(); }

 private:
  bool wait(short events, Clock::time_point until) const;
  bool send_all(const char* from, std::size_t size, int flags);

  Fd fd_;
  std::size_t most_bytes_;
  double seconds_;
  Crew& crew_;
  std::atomic<int>& open_;
  Clock::time_point deadline_{};
  std::size_t taken_ = 0;  // bytes of this request
  bool timed_out_ = false, too_long_ = false, answered_ = false, close_after_ = false;
  std::array<char, 8192> buffer_{};
  std::size_t at_ = 0, end_ = 0;
  bool gathers_ = false;
  std::string gathered_;  // not sent yet
};

}  // namespace tessera::dashboard
