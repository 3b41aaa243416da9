#pragma once

#include <cstddef>
#include <string>

#include "tessera/core/fd.h"

namespace tessera::process {

// [Note: relaying output]
// The ranks write into pipes; the launcher reads whole lines from them, puts the rank in front and
// queues them for its own stdout or stderr. It writes only what poll(2) says will not block: an
// output that nobody reads (a paused pager) must not keep the launcher from its signals. A full
// queue is not read into, so a rank that writes faster than the terminal waits, as it would alone.

// What is still to be written to one descriptor.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);

  int fd() const { return fd_; }
  bool terminal() const { return terminal_; }
  bool empty() const { return pending_.size() == written_; }
  bool full() const;
  // It takes nothing any more (EPIPE: nobody reads it), and everything pushed is dropped.
  bool broken() const { return error_ != 0; }
  int error() const { return error_; }

  void push(const std::string& text);
  // Writes one piece, after poll(2) said that there is room.
  void write_some();

 private:
  int fd_;
  bool terminal_;
  int error_ = 0;
  std::string pending_;
  std::size_t written_ = 0;
};

// One stream of one rank on its way to an output queue.
class LineRelay {
 public:
  LineRelay(Fd source, OutputQueue& target, std::string prefix);

  int fd() const { return source_.get(); }
  bool open() const { return source_.open(); }
  OutputQueue& target() { return *target_; }

  // Reads what is there. Complete lines go on; the rest waits for its newline.
  void read_some();
  // Passes on what has no newline yet, and closes.
  void finish();

 private:
  void pass_lines();

  Fd source_;
  OutputQueue* target_;
  std::string prefix_;
  std::string partial_;
};

}  // namespace tessera::process
