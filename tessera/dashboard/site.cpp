#include "tessera/dashboard/site.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "tessera/core/text.h"
#include "tessera/dashboard/pages.h"

namespace tessera::dashboard {
namespace {

// LRU cache of answers by request: sliders return to earlier positions.
class AnswerCache {
 public:
  bool find(const std::string& key, std::string& answer) {
    const std::lock_guard lock(mutex_);
    const auto found = index_.find(key);
    if (found == index_.end()) return false;
    order_.splice(order_.begin(), order_, found->second);
    answer = found->second->second;
    return true;
  }
  void put(const std::string& key, const std::string& answer) {
    if (key.size() > kLongestKey || answer.size() > kLongestAnswer) return;
    const std::lock_guard lock(mutex_);
    if (index_.count(key) > 0) return;
    order_.emplace_front(key, answer);
    index_[key] = order_.begin();
    if (order_.size() <= kMost) return;
    index_.erase(order_.back().first);
    order_.pop_back();
  }

 private:
  static constexpr std::size_t kMost = 256, kLongestKey = 4096, kLongestAnswer = 1 << 18;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::string>> order_;  // the newest first
  std::unordered_map<std::string, decltype(order_)::iterator> index_;
};

// Counts itself while it exists. Throws Unavailable if there are more than `most`.
class Counted {
 public:
  Counted(std::atomic<int>& count, int most, const char* why) : count_(count) {
    if (++count_ > most) {
      --count_;
      throw Unavailable(why);
    }
  }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

// FIFO admission of long calculations: a few run, some more wait, the rest are refused.
class AdmissionQueue {
 public:
  AdmissionQueue(int most, std::size_t most_waiting) : most_(most), most_waiting_(most_waiting) {}
  void enter() {
    std::unique_lock lock(mutex_);
    if (busy_ < most_) {
      ++busy_;
      return;
    }
    if (waiting_.size() >= most_waiting_) {
      throw Unavailable("too many calculations are waiting; try again in a moment");
    }
    Waiter self;
    const auto place = waiting_.insert(waiting_.end(), &self);
    if (self.called.wait_for(lock, kPatience, [&] { return self.turn; })) return;
    waiting_.erase(place);
    throw Unavailable("other calculations take too long; try again in a moment");
  }
  // Passes the slot to the first waiter.
  void leave() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      --busy_;
      return;
    }
    Waiter& next = *waiting_.front();
    waiting_.pop_front();
    next.turn = true;
    next.called.notify_one();
  }

 private:
  static constexpr std::chrono::seconds kPatience{30};
  struct Waiter {
    std::condition_variable called;
    bool turn = false;
  };
  std::mutex mutex_;
  std::list<Waiter*> waiting_;
  int most_, busy_ = 0;
  std::size_t most_waiting_;
};

class Admission {
 public:
  explicit Admission(AdmissionQueue& queue) : queue_(queue) { queue_.enter(); }
  ~Admission() { queue_.leave(); }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

 private:
  AdmissionQueue& queue_;
};

class CountedEvents : public EventSource {
 public:
  CountedEvents(std::shared_ptr<EventSource> inner, std::atomic<int>& count, int most)
      : counted_(count, most, "too many pages listen to runs; close some"),
        inner_(std::move(inner)) {}
  std::string next() override { return inner_->next(); }
  std::string last() override { return inner_->last(); }
  bool over() const override { return inner_->over(); }

 private:
  Counted counted_;
  std::shared_ptr<EventSource> inner_;
};

std::int64_t query_number(const Request& request, const std::string& key, std::int64_t otherwise,
                          std::int64_t least, std::int64_t most) {
  const auto found = request.query.find(key);
  if (found == request.query.end()) return otherwise;
  const std::string& text = found->second;
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw UsageError(Flag(key),
                     str("got ", quote(text), "; must be an integer from ", least, " to ", most));
  }
  return value;
}

// Returns the ids of the query "runs=A,B".
std::vector<std::string> query_ids(const Request& request) {
  std::vector<std::string> ids;
  const auto found = request.query.find("runs");
  if (found == request.query.end()) return ids;
  std::istringstream text(found->second);
  for (std::string id; std::getline(text, id, ',');) ids.push_back(id);
  return ids;
}

class Dashboard {
 public:
  explicit Dashboard(SiteOptions options)
      : options_(std::move(options)), heavy_(options_.most_heavy, kMaxWaiting) {
    const std::vector<Route> routes = all_routes();
    description_ = openapi(routes).dump();
    for (const Route& route : routes) {
      if (route.answer) calculators_[route.path] = route;
    }
    embedded_pages();  // initialized now rather than during a request
  }

