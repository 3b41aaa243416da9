#include "tessera/memory/ledger.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::memory {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// Besides the first and the last point, an interval has two.
constexpr std::size_t kMostIntervals = Ledger::kMostPoints / 2 - 1;
constexpr std::chrono::steady_clock::duration kFirstWidth = std::chrono::microseconds(1);

void raise_to(std::atomic<std::int64_t>& peak, std::int64_t value) noexcept {
  std::int64_t seen = peak.load(kRelaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, kRelaxed)) {
  }
}

std::string row(std::string_view name, const std::string& now, const std::string& peak) {
  const auto right = [](const std::string& text) {
    return std::string(text.size() < 12 ? 12 - text.size() : 0, ' ') + text;
  };
  return str("  ", name, std::string(12 - std::min<std::size_t>(12, name.size()), ' '), right(now),
             right(peak), "\n");
}

std::string row(std::string_view name, const Usage& usage) {
  return row(name, format_bytes(usage.now), format_bytes(usage.peak));
}

}  // namespace

std::int64_t MemoryPoint::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

void Ledger::Counter::add(std::int64_t bytes) noexcept {
  raise_to(peak, now.fetch_add(bytes, kRelaxed) + bytes);
}

Ledger::Ledger(std::string owner, std::int64_t limit, CountedMemory counted)
    : owner_(std::move(owner)), limit_(limit), counted_(counted) {
  if (limit < 0) throw UsageError(str("the memory limit is ", limit, "; must be 0 (none) or more"));
}

void Ledger::charge(MemoryCategory category, std::int64_t bytes) {
  // Only granted bytes are ever in the total. Otherwise a large request that fails could make a
  // small concurrent request of another thread fail too.
  std::int64_t before = total_.now.load(kRelaxed);
  do {
    if (limit_ > 0 && before + bytes > limit_) {
      throw OutOfMemoryError(out_of_memory_message(
          this, category, bytes, str("which would exceed the limit of ", format_bytes(limit_))));
    }
  } while (!total_.now.compare_exchange_weak(before, before + bytes, kRelaxed));
  raise_to(total_.peak, before + bytes);
  counter(category).add(bytes);
  record();
}

void Ledger::release(MemoryCategory category, std::int64_t bytes) noexcept {
  counter(category).now.fetch_sub(bytes, kRelaxed);
  total_.now.fetch_sub(bytes, kRelaxed);
  record();
}

void Ledger::note(MemoryCategory category, std::int64_t bytes) noexcept {
  total_.add(bytes);
  counter(category).add(bytes);
  record();
}

LedgerCounts Ledger::counts() const noexcept {
  LedgerCounts out;
  for (std::size_t i = 0; i < categories_.size(); ++i) {
    out.categories[i] = {categories_[i].now.load(kRelaxed), categories_[i].peak.load(kRelaxed)};
  }
  out.total = {total_.now.load(kRelaxed), total_.peak.load(kRelaxed)};
  return out;
}

void Ledger::reset_peak() noexcept {
  for (Counter& each : categories_) each.peak.store(each.now.load(kRelaxed), kRelaxed);
  total_.peak.store(total_.now.load(kRelaxed), kRelaxed);
}

MemoryPoint Ledger::point() const noexcept {
  MemoryPoint out;
  out.time = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < categories_.size(); ++i)
    out.bytes[i] = categories_[i].now.load(kRelaxed);
  return out;
}

void Ledger::start_recording() {
  const std::lock_guard lock(recording_mutex_);
  intervals_.clear();
  intervals_.reserve(kMostIntervals);  // add_point() allocates nothing
  width_ = kFirstWidth;
  first_ = point();
  recording_.store(true, kRelaxed);
}

void Ledger::add_point() noexcept {
  const std::lock_guard lock(recording_mutex_);
  if (!recording_.load(kRelaxed)) return;
  const MemoryPoint now = point();
  const auto index = [&] { return (now.time - first_.time) / width_; };
  const auto merge = [](Interval& into, const MemoryPoint& highest, const MemoryPoint& last) {
    if (highest.total() > into.highest.total()) into.highest = highest;
    into.last = last;
  };
  if (!intervals_.empty() && intervals_.back().index == index()) {
    return merge(intervals_.back(), now, now);
  }
  while (intervals_.size() == kMostIntervals) {
    width_ *= 2;
    std::size_t kept = 0;
    for (Interval& each : intervals_) {
      each.index /= 2;
      if (kept > 0 && intervals_[kept - 1].index == each.index) {
        merge(intervals_[kept - 1], each.highest, each.last);
      } else {
        intervals_[kept++] = each;
      }
    }
    intervals_.resize(kept);
  }
  if (!intervals_.empty() && intervals_.back().index == index()) {
    merge(intervals_.back(), now, now);
  } else {
    intervals_.push_back({index(), now, now});
  }
}

std::vector<MemoryPoint> Ledger::stop_recording() {
  const std::lock_guard lock(recording_mutex_);
  std::vector<MemoryPoint> points;
  if (!recording_.exchange(false, kRelaxed)) return points;
  points.reserve(2 * intervals_.size() + 2);
  points.push_back(first_);
  for (const Interval& each : intervals_) {
    if (each.highest.time < each.last.time) points.push_back(each.highest);
    points.push_back(each.last);
  }
  points.push_back(point());
  return points;
}

std::string Ledger::report() const {
  const LedgerCounts all = counts();
  std::string text = row("memory", "now", "peak");
  for (std::size_t i = 0; i < all.categories.size(); ++i) {
    text += row(kMemoryCategoryNames[i], all.categories[i]);
  }
  return text + row("total", all.total);
}

std::string out_of_memory_message(const Ledger* ledger, MemoryCategory category, std::int64_t bytes,
                                  const std::string& reason) {
  return str(
      ledger == nullptr ? "this process" : ledger->owner(), ": out of memory: it requested ",
      format_bytes(bytes), " more (", name(category), "), ", reason, ".\n",
      ledger == nullptr ? "" : ledger->report(),
      "To fit, use a smaller micro-batch (--micro-batch), --recompute full, a higher ZeRO stage "
      "(--zero), more ranks, or a higher --memory-limit.");
}

Charge::Charge(std::shared_ptr<Ledger> ledger, MemoryCategory category, std::int64_t bytes)
    : category_(category), bytes_(bytes) {
  if (!ledger || !ledger->counts_host()) return;
  ledger->charge(category, bytes);
  ledger_ = std::move(ledger);  // set only if charged, so that the destructor releases it
}

Charge::Charge(Charge&& other) noexcept
    : ledger_(std::move(other.ledger_)), category_(other.category_), bytes_(other.bytes_) {}

Charge& Charge::operator=(Charge&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(category_, other.category_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Charge::~Charge() {
  if (ledger_) ledger_->release(category_, bytes_);
}

}  // namespace tessera::memory
