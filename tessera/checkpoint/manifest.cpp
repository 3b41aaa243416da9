#include "tessera/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const ParamSpec& spec) {
  OrderedJson out = {{"name", spec.name}, {"shape", spec.shape}};
  for (const ParamSpec::Cut& cut : spec.cuts) {
    OrderedJson one = {{"axis", axis_name(cut.axis)}, {"dim", cut.dim}};
    for (const ParamSpec::Segment& s : cut.segments) one["segments"].push_back({s.length, s.parts});
    out["cuts"].push_back(std::move(one));
  }
  return out;
}

OrderedJson json_of(const std::vector<ParamSpec>& params) {
  OrderedJson out = OrderedJson::array();
  for (const ParamSpec& spec : params) out.push_back(json_of(spec));
  return out;
}

OrderedJson json_of(const std::map<std::string, std::string>& extra) {
  OrderedJson out = OrderedJson::object();
  for (const auto& [key, value] : extra) {
    try {
      OrderedJson{key, value}.dump();
    } catch (const OrderedJson::exception&) {
      throw UsageError(str("extra ", quote(key),
                           " is not UTF-8 text; encode its bytes, for example in hexadecimal"));
    }
    out[key] = value;
  }
  return out;
}

OrderedJson json_of(const StoredFile& file) {
  OrderedJson tensors = OrderedJson::array();
  for (const StoredTensor& tensor : file.tensors) {
    OrderedJson elements = OrderedJson::array();
    for (const StridedRun& s : tensor.strided_runs) {
      elements.push_back(s.times == 1 ? OrderedJson{s.whole, s.count}
                                      : OrderedJson{s.whole, s.count, s.times, s.stride});
    }
    tensors.push_back({{"name", tensor.name},
                       {"param", tensor.param},
                       {"state", tensor.state},
                       {"dtype", stored_name(tensor.dtype)},
                       {"elements", std::move(elements)},
                       {"crc32c", to_hex(tensor.checksums)}});
  }
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_crc32c", to_hex({file.header_checksum})},
          {"tensors", std::move(tensors)}};
}

template <typename F>
std::string json_text(F&& f) {
  try {
    return f();
  } catch (const OrderedJson::exception& error) {
    throw UsageError(str("the manifest cannot be written as JSON: ", error.what(),
                         "; names must be UTF-8, and the model must be a JSON object"));
  }
}

}  // namespace

std::int64_t StoredTensor::elements() const {
  std::int64_t count = 0;
  for (const StridedRun& run : strided_runs) count += run.count * run.times;
  return count;
}

std::int64_t run_count(const StoredTensor& tensor) {
  std::int64_t count = 0;
  for (const StridedRun& run : tensor.strided_runs) count += run.times;
  return count;
}

std::string to_text(const ShardFileTable& table) {
  return json_text([&] {
    return OrderedJson{{"params", json_of(table.params)},
                       {"extra", json_of(table.extra)},
                       {"file", json_of(table.file)}}
        .dump();
  });
}

void check_counts(const Description& about) {
  for (const auto& [name, count] :
       {std::pair{"step", about.step}, std::pair{"samples", about.samples}}) {
    if (count < 0 || count > kMaxCount) {
      throw UsageError(str(name, ": got ", count, "; must be 0 to ", kMaxCount));
    }
  }
}

std::string to_text(const Manifest& manifest) {
  check_counts(manifest.about);
  const std::string body = json_text([&] {
    const Description& about = manifest.about;
    const OrderedJson model = OrderedJson::parse(about.model);
    if (!model.is_object()) throw UsageError("the description of the model is not a JSON object");
    OrderedJson root = {{"format", kFormat},
                        {"version", kVersion},
                        {"step", about.step},
                        {"samples", about.samples},
                        {"seed", about.seed},
                        {"mesh", axes_json<OrderedJson>(about.mesh)},
                        {"stage", about.stage},
                        {"layout", about.layout},
                        {"model", model},
                        {"extra", json_of(about.extra)},
                        {"block_bytes", kBlockBytes},
                        {"params", json_of(about.params)}};
    OrderedJson& files = root["files"] = OrderedJson::array();
    for (const StoredFile& file : manifest.files) files.push_back(json_of(file));
    // Readable format: one line for each key, and for each parameter and file.
    std::string text;
    for (auto item = root.begin(); item != root.end(); ++item) {
      text += (text.empty() ? "" : ",\n") + OrderedJson(item.key()).dump() + ": ";
      if (!item.value().is_array()) {
        text += item.value().dump();
        continue;
      }
      text += "[";
      for (std::size_t i = 0; i < item.value().size(); ++i) {
        text += (i == 0 ? "\n" : ",\n") + item.value()[i].dump();
      }
      text += "]";
    }
    return text + "}\n";
  });
  return str(kChecksumBefore, to_hex({crc32c(body)}), kChecksumAfter, body);
}

std::string describe(const std::vector<Run>& runs) {
  if (runs.empty()) return "nothing";
  std::string text = str("elements ", runs[0].whole, " to ", runs[0].whole + runs[0].count - 1);
  if (runs.size() > 1) text += str(" and ", runs.size() - 1, " more runs");
  return text;
}

void check_complete(const Manifest& manifest, const std::string& where) {
  std::map<std::string, std::map<std::string, std::vector<const StoredTensor*>>> stored;
  for (const StoredFile& file : manifest.files) {
    for (const StoredTensor& tensor : file.tensors) {
      stored[tensor.param][tensor.state].push_back(&tensor);
    }
  }
  for (const ParamSpec& spec : manifest.about.params) {
    const std::int64_t elements = elements_of(spec.shape);
    const auto found = stored.find(spec.name);
    if (found == stored.end()) {
      if (elements == 0) continue;
      throw DataError(str(where, ": no rank has any element of parameter ", quote(spec.name)));
    }
    for (const auto& [state, tensors] : found->second) {
      std::int64_t run_total = 0;
      for (const StoredTensor* tensor : tensors) run_total += run_count(*tensor);
      if (run_total > kMaxRuns) {
        throw DataError(str(where, ": parameter ", quote(spec.name), ", state ", quote(state),
                            " is cut into ", run_total, " runs; must be at most ", kMaxRuns));
      }
      std::vector<Run> runs;
      for (const StoredTensor* tensor : tensors) {
        const std::vector<Run> more = to_runs(tensor->strided_runs);
        runs.insert(runs.end(), more.begin(), more.end());
      }
      const std::vector<Run> gaps = uncovered(std::move(runs), elements);
      if (!gaps.empty()) {
        throw DataError(str(where, ": no rank has ", describe(gaps), " of the ", elements,
                            " of parameter ", quote(spec.name), ", state ", quote(state)));
      }
    }
  }
}

}  // namespace tessera::checkpoint
