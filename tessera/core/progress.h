#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

enum class ProgressMode {
  kAuto,      // bar on a terminal, plain lines elsewhere
  kTerminal,  // one line, drawn again and again
  kPlain,     // a line now and then, for logs
  kSilent,
};

struct ProgressOptions {
  ProgressMode mode = ProgressMode::kAuto;
  int fd = 2;
  std::string label;              // stands in front: "training"
  std::string unit;               // what is counted: "step" gives "12.5 step/s"
  std::int64_t before = 0;        // done before this began: counted, but not in the rate
  int columns = 0;                // width of the line; 0 asks the terminal
  double redraw_interval = 0.1;   // seconds between two drawings on a terminal
  double plain_interval = 30;     // a plain line at least this often...
  double plain_share = 0.1;       // ...and at each further tenth,
  double plain_least = 1;         // but never two within this time
  std::function<double()> clock;  // seconds, for tests; empty uses the monotonic clock
};

// Shows how far a known (or, with total 0, unknown) amount of work has come:
//   training  42% |████▎     |  420/1,000 step  12.5 step/s  ETA 46 s  loss 2.31
// Used from one thread. The destructor ends the line, so whatever is printed next starts afresh.
class Progress {
 public:
  explicit Progress(std::int64_t total, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` so far, and a free text that stands at the end of the line.
  void update(std::int64_t done, std::string_view text = {});
  void add(std::int64_t more = 1, std::string_view text = {}) { update(done_ + more, text); }

  // Draws the last state, with the whole time in place of the remaining one. Idempotent.
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
  // The rate is a mean over recent updates, so that a slow first step does not spoil the estimate.
  double recent_rate_ = 0;
  double measured_at_ = 0;
  std::int64_t measured_done_ = 0;
};

}  // namespace tessera