  std::optional<Answer> refuse(const Request& head) const {
    if (auto refused = refuse_stranger(options_.guard, head)) return refused;
    const auto route = calculators_.find(head.path);
    const bool known = route != calculators_.end();
    const std::string allowed = known ? route->second.method : "GET";
    const std::string method = head.method == "HEAD" ? "GET" : head.method;
    if (method == allowed) return refuse_other_type(head);
    if (!known && head.path.rfind("/api/runs", 0) != 0 && head.path != "/openapi.json") {
      return refusal(404, "not found");
    }
    Answer answer =
        refusal(405, str(quote(head.path), ": got ", head.method, "; must be ", allowed));
    answer.headers["Allow"] = allowed == "GET" ? "GET, HEAD" : allowed;
    return answer;
  }

  // True for long calculations, and for runs, whose files may be long.
  bool takes_long(const Request& request) const {
    const auto route = calculators_.find(request.path);
    if (route != calculators_.end()) return route->second.heavy;
    return request.path.rfind("/api/runs", 0) == 0;
  }

  Answer answer(const Request& request) {
    return guarded_answer([&] {
      const auto route = calculators_.find(request.path);
      if (route != calculators_.end()) return calculated(route->second, request);
      if (request.path == "/openapi.json") return json_answer(description_);
      if (request.path == "/api/runs" || request.path.rfind("/api/runs/", 0) == 0) {
        return live(request);
      }
      if (request.path.rfind("/api", 0) == 0) return refusal(404, "not found");
      if (!options_.pages.empty()) return page_answer(pages_of_folder(options_.pages), request);
      return page_answer(embedded_pages(), request);
    });
  }

 private:
  static Answer json_answer(std::string text) {
    Answer answer;
    answer.body = std::move(text);
    answer.headers["Cache-Control"] = "no-store";
    return answer;
  }

  Answer calculated(const Route& route, const Request& request) {
    const std::string key = route.path + "\n" + request.body;
    std::string text;
    const bool repeats = route.path != "/api/sync";  // not cached: it measures
    if (repeats && cache_.find(key, text)) return json_answer(text);
    std::optional<Admission> admission;
    if (route.heavy) admission.emplace(heavy_);
    Ask ask(request.body);
    text = route.answer(options_.known, ask);
    if (repeats) cache_.put(key, text);
    return json_answer(text);
  }

  Answer live(const Request& request) {
    const bool all = request.path == "/api/runs" || request.path == "/api/runs/";
    const auto points = query_number(request, "points", 1000, 2, 10'000);
    const auto from = query_number(request, "from", 0, 0, std::int64_t{1} << 60);
    if (!options_.runs) return all ? json_answer("[]") : refusal(404, "there is no such run");
    if (all) {
      return json_answer(
          options_.runs->list().dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    const std::string rest = request.path.substr(10);  // after /api/runs/
    const std::string id = rest.substr(0, rest.find('/'));
    const std::string what = rest.size() > id.size() ? rest.substr(id.size()) : "";
    if (what == "/trace") return options_.runs->trace(id);
    const bool several = rest == "events";
    if (several || what == "/events") {
      auto events = options_.runs->events(several ? query_ids(request) : std::vector{id});
      if (!events) return refusal(404, "there is no such run");
      Answer answer;
      answer.type = "text/event-stream";
      answer.headers["Cache-Control"] = "no-store";
      answer.events =
          std::make_shared<CountedEvents>(std::move(events), listeners_, options_.most_listeners);
      return answer;
    }
    if (!what.empty()) return refusal(404, "not found");
    const auto layer = request.query.find("layer");
    Answer answer =
        options_.runs->run(id, static_cast<std::size_t>(points), from,
                           layer == request.query.end() ? std::string() : layer->second);
    answer.headers["Cache-Control"] = "no-store";
    return answer;
  }

  SiteOptions options_;
  std::map<std::string, Route> calculators_;
  std::string description_;
  AnswerCache cache_;
  static constexpr std::size_t kMaxWaiting = 16;
  AdmissionQueue heavy_;
  std::atomic<int> listeners_{0};
};

}  // namespace

Site make_site(SiteOptions options) {
  auto dashboard = std::make_shared<Dashboard>(std::move(options));
  return {[dashboard](const Request& head) { return dashboard->refuse(head); },
          [dashboard](const Request& request) { return dashboard->answer(request); },
          [dashboard](const Request& request) { return dashboard->takes_long(request); }};
}

}  // namespace tessera::dashboard
