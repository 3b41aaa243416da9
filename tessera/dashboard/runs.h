#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/dashboard/http.h"
#include "tessera/dashboard/line_tail.h"
#include "tessera/dashboard/run_series.h"

namespace tessera::dashboard {

// Runs that the dashboard watches: metrics files, and folders with such files (*.jsonl, three
// levels deep). Its own thread reads new lines.
class RunStore {
 public:
  // Paths need not exist yet. Throws UsageError for a path that is neither a file nor a folder.
  explicit RunStore(const std::vector<std::string>& paths, double every = 0.25);
  ~RunStore();
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;

  // Answers of GET /api/runs, /api/runs/ID and /api/runs/ID/trace. `layer` selects the experts that
  // the answer describes, as in ExpertSeries::json().
  Json list() const;
  Answer run(const std::string& id, std::size_t points, std::int64_t from,
             const std::string& layer = "") const;
  Answer trace(const std::string& id) const;
  // Returns the events of these runs from now on. Ignores unknown ids; null if all are unknown.
  std::shared_ptr<EventSource> events(const std::vector<std::string>& ids);
  // Returns the id of the run with this metrics file. It is stable across restarts of the server
  // and does not reveal the path.
  static std::string id_of(const std::string& path);

  // Reads everything available now, for tests and for the first answer.
  void catch_up();
  void stop();

 private:
  struct Run {
    explicit Run(std::string path, std::string shown)
        : tail(std::move(path)), name(std::move(shown)) {}
    LineTail tail;
    std::string name;
    RunSeries series;
  };
  friend class RunEvents;

  void look_for_files();
  bool read_all(std::size_t most);  // true if there is more
  void work();
  std::string state_of(const Run& run) const;
  Json about(const std::string& id, const Run& run) const;

  std::vector<std::string> paths_;
  double every_;
  mutable std::mutex mutex_;
  mutable std::condition_variable news_;
  std::map<std::string, std::unique_ptr<Run>> runs_;  // by id
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tessera::dashboard
