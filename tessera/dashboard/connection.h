#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <cstddef>

namespace tessera::dashboard {

// A connection as cpp-httplib reads and writes it, with a bound on the bytes and on the time that a
// request may take.
class Connection : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;
  Connection(int fd, std::size_t most_bytes, double seconds)
      : fd_(fd), most_bytes_(most_bytes), seconds_(seconds) {}

  // Is there more of it already read?
  bool buffered() const { return at_ < end_; }
  void begin_request();
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
  socket_t socket() const override { return fd_; }

 private:
  bool wait(short events, Clock::time_point until) const;

  int fd_;
  std::size_t most_bytes_;
  double seconds_;
  Clock::time_point deadline_{};
  std::size_t taken_ = 0;  // bytes of this request
  bool timed_out_ = false, too_long_ = false, answered_ = false, close_after_ = false;
  std::array<char, 8192> buffer_{};
  std::size_t at_ = 0, end_ = 0;
};

}  // namespace tessera::dashboard
