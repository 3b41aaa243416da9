#include "tessera/process/rank_output.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"

namespace tessera::process {

namespace {

constexpr std::size_t kFullQueue = 1 << 20;
// A longer line is cut: otherwise a rank that writes no newline would fill the launcher's memory.
constexpr std::size_t kLongestLine = 1 << 20;

}  // namespace

OutputQueue::OutputQueue(int fd) : fd_(fd), terminal_(::isatty(fd) == 1) {}

bool OutputQueue::full() const { return pending_.size() - written_ >= kFullQueue; }

void OutputQueue::push(const std::string& text) {
  if (!broken()) pending_ += text;
}

void OutputQueue::write_some() {
  if (empty()) return;
  // A pipe that poll(2) calls writable takes PIPE_BUF bytes without blocking.
  const std::size_t size = std::min<std::size_t>(pending_.size() - written_, PIPE_BUF);
  const ssize_t count = ::write(fd_, pending_.data() + written_, size);
  if (count >= 0) {
    written_ += as_size(count);
  } else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
    error_ = errno;
  }
  if (broken() || empty()) {
    pending_.clear();
    written_ = 0;
  } else if (written_ >= kFullQueue) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

LineRelay::LineRelay(Fd source, OutputQueue& target, std::string prefix)
    : source_(std::move(source)), target_(&target), prefix_(std::move(prefix)) {}

void LineRelay::forward_lines() {
  std::string out;
  std::string_view rest = partial_;
  while (true) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;
    out += prefix_;
    out += rest.substr(0, end + 1);
    rest.remove_prefix(end + 1);
  }
  if (rest.size() >= kLongestLine) {
    out += prefix_;
    out += rest;
    out += '\n';
    rest = {};
  }
  partial_ = std::string(rest);
  if (!out.empty()) target_->push(out);
}

void LineRelay::read_some() {
  char buffer[1 << 16];
  const ssize_t count = ::read(source_.get(), buffer, sizeof buffer);
  if (count > 0) {
    partial_.append(buffer, as_size(count));
    forward_lines();
    // Closing our end gives the rank a broken pipe, as it would see without the launcher.
    if (target_->broken()) source_.reset();
  } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
    finish();
  }
}

void LineRelay::finish() {
  if (!partial_.empty()) {
    partial_ += '\n';
    forward_lines();
  }
  source_.reset();
}

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
