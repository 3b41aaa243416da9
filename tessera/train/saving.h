#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/async.h"
#include "tessera/train/config.h"
#include "tessera/train/metrics.h"
#include "tessera/train/parallelize.h"

namespace tessera::train {

// Saves a run and brings it back, on any mesh: what a rank saves are its elements of the whole
// model, and what it loads are those it needs, whoever saved them.
class Saver {
 public:
  // Collective over `world`: the ranks get a way of their own to talk, which a save in the
  // background does not share with training.
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
    std::int64_t updates = 0;  // of the parameters: steps that were not skipped
    std::vector<std::string> notes;
  };
  std::optional<Resumed> resume(std::vector<std::string>& notes);
  std::optional<Resumed> resume_newest(std::vector<std::string>* notes = nullptr);

 private:
  checkpoint::Description describe(std::int64_t steps, std::int64_t samples) const;
  std::vector<std::string> differences(const std::string& folder,
                                       const checkpoint::Description& about) const;
  std::vector<checkpoint::Shard> shards();
  Resumed load(const std::string& folder);
  Resumed read(const std::string& folder);  // not collective: into this rank's memory
  void go_on(const Resumed& resumed);
  std::string as_rank_0(const std::function<std::string()>& say) const;
  std::string chosen() const;  // collective: the folder that --resume names
  void refuse_later(std::int64_t steps) const;
  const ParamSpec& spec(const std::string& name) const;

  const TrainConfig config_;
  const Resolved resolved_;
  ParallelModel& model_;
  const comm::Group group_;
  const checkpoint::Team team_;
  const checkpoint::Charge charge_;  // to this rank's ledger
  std::unique_ptr<checkpoint::AsyncSaver> saver_;
};

}  // namespace tessera::train
