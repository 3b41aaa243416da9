#include "tessera/huggingface/merge.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/errors.h"
#include "tessera/core/fingerprint.h"
#include "tessera/core/half.h"
#include "tessera/core/index.h"
#include "tessera/core/lora.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/param_pieces.h"
#include "tessera/huggingface/shape_json.h"

namespace tessera::huggingface {
namespace {

std::int64_t first_row(const ModelShape& shape, const Adapter& adapter) {
  if (adapter.part <= 0) return 0;
  if (adapter.linear == "fc") return shape.ffn;
  return shape.q_width() + (adapter.part == 2 ? shape.kv_width() : 0);
}

// Returns true if two shapes are the same model; names, context lengths and settings of training do
// not count.
bool same_model(ModelShape a, ModelShape b) {
  for (ModelShape* const each : {&a, &b}) {
    each->name.clear();
    each->context = 0;
    each->init_range = 0;
    each->lora = {};
    Experts& experts = each->experts;
    experts.balance_loss = experts.z_loss = experts.jitter = experts.bias_rate = 0;
    experts.capacity = 0;
    if (each->expert_layers() == each->layers) each->ffn = 1;  // no layer has this MLP
  }
  return shape_json(a) == shape_json(b);
}

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 22;

void refuse_other(const std::string& path) {
  throw UsageError(str(path, " has a different model than the adapters belong to"));
}

}  // namespace

MergedModel::Read open_base(const std::string& path, const ModelShape& shape) {
  if (has_config(path)) {
    const auto folder = std::make_shared<Folder>(path);
    if (!same_model(folder->shape(), shape)) refuse_other(path);
    return [folder](const std::string& param, const std::vector<Run>& runs, float* into) {
      folder->read(param, runs, DType::f32, reinterpret_cast<std::byte*>(into));
    };
  }
  std::string found = path;
  if (!checkpoint::local_files()->exists(path + "/" + checkpoint::kManifestName)) {
    found = checkpoint::find_latest(path).folder;
  }
  if (found.empty()) {
    throw UsageError(
        str(quote(path), " is neither a Hugging Face folder (config.json) nor a checkpoint"));
  }
  const auto from = std::make_shared<checkpoint::Checkpoint>(found);
  if (!same_model(parse_shape(from->about().model, found), shape)) refuse_other(path);
  return [from](const std::string& param, const std::vector<Run>& runs, float* into) {
    from->load(
        {{param, state_of(param), DType::f32, runs, reinterpret_cast<std::byte*>(into), {}}});
  };
}

void CheckedBase::read(const std::string& param, const std::vector<Run>& runs, float* into) {
  base_(param, runs, into);
  if (is_model_buffer(param)) return;  // not frozen
  std::vector<std::uint16_t> bits;
  for (const Run& run : runs) {
    bits.resize(as_size(run.count));
    for (std::int64_t i = 0; i < run.count; ++i) nth(bits, i) = to_bf16(into[run.local + i]);
    sum_ += fingerprint_of(bits.data(), run.count, stream_of(param), run.whole);
  }
}

bool can_tell(const std::string& fingerprint) {
  return !fingerprint.empty() && fingerprint[0] != kFingerprintOfHalf;
}

void CheckedBase::check(const std::string& path, const std::string& flag) const {
  if (!can_tell(wanted_) || wanted_ == hex(sum_)) return;
  throw UsageError(str(flag, ": ", path, " is not the model that the adapters were trained on, ",
                       "although its shape is the same: its fingerprint is ", hex(sum_),
                       ", expected ", wanted_));
}

void check_base(const std::string& path, const ModelShape& shape, const std::string& fingerprint,
                const std::string& flag) {
  if (!can_tell(fingerprint)) return;
  CheckedBase base(open_base(path, shape), fingerprint);
  std::vector<float> values;
  for (const ParamPieces& param : pieces_of(shape)) {
    const std::int64_t all = checkpoint::elements_of(param.shape);
    for (std::int64_t at = 0; at < all; at += kElementsAtOnce) {
      const std::int64_t count = std::min(kElementsAtOnce, all - at);
      values.resize(as_size(count));
      base.read(param.param, {{at, 0, count}}, values.data());
    }
  }
  base.check(path, flag);
}

MergedModel::MergedModel(const ModelShape& shape, Read base, Read adapters)
    : shape_(shape), base_(std::move(base)), adapters_(std::move(adapters)) {}

void MergedModel::load_adapters(const std::string& param) {
  if (param == added_for_) return;
  added_for_ = param;
  added_.clear();
  constexpr std::string_view kBlocks = "blocks.", kWeight = ".weight";
  if (!param.starts_with(kBlocks) || !param.ends_with(kWeight)) return;
  const std::size_t dot = param.find('.', kBlocks.size());
  const std::string block = param.substr(0, dot);
  const std::string linear =
      param.substr(dot + 1, param.size() - kWeight.size() - std::min(dot + 1, param.size()));
  for (const Adapter& adapter : adapters_of(shape_)) {
    if (adapter.linear != linear) continue;
    const std::int64_t rank = shape_.lora.rank;
    const AdapterSpecs specs = specs_of(adapter, rank, block);
    Added& added = added_.emplace_back();
    added.first = first_row(shape_, adapter);
    added.rows = adapter.out;
    added.columns = adapter.in;
    added.a.resize(as_size(rank * adapter.in));
    added.b.resize(as_size(rank * adapter.out));
    adapters_(specs.a.name, {{0, 0, rank * adapter.in}}, added.a.data());
    adapters_(specs.b.name, {{0, 0, rank * adapter.out}}, added.b.data());
  }
}

void MergedModel::read(const std::string& param, const std::vector<Run>& runs, float* into) {
  base_(param, runs, into);
  load_adapters(param);
  const auto scale = static_cast<float>(shape_.lora.scale());
  const std::int64_t rank = shape_.lora.rank;
  for (const Added& added : added_) {
    for (const Run& run : runs) {
      for (std::int64_t done = 0; done < run.count;) {
        const std::int64_t at = run.whole + done, row = at / added.columns;
        const std::int64_t column = at % added.columns;
        const std::int64_t count = std::min(run.count - done, added.columns - column);
        float* const to = into + run.local + done;
        done += count;
        if (row < added.first || row >= added.first + added.rows) continue;
        for (std::int64_t k = 0; k < rank; ++k) {
          const float factor = scale * nth(added.b, (row - added.first) * rank + k);
          const float* const a = added.a.data() + k * added.columns + column;
          for (std::int64_t i = 0; i < count; ++i) to[i] += factor * a[i];
        }
      }
    }
  }
}

}  // namespace tessera::huggingface
