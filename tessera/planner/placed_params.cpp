#include "tessera/planner/placed_params.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tessera/core/shard.h"
#include "tessera/planner/layer_program.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/run.h"

namespace tessera::planner {
namespace {

// Element counts on this rank of the parameters of a program, in the order of declaration.
struct SizedParam {
  std::int64_t elements = 0;
  bool down = false;
  bool frozen = false;
  bool of_expert = false;
};
std::vector<SizedParam> sized_params(const RunConfig& q, const Program& program, bool adapters,
                                     const ModelPart& part) {
  std::vector<SizedParam> all;
  const bool frozen = q.model.lora.any();
  each_param(program, [&](const Operation& op, const Param& param, std::int64_t expert) {
    if ((op.adapter >= 0) != adapters || (param.tied && part.embedding)) return;
    all.push_back({param.elements_on_rank(program.axes.size(Axis::tp)),
                   std::string_view(param.name).ends_with("proj2.weight"), frozen && !adapters,
                   expert >= 0});
  });
  // With several second matrices, backward computes the gradient of the last one first.
  bool found = false;
  for (std::size_t i = all.size(); i-- > 0;) {
    all[i].down = all[i].down && !found;
    found = found || all[i].down;
  }
  return all;
}

// Returns the peak bytes gathered by stage 3: the parameters outside blocks, which stay during a
// pass, the current block and the next; or all parameters with --keep-params.
std::int64_t gathered(const RunConfig& q, const Coordinate& at, const std::vector<Placed>& params) {
  std::int64_t most = 0, all = 0;
  const std::vector<ModelPart> parts = parts_on_rank(q, at);
  for (std::size_t c = 0; c < parts.size(); ++c) {
    std::int64_t outside = 0, block = 0, before = 0, layer = -1, widest = 0;
    for (const Placed& param : params) {
      if (param.model_chunk != static_cast<int>(c)) continue;
      all += param.padded;
      if (param.layer < 0) {
        outside += param.padded;
        continue;
      }
      if (param.layer != layer) before = std::exchange(block, 0), layer = param.layer;
      block += param.padded;
      widest = std::max(widest, block + (q.prefetch ? before : 0));
    }
    most = std::max(most, outside + widest);
  }
  return (q.keep_params ? all : most) * q.layout.param;
}

}  // namespace

std::vector<Placed> placed_params(const RunConfig& q, const Coordinate& at,
                                  const Programs& programs) {
  std::vector<Placed> all;
  const int shards_of[] = {q.shards(), q.expert_shards()};  // outside experts, and of experts
  int model_chunk = 0;
  for (const ModelPart& part : parts_on_rank(q, at)) {
    const auto place = [&](const Program& program, bool adapters, std::vector<Placed>& to) {
      for (const SizedParam& param : sized_params(q, program, adapters, part)) {
        const int shards = shards_of[param.of_expert ? 1 : 0];
        to.push_back({shard_size(param.elements, shards) * shards, model_chunk, -1, shards,
                      param.down, param.frozen});
      }
    };
    if (part.embedding) place(programs.embedding, false, all);
    if (part.head) place(programs.head, false, all);
    const Program* last = nullptr;
    std::vector<Placed> block;
    for (std::int64_t layer = part.first_layer; layer < part.last_layer; ++layer) {
      const Program& program = programs.of_layer(q.model, layer);
      if (&program != last) {
        block.clear();
        place(program, false, block);
        if (q.model.lora.any()) place(program, true, block);
        last = &program;
      }
      for (Placed& param : block) param.layer = layer;
      all.insert(all.end(), block.begin(), block.end());
    }
    ++model_chunk;
  }
  return all;
}

double bucket_limit(const RunConfig& q, const std::vector<Placed>& params) {
  if (q.bucket_bytes > 0) return q.bucket_bytes;
  std::int64_t elements = 0;
  const int shards = q.shards();
  for (const Placed& param : params) {
    elements += param.frozen || param.shards != shards ? 0 : param.padded;
  }
  return static_cast<double>(default_bucket_bytes(elements * q.travel()));
}

std::int64_t gathered_buffers(const RunConfig& q, const Coordinate& at,
                              const std::vector<Placed>& params) {
  const bool copies = sharding_of_stage(q.zero).params && q.gather != Gather::alias;
  return copies ? gathered(q, at, params) : 0;
}

}  // namespace tessera::planner
