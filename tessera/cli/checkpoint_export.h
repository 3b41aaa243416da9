#pragma once

#include <string>

namespace tessera::cli {

// Arguments of `tessera checkpoint export`.
struct ExportArguments {
  std::string from;  // a checkpoint, or the folder of a run
  std::string to;
  std::string format = "safetensors";  // or huggingface, peft
  std::string state, dtype;
  std::string shard_size = "5GB", tokenizer;  // huggingface
  std::string base;                           // base model of a checkpoint with adapters
};
int export_checkpoint(const ExportArguments& arguments);

}  // namespace tessera::cli
