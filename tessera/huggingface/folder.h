#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/dtype.h"
#include "tessera/core/param_spec.h"
#include "tessera/huggingface/config.h"
#include "tessera/huggingface/tensors.h"

namespace tessera::huggingface {

inline constexpr const char* kModelName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

// [Note: own files] What a folder names lies in it: an index that leads elsewhere, or a file that
// is a link to elsewhere, could be made to show any file of its reader. Links into the blobs of the
// cache that the folder is a snapshot of are followed: that is how huggingface_hub keeps models.
// The path of such a file; throws DataError.
std::string file_in(const std::string& folder, const std::string& name);

// The names of the files by tensor. Throws DataError.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& where);

// The tensors of a folder with a config.json, as parameters of a model of ours. Opening it reads
// the headers of all files, and nothing of the tensors. Afterwards it may be used from several
// threads.
class Folder {
 public:
  // Throws DataError for files that are missing, cut short or no safetensors, and unless the
  // tensors are those of the config.json: then all that are missing, extra, of another shape or
  // type are listed.
  explicit Folder(const std::string& path);

  const std::string& path() const { return path_; }
  // As the file says, but `shape.tied`: see shape().
  const Config& config() const { return config_; }
  // The model that the tensors are of. transformers 5 keeps a head of its own where config.json
  // says that it is the embedding and both are there with different values; so does this.
  const ModelShape& shape() const { return config_.shape; }
  // Notes for the user about the folder: fields and tensors that are not what they seem.
  const std::vector<std::string>& notes() const { return config_.notes; }
  bool has(const std::string& param) const { return params_.contains(param); }
  const std::vector<std::int64_t>& shape_of(const std::string& param) const;
  std::int64_t bytes() const { return bytes_; }  // of the tensors that are read
  // The type of the widest tensor.
  DType dtype() const { return dtype_; }

  // Puts elements of a parameter behind `into`, as Run::local says, rounded to nearest where `as`
  // (f32, bf16 or f16) is narrower. Reads only what is wanted, in stretches of a few megabytes, by
  // several threads if it is much. Throws DataError.
  void read(const std::string& param, const std::vector<Run>& runs, DType as,
            std::byte* into) const;

 private:
  struct Place {  // of a tensor
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
  void settle_head();
  bool same_values(const Place& a, const Place& b) const;
  void check_tensors();
  void run(const Job& job, DType as, std::byte* into, std::vector<std::byte>& raw,
           std::vector<std::byte>& converted) const;

  std::string path_;
  Config config_;
  std::vector<OpenFile> files_;
  std::map<std::string, Place> tensors_;
  std::map<std::string, ParamPieces> params_;
  std::int64_t bytes_ = 0;
  DType dtype_ = DType::f32;
};

}  // namespace tessera::huggingface
