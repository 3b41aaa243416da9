// Rows of [Note: run fields] on data parallelism, and on the format and place of its state.
#include <algorithm>
#include <cmath>

#include "tessera/core/text.h"
#include "tessera/planner/field_rows.h"

namespace tessera::planner {
namespace {

std::vector<std::string> layout_names() {
  std::vector<std::string> names;
  for (const StateLayout& layout : state_layouts()) names.push_back(layout.name);
  return names;
}

}  // namespace

void add_sharding(Table& t) {
  t.add("zero", &RunConfig::zero,
        "ZeRO stage: 0 shards nothing (DDP), 1 optimizer state, 2 and gradients, 3 and parameters")
      .range(0, 3)
      .bounded_in_plans()
      .type("STAGE")
      .plan("0");
  t.add("layout", &RunConfig::layout,
        "types of parameters, gradients, optimizer state: bf16, bf16-fp32grad, bf16-nomaster, "
        "fp16 (GPUs), fp32; a plan counts bytes such as 2,6,12 too")
      .words(layout_names())
      .type("NAME")
      .free_in_plans()
      .plan("bf16, or fp16 where the hardware has no bf16");
  t.add(
       "optimizer-state", &RunConfig::optimizer_state,
       "format of AdamW's moments: fp32; bf16, rounded stochastically; int8, the same in blocks of "
       "16 with one exponent")
      .plan("fp32");
  t.add("offload", &RunConfig::offload,
        "state in files instead of memory, on the CPU: optimizer, its master copies and moments")
      .type("KINDS")
      .plan("none");
  t.add("offload-dir", &RunConfig::offload_dir, "folder for those files, on a fast local disk")
      .type("DIR")
      .train();
  t.add("grad-reduce", &RunConfig::grad_reduce,
        "reduce each micro-batch or the last; auto: last for stages 0, 1")
      .or_auto()
      .plan("auto");
  t.add("grad-compression", &RunConfig::grad_compression,
        "how fp32 gradients travel: as they are, or rounded to bf16 or fp16")
      .plan("none");
  t.add("bucket-size", &RunConfig::bucket_bytes,
        "bytes of gradient that travel together, such as 25MB; 0: by the model")
      .size()
      .plan("by the model");
  t.add_text(
       "bucket-mb",
       [](RunConfig& s, const Field& field, std::string_view text) {
         double megabytes = 0;
         parse_value(field, text, Command::train, megabytes);
         // Files of earlier versions have both names, and 0 for the one that was not given.
         if (megabytes == 0) return;
         s.bucket_bytes = std::max<std::int64_t>(1, std::llround(megabytes * 1e6));
       },
       [](const RunConfig& s) { return number_text(static_cast<double>(s.bucket_bytes) / 1e6); },
       "--bucket-size in 10^6 bytes")
      .range(0, 1e5)
      .alias_of_previous()
      .plan("by the model");
  t.add("overlap-grad-reduce", &RunConfig::overlap_grad_reduce,
        "reduce gradients while backward goes on")
      .plan("true");
  t.add("overlap-param-gather", &RunConfig::overlap_param_gather,
        "stages 1, 2: gather parameters while the next forward goes on")
      .plan("true");
  t.add("prefetch", &RunConfig::prefetch, "stage 3: gather one unit ahead").plan("true");
  t.add("keep-params", &RunConfig::keep_params,
        "stage 3: keep parameters between forward and backward")
      .plan("false");
  t.add("gather", &RunConfig::gather,
        "stage 3: parameters shared by the ranks of a host, or copied")
      .or_auto()
      .plan("cpu: alias, else copy");
}

}  // namespace tessera::planner
