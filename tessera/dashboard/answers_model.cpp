// Models of requests: their description, and models that are pasted as a config.json.

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/api.h"
#include "tessera/huggingface/model_config.h"

namespace tessera::dashboard {
namespace {

huggingface::Config pasted_model(const std::string& config) {
  try {
    return huggingface::parse_config(config, huggingface::kConfigName);
  } catch (const DataError& error) {
    throw UsageError(error.what(), "config");
  }
}

}  // namespace

Json model_json(const ModelShape& m) {
  return {{"name", m.name},
          {"params", m.params()},
          {"layers", m.layers},
          {"hidden", m.hidden},
          {"heads", m.heads},
          {"kv_heads", m.kv_heads},
          {"ffn", m.ffn},
          {"vocab", m.vocab},
          {"positions", m.positions},
          {"context", m.rotary() ? m.context : m.positions},
          {"experts", m.experts.count}};
}

Json model_answer(const Knowledge&, Ask& ask) {
  const std::string config = ask.object_text("config");
  ask.nothing_else();
  if (config.empty()) throw UsageError("is missing; must be a config.json", "config");
  const huggingface::Config model = pasted_model(config);
  Json json = model_json(model.shape);
  json["family"] = name(model.shape.family);
  json["gated"] = model.shape.swiglu;
  json["notes"] = model.notes;
  return json;
}

AnswerText with_pasted_model(AnswerText answer) {
  return [answer = std::move(answer)](const Knowledge& known, Ask& ask) {
    const std::string config = ask.object_text("config");
    if (config.empty()) return answer(known, ask);
    const ModelShape shape = pasted_model(config).shape;
    Knowledge with = known;
    with.catalog.find_models_by([shape](const std::string& name) {
      if (name == kPastedModel) return shape;
      throw UsageError("cannot be combined with another model", "config");
    });
    ask.otherwise("model", kPastedModel);
    return answer(with, ask);
  };
}

}  // namespace tessera::dashboard
