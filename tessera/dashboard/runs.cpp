#include "tessera/dashboard/runs.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include "tessera/core/crypto.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/phases.h"

namespace tessera::dashboard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxRuns = 256;
constexpr std::size_t kSlice = std::size_t{4} << 20;  // bytes read before the lock is released
constexpr double kSilent = 30;  // seconds without a line after which a run counts as silent
constexpr std::int64_t kMaxTrace = std::int64_t{64} << 20;
constexpr int kDeepest = 2;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json marks_json(const std::vector<Mark>& marks, std::size_t from = 0) {
  Json list = Json::array();
  for (std::size_t i = from; i < marks.size(); ++i) {
    Json mark = {{"step", marks[i].step}, {"kind", marks[i].kind}};
    if (!marks[i].text.empty()) mark["text"] = marks[i].text;
    list.push_back(std::move(mark));
  }
  return list;
}

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

// Events of some runs: their new points, or "again" if old ones were removed and the client must
// request everything again. The data of an event has the id of its run.
class RunEvents : public EventSource {
 public:
  RunEvents(RunStore& store, const std::vector<std::string>& ids) : store_(store) {
    for (const std::string& id : ids) {
      const auto found = store_.runs_.find(id);
      const auto is_same = [&](const Followed& other) { return other.id == id; };
      if (found == store_.runs_.end() || std::any_of(followed_.begin(), followed_.end(), is_same)) {
        continue;
      }
      followed_.push_back({id, *found->second, store_.state_of(*found->second)});
      note(followed_.back());
    }
  }
  bool empty() const { return followed_.empty(); }

  std::string next() override {
    std::unique_lock lock(store_.mutex_);
    store_.news_.wait_for(lock, std::chrono::milliseconds(500), [&] {
      return store_.stopping_ ||
             std::any_of(followed_.begin(), followed_.end(), [](const Followed& each) {
               return each.run.series.version() != each.version;
             });
    });
    std::string text;
    if (!greeted_) text = "retry: 1000\n\n";
    greeted_ = true;
    text += news();
    // Sends a comment now and then, so that a closed connection is noticed.
    if (text.empty() && ++quiet_ % 20 == 0) text = ": still here\n\n";
    return text;
  }
  // Reads the files to their ends: the server may have been stopped because the run ended.
  std::string last() override {
    store_.catch_up();
    const std::lock_guard lock(store_.mutex_);
    return news();
  }
  bool over() const override { return store_.stopping_; }

 private:
  static constexpr std::size_t kMaxAtOnce = 1000;
  struct Followed {
    std::string id;
    const RunStore::Run& run;  // runs are never removed from the store
    std::string state;
    std::uint64_t version = 0, epoch = 0;
    std::size_t seen = 0, marks = 0;
  };

  static void note(Followed& each) {
    const RunSeries& series = each.run.series;
    each.version = series.version();
    each.epoch = series.epoch();
    each.seen = series.points().size();
    each.marks = series.marks().size();
  }
  static std::string event(const char* name, const Followed& each, Json data) {
    data["id"] = each.id;
    return str("event: ", name, "\ndata: ", dumped(data), "\n\n");
  }
  // Called with the store's lock held.
  std::string news() {
    std::string text;
    for (Followed& each : followed_) {
      const RunSeries& series = each.run.series;
      if (series.epoch() != each.epoch) {
        text += event("again", each, {{"steps", series.points().size()}});
      } else if (series.version() != each.version) {
        const std::vector<Point>& points = series.points();
        Json data = RunSeries::columns(
            downsampled(points.data() + each.seen, points.size() - each.seen, kMaxAtOnce));
        data["marks"] = marks_json(series.marks(), std::min(each.marks, series.marks().size()));
        if (!series.summary().is_null()) data["summary"] = series.summary();
        text += event("points", each, std::move(data));
      }
      note(each);
      const std::string state = store_.state_of(each.run);
      if (state != each.state) {
        Json data = {{"state", state}};
        if (series.failure().is_object()) data["reason"] = series.failure().value("reason", "");
        text += event("state", each, std::move(data));
      }
      each.state = state;
    }
    return text;
  }

