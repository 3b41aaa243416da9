#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/files.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/shard.h"

namespace tessera::checkpoint {

// A checkpoint that is open for reading. Used from one thread; ranks open it each for itself.
class Checkpoint {
 public:
  // Reads the manifest. Throws DataError.
  explicit Checkpoint(std::string folder, std::shared_ptr<FileSystem> files = local_files(),
                      Charge charge = {});

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const Description& about() const { return manifest_.about; }
  const ParamSpec* find(const std::string& param) const;  // null if there is none
  // Throws DataError unless it has all these parameters, in these shapes. Others may be there.
  void expect(const std::vector<ParamSpec>& params) const;
  // The states of a parameter and their types, by name.
  std::map<std::string, DType> states(const std::string& param) const;
  std::int64_t bytes() const;

  // Looks at every file: is it there, with its size? Throws DataError. Not for every rank: load()
  // checks what it touches.
  void check_files();

  // Fills what is wanted, reading only the blocks in which it lies ([Note: blocks]) and verifying
  // those. Types are converted as `rounding` allows. Throws DataError for what is missing, damaged
  // or does not fit: the memory wanted then holds nothing of use.
  void load(const std::vector<WantedShard>& wanted, Rounding rounding = Rounding::exact);

  // Reads everything. Returns what is wrong, a line each.
  std::vector<std::string> verify(const BytesDone& told = {});

 private:
  struct StoredRun {  // of a state, and where it lies
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
    std::vector<std::int64_t> offsets;  // of its tensors, in the manifest's order
  };
  void check_size(const StoredFile& file, File& open) const;
  void check_size(int file);  // once
  // Opens a file and compares its size and header with the manifest.
  OpenFile open_file(const StoredFile& file) const;
  OpenFile& opened(int file);  // stays open, unless there are too many
  void check_blocks(const StoredFile& file, const StoredTensor& tensor, std::int64_t tensor_at,
                    std::int64_t first_block, const std::byte* data, std::int64_t bytes) const;

  std::string folder_;
  std::shared_ptr<FileSystem> files_;
  Charge charge_;
  Manifest manifest_;
  std::map<std::string, std::size_t> params_;
  std::map<Key, std::vector<std::pair<int, int>>> stored_;  // file and tensor
  std::map<int, OpenFile> open_files_;
  std::vector<bool> sized_;  // files that were seen to have the size that the manifest says
  // Of the state that was asked for last: disjoint, by Run::whole.
  Key stored_runs_of_;
  std::vector<StoredRun> stored_runs_;
};

// The newest checkpoint under `dir` that can be read. Those that cannot are passed over, and
// `skipped` says why, a line each. `whole` reads every byte, not only manifests and sizes.
struct Latest {
  std::string folder;  // empty: there is none
  std::vector<std::string> skipped;
};
Latest find_latest(const std::string& dir, bool whole = false,
                   std::shared_ptr<FileSystem> files = local_files());

}  // namespace tessera::checkpoint
