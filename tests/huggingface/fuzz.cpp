#include "tests/huggingface/fuzz.h"

#include <string>
#include <vector>

#include "tessera/core/philox.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/shape_json.h"
#include "tests/huggingface/made.h"

namespace tessera::huggingface {
namespace {

class Changes {
 public:
  explicit Changes(std::uint64_t seed) : random_(seed, 17) {}
  std::size_t below(std::size_t n) { return n == 0 ? 0 : random_.bits(counter_++) % n; }

  std::string change(std::string text) {
    static const std::vector<std::string> words = {
        "0",
        "1",
        "-1",
        "2.5",
        "1e400",
        "9223372036854775808",
        "18446744073709551616",
        "null",
        "true",
        "false",
        "{}",
        "[]",
        "\"\"",
        "\"llama\"",
        "\"gpt2\"",
        "\"qwen2\"",
        "\"mistral\"",
        "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2},",
        "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 9},",
        "\"layer_types\": [",
        "\"full_attention\"",
        "\"sliding_attention\"",
        "\"mixtral\"",
        "\"qwen3_moe\"",
        "\"dots1\"",
        "\"num_local_experts\": 4,",
        "\"mlp_only_layers\": [0],",
        "\"layer_types\": [\"sliding_attention\", \"full_attention\"],",
        "\"..\"",
        "\"/x.safetensors\"",
        "\\u0000",
        "\xff",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\""};
    const std::size_t times = 1 + below(3);
    for (std::size_t i = 0; i < times; ++i) {
      const std::size_t at = below(text.size() + 1), length = below(24);
      switch (below(6)) {
        case 0: text.insert(at, words[below(words.size())]); break;
        case 1: text.erase(at, length); break;
        case 2:
          if (at < text.size()) text[at] = static_cast<char>(below(256));
          break;
        case 3: replace_value(text, words[below(words.size())]); break;
        case 4: text.insert(below(text.size() + 1), text.substr(at, length)); break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      }
    }
    return text;
  }

 private:
  // Replaces the text between a colon and the next comma.
  void replace_value(std::string& text, const std::string& word) {
    const std::size_t colon = text.find(':', below(text.size() + 1));
    if (colon == std::string::npos) return;
    const std::size_t comma = text.find(',', colon);
    if (comma == std::string::npos) return;
    text.replace(colon + 1, comma - colon - 1, word);
  }

  Philox random_;
  std::uint64_t counter_ = 0;
};

}  // namespace

void fuzz_texts(int count, std::uint64_t seed) {
  std::vector<std::string> configs, shapes;
  for (const ModelShape& shape : small_shapes()) {
    configs.push_back(config_json(shape, "float32"));
    shapes.push_back(shape_json(shape));
  }
  const std::string index =
      R"({"metadata": {"total_size": 100}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})";
  Changes changes(seed);
  for (int i = 0; i < count; ++i) {
    fuzz_config(changes.change(configs[changes.below(configs.size())]));
    fuzz_index(changes.change(index));
    fuzz_shape(changes.change(shapes[changes.below(shapes.size())]));
  }
}

}  // namespace tessera::huggingface
