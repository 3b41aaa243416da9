#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

enum class ProgressMode {
  kAuto,      // bar on a terminal, plain lines elsewhere
  kTerminal,  // one line, redrawn in place
  kPlain,     // a new line from time to time, for logs
  kSilent,
};

struct ProgressOptions {
  ProgressMode mode = ProgressMode::kAuto;
  int fd = 2;
  std::string label;              // text before the bar: "training"
  std::string unit;               // unit of the count: "step" gives "12.5 step/s"
  std::int64_t before = 0;        // initial count; excluded from the rate
  int columns = 0;                // width of the line; 0: width of the terminal
  double redraw_interval = 0.1;   // minimum seconds between redraws on a terminal
  double plain_interval = 30;     // plain lines: maximum seconds between lines
  double plain_share = 0.1;       // plain lines: also after each such fraction of the total
  double plain_least = 1;         // plain lines: minimum seconds between those
  std::function<double()> clock;  // in seconds, for tests; empty: the monotonic clock
};

// Progress bar for a known or, with total 0, unknown amount of work:
//   training  42% |████▎     |  420/1,000 step  12.5 step/s  ETA 46 s  loss 2.31
// Not thread-safe. The destructor ends the line, so that later output starts on a new one.
class Progress {
 public:
  explicit Progress(std::int64_t total, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Sets the total amount done so far, and a text to show at the end of the line.
  void update(std::int64_t done, std::string_view text = {});
  void add(std::int64_t more = 1, std::string_view text = {}) { update(done_ + more, text); }

  // Draws the final state with the total time instead of the ETA. Idempotent.
  void finish(std::string_view text = {});

  std::int64_t done() const { return done_; }
  ProgressMode mode() const { return mode_; }

 private:
  void draw_terminal(bool last);
  void draw_plain(bool last);
  std::string status(bool last) const;
  double rate() const;
  double elapsed() const;

  std::int64_t total_;
  ProgressOptions options_;
  ProgressMode mode_;
  std::int64_t done_ = 0;
  std::string text_;
  double start_ = 0;
  double drawn_at_ = 0;
  double next_share_ = 0;
  bool drawn_ = false;
  bool finished_ = false;
  // Average over recent updates, so that a slow first step does not distort the estimate.
  double recent_rate_ = 0;
  double measured_at_ = 0;
  std::int64_t measured_done_ = 0;
};

}  // namespace tessera
