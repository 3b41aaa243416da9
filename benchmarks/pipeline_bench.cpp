// Compares the bubble of a real pipeline with the formula: equal stages of linears, ranks as
// threads with one compute thread each.
//   pipeline_bench [schedule] [ranks] [micro-batches] [layers] [width] [tokens] [steps]

#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tessera/comm/threads.h"
#include "tessera/nn/ops.h"
#include "tessera/pipeline/executor.h"
#include "tessera/schedule/split.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

struct Setting {
  std::string schedule = "1f1b";
  int ranks = 2, micros = 8, layers = 8;
  std::int64_t width = 512, tokens = 256;
  int steps = 10;
};

struct Measured {
  double step = 0;                   // seconds, median
  double bubble = 0;                 // fraction of that step
  double forward = 0, backward = 0;  // mean seconds of a stage
};

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

Measured measure(const Setting& s) {
  const schedule::Schedule schedule = schedule::make(s.schedule, s.ranks, s.micros, 2);
  const std::vector<int> bounds = schedule::split(
      std::vector<double>(static_cast<std::size_t>(s.layers), 1.0), schedule.stage_count());
  // [step][rank]: time from the first begin to the last end, and the compute time in it.
  std::vector<std::vector<pipeline::Span>> spans(static_cast<std::size_t>(s.ranks * s.steps));
  comm::run_threads(s.ranks, [&](std::shared_ptr<comm::Backend> backend) {
    const comm::Group group(std::move(backend));
    at::set_num_threads(1);
    std::vector<std::vector<at::Tensor>> weights;
    const at::Tensor x = at::randn({s.tokens, s.width});
    std::vector<pipeline::Chunk> chunks;
    for (int c = 0; c < schedule.chunks; ++c) {
      const int stage = schedule.stage(group.rank(), c);
      const bool last = stage + 1 == schedule.stage_count();
      std::vector<at::Tensor> own;
      for (int i = bounds[static_cast<std::size_t>(stage)];
           i < bounds[static_cast<std::size_t>(stage) + 1]; ++i) {
        own.push_back((at::randn({s.width, s.width}) / 30).set_requires_grad(true));
        own.push_back(at::zeros({s.width}).set_requires_grad(true));
      }
      chunks.push_back({[own, x, last](const at::Tensor& input, int) {
        at::Tensor y = input.defined() ? input : x;
        for (std::size_t i = 0; i < own.size(); i += 2) y = nn::linear_gelu(y, own[i], own[i + 1]);
        return last ? y.sum() : y;
      }});
    }
    int step = -1;
    pipeline::Options options;
    options.on_span = [&](const pipeline::Span& span) {
      if (step < 0 || !schedule::is_compute(span.kind)) return;
      spans[static_cast<std::size_t>(step * s.ranks + group.rank())].push_back(span);
    };
    pipeline::Executor executor(schedule, group, chunks, options);
    for (; step < s.steps; ++step) {
      group.barrier();
      if (step >= 0) spans[static_cast<std::size_t>(step * s.ranks + group.rank())].clear();
      executor.run();
    }
  });
  std::vector<std::pair<double, double>> steps;  // seconds, bubble
  Measured result;
  double forwards = 0, backwards = 0;
  for (int step = 0; step < s.steps; ++step) {
    Clock::time_point begin = Clock::time_point::max(), end = Clock::time_point::min();
    double work = 0;
    for (int r = 0; r < s.ranks; ++r) {
      for (const auto& span : spans[static_cast<std::size_t>(step * s.ranks + r)]) {
        begin = std::min(begin, span.begin);
        end = std::max(end, span.end);
        const double length = seconds(span.end - span.begin);
        work += length;
        (span.kind == schedule::Kind::forward ? forwards : backwards) += length;
      }
    }
    const double length = seconds(end - begin);
    steps.emplace_back(length, 1 - work / (s.ranks * length));
  }
  std::sort(steps.begin(), steps.end());
  const double passes = static_cast<double>(s.steps) * s.ranks * schedule.chunks * s.micros;
  result.forward = forwards / passes;
  result.backward = backwards / passes;
  std::tie(result.step, result.bubble) = steps[steps.size() / 2];
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Setting s;
  if (argc > 1) s.schedule = argv[1];
  int* const small[] = {&s.ranks, &s.micros, &s.layers};
  for (int i = 0; i < 3 && argc > i + 2; ++i) *small[i] = std::atoi(argv[i + 2]);
  if (argc > 5) s.width = std::atoi(argv[5]);
  if (argc > 6) s.tokens = std::atoi(argv[6]);
  if (argc > 7) s.steps = std::atoi(argv[7]);
  const Measured m = measure(s);
  Setting alone = s;
  alone.schedule = "gpipe";
  alone.ranks = 1;
  const Measured one = measure(alone);
  const schedule::Schedule schedule = schedule::make(s.schedule, s.ranks, s.micros, 2);
  const double ideal = schedule::time(schedule, {m.forward, m.backward / 2, m.backward / 2}).bubble;
  std::printf(
      "%s, %d ranks, %d micro-batches: step %.1f ms, bubble %.1f%% (by the schedule %.1f%%), "
      "%.2f times as fast as one rank (%.1f ms)\n",
      s.schedule.c_str(), s.ranks, s.micros, m.step * 1e3, m.bubble * 100, ideal * 100,
      one.step / m.step, one.step * 1e3);
  return 0;
}
