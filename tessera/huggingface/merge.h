#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"

namespace tessera::huggingface {

// [Note: merged adapters] A model and the adapters beside it, read as the model that they make
// together: W + alpha / rank · B A in place of W. In fp32, a row at a time, whatever part of a
// parameter is asked for.
class MergedModel {
 public:
  // Puts elements of a whole parameter behind `into`, as Run::local says.
  using Read =
      std::function<void(const std::string& param, const std::vector<Run>& runs, float* into)>;

  // `shape` has the adapters. `base` reads the model's own parameters, `adapters` those of
  // adapters.
  MergedModel(const ModelShape& shape, Read base, Read adapters);

  // A parameter of the model. Not from several threads at once.
  void read(const std::string& param, const std::vector<Run>& runs, float* into);

 private:
  // An adapter that is added to rows [first, first + rows) of the parameter.
  struct Added {
    std::int64_t first = 0, rows = 0, columns = 0;
    std::vector<float> a, b;
  };
  void take_adapters(const std::string& param);

  ModelShape shape_;
  Read base_, adapters_;
  std::string taken_;  // the parameter that added_ is for
  std::vector<Added> added_;
};

// Reads the parameters of a model that lies in `path`, a folder of Hugging Face's or a checkpoint,
// for one of this shape (adapters aside). Throws UsageError if it is another model.
MergedModel::Read open_base(const std::string& path, const ModelShape& shape);

// The same, where all of it is read once: whether it is the very model that adapters were trained
// beside, as the fingerprint in their checkpoint says.
class CheckedBase {
 public:
  CheckedBase(MergedModel::Read base, std::string wanted)
      : base_(std::move(base)), wanted_(std::move(wanted)) {}
  void read(const std::string& param, const std::vector<Run>& runs, float* into);
  // Throws UsageError that begins with the flag if what was read is another model. `path` names it.
  void check(const std::string& path, const std::string& flag = "--base") const;

 private:
  MergedModel::Read base_;
  std::string wanted_;  // "": nothing is known
  std::uint64_t sum_ = 0;
};

// Whether a fingerprint says which model it is of: one of values that were rounded twice says
// nothing of those in a file.
bool can_tell(const std::string& fingerprint);

// Reads all of the model in `path` for that alone. Nothing is read where no fingerprint can tell.
void check_base(const std::string& path, const ModelShape& shape, const std::string& fingerprint,
                const std::string& flag);

}  // namespace tessera::huggingface
