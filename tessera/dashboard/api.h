#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/dashboard/ask.h"
#include "tessera/dashboard/http.h"
#include "tessera/planner/hardware.h"
#include "tessera/planner/search.h"
#include "tessera/planner/step.h"

namespace tessera::dashboard {

// Data that answers are computed from.
struct Knowledge {
  planner::Catalog catalog;  // models only by name: no path of a request is opened
  Limits limits;
  std::string torch_program;             // path of tessera-torch for real runs; empty: none
  std::vector<std::string> environment;  // of tessera-torch, NAME=value
  planner::SearchProgress search_progress = {};
};

// Something is temporarily unavailable: answered with 503.
class Unavailable : public Error {
 public:
  using Error::Error;
};

// [Note: routes] One row per route: the answer, and its description in /openapi.json. The
// description is generated from the rows, so that it is complete.
struct Route {
  std::string method;
  std::string path;  // {id} matches one segment
  std::string summary;
  Json body;      // JSON schema of the properties besides planner settings; null: no body
  bool question;  // the body also accepts the settings of a plan
  std::vector<std::string> fields;  // fields of an answer
  Json example;                     // example of a body
  bool heavy = false;               // slow: the number of concurrent ones is limited
  // Calculates a JSON answer from a JSON body. Empty for live runs and descriptions.
  std::function<std::string(const Knowledge&, Ask&)> answer = {};
};
// Returns the calculators, which need no files, processes or threads. The static site has only
// these.
std::vector<Route> calculator_routes();
// Returns the routes of the server: the calculators, real runs and the description.
std::vector<Route> all_routes();
// Returns the OpenAPI 3 description.
Json openapi(const std::vector<Route>& routes);

// Answers a request to a calculator. Returns 404 if none has this method and path.
Answer calculator_answer(const Knowledge& known, std::string_view method, std::string_view path,
                         const std::string& body);

// Turns exceptions into errors: UsageError into 400 with the field, Unavailable into 503, others
// into 500.
Answer guarded_answer(const std::function<Answer()>& body);

// Answers, in the order of the views.
Json about_answer(const Knowledge& known, Ask& ask);
Json plan_answer(const Knowledge& known, Ask& ask);
Json zero_answer(const Knowledge& known, Ask& ask);
Json model_answer(const Knowledge& known, Ask& ask);
Json cost_answer(const Knowledge& known, Ask& ask);
Json memory_over_step_answer(const Knowledge& known, Ask& ask);
Json questions_answer(const Knowledge& known, Ask& ask);
Json scaling_answer(const Knowledge& known, Ask& ask);
Json simulate_answer(const Knowledge& known, Ask& ask);
Json collective_answer(const Knowledge& known, Ask& ask);
Json traffic_answer(const Knowledge& known, Ask& ask);
Json context_answer(const Knowledge& known, Ask& ask);
Json schedule_answer(const Knowledge& known, Ask& ask);
Json search_answer(const Knowledge& known, Ask& ask);
Json compare_answer(const Knowledge& known, Ask& ask);
Json sync_answer(const Knowledge& known, Ask& ask);

Json model_json(const ModelShape& shape);

// [Note: pasted models] A request may have a model as `config`: a config.json of Hugging Face, as
// an object or as text. Its `model` is then kPastedModel, the folder of the config.json in the
// commands of the answer.
inline constexpr const char* kPastedModel = "./model";
using AnswerText = std::function<std::string(const Knowledge&, Ask&)>;
// Returns an answer that accepts a pasted model.
AnswerText with_pasted_model(AnswerText answer);

// Simulates a schedule whose messages take time: step, bubble and actions.
Json pipeline_with_hops(const std::string& schedule, int ranks, int micros, int chunks,
                        const planner::StepChunk& chunk, double hop);

}  // namespace tessera::dashboard
