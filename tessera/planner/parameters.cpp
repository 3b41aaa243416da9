#include "tessera/planner/parameters.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/planner/layer_program.h"

namespace tessera::planner {
namespace {

// `expert`: number in the model; -1: not of an expert.
ParamSpec spec_of(const Param& param, const std::string& block, int tp, std::int64_t expert) {
  ParamSpec spec;
  spec.name = expert < 0 ? block + param.name : str(block, "experts.", expert, ".", param.name);
  spec.of_expert = expert >= 0;
  spec.shape = {param.rows};
  if (param.columns > 0) spec.shape.push_back(param.columns);
  if (tp == 1 || param.cut < 0) return spec;
  spec.cuts = {{Axis::tp, param.cut}};
  if (param.segments.count > 1) {
    spec.cuts.front().segments.assign(param.segments.begin(), param.segments.end());
  }
  return spec;
}

std::string block_name(std::int64_t layer) { return str("blocks.", layer); }

}  // namespace

std::vector<ParamSpec> model_params(const ModelShape& shape, int tp, const ModelPart& part,
                                    const ExpertRank& experts) {
  ProgramInput in;
  in.model = shape;
  in.model.lora = {};
  in.axes = {{Axis::tp, tp}, {Axis::ep, experts.ranks}};
  in.ep_rank = experts.rank;
  std::vector<ParamSpec> all;
  const auto add = [&](const Program& program, const std::string& block) {
    each_param(program, [&](const Operation&, const Param& param, std::int64_t expert) {
      if (param.tied && part.embedding) return;
      const std::int64_t number = expert < 0 ? -1 : program.first_expert + expert;
      all.push_back(spec_of(param, block, tp, number));
    });
  };
  const Programs programs = all_programs(in);
  if (part.embedding) add(programs.embedding, "");
  for (std::int64_t i = part.first_layer; i < part.last_layer; ++i) {
    add(programs.of_layer(shape, i), block_name(i) + ".");
  }
  if (part.head) add(programs.head, "");
  return all;
}

std::vector<ParamSpec> adapter_params(const ModelShape& shape, const ModelPart& part) {
  std::vector<ParamSpec> all;
  const std::vector<Adapter> adapters = adapters_of(shape);
  for (std::int64_t layer = part.first_layer; layer < part.last_layer; ++layer) {
    for (const Adapter& adapter : adapters) {
      const AdapterSpecs specs = specs_of(adapter, shape.lora.rank, block_name(layer));
      all.push_back(specs.a);
      all.push_back(specs.b);
    }
  }
  return all;
}

std::vector<ParamSpec> trained_params(const ModelShape& shape, int tp, const ModelPart& part,
                                      const ExpertRank& experts) {
  return shape.lora.any() ? adapter_params(shape, part) : model_params(shape, tp, part, experts);
}

std::vector<int> layers_of_stages(const ModelShape& shape, int stages, const std::string& split) {
  const int layers = static_cast<int>(shape.layers);
  std::vector<int> counts;
  const auto evenly = [&](int count, int among) {
    for (int s = 0; s < among; ++s) counts.push_back(count / among + (s < count % among ? 1 : 0));
  };
  if (split == "even" || layers < stages || (split == "work" && stages == 1)) {
    evenly(layers, stages);
    return counts;
  }
  if (split == "work") {
    // All layers cost about the same, so the number on the last stage determines the split.
    const auto layer = static_cast<double>(shape.expert_layers() > 0 ? shape.active_layer_params()
                                                                     : shape.layer_params());
    const double head = static_cast<double>(shape.vocab) * static_cast<double>(shape.hidden);
    int best = 1;
    double least = std::numeric_limits<double>::infinity();
    for (int last = 1; last <= layers - stages + 1; ++last) {
      const int most = (layers - last + stages - 2) / (stages - 1);  // of the other stages
      const double worst = std::max(most * layer, last * layer + head);
      if (worst <= least) least = worst, best = last;
    }
    evenly(layers - best, stages - 1);
    counts.push_back(best);
    return counts;
  }
  std::int64_t sum = 0;
  bool good = true;
  for (std::size_t begin = 0; begin <= split.size();) {
    const std::size_t end = std::min(split.find(',', begin), split.size());
    int count = 0;
    const auto [rest, error] = std::from_chars(split.data() + begin, split.data() + end, count);
    good = good && error == std::errc() && rest == split.data() + end && count > 0;
    counts.push_back(count);
    sum += count;
    begin = end + 1;
  }
  if (!good || sum != layers || static_cast<int>(counts.size()) != stages) {
    throw UsageError(
        str("--split ", quote(split), ": must be even, work, or the layers of ", stages,
            stages == 1 ? " stage" : " stages", ", at least one each and ", layers, " in all"),
        "split");
  }
  return counts;
}

ModelPart part_of_stage(const std::vector<int>& layers_of_stages, int stage) {
  const bool last = stage + 1 == static_cast<int>(layers_of_stages.size());
  ModelPart part{0, 0, stage == 0, last};
  for (int s = 0; s <= stage; ++s) {
    part.first_layer = part.last_layer;
    part.last_layer += layers_of_stages[static_cast<std::size_t>(s)];
  }
  return part;
}

std::vector<ParamSpec> model_params(const ModelShape& shape, int tp) {
  return model_params(shape, tp, {0, shape.layers, true, true});
}

}  // namespace tessera::planner
