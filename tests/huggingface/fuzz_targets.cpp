#include "tessera/core/errors.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/shape_json.h"
#include "tests/fuzz.h"
#include "tests/huggingface/fuzz.h"

namespace tessera::huggingface {

void fuzz_config(std::string_view input) {
  try {
    const Config config = parse_config(input, "c");
    const ModelShape& shape = config.shape;
    check(shape);
    must(shape.params() > 0 && shape.name.empty(), "a model", input);
    must(config.dropout >= 0 && config.dropout <= 1, "dropout", input);
    ModelShape back = parse_config(config_json(shape, "float32"), "d").shape;
    if (shape.context == 0) back.context = 0;
    ModelShape wanted = shape;
    if (wanted.window == 0 || wanted.window_from == wanted.layers) {
      wanted.window = wanted.window_from = 0;
    }
    must(shape_json(back) == shape_json(wanted), "the way back", input);
  } catch (const DataError&) {
  }
}

void fuzz_index(std::string_view input) {
  try {
    for (const auto& [tensor, file] : parse_index(input, "i")) {
      must(!file.empty() && file.find('/') == std::string::npos && file.front() != '.' &&
               file.find('\0') == std::string::npos && file.ends_with(".safetensors"),
           "a file", input);
    }
  } catch (const DataError&) {
  }
}

void fuzz_shape(std::string_view input) {
  try {
    const ModelShape shape = parse_shape(input, "s");
    check(shape);
    const std::string text = shape_json(shape);
    must(shape_json(parse_shape(text, "s")) == text, "the way back", input);
  } catch (const DataError&) {
  }
}

}  // namespace tessera::huggingface
