#include "tessera/train/phase_clock.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>

#include "tessera/comm/capture.h"
#include "tessera/core/errors.h"

namespace tessera::train {

// Point in time: of the host, or an event on the current stream of a GPU.
class PhaseClock::Tick {
 public:
  explicit Tick(c10::Device device) : time_(std::chrono::steady_clock::now()) {
    if (device.is_cpu()) return;
    // Only events with this flag record the time.
    event_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  void wait() const {
    if (event_) event_->synchronize();
  }
  // Returns the seconds until a later tick. Both must have completed.
  double until(const Tick& later) const {
    if (event_) return event_->elapsedTime(*later.event_) * 1e-3;
    return std::chrono::duration<double>(later.time_ - time_).count();
  }

 private:
  Time time_;
  std::optional<c10::Event> event_;
};

PhaseClock::PhaseClock(c10::Device device) : device_(device) {}
PhaseClock::~PhaseClock() = default;

std::shared_ptr<PhaseClock::Tick> PhaseClock::now() const {
  if (comm::capturing_on(device_)) return nullptr;
  return std::make_shared<Tick>(device_);
}

void PhaseClock::begin_step() {
  marks_ = {std::chrono::steady_clock::now(), std::exchange(last_end_, nullptr), now(), {}, {}};
}

void PhaseClock::mark(std::string name, int micro) {
  if (!marks_.begin) return;
  if (auto tick = now()) marks_.list.push_back({std::move(name), micro, std::move(tick)});
}

void PhaseClock::end_step() {
  if (!marks_.begin) return;
  marks_.end = last_end_ = now();
  ended_.push_back(std::exchange(marks_, {}));
}

void PhaseClock::pause() { last_end_ = nullptr; }

PhaseClock::Step PhaseClock::take() {
  if (ended_.empty()) throw UsageError("take() needs a finished step that was not taken before");
  const Marks marks = std::move(ended_.front());
  ended_.pop_front();
  marks.end->wait();
  Step step{marks.began, 0, marks.begin->until(*marks.end), {}};
  step.step_s = marks.before ? marks.before->until(*marks.end) : step.work_s;
  const Tick* before = marks.begin.get();
  for (const Mark& mark : marks.list) {
    mark.at->wait();  // it may be on another stream
    step.phases.push_back(
        {mark.name, mark.micro, marks.begin->until(*before), before->until(*mark.at)});
    before = mark.at.get();
  }
  return step;
}

}  // namespace tessera::train
