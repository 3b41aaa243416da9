#include "tessera/train/evaluation.h"

#include <nlohmann/json.hpp>

#include "tessera/core/text.h"

namespace tessera::train {

std::string to_json(const Evaluation& evaluation) {
  nlohmann::ordered_json json = {{"loss", evaluation.loss()},
                                 {"perplexity", evaluation.perplexity()}};
  if (evaluation.bytes > 0) json["bits_per_byte"] = evaluation.bits_per_byte();
  json["tokens"] = evaluation.tokens;
  return json.dump();
}

std::string describe(const Evaluation& evaluation) {
  return str(
      "loss ", fixed(evaluation.loss(), 4), ", perplexity ", fixed(evaluation.perplexity(), 2),
      evaluation.bytes > 0 ? str(", ", fixed(evaluation.bits_per_byte(), 4), " bits per byte")
                           : std::string(),
      " (", plural(evaluation.tokens, "token"), ")");
}

}  // namespace tessera::train
