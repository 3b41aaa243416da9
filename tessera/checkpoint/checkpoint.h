#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/shard.h"
#include "tessera/checkpoint/step_folder.h"

namespace tessera::checkpoint {

// A checkpoint that is open for reading. Not thread-safe; each rank opens its own.
class Checkpoint {
 public:
  // Reads the manifest. Throws DataError.
  explicit Checkpoint(std::string folder, std::shared_ptr<FileSystem> files = local_files(),
                      Charge charge = {});

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const Description& about() const { return manifest_.about; }
  const ParamSpec* find(const std::string& param) const;  // null if there is none
  // Throws DataError unless it has all these parameters with these shapes. It may have others.
  void expect(const std::vector<ParamSpec>& params) const;
  // Returns the types of the states of a parameter, by name of the state.
  std::map<std::string, DType> states(const std::string& param) const;
  std::int64_t bytes() const;

  // Throws DataError unless every file exists with its size. One rank is enough: load() checks the
  // files that it reads.
  void check_files();

  // Loads the wanted shards. Reads and verifies only the blocks that contain them ([Note: blocks]).
  // Converts types as `rounding` allows. Throws DataError if something is missing, damaged or does
  // not fit; the contents of the target memory are then undefined.
  void load(const std::vector<WantedShard>& wanted, Rounding rounding = Rounding::exact);

  // Reads everything. Returns the problems, one line each.
  std::vector<std::string> verify(const BytesDone& progress = {});

 private:
  struct StoredRun {  // run of a state, and its location
    Run run;          // local: in the tensor
    int file = 0, tensor = 0;
  };
  struct Copy;
  using Key = std::pair<std::string, std::string>;  // parameter, state

  [[noreturn]] void refuse_param(const std::string& param) const;
  const std::vector<StoredRun>& stored_runs(const Key& key);
  void plan(const WantedShard& wanted, std::vector<Copy>& copies);
  void run(std::vector<Copy>& copies, Rounding rounding);
  struct OpenFile {
    std::unique_ptr<File> file;
    std::vector<std::int64_t> offsets;  // of its tensors, in the order of the manifest
  };
  void check_size(const StoredFile& file, File& open) const;
  void check_size(int file);  // checks each file once
  // Opens a file and compares its size and header with the manifest.
  OpenFile open_file(const StoredFile& file) const;
  OpenFile& opened(int file);  // opens it if needed; closes others if there are too many
  void check_blocks(const StoredFile& file, const StoredTensor& tensor, std::int64_t tensor_at,
                    std::int64_t first_block, const std::byte* data, std::int64_t bytes) const;

  std::string folder_;
  std::shared_ptr<FileSystem> files_;
  Charge charge_;
  Manifest manifest_;
  std::map<std::string, std::size_t> params_;
  std::map<Key, std::vector<std::pair<int, int>>> stored_;  // file and tensor
  std::map<int, OpenFile> open_files_;
  std::vector<bool> sized_;  // files whose size was checked
  // Runs of the last requested state: disjoint, sorted by Run::whole.
  Key stored_runs_of_;
  std::vector<StoredRun> stored_runs_;
};

// Result of find_latest().
struct Latest {
  std::string folder;                // empty: there is none
  std::vector<std::string> skipped;  // why newer ones were skipped, one line each
};
// Returns the newest checkpoint in `dir` that can be read. `whole` reads every byte, not only
// manifests and file sizes.
Latest find_latest(const std::string& dir, bool whole = false,
                   std::shared_ptr<FileSystem> files = local_files());

}  // namespace tessera::checkpoint
