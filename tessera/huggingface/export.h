#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::huggingface {

// [Note: companions] Files that belong to a model besides its tensors: the tokenizer's files,
// generation_config.json, and its original config.json. A run that started from a folder keeps them
// in a folder of this name next to its checkpoints, and export copies them from there.
inline constexpr const char* kCompanionsName = "huggingface";
const std::vector<std::string>& companion_names();  // without config.json
// Copies the companions in `from`, including config.json, to dir/huggingface atomically, replacing
// an existing one.
void keep_companions(const std::string& from, const std::string& dir);
// Returns the companions folder of a checkpoint (runs/a/step-…); "" if it has none.
std::string companions_of(const std::string& checkpoint_folder);

// Options of export_folder().
struct FolderOptions {
  std::optional<DType> dtype;  // f32, bf16 or f16, rounded to nearest; nullopt: as stored
  // Maximum file size; a single larger tensor gets its own file.
  std::int64_t shard_bytes = 5'000'000'000;
  // Base model of a checkpoint with adapters: a Hugging Face folder or a checkpoint. The output has
  // the adapters added to it: [Note: merged adapters].
  std::string base;
  std::string tokenizer;  // folder with companions; "": those of the checkpoint, if any
  // "bos_token_id" and "eos_token_id" of a config.json that is generated from the shape.
  std::optional<std::int64_t> begin_token, end_token;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::local_files();
  checkpoint::BytesDone report;
};
// Result of export_folder().
struct WrittenFolder {
  std::int64_t bytes = 0;               // of the tensors
  int files = 0;                        // number of files with tensors
  std::vector<std::string> companions;  // files that were copied
};
// Writes a folder that from_pretrained() reads: config.json, the parameters (one file, or several
// with an index), and the companions. Holds one tensor in memory at a time. `path` appears
// atomically when it is complete; it must not exist or must be an empty folder. Throws UsageError
// if no family has the model's shape, DataError if the checkpoint is damaged.
WrittenFolder export_folder(checkpoint::Checkpoint& from, const std::string& path,
                            const FolderOptions& options = {});

}  // namespace tessera::huggingface
