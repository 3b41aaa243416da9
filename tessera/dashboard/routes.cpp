#include "tessera/dashboard/api.h"

namespace tessera::dashboard {

std::vector<Route> calculator_routes() {
  return {
      {"GET",
       "/api/about",
       "what there is: models, hardware, layouts, schedules, settings",
       nullptr,
       false,
       {"version", "models", "hardware", "layouts", "schedules", "settings"},
       nullptr,
       about_answer},
      {"POST",
       "/api/plan",
       "memory, traffic and time of a run, as tessera plan --json",
       Json::object(),
       true,
       {"parameters", "memory", "traffic", "fits", "question", "command"},
       {{"model", "gpt2-xl"}, {"dp", 8}, {"zero", 1}},
       plan_answer},
      {"POST",
       "/api/zero",
       "DDP and ZeRO-1, 2, 3 side by side, as tessera explain zero --json",
       Json::object(),
       true,
       {"stages", "owners", "capacity", "fits_from_dp", "formula", "command"},
       {{"params", "7B"}, {"dp", 8}},
       zero_answer},
      {"POST",
       "/api/schedule",
       "a pipeline's schedule, or several, with times",
       Json::object(),
       false,
       {},
       {{"schedule", "1f1b"}, {"pp", 4}, {"micros", 8}},
       schedule_answer},
  };
}

}  // namespace tessera::dashboard
