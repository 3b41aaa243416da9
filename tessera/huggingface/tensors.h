#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

// [Note: pieces] Each parameter of ours is one tensor of a folder, or several below one another:
// q, k and v in qkv.weight, gate and up in fc.weight. Linears of GPT-2 lie there transposed, [in,
// out]. Nothing else differs: queries and keys are turned in the same pairs (i with i + width / 2).
struct Piece {
  std::string tensor;
  std::vector<std::int64_t> shape;  // in the folder
  bool transposed = false;
  std::int64_t row = 0;   // of the parameter, at which it begins
  std::int64_t rows = 0;  // of the parameter
};
struct ParamPieces {
  std::string param;
  std::vector<std::int64_t> shape;  // of the parameter
  std::vector<Piece> pieces;        // by row
};
// In the order of the layers. Adapters are no part of it.
std::vector<ParamPieces> pieces_of(const ModelShape& shape);

// What names of tensors begin with ("model."), but for those of a bare model and of the head.
std::string prefix_of(const ModelShape& shape);
// Tensors that older files have and that say nothing: masks, frequencies.
bool is_buffer(const ModelShape& shape, std::string_view tensor);

}  // namespace tessera::huggingface
