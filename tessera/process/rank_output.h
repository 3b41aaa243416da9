#pragma once

#include <poll.h>

#include <cerrno>
#include <cstddef>
#include <list>
#include <string>
#include <vector>

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

// Output of the ranks and the launcher, forwarded to the launcher's stdout and stderr.
class RankOutput {
 public:
  RankOutput(int out, int err, bool color) : out_(out), err_(err), color_(color) {}

  // Write ends of the pipes of one rank; its lines are forwarded with its number in front.
  struct Pipes {
    Fd out, err;
  };
  Pipes relay(int rank);
  void say(const std::string& text) { err_.push(text); }  // complete lines of the launcher itself

  // Adds the descriptors to poll, and handles the events on them.
  void add_to(std::vector<pollfd>& polls);
  void act_on(const std::vector<pollfd>& polls);

  bool relaying() const;  // a rank or one of its descendants may still write
  bool written() const { return out_.empty() && err_.empty(); }
  void finish();  // forwards unterminated lines too
  // errno of a failed write; 0 if writing works or the reader has closed the pipe.
  int error() const { return out_.broken() && out_.error() != EPIPE ? out_.error() : 0; }

 private:
  Fd relay(int rank, OutputQueue& target);

  OutputQueue out_, err_;
  bool color_;
  std::list<LineRelay> relays_;
  // In the order of the polls, starting at `polled_at_`.
  std::size_t polled_at_ = 0;
  std::vector<LineRelay*> readers_;
  std::vector<OutputQueue*> writers_;
};

}  // namespace tessera::process
