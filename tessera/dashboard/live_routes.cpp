// Routes that need files or processes: real runs.

#include "tessera/dashboard/api.h"

namespace tessera::dashboard {
namespace {

Json integer(std::int64_t least, std::int64_t most, const char* help) {
  return {{"type", "integer"}, {"minimum", least}, {"maximum", most}, {"description", help}};
}

Json sync_body() {
  return {
      {"ranks", integer(1, 4, "ranks, which are threads")},
      {"bucket_size", integer(16, 1 << 26, "bytes of gradients after which a bucket is closed")},
      {"width", integer(16, 1024, "width of a layer")},
      {"layers", integer(1, 12, "number of layers")}};
}

Route reading(const char* path, const char* summary, std::vector<std::string> fields = {}) {
  return {"GET", path, summary, nullptr, false, std::move(fields), nullptr};
}

}  // namespace

std::vector<Route> all_routes() {
  std::vector<Route> routes = calculator_routes();
  routes.push_back(
      {"POST",
       "/api/sync",
       "timelines and gradients of synchronization, from a real run",
       sync_body(),
       false,
       {"ranks", "comparison", "parameters", "buckets", "ways", "command"},
       {{"ranks", 2}, {"bucket_size", 2000000}},
       true,
       [](const Knowledge& known, Ask& ask) {
         return sync_answer(known, ask).dump(-1, ' ', false, Json::error_handler_t::replace);
       }});
  routes.push_back(reading("/api/runs", "the watched runs, newest first"));
  routes.push_back(reading("/api/runs/{id}", "the series of a run, downsampled",
                           {"id", "name", "state", "steps", "marks"}));
  routes.push_back(
      reading("/api/runs/events",
              "new points and states of the runs of the query `runs`, as server-sent events"));
  routes.push_back(
      reading("/api/runs/{id}/events", "new points and states of a run, as server-sent events"));
  routes.push_back(reading("/api/runs/{id}/trace", "the trace of a run, if it wrote one"));
  routes.push_back(reading("/openapi.json", "this description", {"openapi", "info", "paths"}));
  return routes;
}

}  // namespace tessera::dashboard
