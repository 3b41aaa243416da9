#include "tessera/data/prepare_run.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace tessera::data {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(100);  // for progress and saves

}  // namespace

PrepareRun::PrepareRun(PartReader& reader, const DocumentEncoder& encoder, TokenWriter& writer,
                       RunOptions options, const DocumentCounts& before)
    : reader_(reader),
      encoder_(encoder),
      writer_(writer),
      options_(std::move(options)),
      counts_(before) {}

void PrepareRun::run() {
  std::vector<std::jthread> threads;
  threads.emplace_back([this] { read(); });
  for (int i = 0; i < options_.threads; ++i) threads.emplace_back([this] { work(); });
  try {
    watch();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    fail(0);
  }
  threads.clear();  // joins them
  if (error_) std::rethrow_exception(error_);
}

void PrepareRun::fail(std::uint64_t part) {
  if (is_needed(part)) {
    failed_ = part;
    error_ = std::current_exception();
  }
  changed_.notify_all();
}

bool PrepareRun::is_over() const {
  if (failed_ && *failed_ == 0) return true;
  return ended_ && in_flight_ == 0;
}

void PrepareRun::read() {
  const int most = 3 * options_.threads + 1;
  std::uint64_t number = 0;
  for (bool more = true; more;) {
    UninitializedVector<char> spare;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return in_flight_ < most || failed_; });
      more = !failed_;
      if (!spare_.empty()) {
        spare = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    std::unique_ptr<Job> job;
    try {
      std::optional<InputPart> part = more ? reader_.next(std::move(spare)) : std::nullopt;
      consumed_ = reader_.consumed();
      if (part) {
        job = std::make_unique<Job>();
        job->part = std::move(*part);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      fail(number);
    }
    const std::lock_guard lock(mutex_);
    more = job != nullptr;
    if (more) {
      ++number;
      ++in_flight_;
      to_encode_.push_back(std::move(job));
    } else {
      ended_ = true;
    }
    changed_.notify_all();
  }
}

void PrepareRun::claim_in_order() {
  while (!encoded_.empty() && encoded_.begin()->first == next_claim_) {
    std::unique_ptr<Job>& job = encoded_.begin()->second;
    job->place = writer_.claim(job->tokens);
    counts_.add(job->counts);
    const WriterState& state = writer_.state();
    marks_.emplace(next_claim_, Mark{job->part.after, state.finished.size(), state.open,
                                     state.mask_rest, counts_});
    ++next_claim_;
    to_write_.push_back(std::move(job));
    encoded_.erase(encoded_.begin());
  }
}

void PrepareRun::work() {
  const WriteBuffer buffer;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !to_write_.empty() || !to_encode_.empty() || is_over(); });
    const bool writes = !to_write_.empty();
    std::deque<std::unique_ptr<Job>>& queue = writes ? to_write_ : to_encode_;
    if (queue.empty()) return;
    std::unique_ptr<Job> job = std::move(queue.front());
    queue.pop_front();
    const std::uint64_t number = job->part.number;
    bool finished = !is_needed(number);
    try {
      if (!finished) {
        lock.unlock();
        if (writes) {
          writer_.write(job->place, job->tokens, buffer);
        } else {
          job->tokens = encoder_.encode(std::move(job->part), job->counts);
        }
        lock.lock();
        UninitializedVector<char>& bytes = writes ? job->tokens.text : job->part.bytes;
        if (!bytes.empty() && spare_.size() < static_cast<std::size_t>(options_.threads)) {
          spare_.push_back(std::move(bytes));
        }
        finished = writes;
        if (writes) {
          marks_.at(number).written = true;
          for (; !marks_.empty() && marks_.begin()->second.written; ++next_done_) {
            done_ = std::move(marks_.begin()->second);
            marks_.erase(marks_.begin());
          }
        } else if (!failed_) {
          encoded_.emplace(number, std::move(job));
          claim_in_order();
        } else {
          finished = true;
        }
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      fail(number);
      // No more parts are claimed. Earlier parts are still encoded in case one of them fails too.
      in_flight_ -= static_cast<int>(encoded_.size());
      encoded_.clear();
      finished = job != nullptr;
    }
    if (finished) --in_flight_;
    changed_.notify_all();
  }
}

void PrepareRun::watch() {
  auto saved_at = std::chrono::steady_clock::now();
  std::uint64_t saved = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!is_over()) changed_.wait_for(lock, kPollInterval);
    const bool over = is_over();
    const auto now = std::chrono::steady_clock::now();
    const bool due = std::chrono::duration<double>(now - saved_at).count() >= options_.save_seconds;
    if (due && next_done_ > saved && done_) {
      const Mark mark = *done_;
      saved = next_done_;
      WriterState state;
      const std::vector<TokenShard>& finished = writer_.state().finished;
      state.finished.assign(finished.begin(),
                            finished.begin() + static_cast<std::ptrdiff_t>(mark.finished));
      state.open = mark.open;
      state.mask_rest = mark.mask_rest;
      lock.unlock();
      writer_.sync(state);
      if (options_.save) options_.save(mark.position, state, mark.counts);
      saved_at = std::chrono::steady_clock::now();
      lock.lock();
    }
    if (options_.report) {
      lock.unlock();
      options_.report(consumed_);
      lock.lock();
    }
    if (over) return;
  }
}

}  // namespace tessera::data
