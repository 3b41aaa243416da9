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

// What a run has to say to tessera::save and tessera::load: where to, how often to try, what
// --resume asks for, and what of the settings belongs to a checkpoint.
class Saver {
 public:
  // Collective over `world`.
  Saver(const TrainConfig& config, const Resolved& resolved, ParallelModel& model,
        const comm::Group& world);

  // Collective. Between two steps, `steps` of them done, and so many samples taken by all ranks.
  // Returns when the state has been copied; the files follow, unless the configuration says to
  // wait.
  void save(std::int64_t steps, std::int64_t samples);
  // Collective. Until the last save is published, or has failed for good.
  LastSave finish();

  // Collective. What --resume asks for: the folder that was loaded and the steps that had been
  // done, or nothing for a fresh start. `notes` gets lines for people: what was passed over and
  // why, and what keeps the run from being the one that was saved.
  struct Resumed {
    std::string folder;
    std::int64_t steps = 0;
    std::int64_t samples = 0;  // taken from the data: the next one has this number
    std::vector<std::string> notes;
  };
  std::optional<Resumed> resume(std::vector<std::string>& notes);
  std::optional<Resumed> resume_newest(std::vector<std::string>* notes = nullptr);

 private:
  LoadOptions load_options() const;
  Resumed resumed(const Loaded& loaded) const;
  std::vector<std::string> differences(const Loaded& loaded) const;
  void keep_lock();
  std::string as_rank_0(const std::function<std::string()>& say) const;
  void refuse_later(std::int64_t steps) const;

  const TrainConfig config_;
  const Resolved resolved_;
  ParallelModel& model_;
  const comm::Group world_;
  // [Note: one writer] Whoever starts the ranks holds the lock of --save, in this file.
  checkpoint::LockFile lock_file_;
  std::unique_ptr<checkpoint::FolderLock> lock_;  // on rank 0, if the folder was made again
  std::optional<AsyncSave> saver_;
};

}  // namespace tessera::train
