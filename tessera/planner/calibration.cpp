#include "tessera/planner/calibration.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

struct Constant {
  double Hardware::*member;
  double least, most;
};
constexpr Constant kPasses{&Hardware::memory_efficiency, 0.01, 1};
constexpr Constant kLogits{&Hardware::logit_bytes, 1, 10'000};
constexpr Constant kConstants[] = {{&Hardware::product_efficiency, 0.01, 1},
                                   {&Hardware::attention_efficiency, 0.01, 1},
                                   kPasses,
                                   kLogits};

// Sum of squared log ratios: symmetric in the direction of the error, and large errors weigh more.
double distance(const Hardware& hardware, const std::vector<PassSample>& samples) {
  double sum = 0;
  for (const PassSample& sample : samples) {
    RunConfig q = sample.question;
    q.hardware = hardware;
    const double error = std::log(pass_seconds(q) / sample.seconds);
    sum += error * error;
  }
  return sum;
}

}  // namespace

double pass_seconds(const RunConfig& q) {
  double seconds = 0;
  for (const auto& rank : describe_step(q).chunks) {
    for (const StepChunk& chunk : rank) seconds += chunk.total();
  }
  return seconds;
}

// Coordinate descent: scales one constant at a time as long as the error decreases, with ever
// smaller factors. The cost of a logit is its bytes divided by the efficiency of passes, so these
// two are also scaled together.
Hardware calibrate(Hardware start, const std::vector<PassSample>& samples) {
  if (samples.empty()) throw UsageError("calibrate: at least one sample is required");
  Hardware best = std::move(start);
  double least = distance(best, samples);
  const auto moved = [](Hardware hardware, const Constant& constant, double by) {
    double& value = hardware.*constant.member;
    value = std::clamp(value * by, constant.least, constant.most);
    return hardware;
  };
  for (const double factor : {2.0, 1.4, 1.2, 1.1, 1.05, 1.02, 1.01, 1.005, 1.002}) {
    bool better = true;
    const auto take = [&](const Hardware& next) {
      const double now = distance(next, samples);
      if (now >= least) return;
      least = now;
      best = next;
      better = true;
    };
    for (int round = 0; round < 100 && better; ++round) {
      better = false;
      for (const double by : {factor, 1 / factor}) {
        for (const Constant& constant : kConstants) take(moved(best, constant, by));
        take(moved(moved(best, kPasses, by), kLogits, by));
      }
    }
  }
  return best;
}

double calibration_error(const Hardware& hardware, const std::vector<PassSample>& samples) {
  double sum = 0;
  for (const PassSample& sample : samples) {
    RunConfig q = sample.question;
    q.hardware = hardware;
    sum += std::abs(pass_seconds(q) / sample.seconds - 1);
  }
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

std::string hardware_toml(const Hardware& h) {
  const auto link = [](const Link& l) {
    return str("{ bandwidth = ", l.bandwidth, ", latency = ", l.latency, " }");
  };
  std::string levels;
  for (const SwitchLevel& level : h.switches) {
    levels += str(levels.empty() ? "\nswitches = [" : ", ", "[", level.nodes, ", ",
                  level.oversubscription, "]");
  }
  if (!levels.empty()) levels += "]";
  // These fields accept integers too, so numbers need no decimal point.
  return str(
      "[", h.name, "]\nmemory = ", std::llround(h.memory), "\nreserve = ", std::llround(h.reserve),
      "\nusable = ", h.usable, "\npeak_16bit = ", h.peak_16bit, "\npeak_fp32 = ", h.peak_fp32,
      h.peak_tf32 > 0 ? str("\npeak_tf32 = ", h.peak_tf32) : "",
      h.peak_fp8 > 0 ? str("\npeak_fp8 = ", h.peak_fp8) : "",
      "\nmemory_bandwidth = ", h.memory_bandwidth, "\nunits = ", h.units,
      "\nproduct_efficiency = ", h.product_efficiency,
      "\nattention_efficiency = ", h.attention_efficiency,
      "\nmemory_efficiency = ", h.memory_efficiency, "\nlaunch = ", h.launch,
      "\nkernel_start = ", h.kernel_start, "\nlaunch_skew = ", h.launch_skew,
      "\nlogit_bytes = ", h.logit_bytes, "\ngradient_passes = ", h.gradient_passes,
      "\naccumulate_passes = ", h.accumulate_passes, "\nlayer_launches = ", h.layer_launches,
      "\ninside = ", link(h.inside), "\nbetween = ", link(h.between),
      h.nics > 0 ? str("\nnics = ", h.nics) : "", levels, "\nper_node = ", h.per_node,
      "\ninterference = ", h.interference, "\nkind = \"", h.kind,
      "\"\ncpu = ", h.cpu ? "true" : "false", h.fused_attention ? "" : "\nfused_attention = false",
      h.bf16 ? "" : "\nbf16 = false", h.cores > 0 ? str("\ncores = ", h.cores) : "",
      h.software.empty() ? "" : str("\nsoftware = \"", h.software, "\""), "\nwatts = ", h.watts,
      "\nprice_per_hour = ", h.price_per_hour, "\n");
}

}  // namespace tessera::planner
