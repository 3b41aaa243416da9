#include "tessera/planner/adapters.h"

#include <algorithm>
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

}  // namespace tessera::planner
