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
struct Piece {
  std::string tensor;
  std::vector<std::int64_t> shape;  // in the folder
  bool transposed = false;
  std::int64_t row = 0;   // first row in the parameter
  std::int64_t rows = 0;  // number of rows in the parameter
};
// Parameter and the tensors that it consists of.
struct ParamPieces {
  std::string param;
  std::vector<std::int64_t> shape;  // of the parameter
  std::vector<Piece> pieces;        // by row
};
// Returns the parameters in layer order, without adapters.
std::vector<ParamPieces> pieces_of(const ModelShape& shape);

// Returns the prefix of tensor names ("model."). Bare models and the head have none.
std::string prefix_of(const ModelShape& shape);
// Returns true for tensors of older files that carry no information: masks, frequencies.
bool is_buffer(const ModelShape& shape, std::string_view tensor);

}  // namespace tessera::huggingface
