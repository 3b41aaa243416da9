#include "tessera/dashboard/site.h"

#include <map>
#include <utility>

#include "tessera/core/text.h"
#include "tessera/dashboard/pages.h"

namespace tessera::dashboard {
namespace {

class Dashboard {
 public:
  explicit Dashboard(SiteOptions options) : options_(std::move(options)) {
    for (Route& route : calculator_routes()) routes_[route.path] = std::move(route);
  }

  std::optional<Answer> refuse(const Request& head) const {
    if (auto refused = refuse_stranger(options_.guard, head)) return refused;
    const auto route = routes_.find(head.path);
    const std::string wanted = route == routes_.end() ? "GET" : route->second.method;
    const std::string method = head.method == "HEAD" ? "GET" : head.method;
    if (route == routes_.end() && method == "POST") return refusal(404, "there is nothing here");
    if (method == wanted) return std::nullopt;
    Answer answer = refusal(405, str(head.path, ": wanted ", wanted));
    answer.headers["Allow"] = wanted == "GET" ? "GET, HEAD" : wanted;
    return answer;
  }

  Answer answer(const Request& request) const {
    return guarded_answer([&] {
      const auto route = routes_.find(request.path);
      if (route != routes_.end()) return calculated(route->second, request);
      if (!options_.pages.empty()) return page_answer(pages_of_folder(options_.pages), request);
      return page_answer(embedded_pages(), request);
    });
  }

 private:
  Answer calculated(const Route& route, const Request& request) const {
    Ask ask(request.body);
    Answer answer;
    answer.body =
        route.answer(options_.known, ask).dump(-1, ' ', false, Json::error_handler_t::replace);
    answer.headers["Cache-Control"] = "no-store";
    return answer;
  }

  SiteOptions options_;
  std::map<std::string, Route> routes_;
};

}  // namespace

Site make_site(SiteOptions options) {
  auto dashboard = std::make_shared<const Dashboard>(std::move(options));
  return {[dashboard](const Request& head) { return dashboard->refuse(head); },
          [dashboard](const Request& request) { return dashboard->answer(request); }};
}

}  // namespace tessera::dashboard
