#include "tessera/checkpoint/async.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

// Adds its lifetime in seconds to a total.
class ScopedTimer {
 public:
  explicit ScopedTimer(double& total) : total_(total) {}
  ~ScopedTimer() { total_ += std::chrono::duration<double>(Clock::now() - began_).count(); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& total_;
  Clock::time_point began_ = Clock::now();
};

constexpr std::int64_t kShardAlign = 64;
std::int64_t rounded(std::int64_t bytes) {
  return (bytes + kShardAlign - 1) / kShardAlign * kShardAlign;
}

}  // namespace

void Snapshot::take(const std::vector<Shard>& shards) {
  std::int64_t total = 0;
  for (const Shard& shard : shards) total += rounded(count_of(shard.runs) * bytes_of(shard.dtype));
  if (total > capacity_) {
    release();
    if (charge_) charged_ = charge_(total);
    memory_.reset(new std::byte[static_cast<std::size_t>(total)]);  // not zeroed: filled below
    capacity_ = total;
  }
  shards_ = shards;
  std::byte* at = memory_.get();
  for (Shard& shard : shards_) {
    const std::int64_t size = bytes_of(shard.dtype);
    std::int64_t local = 0;
    for (std::size_t i = 0; i < shard.runs.size();) {
      // Copies runs that are adjacent in memory at once.
      const std::int64_t begin = shard.runs[i].local;
      std::int64_t count = 0;
      for (; i < shard.runs.size() && shard.runs[i].local == begin + count; ++i) {
        Run& run = shard.runs[i];
        count += run.count;
        run.local = local + count - run.count;
      }
      shard.copy(begin, count, at + local * size);
      local += count;
    }
    shard.data = at;
    shard.fetch = nullptr;
    at += rounded(local * size);
  }
}

void Snapshot::release() {
  memory_.reset();
  charged_.reset();
  capacity_ = 0;
  shards_.clear();
}

AsyncSaver::AsyncSaver(std::string dir, Team team, SaveOptions options)
    : dir_(std::move(dir)),
      team_(std::move(team)),
      options_(std::move(options)),
      snapshot_(options_.charge) {}

AsyncSaver::~AsyncSaver() {
  join();
  if (!error_ || !options_.warn) return;
  try {
    try {
      std::rethrow_exception(error_);
    } catch (const std::exception& error) {
      options_.warn(message_of(error));
    } catch (...) {
      options_.warn("the last save failed");
    }
  } catch (...) {  // from warn(); a destructor must not throw
  }
}

void AsyncSaver::join() {
  if (thread_.joinable()) thread_.join();
}

void AsyncSaver::join_and_rethrow() {
  join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void AsyncSaver::start(const Description& about, const std::vector<Shard>& shards) {
  const ScopedTimer exposed(exposed_);
  join_and_rethrow();
  snapshot_.take(shards);
  about_ = about;
  saved_ = {};
  running_.store(true, std::memory_order_release);
  try {
    thread_ = std::thread([this] {
      try {
        saved_ = save(dir_, about_, snapshot_.shards(), team_, options_);
      } catch (...) {
        error_ = std::current_exception();
      }
      running_.store(false, std::memory_order_release);
    });
  } catch (const std::system_error& error) {  // the limit on threads is reached
    running_.store(false, std::memory_order_release);
    throw Error(str("cannot start the thread that saves: ", error.what(),
                    "; raise the limit (ulimit -u), or save in the foreground"));
  }
}

Saved AsyncSaver::save_now(const Description& about, const std::vector<Shard>& shards) {
  const ScopedTimer exposed(exposed_);
  join_and_rethrow();
  saved_ = {};
  return saved_ = save(dir_, about, shards, team_, options_);
}

Saved AsyncSaver::wait() {
  const ScopedTimer exposed(exposed_);
  join_and_rethrow();
  return saved_;
}

}  // namespace tessera::checkpoint
