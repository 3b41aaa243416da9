#include "tessera/huggingface/param_pieces.h"

#include "tessera/core/text.h"

namespace tessera::huggingface {
namespace {

using Shape = std::vector<std::int64_t>;

// Builds parameters from tensors stacked by rows.
class Pieces {
 public:
  explicit Pieces(std::vector<ParamPieces>& all) : all_(all) {}
  void begin(std::string param) { all_.push_back({std::move(param), {}, {}}); }
  void vector(std::string tensor, std::int64_t size) {
    add({std::move(tensor), {size}, false, 0, size}, {size});
  }
  void matrix(std::string tensor, std::int64_t rows, std::int64_t columns) {
    add({std::move(tensor), {rows, columns}, false, 0, rows}, {rows, columns});
  }
  void transposed(std::string tensor, std::int64_t rows, std::int64_t columns) {
    add({std::move(tensor), {columns, rows}, true, 0, rows}, {rows, columns});
  }
  // Matrix `index` of a tensor with `count` matrices.
  void stacked(std::string tensor, std::int64_t count, std::int64_t index, std::int64_t rows,
               std::int64_t columns) {
    add({std::move(tensor), {count, rows, columns}, false, 0, rows, index * rows * columns},
        {rows, columns});
  }

 private:
  void add(Piece piece, Shape shape) {
    ParamPieces& param = all_.back();
    if (param.shape.empty()) {
      param.shape = std::move(shape);
    } else {
      piece.row = param.shape[0];
      param.shape[0] += shape[0];
    }
    param.pieces.push_back(std::move(piece));
  }
  std::vector<ParamPieces>& all_;
};

// Names of a family's tensors, without ".weight" and ".bias". A linear of several names has its
// rows in as many tensors; null: the family has no such parameter.
struct FamilyNames {
  const char* prefix = nullptr;
  const char* embedding = nullptr;
  const char* positions = nullptr;
  const char* layers = nullptr;  // "layers." comes before the number of a layer
  const char* norm1 = nullptr;
  std::vector<const char*> qkv = {};
  const char* q_norm = nullptr;
  const char* k_norm = nullptr;
  const char* proj = nullptr;
  const char* post_norm1 = nullptr;
  const char* norm2 = nullptr;
  std::vector<const char*> fc = {};
  const char* proj2 = nullptr;
  const char* post_norm2 = nullptr;
  const char* norm = nullptr;
  bool transposed = false;  // linears are [in, out]
  // By default Tessera's names: models with experts of no family are listed, but not written.
  const char* router = "experts.router";
  const char* selection_bias = "experts.selection_bias";  // complete name
  const char* experts = "experts.";                       // before the number of an expert
  std::vector<const char*> expert_fc = {"fc"};
  const char* expert_proj2 = "proj2";
  std::vector<const char*> shared_fc = {"experts.shared.fc"};
  const char* shared_proj2 = "experts.shared.proj2";
  const char* shared_gate = "experts.shared_gate";
};
// Names of stacked experts, the same in all families; and of the router beside them.
constexpr const char* kStackedFc = "mlp.experts.gate_up_proj";
constexpr const char* kStackedProj2 = "mlp.experts.down_proj";
constexpr const char* kStackedRouter = "mlp.gate";

// A shape without a family has the names of one that has its parts.
Family naming_family(const ModelShape& shape) {
  if (shape.family != Family::none) return shape.family;
  if (!shape.rotary()) return Family::gpt2;
  if (shape.post_norms) return Family::gemma2;
  if (!shape.experts.any()) return Family::llama;
  if (shape.experts.scores == RouterScores::sigmoid) return Family::dots1;
  return shape.qk_norm ? Family::qwen3_moe : Family::mixtral;
}

const FamilyNames& names_of(const ModelShape& shape) {
  static const FamilyNames gpt2{.prefix = "transformer.",
                                .embedding = "wte",
                                .positions = "wpe",
                                .layers = "h.",
                                .norm1 = "ln_1",
                                .qkv = {"attn.c_attn"},
                                .proj = "attn.c_proj",
                                .norm2 = "ln_2",
                                .fc = {"mlp.c_fc"},
                                .proj2 = "mlp.c_proj",
                                .norm = "ln_f",
                                .transposed = true};
  static const FamilyNames llama{
      .prefix = "model.",
      .embedding = "embed_tokens",
      .layers = "layers.",
      .norm1 = "input_layernorm",
      .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
      .q_norm = "self_attn.q_norm",
      .k_norm = "self_attn.k_norm",
      .proj = "self_attn.o_proj",
      .norm2 = "post_attention_layernorm",
      .fc = {"mlp.gate_proj", "mlp.up_proj"},
      .proj2 = "mlp.down_proj",
      .norm = "norm"};
  static const FamilyNames phi3 = [] {
    FamilyNames names = llama;
    names.qkv = {"self_attn.qkv_proj"};
    names.fc = {"mlp.gate_up_proj"};
    return names;
  }();
  static const FamilyNames gemma = [] {
    FamilyNames names = llama;
    names.post_norm1 = "post_attention_layernorm";
    names.norm2 = "pre_feedforward_layernorm";
    names.post_norm2 = "post_feedforward_layernorm";
    return names;
  }();
  static const FamilyNames dots1 = [] {
    FamilyNames names = llama;
    names.router = "mlp.gate";
    names.selection_bias = "mlp.gate.e_score_correction_bias";
    names.experts = "mlp.experts.";
    names.expert_fc = {"gate_proj", "up_proj"};
    names.expert_proj2 = "down_proj";
    names.shared_fc = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"};
    names.shared_proj2 = "mlp.shared_experts.down_proj";
    return names;
  }();
  static const FamilyNames mixtral = [] {
    FamilyNames names = llama;
    names.router = "block_sparse_moe.gate";
    names.experts = "block_sparse_moe.experts.";
    names.expert_fc = {"w1", "w3"};
    names.expert_proj2 = "w2";
    return names;
  }();
  switch (naming_family(shape)) {
    case Family::gpt2: return gpt2;
    case Family::phi3: return phi3;
    case Family::gemma2:
    case Family::gemma3: return gemma;
    case Family::none:
    case Family::llama:
    case Family::qwen2:
    case Family::mistral:
    case Family::qwen3: return llama;
    case Family::mixtral: return mixtral;
    case Family::qwen3_moe:  // dots1 without its further parts
    case Family::dots1: return dots1;
  }
  return llama;
}

}  // namespace

std::string prefix_of(const ModelShape& shape) { return names_of(shape).prefix; }

std::vector<ParamPieces> pieces_of(const ModelShape& m, ExpertTensors experts) {
  const FamilyNames& names = names_of(m);
  std::vector<ParamPieces> all;
  Pieces out(all);
  const std::string top = names.prefix;
  const auto norm = [&](const std::string& own, const std::string& other, std::int64_t width,
                        bool bias) {
    out.begin(own + ".weight");
    out.vector(other + ".weight", width);
    if (!bias) return;
    out.begin(own + ".bias");
    out.vector(other + ".bias", width);
  };
  out.begin("tok.weight");
  out.matrix(str(top, names.embedding, ".weight"), m.vocab, m.hidden);
  if (m.positions > 0) {
    out.begin("pos.weight");
    out.matrix(str(top, names.positions, ".weight"), m.positions, m.hidden);
  }
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = str("blocks.", i, "."), theirs = str(top, names.layers, i, ".");
    // `rows` has the outputs of each part of the linear, which one tensor holds, or one each.
    const auto linear = [&](const std::string& own, const std::vector<std::string>& others,
                            const std::vector<std::int64_t>& rows, std::int64_t from, bool bias) {
      std::int64_t sum = 0;
      for (const std::int64_t each : rows) sum += each;
      const auto rows_in = [&](std::size_t tensor) {
        return others.size() == 1 ? sum : rows[tensor];
      };
      out.begin(str(ours, own, ".weight"));
      for (std::size_t t = 0; t < others.size(); ++t) {
        const std::string name = str(theirs, others[t], ".weight");
        names.transposed ? out.transposed(name, rows_in(t), from)
                         : out.matrix(name, rows_in(t), from);
      }
      if (!bias) return;
      out.begin(str(ours, own, ".bias"));
      for (std::size_t t = 0; t < others.size(); ++t) {
        out.vector(str(theirs, others[t], ".bias"), rows_in(t));
      }
    };
    // The two linears of an MLP; the names of the first are after `prefix`.
    const auto mlp = [&](const std::string& own, const std::string& prefix,
                         const std::vector<const char*>& fc, const char* proj2,
                         std::int64_t width) {
      std::vector<std::string> all_fc;
      for (const char* const name : fc) all_fc.push_back(prefix + name);
      linear(own + "fc", all_fc, std::vector<std::int64_t>(m.swiglu ? 2 : 1, width), m.hidden,
             m.biases.mlp);
      linear(own + "proj2", {prefix + proj2}, {m.hidden}, width, m.biases.mlp);
    };
    const auto expert_layer = [&] {
      const Experts& has = m.experts;
      const bool stacked = experts == ExpertTensors::stacked;
      out.begin(ours + "experts.router.weight");
      out.matrix(str(theirs, stacked ? kStackedRouter : names.router, ".weight"), has.count,
                 m.hidden);
      if (has.selection_bias) {
        out.begin(ours + "experts.selection_bias");
        out.vector(theirs + names.selection_bias, has.count);
      }
      for (std::int64_t expert = 0; expert < has.count; ++expert) {
        const std::string own = str("experts.", expert, ".");
        if (!stacked) {
          mlp(own, str(names.experts, expert, "."), names.expert_fc, names.expert_proj2, has.width);
          continue;
        }
        out.begin(str(ours, own, "fc.weight"));
        out.stacked(theirs + kStackedFc, has.count, expert, 2 * has.width, m.hidden);
        out.begin(str(ours, own, "proj2.weight"));
        out.stacked(theirs + kStackedProj2, has.count, expert, m.hidden, has.width);
      }
      if (has.shared_width > 0) {
        mlp("experts.shared.", "", names.shared_fc, names.shared_proj2, has.shared_width);
      }
      if (has.shared_gate) linear("experts.shared_gate", {names.shared_gate}, {1}, m.hidden, false);
    };
    norm(ours + "norm1", theirs + names.norm1, m.hidden, m.biases.norm);
    linear("qkv", {names.qkv.begin(), names.qkv.end()}, {m.q_width(), m.kv_width(), m.kv_width()},
           m.hidden, m.biases.qkv);
    if (m.qk_norm) {
      norm(ours + "q_norm", theirs + names.q_norm, m.head_dim(), false);
      norm(ours + "k_norm", theirs + names.k_norm, m.head_dim(), false);
    }
    linear("proj", {names.proj}, {m.hidden}, m.q_width(), m.biases.out);
    if (m.post_norms) norm(ours + "post_norm1", theirs + names.post_norm1, m.hidden, false);
    norm(ours + "norm2", theirs + names.norm2, m.hidden, m.biases.norm);
    if (m.has_experts(i)) {
      expert_layer();
    } else {
      mlp("", "", names.fc, names.proj2, m.ffn);
    }
    if (m.post_norms) norm(ours + "post_norm2", theirs + names.post_norm2, m.hidden, false);
  }
  norm("norm", top + names.norm, m.hidden, m.biases.norm);
  if (!m.tied) {
    out.begin("head.weight");
    out.matrix("lm_head.weight", m.vocab, m.hidden);
  }
  return all;
}

bool is_model_buffer(std::string_view param) { return param.ends_with(".selection_bias"); }

const char* state_of(std::string_view param) { return is_model_buffer(param) ? "buffer" : "param"; }

bool is_stacked(std::string_view tensor) {
  return tensor.ends_with(kStackedFc) || tensor.ends_with(kStackedProj2);
}

bool is_buffer(const ModelShape& shape, std::string_view tensor) {
  if (shape.rotary()) return tensor.ends_with(".rotary_emb.inv_freq");
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
}

}  // namespace tessera::huggingface
