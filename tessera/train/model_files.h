#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/dtype.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"

namespace tessera::train {

// A trained model on disk, to be used and not trained on: a checkpoint of tessera train, of
// whatever mesh, or a folder of Hugging Face's. Only what is asked for is read.
class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  const ModelShape& shape() const { return shape_; }
  const std::string& folder() const { return folder_; }    // the one that was found
  const std::string& described() const { return about_; }  // "step 240", say
  // bfloat16 where the parameters lie there as such; else float, which holds fp16 too.
  at::ScalarType type() const { return type_; }
  const std::string& data() const { return data_; }  // what --data said; "" for Hugging Face's
  std::int64_t seq() const { return seq_; }          // tokens of a sequence in training; 0: unknown
  // The fingerprint of the tokenizer that it was trained with; "": not known.
  const std::string& tokenizer() const { return tokenizer_; }
  bool huggingface() const { return data_.empty(); }
  // A folder with the tokenizer's files that came with the model; "": there is none.
  const std::string& tokenizer_folder() const { return tokenizer_folder_; }
  // Notes for the user about the files.
  const std::vector<std::string>& notes() const { return notes_; }
  // Tokens that end a text, where the files say so.
  const std::vector<std::int64_t>& end_tokens() const { return end_tokens_; }

  // Reads the tensor of the rank at a coordinate into memory of this shape on the CPU, float or
  // bfloat16, rounded to nearest. Padding becomes 0. Throws DataError.
  virtual void read(const ParamSpec& spec, const at::Tensor& into, const Axes& axes,
                    const Coordinate& coordinate) = 0;
  // Reads a whole parameter.
  void read(const ParamSpec& spec, const at::Tensor& into) { read(spec, into, {}, {}); }

 protected:
  ModelShape shape_;
  std::string folder_, about_, data_, tokenizer_, tokenizer_folder_;
  std::vector<std::string> notes_;
  at::ScalarType type_ = at::kFloat;
  std::int64_t seq_ = 0;
  std::vector<std::int64_t> end_tokens_;
};

// Types to compute in, and the one that --dtype asks for: auto, or name() of one of these.
inline constexpr std::array kComputeTypes = {DType::f32, DType::bf16};
at::ScalarType compute_type(const std::string& dtype, const ModelFiles& files);

// `from`: a checkpoint, the folder of a run (its newest good one), a folder with a config.json, or
// one with adapters that peft wrote. `base`: of adapters, the model they are for; "": where their
// files say that it is. Throws UsageError that begins with the flag --from or --base, or DataError.
std::unique_ptr<ModelFiles> open_model(const std::string& from, const std::string& base = "");

}  // namespace tessera::train
