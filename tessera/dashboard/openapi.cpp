#include "tessera/dashboard/api.h"
#include "tessera/version.h"

namespace tessera::dashboard {
namespace {

Json setting_schema(const planner::Field& field) {
  Json schema = {{"description", field.help}};
  if (field.is_flag()) {
    // "true" and 1 are accepted too.
    schema["anyOf"] = {{{"type", "boolean"}}, {{"type", "string"}}, {{"type", "number"}}};
  } else if (!field.choices.empty() && !field.free_in_plans) {
    schema["type"] = "string";
    schema["enum"] = field.choices;
  } else if (field.kind == planner::Field::Kind::text) {
    schema["type"] = "string";
  } else {
    // "7B" and "25MB" are accepted too.
    schema["anyOf"] = {{{"type", "number"}}, {{"type", "string"}}};
  }
  return schema;
}

Json question_schema() {
  Json properties = Json::object();
  for (const planner::Field& field : planner::fields(planner::Command::plan)) {
    std::string key = field.name;
    for (char& c : key) c = c == '-' ? '_' : c;
    properties[key] = setting_schema(field);
    if (field.formerly.empty()) continue;
    key = field.formerly;
    for (char& c : key) c = c == '-' ? '_' : c;
    properties[key] = setting_schema(field);
    properties[key]["deprecated"] = true;
  }
  return properties;
}

Json response(const char* description, const Json& schema, const char* type = "application/json") {
  return {{"description", description}, {"content", {{type, {{"schema", schema}}}}}};
}

// Null means that a key is not given.
void allow_null(Json& schema) {
  if (schema.contains("anyOf")) return allow_null(schema["anyOf"][0]);
  schema["nullable"] = true;
  if (schema.contains("enum")) schema["enum"].push_back(nullptr);
}

Json operation(const Route& route) {
  const Json refused = {{"$ref", "#/components/responses/Refused"}};
  Json answer = {{"type", "object"}};
  if (!route.fields.empty()) {
    // Several schedules are answered as a list.
    if (route.path != "/api/schedule") answer["required"] = route.fields;
    for (const std::string& field : route.fields) answer["properties"][field] = Json::object();
  }
  const bool list = route.path == "/api/runs";
  const bool events = route.path.ends_with("/events");
  Json json = {{"summary", route.summary}};
  json["responses"]["200"] = events
                                 ? response("events", {{"type", "string"}}, "text/event-stream")
                                 : response("the answer", list ? Json{{"type", "array"}} : answer);
  for (const char* status : {"400", "401", "403", "404", "405", "408", "411", "413", "414", "415",
                             "417", "431", "503"}) {
    json["responses"][status] = refused;
  }
  Json parameters = Json::array();
  if (route.path.find("{id}") != std::string::npos) {
    parameters.push_back(
        {{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}});
  }
  if (route.path == "/api/runs/{id}") {
    parameters.push_back({{"name", "points"},
                          {"in", "query"},
                          {"schema", {{"type", "integer"}, {"minimum", 2}, {"maximum", 10000}}}});
    parameters.push_back(
        {{"name", "from"}, {"in", "query"}, {"schema", {{"type", "integer"}, {"minimum", 0}}}});
    parameters.push_back({{"name", "layer"},
                          {"in", "query"},
                          {"description", "layer whose experts are returned; left out: all"},
                          {"schema", {{"type", "string"}}}});
  }
  if (route.path == "/api/runs/events") {
    parameters.push_back({{"name", "runs"},
                          {"in", "query"},
                          {"required", true},
                          {"description", "ids, separated by commas"},
                          {"schema", {{"type", "string"}}}});
  }
  if (!parameters.empty()) json["parameters"] = std::move(parameters);
  if (route.body.is_null()) return json;
  Json schema = {{"type", "object"}, {"additionalProperties", false}};
  schema["properties"] = route.question ? question_schema() : Json::object();
  schema["properties"].update(route.body);
  for (auto& [name, property] : schema["properties"].items()) allow_null(property);
  json["requestBody"] = {
      {"required", true},
      {"content", {{"application/json", {{"schema", schema}, {"example", route.example}}}}}};
  return json;
}

}  // namespace

Json openapi(const std::vector<Route>& routes) {
  Json paths = Json::object();
  for (const Route& route : routes) {
    paths[route.path][route.method == "GET" ? "get" : "post"] = operation(route);
  }
  const Json error = {
      {"type", "object"},
      {"required", {"error"}},
      {"properties",
       {{"error",
         {{"type", "object"},
          {"required", {"message"}},
          {"properties", {{"message", {{"type", "string"}}}, {"field", {{"type", "string"}}}}}}}}}};
  return {
      {"openapi", "3.0.3"},
      {"info",
       {{"title", "Tessera's dashboard"},
        {"version", TESSERA_VERSION},
        {"description",
         "The keys of a question are the settings of `tessera plan`, with underscores. The "
         "answers are those of the commands."}}},
      {"paths", std::move(paths)},
      {"components", {{"responses", {{"Refused", response("the reason of the refusal", error)}}}}}};
}

}  // namespace tessera::dashboard
