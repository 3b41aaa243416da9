// Descriptions of an engine: Engine::buckets() and Engine::describe().

#include <algorithm>
#include <iterator>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/zero/engine_impl.h"

namespace tessera::zero {

std::vector<BucketInfo> Engine::buckets() const {
  std::vector<BucketInfo> result;
  for (const Bucket& bucket : impl_->plan.buckets) {
    BucketInfo& info = result.emplace_back();
    info.bytes = bucket.bytes;
    info.element_bytes = static_cast<std::int64_t>(
        c10::elementSize(impl_->plan.space_of(bucket.range).travel_dtype));
    // Gradients are ready in reverse declaration order.
    for (auto at = bucket.range.params.rbegin(); at != bucket.range.params.rend(); ++at) {
      info.params.push_back(impl_->plan.params[static_cast<std::size_t>(*at)].name);
    }
  }
  return result;
}

namespace {

// Lists the parameters that are not stored in the layout's type: those of a 16-bit or fp64 module,
// and those exempted by ParamPolicy::keep_fp32.
std::string exceptions_to(const StateLayout& layout, const Plan& plan) {
  const at::ScalarType usual =
      layout.param == 4 ? at::kFloat : (layout.fp16() ? at::kHalf : at::kBFloat16);
  std::string text;
  for (const Space& space : plan.spaces) {
    if (space.dtype == usual) continue;
    text += str(text.empty() ? " (" : ", ", plural(std::ssize(space.params), "parameter"), " in ",
                c10::toString(space.dtype),
                space.trainable && space.master ? " with an fp32 master copy" : "");
  }
  return text.empty() ? text : text + ")";
}

}  // namespace

std::string Engine::describe() const {
  const Plan& plan = impl_->plan;
  std::int64_t elements = 0;
  std::int64_t frozen = 0;
  for (const Param& param : plan.params) {
    elements += param.numel;
    if (param.bucket < 0) frozen += param.numel;
  }
  std::int64_t largest = 0;
  for (const Bucket& bucket : plan.buckets) largest = std::max(largest, bucket.bytes);
  std::string text =
      str("stage ", impl_->options.stage, ", layout ", impl_->options.layout.name,
          exceptions_to(impl_->options.layout, plan), ": ",
          plural(std::ssize(plan.params), "parameter"), " (", format_count(elements), " elements",
          frozen > 0 ? str(", ", format_count(frozen), " frozen") : std::string(), ") in ",
          plural(std::ssize(plan.units) - 1, "unit"), " and ",
          plural(std::ssize(plan.buckets), "bucket"), " of ", format_bytes(largest),
          " at most over ", plural(impl_->groups.shard.size(), "rank"),
          impl_->groups.hybrid() ? str(" in each of ", impl_->groups.replicate.size(), " replicas")
                                 : std::string());
  if (plan.units.size() > 1) return text;
  if (impl_->options.stage == 3) {
    text +=
        ". No units are declared, so the whole model is gathered at once and the peak memory of "
        "stage 3 is that of stage 2. Hold its blocks in nn::Unit<Block>, or put them into a "
        "Sequential";
  } else if (impl_->options.stage > 0) {
    text +=
        ". No units are declared, so forward waits for all parameters instead of those of one "
        "block. Hold its blocks in nn::Unit<Block>, or put them into a Sequential";
  }
  return text;
}

}  // namespace tessera::zero
