#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

// Clock for the phases of steps.
//
// [Note: times on a device] For a GPU the host only enqueues work on a stream, often a step ahead,
// and its clock measures the launch, not the work. Therefore the end of each phase is marked by an
// event on the stream. Events are read when the step is over, so that nothing waits for them. The
// duration of a step is measured from the end of the previous step to its own end, unless pause()
// was called between them. Work that is captured into a CUDA graph is not marked: for a step that
// is one graph, only the total is known.
//
// On the CPU a mark is the time of the call.
class PhaseClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Phase {
    std::string name;
    int micro = -1;      // index of the micro-batch; -1 if it does not apply
    double from_s = 0;   // since the start of the step's work
    double seconds = 0;  // since the previous mark
  };
  struct Step {
    Time began;         // host time of begin_step()
    double step_s = 0;  // duration of the step, see the note
    double work_s = 0;  // from begin_step() to end_step()
    std::vector<Phase> phases;
  };

  explicit PhaseClock(c10::Device device);
  ~PhaseClock();

  void begin_step();
  // Ends a phase: the work on the current stream since the previous mark or begin_step().
  void mark(std::string name, int micro = -1);
  void end_step();
  // Excludes the time until the next step from its duration.
  void pause();

  // Returns the number of finished steps that were not taken.
  std::size_t waiting() const { return ended_.size(); }
  // Returns the oldest of them, after waiting for its work.
  Step take();

 private:
  class Tick;
  struct Mark {
    std::string name;
    int micro;
    std::shared_ptr<Tick> at;
  };
  struct Marks {
    Time began;
    std::shared_ptr<Tick> before;  // end of the previous step; null after a pause
    std::shared_ptr<Tick> begin, end;
    std::vector<Mark> list;
  };
  // Returns null while the stream is being captured.
  std::shared_ptr<Tick> now() const;

  const c10::Device device_;
  Marks marks_;  // of the current step
  std::deque<Marks> ended_;
  std::shared_ptr<Tick> last_end_;
};

}  // namespace tessera::train
