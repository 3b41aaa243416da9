// Measures the cost of a simulation by number of ranks, and of a search:
//   simulate_bench [MOST_RANKS]
// llama2-7b at stage 3 with jitter, each replica simulated: without a pipeline in lockstep and by
// events, and with four stages by events.

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tessera/planner/fields.h"
#include "tessera/planner/search.h"
#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"

namespace {

using namespace tessera;

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

simulator::Scenario scenario(int ranks, int pp) {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  settings.set("model", "llama2-7b");
  settings.set("dp", std::to_string(ranks / pp));
  settings.set("pp", std::to_string(pp));
  settings.set("zero", "3");
  settings.set("grad-accum", pp == 1 ? "1" : "8");
  simulator::Scenario s =
      simulator::scenario_of(planner::resolve(planner::look_up(settings, planner::Catalog())));
  s.jitter = 0.05;
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  const int most = argc > 1 ? std::atoi(argv[1]) : 100'000;
  constexpr int kMaxByEvents = 4096;
  std::printf("%10s %14s %14s %20s\n", "ranks", "lockstep", "by events", "4 stages, by events");
  for (long long next = 1024; next <= most;
       next = next < most && next * 4 > most ? most : next * 4) {
    const int ranks = static_cast<int>(next);
    std::printf("%10d %12.2f s", ranks, seconds_of([&] { simulate(scenario(ranks, 1)); }));
    if (ranks <= kMaxByEvents) {
      std::printf(" %12.2f s",
                  seconds_of([&] { simulate(scenario(ranks, 1), {.by_events = true}); }));
      std::printf(" %18.2f s", seconds_of([&] { simulate(scenario(ranks, 4)); }));
    }
    std::printf("\n");
    std::fflush(stdout);
    if (ranks == most) break;
  }
  for (const char* model : {"llama2-70b", "gpt3-175b"}) {
    planner::RunConfig settings = planner::RunConfig::for_plan();
    settings.set("model", model);
    settings.set("gpus", "1024");
    settings.set("global-batch", "1024");
    planner::SearchResult found;
    const double took = seconds_of(
        [&] { found = planner::search(planner::search_request(settings, planner::Catalog())); });
    std::printf("search for %s on 1,024 GPUs: %.2f s, %lld configurations\n", model, took,
                static_cast<long long>(found.tried));
  }
  return 0;
}
