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

// Trained model on disk, for evaluation and generation: a checkpoint of tessera train, from any
// mesh, or a Hugging Face folder. Parameters are read on request.
class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  const ModelShape& shape() const { return shape_; }
  const std::string& folder() const { return folder_; }    // folder that was found
  const std::string& described() const { return about_; }  // such as "step 240"
  // Type of the stored parameters: bfloat16, or float, which also holds fp16.
  at::ScalarType type() const { return type_; }
  const std::string& data() const { return data_; }  // --data of the run; "" for Hugging Face
  std::int64_t seq() const { return seq_; }          // tokens of a sequence in training; 0: unknown
  // Fingerprint of the tokenizer of the training data; "": unknown.
  const std::string& tokenizer() const { return tokenizer_; }
  bool huggingface() const { return data_.empty(); }
  // Folder with the tokenizer's files that came with the model; "" if there is none.
  const std::string& tokenizer_folder() const { return tokenizer_folder_; }
  // Notes for the user about the files.
  const std::vector<std::string>& notes() const { return notes_; }
  // Tokens that end a text, if the files name them.
  const std::vector<std::int64_t>& end_tokens() const { return end_tokens_; }

  // Reads the parameter of the rank at a coordinate, or a buffer, into memory of this shape on the
  // CPU, float or bfloat16, rounded to nearest. Padding becomes 0. Throws DataError.
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

// Types to compute in.
inline constexpr std::array kComputeTypes = {DType::f32, DType::bf16};
// Returns the type that --dtype selects: auto (the type of the files), or name() of one of these.
at::ScalarType compute_type(const std::string& dtype, const ModelFiles& files);

// Opens a model. `from`: a checkpoint, the folder of a run (its newest good checkpoint), a folder
// with a config.json, or one with adapters saved by peft. `base`: base model of adapters; "": the
// one that their files name. Throws UsageError that begins with --from or --base, or DataError.
std::unique_ptr<ModelFiles> open_model(const std::string& from, const std::string& base = "");

}  // namespace tessera::train
