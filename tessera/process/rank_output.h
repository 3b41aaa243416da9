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

// What the ranks and the launcher write, on its way to the launcher's own output and errors.
class RankOutput {
 public:
  RankOutput(int out, int err, bool color) : out_(out), err_(err), color_(color) {}

  // The ends of pipes for a rank to write to; its lines go on with its number in front.
  struct Pipes {
    Fd out, err;
  };
  Pipes relay(int rank);
  void say(const std::string& text) { err_.push(text); }  // whole lines of the launcher's

  // Adds what is to be waited for, and acts on what has happened to it.
  void add_to(std::vector<pollfd>& polls);
  void act_on(const std::vector<pollfd>& polls);

  bool relaying() const;  // a rank, or what it has started, may still write
  bool written() const { return out_.empty() && err_.empty(); }
  void finish();  // lines without an end, too
  // Why the output cannot be written; 0: it can, or nobody reads it.
  int error() const { return out_.broken() && out_.error() != EPIPE ? out_.error() : 0; }

 private:
  Fd relay(int rank, OutputQueue& target);

  OutputQueue out_, err_;
  bool color_;
  std::list<LineRelay> relays_;
  // As they were added to the polls, from `polled_at_` on.
  std::size_t polled_at_ = 0;
  std::vector<LineRelay*> readers_;
  std::vector<OutputQueue*> writers_;
};

}  // namespace tessera::process
