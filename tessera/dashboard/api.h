#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/dashboard/ask.h"
#include "tessera/dashboard/http.h"
#include "tessera/planner/hardware.h"
#include "tessera/planner/step.h"

namespace tessera::dashboard {

// What the answers are made with.
struct Knowledge {
  planner::Catalogue catalogue;  // models by their names alone: no path of a request is opened
  Limits limits;
  std::string torch_program;             // tessera-torch, for what needs a real run; empty: none
  std::vector<std::string> environment;  // of that one, NAME=value
};

// Something that is not here now: answered with 503.
class Unavailable : public Error {
 public:
  using Error::Error;
};

// [Note: routes] One row for each: what is answered, and what the description served as
// /openapi.json says of it. The description is made from the rows, so that none is missing.
struct Route {
  std::string method;
  std::string path;  // {id} stands for one part
  std::string summary;
  Json body;      // properties of what is asked beside a question, as JSON schema; null: no body
  bool question;  // and the settings of a plan
  std::vector<std::string> fields;  // that an answer has
  Json example;                     // of a body
  bool heavy = false;               // takes a while: few at a time
  // Of a calculator: a JSON body in, a JSON body out. Empty: of live runs and descriptions.
  std::function<std::string(const Knowledge&, Ask&)> answer = {};
};
std::vector<Route> all_routes();
// OpenAPI 3.
Json openapi(const std::vector<Route>& routes);

// Refuses what throws: 400 with the field for a UsageError, 503 for what is not there, 500 for the
// rest.
Answer guarded_answer(const std::function<Answer()>& body);

// In the order of the views.
Json about_answer(const Knowledge& known, Ask& ask);
std::string plan_answer(const Knowledge& known, Ask& ask);  // as text
std::string zero_answer(const Knowledge& known, Ask& ask);
Json scaling_answer(const Knowledge& known, Ask& ask);
Json simulate_answer(const Knowledge& known, Ask& ask);
Json collective_answer(const Knowledge& known, Ask& ask);
Json traffic_answer(const Knowledge& known, Ask& ask);
Json schedule_answer(const Knowledge& known, Ask& ask);
Json search_answer(const Knowledge& known, Ask& ask);
Json compare_answer(const Knowledge& known, Ask& ask);
Json sync_answer(const Knowledge& known, Ask& ask);

// A schedule whose messages take time, as the simulator plays it: step, bubble and actions.
Json pipeline_with_hops(const std::string& schedule, int ranks, int micros, int chunks,
                        const planner::StepChunk& chunk, double hop);

}  // namespace tessera::dashboard