  RunStore& store_;
  std::vector<Followed> followed_;
  int quiet_ = 0;
  bool greeted_ = false;
};

RunStore::RunStore(const std::vector<std::string>& paths, double every)
    : paths_(paths), every_(every) {
  for (const std::string& path : paths_) {
    const std::string kind = kind_of_file(path);
    if (kind == "a regular file" || kind == "a folder" || kind == "nothing") continue;
    throw UsageError(Flag("runs"), str(quote(path), " is ", kind,
                                       "; must be a metrics file of tessera train, or a folder"));
  }
  thread_ = std::thread([this] { work(); });
}

RunStore::~RunStore() {
  stop();
  thread_.join();
}

void RunStore::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  news_.notify_all();
}

void RunStore::look_for_files() {
  const auto add = [&](const std::string& path, const std::string& name) {
    if (runs_.size() >= kMaxRuns) return;
    std::unique_ptr<Run>& run = runs_[id_of(path)];
    if (!run) run = std::make_unique<Run>(path, name);
  };
  for (const std::string& path : paths_) {
    std::error_code problem;
    if (!fs::is_directory(path, problem)) {
      add(path, fs::path(path).filename().string());
      continue;
    }
    fs::recursive_directory_iterator entry(path, fs::directory_options::skip_permission_denied,
                                           problem);
    for (; !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
      if (entry.depth() >= kDeepest) entry.disable_recursion_pending();
      std::error_code ignored;
      if (entry->path().extension() != ".jsonl" || !entry->is_regular_file(ignored)) continue;
      add(entry->path().string(), fs::relative(entry->path(), path, ignored).string());
    }
  }
}

bool RunStore::read_all(std::size_t most) {
  bool more = false;
  for (auto& [id, run] : runs_) {
    const LineTail::Listener listener{
        [&series = run->series](std::string_view line) { series.line(line); },
        [&series = run->series] { series.reset(); }};
    more = run->tail.read(most, listener) || more;
  }
  return more;
}

void RunStore::catch_up() {
  const std::lock_guard lock(mutex_);
  look_for_files();
  while (read_all(kSlice)) {
  }
  news_.notify_all();
}

void RunStore::work() {
  std::unique_lock lock(mutex_);
  int rounds = 0;
  while (!stopping_) {
    if (rounds++ % 8 == 0) look_for_files();
    const bool more = read_all(kSlice);
    news_.notify_all();
    // Releases the lock between two slices.
    news_.wait_for(lock, std::chrono::duration<double>(more ? 0.001 : every_),
                   [&] { return stopping_.load(); });
  }
}

std::string RunStore::state_of(const Run& run) const {
  const Json& summary = run.series.summary();
  if (!summary.is_null()) {
    return summary.contains("interrupted") && summary["interrupted"] == true ? "stopped" : "done";
  }
  if (!run.series.failure().is_null()) return "failed";
  if (run.series.points().empty()) return "waiting";
  double patience = kSilent;
  const double step = run.series.points().back().values[4];
  if (std::isfinite(step)) patience = std::max(patience, 10.0 * step);
  return seconds_now() - run.tail.changed() > patience ? "silent" : "running";
}

Json RunStore::about(const std::string& id, const Run& run) const {
  const Json& start = run.series.start();
  const Json& summary = run.series.summary();
  Json config = Json::object();
  if (start.is_object() && start.contains("run")) {
    config = start["run"];
  } else if (summary.is_object() && summary.contains("run")) {
    config = summary["run"];
  }
  Json json = {{"id", id},
               {"name", run.name},
               {"state", state_of(run)},
               {"steps", run.series.points().empty() ? 0 : run.series.points().back().step},
               {"changed", run.tail.changed()},
               {"config", std::move(config)},
               {"command", "tessera dashboard --runs " + shell_word(run.tail.path())}};
  if (start.is_object() && start.contains("time")) json["started"] = start["time"];
  if (start.is_object() && start.contains("steps")) json["steps_in_all"] = start["steps"];
  const Json& failure = run.series.failure();
  if (failure.is_object() && failure.contains("reason")) json["reason"] = failure["reason"];
  if (json["state"] == "running" && json.contains("steps_in_all") &&
      json["steps_in_all"].is_number()) {
    const double left = json["steps_in_all"].get<double>() - json["steps"].get<double>();
    const double seconds = left * run.series.recent_mean("step_s");
    if (std::isfinite(seconds) && left >= 0) json["eta_s"] = seconds;
  }
  if (run.series.damaged() > 0) json["damaged_lines"] = run.series.damaged();
  return json;
}

