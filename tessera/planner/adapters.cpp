#include "tessera/planner/adapters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "tessera/core/text.h"

namespace tessera::planner {

std::vector<ParamSpec> adapter_params(const ModelShape& shape, const ModelPart& part) {
  std::vector<ParamSpec> all;
  const std::vector<Adapter> adapters = adapters_of(shape);
  for (std::int64_t layer = part.first_layer; layer < part.last_layer; ++layer) {
    for (const Adapter& adapter : adapters) {
      const AdapterSpecs specs = specs_of(adapter, shape.lora.rank, str("blocks.", layer));
      all.push_back(specs.a);
      all.push_back(specs.b);
    }
  }
  return all;
}

std::vector<AdapterOnRank> adapters_on_rank(const ModelShape& shape, int tp) {
  std::vector<AdapterOnRank> all;
  for (const Adapter& adapter : adapters_of(shape)) {
    AdapterOnRank own{};
    own.linear = adapter.linear == "qkv"    ? AdapterOnRank::qkv
                 : adapter.linear == "proj" ? AdapterOnRank::proj
                 : adapter.linear == "fc"   ? AdapterOnRank::fc
                                            : AdapterOnRank::proj2;
    own.in = static_cast<double>(adapter.in);
    own.out = static_cast<double>(adapter.out);
    own.whole = adapter.cut_inputs ? own.out : own.in;
    if (adapter.cut_inputs) {
      own.in /= tp;
    } else {
      own.out = 0;
      for (const ParamSpec::Segment& segment : adapter.segments) {
        const auto length = static_cast<double>(segment.length);
        own.out += length / static_cast<double>(std::min<std::int64_t>(segment.parts, tp));
        if (segment.parts < tp) own.shared += length;
      }
    }
    all.push_back(own);
  }
  return all;
}

double layer_adapters_on_rank(const ModelShape& shape, int tp) {
  double elements = 0;
  for (const AdapterOnRank& own : adapters_on_rank(shape, tp)) {
    elements += static_cast<double>(shape.lora.rank) * (own.in + own.out);
  }
  return elements;
}

BlockFlow::BlockFlow(const ModelShape& shape, bool wanted) : input(wanted) {
  qkv = proj = fc = proj2 = false;
  for (const Adapter& adapter : adapters_of(shape)) {
    (adapter.linear == "qkv"    ? qkv
     : adapter.linear == "proj" ? proj
     : adapter.linear == "fc"   ? fc
                                : proj2) = true;
  }
  attention = input || qkv;
  middle = attention || proj;
  wide = middle || fc;
}

AdapterTraffic adapter_traffic(const TensorParallelQuestion& q, std::int64_t layers) {
  const ModelShape& m = q.model;
  AdapterTraffic sent;
  if (q.tp == 1 || layers == 0) return sent;
  const auto half = [&](double elements) {  // of an all-reduce
    return (q.tp - 1) * std::ceil(elements / q.tp) * q.element;
  };
  const double once = half(static_cast<double>(q.batch) * static_cast<double>(q.seq) *
                           static_cast<double>(m.hidden));
  const bool cut = q.sequence_parallel;
  const auto of_block = [&](const BlockFlow& flow) {
    const double into = cut ? 1 : 2, out_of = cut ? 1 : 0;
    return once * (into * (flow.input + flow.middle) + out_of * (flow.middle + 1));
  };
  sent.activations = static_cast<double>(layers) * of_block(BlockFlow(m, true));
  if (q.embedding) {
    sent.activations += of_block(BlockFlow(m, false)) - of_block(BlockFlow(m, true));
  }
  std::map<std::string, double> whole;  // elements that all ranks have, by linear
  double shared = 0;                    // of kv-heads that several ranks have
  for (const Adapter& adapter : adapters_of(m)) {
    const auto rank = static_cast<double>(m.lora.rank);
    whole[adapter.linear] +=
        rank * static_cast<double>(adapter.cut_inputs ? adapter.out : adapter.in);
    for (const ParamSpec::Segment& segment : adapter.segments) {
      if (segment.parts < q.tp) shared += rank * static_cast<double>(segment.length);
    }
  }
  for (const auto& [linear, elements] : whole) sent.adapters += 2 * half(elements);
  if (shared > 0) sent.adapters += 2 * half(shared);
  sent.adapters *= static_cast<double>(layers);
  return sent;
}

}  // namespace tessera::planner
