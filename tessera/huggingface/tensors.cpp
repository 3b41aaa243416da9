#include "tessera/huggingface/tensors.h"

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

void add_gpt2(const ModelShape& m, std::vector<ParamPieces>& all) {
  Pieces out(all);
  const std::string top = prefix_of(m);
  out.begin("tok.weight");
  out.matrix(top + "wte.weight", m.vocab, m.hidden);
  out.begin("pos.weight");
  out.matrix(top + "wpe.weight", m.positions, m.hidden);
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = str("blocks.", i, "."), theirs = str(top, "h.", i, ".");
    const auto norm = [&](const char* own, const char* other) {
      for (const char* const part : {".weight", ".bias"}) {
        out.begin(ours + own + part);
        out.vector(theirs + other + part, m.hidden);
      }
    };
    const auto linear = [&](const char* own, const char* other, std::int64_t to,
                            std::int64_t from) {
      out.begin(str(ours, own, ".weight"));
      out.transposed(str(theirs, other, ".weight"), to, from);
      out.begin(str(ours, own, ".bias"));
      out.vector(str(theirs, other, ".bias"), to);
    };
    norm("norm1", "ln_1");
    linear("qkv", "attn.c_attn", 3 * m.hidden, m.hidden);
    linear("proj", "attn.c_proj", m.hidden, m.hidden);
    norm("norm2", "ln_2");
    linear("fc", "mlp.c_fc", m.ffn, m.hidden);
    linear("proj2", "mlp.c_proj", m.hidden, m.ffn);
  }
  for (const char* const part : {".weight", ".bias"}) {
    out.begin(str("norm", part));
    out.vector(str(top, "ln_f", part), m.hidden);
  }
}

void add_llama(const ModelShape& m, std::vector<ParamPieces>& all) {
  Pieces out(all);
  const std::string top = prefix_of(m);
  struct Rows {
    const char* name;
    std::int64_t count;
  };
  out.begin("tok.weight");
  out.matrix(top + "embed_tokens.weight", m.vocab, m.hidden);
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string ours = str("blocks.", i, "."), theirs = str(top, "layers.", i, ".");
    const auto linear = [&](const char* own, const std::vector<Rows>& others, std::int64_t from,
                            bool bias) {
      out.begin(str(ours, own, ".weight"));
      for (const Rows& each : others) {
        out.matrix(str(theirs, each.name, ".weight"), each.count, from);
      }
      if (!bias) return;
      out.begin(str(ours, own, ".bias"));
      for (const Rows& each : others) out.vector(str(theirs, each.name, ".bias"), each.count);
    };
    out.begin(ours + "norm1.weight");
    out.vector(theirs + "input_layernorm.weight", m.hidden);
    linear("qkv",
           {{"self_attn.q_proj", m.q_width()},
            {"self_attn.k_proj", m.kv_width()},
            {"self_attn.v_proj", m.kv_width()}},
           m.hidden, m.biases.qkv);
    linear("proj", {{"self_attn.o_proj", m.hidden}}, m.q_width(), m.biases.out);
    out.begin(ours + "norm2.weight");
    out.vector(theirs + "post_attention_layernorm.weight", m.hidden);
    linear("fc", {{"mlp.gate_proj", m.ffn}, {"mlp.up_proj", m.ffn}}, m.hidden, m.biases.mlp);
    linear("proj2", {{"mlp.down_proj", m.hidden}}, m.ffn, m.biases.mlp);
  }
  out.begin("norm.weight");
  out.vector(top + "norm.weight", m.hidden);
}

}  // namespace

std::string prefix_of(const ModelShape& shape) {
  return shape.rotary() ? "model." : "transformer.";
}

std::vector<ParamPieces> pieces_of(const ModelShape& shape) {
  std::vector<ParamPieces> all;
  if (shape.rotary()) {
    add_llama(shape, all);
  } else {
    add_gpt2(shape, all);
  }
  if (!shape.tied) {
    Pieces out(all);
    out.begin("head.weight");
    out.matrix("lm_head.weight", shape.vocab, shape.hidden);
  }
  return all;
}

bool is_buffer(const ModelShape& shape, std::string_view tensor) {
  if (shape.rotary()) return tensor.ends_with(".rotary_emb.inv_freq");
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
}

}  // namespace tessera::huggingface
