#include "tessera/core/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <utility>

#include "tessera/core/log.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera {
namespace {

double monotonic_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

int terminal_columns(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// Returns the first `columns` characters of UTF-8 text, on one line.
std::string first_columns(std::string_view text, std::size_t columns) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xc0) != 0x80) {
      if (columns == 0) break;
      --columns;
    }
    result += byte < 0x20 ? ' ' : text[i];
  }
  return result;
}

std::string bar(double share, std::size_t cells) {
  static constexpr std::array<const char*, 8> kEighths = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<std::size_t>(share * static_cast<double>(cells) * 8);
  std::string result;
  for (std::size_t cell = 0; cell < cells; ++cell) {
    const std::size_t filled = eighths - std::min(eighths, cell * 8);
    result += filled >= 8 ? "█" : kEighths[filled];
  }
  return result;
}

std::string per_second(double rate, const std::string& unit) {
  // Rates below one per second are easier to read as seconds per item.
  if (rate <= 0) return "";
  const std::string name = unit.empty() ? "it" : unit;
  if (rate < 1) return str(format_time(1 / rate), "/", name);
  if (rate < 1000) return str(std::round(rate * 100) / 100, " ", name, "/s");
  return str(format_count(static_cast<std::int64_t>(std::min(rate, 9e18))), " ", name, "/s");
}

}  // namespace

Progress::Progress(std::int64_t total, ProgressOptions options)
    : total_(std::max<std::int64_t>(total, 0)), options_(std::move(options)), mode_(options_.mode) {
  if (!options_.clock) options_.clock = monotonic_seconds;
  if (mode_ == ProgressMode::kAuto) {
    mode_ = ::isatty(options_.fd) == 1 ? ProgressMode::kTerminal : ProgressMode::kPlain;
  }
  start_ = measured_at_ = options_.clock();
  done_ = measured_done_ = options_.before;
  next_share_ = options_.plain_share;
}

Progress::~Progress() {
  // An unfinished bar (after an exception) keeps its last state; only its line is ended.
  if (!finished_ && drawn_ && mode_ == ProgressMode::kTerminal) write_all(options_.fd, "\n");
}

double Progress::elapsed() const { return options_.clock() - start_; }

double Progress::rate() const {
  if (recent_rate_ > 0) return recent_rate_;
  const double time = elapsed();
  return time > 0 ? static_cast<double>(done_ - options_.before) / time : 0;
}

void Progress::update(std::int64_t done, std::string_view text) {
  if (finished_ || mode_ == ProgressMode::kSilent) {
    done_ = done;
    return;
  }
  done_ = done;
  text_ = text;
  const double now = options_.clock();
  if (const double time = now - measured_at_; time >= 0.05 && done_ > measured_done_) {
    const double latest = static_cast<double>(done_ - measured_done_) / time;
    // Exponential moving average with a time constant of ten seconds.
    const double weight = recent_rate_ > 0 ? 1 - std::exp(-time / 10) : 1;
    recent_rate_ += weight * (latest - recent_rate_);
    measured_at_ = now;
    measured_done_ = done_;
  }
  if (mode_ == ProgressMode::kTerminal) {
    if (!drawn_ || now - drawn_at_ >= options_.redraw_interval) draw_terminal(false);
    return;
  }
  const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 0;
  const double since = now - (drawn_ ? drawn_at_ : start_);
  const bool further = total_ > 0 && share >= next_share_ && done_ < total_;
  if ((further && since >= options_.plain_least) || since >= options_.plain_interval) {
    draw_plain(false);
  }
}

void Progress::finish(std::string_view text) {
  if (finished_) return;
  finished_ = true;
  if (!text.empty()) text_ = text;
  if (mode_ == ProgressMode::kTerminal) draw_terminal(true);
  if (mode_ == ProgressMode::kPlain) draw_plain(true);
}

// "420/1,000 step  12.5 step/s  ETA 46 s"
std::string Progress::status(bool last) const {
  std::string result = format_grouped(done_);
  if (total_ > 0) result += "/" + format_grouped(total_);
  if (!options_.unit.empty()) result += " " + options_.unit;
  const double time = elapsed();
  const double speed =
      last ? (time > 0 ? static_cast<double>(done_ - options_.before) / time : 0) : rate();
  if (const std::string text = per_second(speed, options_.unit); !text.empty()) {
    result += "  " + text;
  }
  if (last) {
    result += "  in " + format_time(time);
  } else if (total_ > done_ && speed > 0) {
    result += "  ETA " + format_time(static_cast<double>(total_ - done_) / speed);
  }
  return result;
}

void Progress::draw_terminal(bool last) {
  const int width = options_.columns > 0 ? options_.columns : terminal_columns(options_.fd);
  // Leave the last column empty: writing to it makes some terminals wrap.
  const auto room = static_cast<std::size_t>(std::max(width - 1, 1));
  std::string left = options_.label.empty() ? "" : options_.label + " ";
  std::string right = status(last);
  if (!text_.empty()) right += "  " + text_;
  if (total_ > 0) {
    const double share =
        std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    const std::string percent = std::to_string(static_cast<int>(share * 100));
    left += std::string(3 - percent.size(), ' ') + percent + "% ";
    const std::size_t used = columns_of(left) + columns_of(right) + 4;
    const std::size_t cells = std::min<std::size_t>(room > used ? room - used : 0, 40);
    if (cells >= 5) left += "|" + bar(share, cells) + "| ";
  }
  std::string line = "\r" + first_columns(left + right, room) + "\x1b[K";
  if (last) line += '\n';
  write_all(options_.fd, line);
  drawn_ = true;
  drawn_at_ = options_.clock();
}

void Progress::draw_plain(bool last) {
  std::string line = options_.label.empty() ? "" : options_.label + ": ";
  if (total_ > 0) {
    const double share = static_cast<double>(done_) / static_cast<double>(total_);
    line += str(static_cast<int>(share * 100), "% ");
    if (options_.plain_share > 0) {
      const double steps = std::floor(share / options_.plain_share + 1e-9);
      next_share_ = (steps + 1) * options_.plain_share;
    }
  }
  line += status(last);
  if (!text_.empty()) line += "  " + text_;
  std::replace(line.begin(), line.end(), '\n', ' ');
  write_all(options_.fd, line + "\n");
  drawn_ = true;
  drawn_at_ = options_.clock();
}

}  // namespace tessera
