#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/dashboard/ask.h"
#include "tessera/dashboard/http.h"
#include "tessera/planner/hardware.h"

namespace tessera::dashboard {

// What the answers are made with.
struct Knowledge {
  planner::Catalogue catalogue;  // models by their names alone: no path of a request is opened
  Limits limits;
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
  std::function<Json(const Knowledge&, Ask&)> answer;
};
// Those of the calculators: a JSON body in, a JSON body out.
std::vector<Route> calculator_routes();

// Refuses what throws: 400 with the field for a UsageError, 500 for the rest.
Answer guarded_answer(const std::function<Answer()>& body);

// In the order of the views.
Json about_answer(const Knowledge& known, Ask& ask);
Json plan_answer(const Knowledge& known, Ask& ask);
Json zero_answer(const Knowledge& known, Ask& ask);
Json schedule_answer(const Knowledge& known, Ask& ask);

}  // namespace tessera::dashboard
