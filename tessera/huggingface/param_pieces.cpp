#include "tessera/huggingface/param_pieces.h"

#include "tessera/core/text.h"
#include "tessera/huggingface/families.h"

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
  return expert_family(shape);
}

const FamilyNames& names_of(const ModelShape& shape) {
  return format_of(naming_family(shape)).names;
}

// Lists the parameters of a model with their tensors.
class ParamList {
 public:
  ParamList(const ModelShape& model, ExpertTensors experts)
      : m_(model), names_(names_of(model)), stacked_(experts == ExpertTensors::stacked) {}

  std::vector<ParamPieces> list() {
    const std::string top = names_.prefix;
    out_.begin("tok.weight");
    out_.matrix(str(top, names_.embedding, ".weight"), m_.vocab, m_.hidden);
    if (m_.positions > 0) {
      out_.begin("pos.weight");
      out_.matrix(str(top, names_.positions, ".weight"), m_.positions, m_.hidden);
    }
    for (std::int64_t i = 0; i < m_.layers; ++i) {
      ours_ = str("blocks.", i, ".");
      theirs_ = str(top, names_.layers, i, ".");
      block(m_.has_experts(i));
    }
    ours_.clear();
    theirs_ = top;
    norm("norm", names_.norm, m_.hidden, m_.biases.norm);
    if (!m_.tied) {
      out_.begin("head.weight");
      out_.matrix("lm_head.weight", m_.vocab, m_.hidden);
    }
    return std::move(all_);
  }

 private:
  void norm(const char* own, const char* other, std::int64_t width, bool bias) {
    out_.begin(str(ours_, own, ".weight"));
    out_.vector(str(theirs_, other, ".weight"), width);
    if (!bias) return;
    out_.begin(str(ours_, own, ".bias"));
    out_.vector(str(theirs_, other, ".bias"), width);
  }

  // `rows` has the outputs of each part of the linear, which one tensor holds, or one each.
  void linear(const std::string& own, const std::vector<std::string>& others,
              const std::vector<std::int64_t>& rows, std::int64_t from, bool bias) {
    std::int64_t sum = 0;
    for (const std::int64_t each : rows) sum += each;
    const auto rows_in = [&](std::size_t tensor) {
      return others.size() == 1 ? sum : rows[tensor];
    };
    out_.begin(str(ours_, own, ".weight"));
    for (std::size_t t = 0; t < others.size(); ++t) {
      const std::string name = str(theirs_, others[t], ".weight");
      names_.transposed ? out_.transposed(name, rows_in(t), from)
                        : out_.matrix(name, rows_in(t), from);
    }
    if (!bias) return;
    out_.begin(str(ours_, own, ".bias"));
    for (std::size_t t = 0; t < others.size(); ++t) {
      out_.vector(str(theirs_, others[t], ".bias"), rows_in(t));
    }
  }

  // The two linears of an MLP; the names of the first are after `prefix`.
  void mlp(const std::string& own, const std::string& prefix, const std::vector<const char*>& fc,
           const char* proj2, std::int64_t width) {
    std::vector<std::string> all_fc;
    for (const char* const name : fc) all_fc.push_back(prefix + name);
    linear(own + "fc", all_fc, std::vector<std::int64_t>(m_.swiglu ? 2 : 1, width), m_.hidden,
           m_.biases.mlp);
    linear(own + "proj2", {prefix + proj2}, {m_.hidden}, width, m_.biases.mlp);
  }

  void experts() {
    const Experts& has = m_.experts;
    out_.begin(ours_ + "experts.router.weight");
    out_.matrix(str(theirs_, stacked_ ? kStackedRouter : names_.router, ".weight"), has.count,
                m_.hidden);
    if (has.selection_bias) {
      out_.begin(ours_ + "experts.selection_bias");
      out_.vector(theirs_ + names_.selection_bias, has.count);
    }
    for (std::int64_t expert = 0; expert < has.count; ++expert) {
      const std::string own = str("experts.", expert, ".");
      if (!stacked_) {
        mlp(own, str(names_.experts, expert, "."), names_.expert_fc, names_.expert_proj2,
            has.width);
        continue;
      }
      out_.begin(str(ours_, own, "fc.weight"));
      out_.stacked(theirs_ + kStackedFc, has.count, expert, 2 * has.width, m_.hidden);
      out_.begin(str(ours_, own, "proj2.weight"));
      out_.stacked(theirs_ + kStackedProj2, has.count, expert, m_.hidden, has.width);
    }
    if (has.shared_width > 0) {
      mlp("experts.shared.", "", names_.shared_fc, names_.shared_proj2, has.shared_width);
    }
    if (has.shared_gate) linear("experts.shared_gate", {names_.shared_gate}, {1}, m_.hidden, false);
  }

  void block(bool with_experts) {
    norm("norm1", names_.norm1, m_.hidden, m_.biases.norm);
    linear("qkv", {names_.qkv.begin(), names_.qkv.end()},
           {m_.q_width(), m_.kv_width(), m_.kv_width()}, m_.hidden, m_.biases.qkv);
    if (m_.qk_norm) {
      norm("q_norm", names_.q_norm, m_.head_dim(), false);
      norm("k_norm", names_.k_norm, m_.head_dim(), false);
    }
    linear("proj", {names_.proj}, {m_.hidden}, m_.q_width(), m_.biases.out);
    if (m_.post_norms) norm("post_norm1", names_.post_norm1, m_.hidden, false);
    norm("norm2", names_.norm2, m_.hidden, m_.biases.norm);
    with_experts ? experts() : mlp("", "", names_.fc, names_.proj2, m_.ffn);
    if (m_.post_norms) norm("post_norm2", names_.post_norm2, m_.hidden, false);
  }

  const ModelShape& m_;
  const FamilyNames& names_;
  const bool stacked_;
  std::string ours_, theirs_;  // prefixes of the layer
  std::vector<ParamPieces> all_;
  Pieces out_{all_};
};

}  // namespace

std::string prefix_of(const ModelShape& shape) { return names_of(shape).prefix; }

std::vector<ParamPieces> pieces_of(const ModelShape& m, ExpertTensors experts) {
  return ParamList(m, experts).list();
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
