#pragma once

#include <string>

namespace tessera::cli {

// What `tessera checkpoint export` is told.
struct ExportArguments {
  std::string from;  // a checkpoint, or the folder of a run
  std::string to;
  std::string format = "safetensors";  // or huggingface
  std::string state, dtype;
  std::string shard_size = "5GB", tokenizer;  // huggingface
};
int export_checkpoint(const ExportArguments& arguments);

}  // namespace tessera::cli
