#pragma once

#include <cstddef>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::process {

// [Note: relaying output]
// The ranks write into pipes. The launcher reads whole lines from them, puts the rank in front and
// queues them for its own stdout or stderr. It writes only what poll(2) reports will not block: an
// output that is not read (a paused pager) must not stop the launcher from handling signals. While
// a queue is full, its pipes are not read, so a rank that writes faster than the terminal blocks,
// as it would without the launcher.

// Pending output of one descriptor.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);

  int fd() const { return fd_; }
  bool terminal() const { return terminal_; }
  bool empty() const { return pending_.size() == written_; }
  bool full() const;
  // A write failed (EPIPE: the reader closed it). Everything pushed is dropped.
  bool broken() const { return error_ != 0; }
  int error() const { return error_; }

  void push(const std::string& text);
  // Writes at most PIPE_BUF bytes. Call it after poll(2) reports the descriptor writable.
  void write_some();

 private:
  int fd_;
  bool terminal_;
  int error_ = 0;
  std::string pending_;
  std::size_t written_ = 0;
};

// Forwards one stream of one rank to an output queue.
class LineRelay {
 public:
  LineRelay(Fd source, OutputQueue& target, std::string prefix);

  int fd() const { return source_.get(); }
  bool open() const { return source_.open(); }
  OutputQueue& target() { return *target_; }

  // Reads the available bytes and forwards complete lines; the rest waits for its newline.
  void read_some();
  // Forwards an unterminated last line and closes the source.
  void finish();

 private:
  void forward_lines();

  Fd source_;
  OutputQueue* target_;
  std::string prefix_;
  std::string partial_;
};

}  // namespace tessera::process
