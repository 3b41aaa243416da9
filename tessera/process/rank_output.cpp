#include "tessera/process/rank_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::process {

RankOutput::Pipes RankOutput::relay(int rank) {
  Pipes pipes;
  pipes.out = relay(rank, out_);
  pipes.err = relay(rank, err_);
  return pipes;
}

Fd RankOutput::relay(int rank, OutputQueue& target) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    throw Error(str("cannot create a pipe for rank ", rank, ": ", std::strerror(errno),
                    " (see ulimit -n)"));
  }
  Fd source(fds[0]), end(fds[1]);
  const std::string number = str("[", rank, "]");
  relays_.emplace_back(std::move(source), target,
                       color_ && target.terminal()
                           ? str("\x1b[3", 1 + rank % 6, "m", number, "\x1b[0m ")
                           : number + " ");
  return end;
}

void RankOutput::add_to(std::vector<pollfd>& polls) {
  polled_at_ = polls.size();
  readers_.clear();
  for (LineRelay& relay : relays_) {
    if (!relay.open() || relay.target().full()) continue;
    polls.push_back({relay.fd(), POLLIN, 0});
    readers_.push_back(&relay);
  }
  writers_.clear();
  for (OutputQueue* queue : {&out_, &err_}) {
    if (queue->empty()) continue;
    polls.push_back({queue->fd(), POLLOUT, 0});
    writers_.push_back(queue);
  }
}

void RankOutput::act_on(const std::vector<pollfd>& polls) {
  std::size_t at = polled_at_;
  for (LineRelay* reader : readers_) {
    if (polls[at++].revents != 0) reader->read_some();
  }
  for (OutputQueue* writer : writers_) {
    if (polls[at++].revents != 0) writer->write_some();
  }
}

bool RankOutput::relaying() const {
  return std::any_of(relays_.begin(), relays_.end(),
                     [](const LineRelay& relay) { return relay.open(); });
}

void RankOutput::finish() {
  for (LineRelay& relay : relays_) relay.finish();
}

}  // namespace tessera::process