Json RunStore::list() const {
  const std::lock_guard lock(mutex_);
  Json all = Json::array();
  std::vector<std::pair<double, Json>> rows;
  for (const auto& [id, run] : runs_) rows.emplace_back(run->tail.changed(), about(id, *run));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [changed, row] : rows) all.push_back(std::move(row));
  return all;
}

Answer RunStore::run(const std::string& id, std::size_t points, std::int64_t from,
                     const std::string& layer) const {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(id);
  if (found == runs_.end()) return refusal(404, "there is no such run");
  const Run& run = *found->second;
  const std::vector<Point>& all = run.series.points();
  const auto begin = std::lower_bound(all.begin(), all.end(), from,
                                      [](const Point& p, std::int64_t s) { return p.step < s; });
  Json json = about(id, run);
  const auto count = static_cast<std::size_t>(all.end() - begin);
  json["count"] = count;
  json.update(RunSeries::columns(downsampled(all.data() + (begin - all.begin()), count, points)));
  json["marks"] = marks_json(run.series.marks());
  const Json& summary = run.series.summary();
  const Json& start = run.series.start();
  for (const char* key : {"predicted", "measured"}) {
    if (summary.is_object() && summary.contains(key)) {
      json[key] = summary[key];
    } else if (start.is_object() && start.contains(key)) {
      json[key] = start[key];
    }
  }
  if (json.contains("measured") && json["measured"].contains("memory")) {
    json["memory"] = json["measured"]["memory"];
    // `start` has the peak of the first step only.
    const double peak = run.series.maximum("mem_peak_bytes");
    if (std::isfinite(peak)) json["memory"]["peak"] = peak;
  }
  if (!summary.is_null()) json["summary"] = summary;
  if (!run.series.experts().empty()) json["experts"] = run.series.experts().json(layer);
  json["phases"] = phases_of(run.series);
  json["stragglers"] = stragglers_of(run.series);
  json["has_trace"] = start.is_object() && start.contains("trace");
  Answer answer;
  answer.body = dumped(json);
  return answer;
}

Answer RunStore::trace(const std::string& id) const {
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    const auto found = runs_.find(id);
    if (found == runs_.end()) return refusal(404, "there is no such run");
    const Json& start = found->second->series.start();
    if (start.is_object() && start.contains("trace") && start["trace"].is_string()) {
      path = start["trace"].get<std::string>();
    }
  }
  // The path comes from the metrics file, so check that the file is a trace.
  if (path.empty()) return refusal(404, "this run writes no trace; use tessera train --trace FILE");
  if (kind_of_file(path) != "a regular file") {
    return refusal(404, "the trace does not exist yet: the run writes it when it ends");
  }
  Answer answer;
  answer.body = read_small_file(path, kMaxTrace, "a trace");
  if (answer.body.find("\"traceEvents\"") >= 4096) return refusal(404, "that file is not a trace");
  return answer;
}

std::shared_ptr<EventSource> RunStore::events(const std::vector<std::string>& ids) {
  const std::lock_guard lock(mutex_);
  auto events = std::make_shared<RunEvents>(*this, ids);
  return events->empty() ? nullptr : events;
}

std::string RunStore::id_of(const std::string& path) {
  std::error_code problem;
  const fs::path whole = fs::absolute(path, problem);
  return to_hex(sha256(whole.lexically_normal().string())).substr(0, 12);
}

}  // namespace tessera::dashboard
