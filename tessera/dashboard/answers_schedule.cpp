// Answers on pipeline schedules.

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/api.h"
#include "tessera/schedule/schedule.h"

namespace tessera::dashboard {
namespace {

struct PipelineAsk {
  int pp = 4, micros = 8, chunks = 1;
  double forward = 1, backward_input = 1, backward_weight = 1, hop = 0;
};

Json rows_of(const std::vector<std::vector<schedule::Slot>>& slots) {
  Json ranks = Json::array();
  for (const auto& rank : slots) {
    Json row = Json::array();
    for (const schedule::Slot& slot : rank) {
      row.push_back({{"kind", schedule::name(slot.action.kind)},
                     {"micro", slot.action.micro},
                     {"chunk", slot.action.chunk},
                     {"begin", slot.begin},
                     {"end", slot.end}});
    }
    ranks.push_back(std::move(row));
  }
  return ranks;
}

Json one_schedule(const std::string& name, const PipelineAsk& p) {
  const schedule::Schedule schedule = schedule::make(name, p.pp, p.micros, p.chunks);
  const schedule::Proof proof = schedule::validate(schedule);
  const double share = 1.0 / schedule.chunks;  // of a rank's layers, per chunk
  const schedule::Durations durations{p.forward * share, p.backward_input * share,
                                      p.backward_weight * share};
  Json json = {{"schedule", name},
               {"ranks", schedule.ranks},
               {"micros", schedule.micros},
               {"chunks", schedule.chunks},
               {"stages", schedule.stages}};
  if (p.hop > 0) {
    planner::StepChunk chunk;
    chunk.forward = durations.forward;
    chunk.backward_input = durations.backward_input;
    chunk.backward_weight = durations.backward_weight;
    json.update(pipeline_with_hops(name, p.pp, p.micros, schedule.chunks, chunk, p.hop));
  } else {
    const schedule::Timing timing = schedule::time(schedule, durations);
    json["step"] = timing.step;
    json["bubble"] = timing.bubble;
    json["actions"] = rows_of(schedule::timeline(schedule, durations));
  }
  json["in_flight"] = proof.in_flight;
  // A pass of one chunk holds the activations of a fraction of the rank's layers.
  Json held = Json::array();
  for (const int passes : proof.in_flight) held.push_back(passes * share);
  json["held_micro_batches"] = std::move(held);
  const double backward = p.backward_input + p.backward_weight;
  std::string command =
      p.hop > 0 ? str("tessera simulate --pp ", p.pp, " --grad-accum ", p.micros, " --schedule ",
                      name, " --forward ", p.forward, " --backward ", backward, " --hop ", p.hop)
                : str("tessera explain schedule --stages ", p.pp, " --micro-batches ", p.micros,
                      " --schedule ", name, " --forward ", p.forward, " --backward ", backward);
  if (p.chunks > 1) command += str(" --chunks ", p.chunks);
  json["command"] = p.backward_input == p.backward_weight ? Json(command) : Json();
  return json;
}

}  // namespace

Json schedule_answer(const Knowledge& known, Ask& ask) {
  PipelineAsk p;
  p.pp = static_cast<int>(ask.integer("pp", 4, 1, 64));
  p.micros = static_cast<int>(ask.integer("micros", 8, 1, 16384));
  p.chunks = static_cast<int>(ask.integer("chunks", 1, 1, 1024));
  p.forward = ask.number("forward", 1, 1e-6, 1e6);
  const double backward = ask.number("backward", 2, 1e-6, 1e6);
  p.backward_input = ask.number("backward_input", backward / 2, 1e-6, 1e6);
  p.backward_weight = ask.number("backward_weight", backward / 2, 1e-6, 1e6);
  p.hop = ask.number("hop", 0, 0, 1e6);
  const std::string one = ask.word("schedule", "1f1b", schedule::names());
  const auto several = ask.words("schedules", schedule::names(), 8);
  ask.nothing_else();
  if (static_cast<std::int64_t>(p.pp) * p.micros * p.chunks > known.limits.drawn) {
    throw UsageError(Flag("micros"),
                     str("got ", p.micros, " in ", p.pp, " stages of ", p.chunks,
                         " chunks; their product must be at most ", known.limits.drawn));
  }
  if (several.empty()) return one_schedule(one, p);
  Json all = Json::array();
  for (const std::string& name : several) {
    // An error of one schedule must not hide the others.
    try {
      all.push_back(one_schedule(name, p));
    } catch (const UsageError& error) {
      all.push_back({{"schedule", name}, {"error", error.what()}});
    }
  }
  return {{"schedules", std::move(all)}};
}

}  // namespace tessera::dashboard
