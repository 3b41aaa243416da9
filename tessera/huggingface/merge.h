#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"

namespace tessera::huggingface {

// [Note: merged adapters] A base model and its adapters, read as one model: W + alpha / rank · B A
// in place of W. Computed in fp32 row by row for any range of a parameter.
class MergedModel {
 public:
  // Reads elements of a whole parameter to `into` at Run::local.
  using Read =
      std::function<void(const std::string& param, const std::vector<Run>& runs, float* into)>;

  // `shape` includes the adapters. `base` reads the base parameters, `adapters` those of the
  // adapters.
  MergedModel(const ModelShape& shape, Read base, Read adapters);

  // Reads a parameter of the merged model. Not thread-safe.
  void read(const std::string& param, const std::vector<Run>& runs, float* into);

 private:
  // Adapter added to rows [first, first + rows) of the parameter.
  struct Added {
    std::int64_t first = 0, rows = 0, columns = 0;
    std::vector<float> a, b;
  };
  void load_adapters(const std::string& param);

  ModelShape shape_;
  Read base_, adapters_;
  std::string added_for_;  // parameter that added_ belongs to
  std::vector<Added> added_;
};

// Opens the model in `path`, a Hugging Face folder or a checkpoint. Throws UsageError if its shape
// (adapters aside) differs from `shape`.
MergedModel::Read open_base(const std::string& path, const ModelShape& shape);

// Base model that is read once completely, and then checked against the fingerprint stored with the
// adapters that were trained on it.
class CheckedBase {
 public:
  CheckedBase(MergedModel::Read base, std::string wanted)
      : base_(std::move(base)), wanted_(std::move(wanted)) {}
  void read(const std::string& param, const std::vector<Run>& runs, float* into);
  // Throws UsageError that starts with `flag` if another model was read. `path` names it.
  void check(const std::string& path, const std::string& flag = "--base") const;

 private:
  MergedModel::Read base_;
  std::string wanted_;  // expected fingerprint; "": unknown
  std::uint64_t sum_ = 0;
};

// Returns true if a fingerprint identifies a model in a file. One taken from values that were
// rounded twice does not.
bool can_tell(const std::string& fingerprint);

// Reads the whole model in `path` to check its fingerprint. Reads nothing if can_tell() is false.
void check_base(const std::string& path, const ModelShape& shape, const std::string& fingerprint,
                const std::string& flag);

}  // namespace tessera::huggingface
