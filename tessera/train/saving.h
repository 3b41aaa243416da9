#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/lock.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/save.h"
#include "tessera/train/config.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// Saves and loads the checkpoints of a run: converts the settings for tessera::save and
// tessera::load, stores some of them in checkpoints, and implements --resume.
class Saver {
 public:
  // Collective over `world`.
  Saver(const RunConfig& config, const Resolved& resolved, ParallelModel& model,
        const comm::Group& world);

  // Collective. Saves between two steps, after `steps` steps and `samples` samples of all ranks.
  // Returns when the state has been copied; files are written in the background, unless the
  // configuration disables that.
  void save(std::int64_t steps, std::int64_t samples);
  // Collective. Waits until the last save is published or has finally failed.
  LastSave finish();

  // Checkpoint that was loaded.
  struct Resumed {
    std::string folder;
    std::int64_t steps = 0;
    std::int64_t samples = 0;  // taken from the data, which is the number of the next one
    std::vector<std::string> notes;
  };
  // Collective. Loads the checkpoint of --resume. Returns nullopt for a fresh start. `notes` gets
  // lines for the user: skipped checkpoints with the reason, and differences from the saved run.
  std::optional<Resumed> resume(std::vector<std::string>& notes);
  // Collective. Loads the newest checkpoint in --save. Returns nullopt if there is none.
  std::optional<Resumed> resume_newest(std::vector<std::string>* notes = nullptr);

 private:
  LoadOptions load_options() const;
  Resumed resumed(const Loaded& loaded) const;
  std::vector<std::string> differences(const Loaded& loaded) const;
  void keep_lock();
  std::string on_rank_0(const std::function<std::string()>& find) const;
  void reject_later(std::int64_t steps) const;

  const RunConfig config_;
  const Resolved resolved_;
  ParallelModel& model_;
  const comm::Group world_;
  // [Note: one writer] The launcher of the ranks holds the lock of --save, in this file.
  checkpoint::LockFile lock_file_;
  std::unique_ptr<checkpoint::FolderLock> lock_;  // on rank 0, if the folder was made again
  std::optional<AsyncSave> saver_;
};

}  // namespace tessera::train
