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

// The runs that the dashboard was told of: metrics files, and folders with such files in them
// (*.jsonl, three levels deep). A thread of its own reads what comes.
class RunStore {
 public:
  // What is not there yet may come. Throws UsageError for what can be neither.
  explicit RunStore(const std::vector<std::string>& paths, double every = 0.25);
  ~RunStore();
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;

  // As GET /api/runs, /api/runs/ID and its trace answer.
  Json list() const;
  Answer run(const std::string& id, std::size_t points, std::int64_t from) const;
  Answer trace(const std::string& id) const;
  // What comes from now on; nothing for an id that there is not.
  std::shared_ptr<EventSource> events(const std::string& id) const;

  // Reads all that is there now, for tests and for the first answer.
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
