#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

// [Note: pieces] Each Tessera parameter is one tensor of a folder, or several stacked by rows: q, k
// and v in qkv.weight, gate and up in fc.weight. Linears of GPT-2 are stored transposed, [in, out].
// Nothing else differs: rotary positions use the same pairs (i with i + width / 2).
//
// Experts have tensors of their own, or are stacked: transformers 5 can save all experts of a layer
// as gate_up_proj [experts, 2 · width, hidden] and down_proj [experts, hidden, width], whose parts
// are the parameters of one expert. Every version reads the separate ones, which Tessera writes.
struct Piece {
  std::string tensor;
  std::vector<std::int64_t> shape;  // in the folder
  bool transposed = false;
  std::int64_t row = 0;   // first row in the parameter
  std::int64_t rows = 0;  // number of rows in the parameter
  std::int64_t from = 0;  // first element in the tensor; it has those of other parameters too
};
// Parameter and the tensors that it consists of.
struct ParamPieces {
  std::string param;
  std::vector<std::int64_t> shape;  // of the parameter
  std::vector<Piece> pieces;        // by row
};
// Storage of experts: [Note: pieces].
enum class ExpertTensors : std::uint8_t { separate, stacked };
// Returns the parameters and the buffers of a model in layer order, without adapters.
std::vector<ParamPieces> pieces_of(const ModelShape& shape,
                                   ExpertTensors experts = ExpertTensors::separate);

// Returns true for the buffers among them: selection biases of experts, fp32 in every model.
bool is_model_buffer(std::string_view param);
// Returns the name of the state that has the values of a parameter or buffer in a checkpoint.
const char* state_of(std::string_view param);

// Returns the prefix of tensor names ("model."). Bare models and the head have none.
std::string prefix_of(const ModelShape& shape);
// Returns true for tensors of older files that carry no information: masks, frequencies.
bool is_buffer(const ModelShape& shape, std::string_view tensor);
// Returns true if this is a tensor of stacked experts.
bool is_stacked(std::string_view tensor);

}  // namespace tessera::huggingface
