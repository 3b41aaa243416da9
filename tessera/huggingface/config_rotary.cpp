#include "tessera/huggingface/config_rotary.h"

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::huggingface {
namespace {

using RopeKind = RotaryScaling::Kind;

constexpr double kLeastFactor = 1e-6, kMostFactor = 1e9;

double read_base(Fields& fields, double otherwise) {
  return fields.number("rope_theta", otherwise, 1e-3, 1e15);
}

void refuse_partial(Fields& fields) {
  if (fields.number("partial_rotary_factor", 1, 0, 1) == 1) return;
  throw DataError(str(fields.where(),
                      ": \"partial_rotary_factor\" is not 1. Tessera's rotary "
                      "positions rotate whole heads only."));
}

double factor_of(Fields& rope, const char* name) {
  return rope.needed_number(name, kLeastFactor, kMostFactor);
}

// Returns the context length: the scaling changes beyond it, or it is the original training length.
std::int64_t context_of(const Fields& rope, const ModelShape& shape, const char* what) {
  if (shape.context > 0) return shape.context;
  throw DataError(str(rope.where(), ": \"max_position_embeddings\" is missing; must be ", what));
}

void read_yarn(Fields& rope, const ModelShape& shape, RotaryScaling& scaling) {
  scaling.factor = factor_of(rope, "factor");
  const auto original = rope.whole("original_max_position_embeddings");
  scaling.original_positions =
      original ? *original
               : context_of(rope, shape, "given, or \"original_max_position_embeddings\"");
  scaling.beta_fast = rope.number("beta_fast", 32, kLeastFactor, kMostFactor);
  scaling.beta_slow = rope.number("beta_slow", 1, kLeastFactor, kMostFactor);
  scaling.attention_factor = rope.number("attention_factor", 0, kLeastFactor, kMostFactor);
  scaling.mscale = rope.number("mscale", 0, 0, kMostFactor);
  scaling.mscale_all_dim = rope.number("mscale_all_dim", 0, 0, kMostFactor);
  // Null differs from absent: transformers treats null as false.
  scaling.truncate = rope.flag("truncate", !rope.object().contains("truncate"));
}

void read_scaling(Fields& rope, const ModelShape& shape, RotaryScaling& scaling) {
  const std::string older_kind = rope.word("type", "default");
  const std::string kind = rope.word("rope_type", older_kind);
  if (kind == "default") {
    rope.find("original_max_position_embeddings");
    rope.find("factor");  // unused
  } else if (kind == "linear") {
    scaling.kind = RopeKind::linear;
    scaling.factor = factor_of(rope, "factor");
    rope.find("original_max_position_embeddings");
  } else if (kind == "llama3") {
    scaling.kind = RopeKind::llama3;
    scaling.factor = factor_of(rope, "factor");
    scaling.low_freq_factor = factor_of(rope, "low_freq_factor");
    scaling.high_freq_factor = factor_of(rope, "high_freq_factor");
    scaling.original_positions = rope.needed("original_max_position_embeddings");
  } else if (kind == "dynamic") {
    scaling.kind = RopeKind::dynamic;
    scaling.factor = factor_of(rope, "factor");
    context_of(rope, shape, "the length beyond which the scaling applies");
    rope.find("original_max_position_embeddings");  // unused
  } else if (kind == "yarn") {
    scaling.kind = RopeKind::yarn;
    read_yarn(rope, shape, scaling);
  } else {
    throw DataError(str(rope.where(), ": rotary scaling is ", quote(kind),
                        "; must be default, linear, llama3, dynamic or yarn"));
  }
}

// Gemma 3 has parameters for each kind of layer. Those with a window have no scaling.
void read_rotary_by_layer(Fields& fields, const nlohmann::json& object, ModelShape& shape,
                          std::vector<std::string>& unknown) {
  for (const auto& [kind, parameters] : object.items()) {
    const bool windowed = kind == "sliding_attention";
    if (!parameters.is_object() || (!windowed && kind != "full_attention")) {
      fields.refuse("rope_parameters", object,
                    "an object with objects full_attention and sliding_attention");
    }
    Fields rope(parameters, str(fields.where(), ": rope_parameters: ", kind));
    refuse_partial(rope);
    double& base = windowed ? shape.window_rotary_base : shape.rotary_base;
    base = read_base(rope, base);
    RotaryScaling scaling;
    read_scaling(rope, shape, windowed ? scaling : shape.rotary_scaling);
    if (scaling.kind != RopeKind::none) {
      throw DataError(str(rope.where(), ": scaling of layers with a window is not supported"));
    }
    for (std::string& field : rope.finish(rope_fields())) unknown.push_back(std::move(field));
  }
}

}  // namespace

void read_rotary(Fields& fields, ModelShape& shape, std::vector<std::string>& unknown) {
  const bool gemma3 = shape.family == Family::gemma3;
  shape.rotary_base = read_base(fields, gemma3 ? 1e6 : 1e4);
  if (gemma3) {
    shape.window_rotary_base = fields.number("rope_local_base_freq", 1e4, 1e-3, 1e15);
    if (const auto* object = fields.find("rope_parameters");
        object != nullptr && object->is_object() &&
        (object->contains("full_attention") || object->contains("sliding_attention"))) {
      return read_rotary_by_layer(fields, *object, shape, unknown);
    }
  }
  const bool newer = fields.has("rope_parameters");
  const bool older = fields.has("rope_scaling");
  refuse_partial(fields);
  if (!newer && !older) return;
  const std::string name = newer ? "rope_parameters" : "rope_scaling";
  const nlohmann::json& object = *fields.find(name);
  if (newer && older && object != *fields.find("rope_scaling")) {
    throw DataError(str(fields.where(),
                        ": \"rope_parameters\" and \"rope_scaling\" differ; only "
                        "one of them may be given"));
  }
  if (!object.is_object()) fields.refuse(name, object, "an object, or null");
  Fields rope(object, str(fields.where(), ": ", name));
  shape.rotary_base = read_base(rope, shape.rotary_base);
  refuse_partial(rope);
  read_scaling(rope, shape, shape.rotary_scaling);
  if (shape.family == Family::phi3 && shape.rotary_scaling.kind != RopeKind::none) {
    throw DataError(str(rope.where(),
                        ": rotary scaling of Phi-3 is longrope, which Tessera does not ",
                        "support; use a model without scaling (4k context)"));
  }
  for (std::string& field : rope.finish(rope_fields())) unknown.push_back(std::move(field));
}

}  // namespace tessera::huggingface
