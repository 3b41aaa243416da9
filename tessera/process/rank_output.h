#pragma once

#include <poll.h>

#include <cerrno>
#include <cstddef>
#include <list>
#include <string>
#include <vector>

#include "tessera/core/fd.h"
#include "tessera/process/relay.h"

namespace tessera::process {

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
