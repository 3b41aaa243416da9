#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/dtype.h"
#include "tessera/core/param_spec.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/param_pieces.h"

namespace tessera::huggingface {

inline constexpr const char* kModelName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

// [Note: own files] Files that a folder names must lie in it: otherwise an index with another path,
// or a symbolic link, could expose any file of the reader. Links into the blobs of the cache that
// the folder is a snapshot of are followed, because huggingface_hub stores models that way. Returns
// the path of such a file. Throws DataError.
std::string file_in(const std::string& folder, const std::string& name);

// Returns the file name of each tensor. Throws DataError.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& where);

// Tensors of a folder with a config.json, as parameters of a Tessera model. The constructor reads
// the headers of all files but no tensor data. After that it may be used from several threads.
class Folder {
 public:
  // Throws DataError if files are missing, truncated or not safetensors, or if the tensors do not
  // match config.json; the message lists all that are missing, extra, or of another shape or type.
  explicit Folder(const std::string& path);

  const std::string& path() const { return path_; }
  // Contents of config.json, except `shape.tied`: see shape().
  const Config& config() const { return config_; }
  // Model of the tensors. If config.json ties the head to the embedding but both tensors exist and
  // differ, the head is untied, as in transformers 5.
  const ModelShape& shape() const { return config_.shape; }
  // Notes for the user: ignored fields and tensors that contradict config.json.
  const std::vector<std::string>& notes() const { return config_.notes; }
  bool has(const std::string& param) const { return params_.contains(param); }
  const std::vector<std::int64_t>& shape_of(const std::string& param) const;
  std::int64_t bytes() const { return bytes_; }  // of the tensors that Tessera uses
  // Widest type among the parameters.
  DType dtype() const { return dtype_; }

  // Reads elements of a parameter to `into` at Run::local, rounded to nearest if `as` (f32, bf16 or
  // f16) is narrower. Reads only the requested elements, a few megabytes at a time, on several
  // threads if there are many. Throws DataError.
  void read(const std::string& param, const std::vector<Run>& runs, DType as,
            std::byte* into) const;

 private:
  struct TensorPlace {  // location of a tensor
    const checkpoint::TensorEntry* entry = nullptr;
    std::size_t file = 0;
  };
  struct OpenFile {
    std::string path;
    std::unique_ptr<checkpoint::File> file;
    checkpoint::Header header;
  };
  struct Job;
  class Plan;

  void open(const std::string& name);
  void open_files();
  void resolve_head();
  bool same_values(const TensorPlace& a, const TensorPlace& b) const;
  void check_expert_count() const;
  void check_tensors();
  void run(const Job& job, DType as, std::byte* into, std::vector<std::byte>& raw,
           std::vector<std::byte>& converted) const;

  std::string path_;
  Config config_;
  std::vector<OpenFile> files_;
  std::map<std::string, TensorPlace> tensors_;
  std::map<std::string, ParamPieces> params_;
  std::int64_t bytes_ = 0;
  DType dtype_ = DType::f32;
};

}  // namespace tessera::huggingface
