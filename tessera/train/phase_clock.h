#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace tessera::train {

// [Note: times on a device] On a GPU the host only puts work on a stream, often a step ahead: its
// own clock knows how long that took, and nothing of the work. So the ends of the parts of a step
// are marked by events on the stream, which are read when the step is over, without keeping
// anything waiting. A step takes from the end of the one before to its own end, unless something
// else came between them. Work that is being recorded into a CUDA graph is not marked: of a step
// that is one graph only the whole is known.
//
// On the CPU a mark is the time at which it is made.
class PhaseClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Phase {
    std::string name;
    int micro = -1;      // which micro-batch, -1 if that does not apply
    double from_s = 0;   // since the step's work began
    double seconds = 0;  // from the mark before
  };
  struct Step {
    Time began;         // on the host, when its work was begun
    double step_s = 0;  // see above
    double work_s = 0;  // from begin_step() to end_step()
    std::vector<Phase> phases;
  };

  explicit PhaseClock(c10::Device device);
  ~PhaseClock();

  void begin_step();
  // What was put on the current stream since the mark before, or since begin_step(), is this.
  void mark(std::string name, int micro = -1);
  void end_step();
  // What comes until the next step belongs to none.
  void pause();

  // Steps that have ended and have not been taken. The oldest of them; waits until it is over.
  std::size_t waiting() const { return ended_.size(); }
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
    std::shared_ptr<Tick> before;  // the end of the step before; null after a pause
    std::shared_ptr<Tick> begin, end;
    std::vector<Mark> list;
  };
  // Null where the stream is being captured.
  std::shared_ptr<Tick> now() const;

  const c10::Device device_;
  Marks marks_;  // of the step under way
  std::deque<Marks> ended_;
  std::shared_ptr<Tick> last_end_;
};

}  // namespace tessera::train
