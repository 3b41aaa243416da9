#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::huggingface {

// [Note: companions] What belongs to a model beside its tensors: the tokenizer's files,
// generation_config.json, and the config.json it came with. A run that started from a folder keeps
// them in a folder of this name beside its checkpoints, and export takes them from there.
inline constexpr const char* kCompanionsName = "huggingface";
const std::vector<std::string>& companion_names();  // but for config.json
// Copies those that `from` has, config.json too, into dir/huggingface, which appears whole. One
// that is there is replaced.
void keep_companions(const std::string& from, const std::string& dir);
// Where those of a checkpoint (runs/a/step-…) are; "" if it has none.
std::string companions_of(const std::string& checkpoint_folder);

struct FolderOptions {
  std::optional<DType> dtype;  // f32, bf16 or f16, rounded to nearest; empty: as stored
  std::int64_t shard_bytes = 5'000'000'000;  // of a file, at most, unless a single tensor is larger
  // Of a checkpoint with adapters: the model beside them, a folder of Hugging Face's or a
  // checkpoint. What is written has them added: [Note: merged adapters].
  std::string base;
  std::string tokenizer;  // a folder with companions; empty: those of the checkpoint, if it has any
  // Ids for "bos_token_id" and "eos_token_id" of a config.json that is written from the shape.
  std::optional<std::int64_t> begin_token, end_token;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::local_files();
  checkpoint::BytesDone told;
};
struct WrittenFolder {
  std::int64_t bytes = 0;               // of tensors
  int files = 0;                        // with tensors
  std::vector<std::string> companions;  // that were copied
};
// Writes a folder that from_pretrained() reads: config.json, the parameters (one file, or several
// and their index), and the companions. A tensor at a time. `path` appears when all of it is
// written, and must not be there before, or be an empty folder. Throws UsageError for a checkpoint
// of a model that no family has, DataError for a damaged one.
WrittenFolder export_folder(checkpoint::Checkpoint& from, const std::string& path,
                            const FolderOptions& options = {});

}  // namespace tessera::huggingface
