#include "tessera/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/manifest_json.h"
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
                           " is no UTF-8 text, as a manifest holds it; write its bytes in another "
                           "way, in hexadecimal for instance"));
    }
    out[key] = value;
  }
  return out;
}

OrderedJson json_of(const StoredFile& file) {
  OrderedJson tensors = OrderedJson::array();
  for (const StoredTensor& tensor : file.tensors) {
    OrderedJson stripes = OrderedJson::array();
    for (const Stripe& s : tensor.stripes) {
      stripes.push_back(s.times == 1 ? OrderedJson{s.whole, s.count}
                                     : OrderedJson{s.whole, s.count, s.times, s.stride});
    }
    tensors.push_back({{"name", tensor.name},
                       {"param", tensor.param},
                       {"state", tensor.state},
                       {"dtype", stored_name(tensor.dtype)},
                       {"elements", std::move(stripes)},
                       {"crc32c", to_hex(tensor.checksums)}});
  }
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_crc32c", to_hex({file.header_checksum})},
          {"tensors", std::move(tensors)}};
}

template <typename F>
std::string written(F&& f) {
  try {
    return f();
  } catch (const OrderedJson::exception& error) {
    throw UsageError(str("the checkpoint cannot be described in JSON: ", error.what(),
                         "; names must be UTF-8, and the model a JSON object"));
  }
}

}  // namespace

std::int64_t StoredTensor::elements() const {
  std::int64_t count = 0;
  for (const Stripe& stripe : stripes) count += stripe.count * stripe.times;
  return count;
}

std::int64_t stretches_of(const StoredTensor& tensor) {
  std::int64_t count = 0;
  for (const Stripe& stripe : tensor.stripes) count += stripe.times;
  return count;
}

std::string to_text(const ShardFileTable& table) {
  return written([&] {
    return OrderedJson{{"params", json_of(table.params)},
                       {"extra", json_of(table.extra)},
                       {"file", json_of(table.file)}}
        .dump();
  });
}

void check_counts(const Description& about) {
  for (const auto& [name, count] :
       {std::pair{"step", about.step}, std::pair{"samples", about.samples}}) {
    if (count < 0 || count > kMostCount) {
      throw UsageError(
          str(name, ": got ", count, ", wanted 0 to ", kMostCount, ", as checkpoints can hold it"));
    }
  }
}

std::string to_text(const Manifest& manifest) {
  check_counts(manifest.about);
  const std::string body = written([&] {
    const Description& about = manifest.about;
    const OrderedJson model = OrderedJson::parse(about.model);
    if (!model.is_object()) throw UsageError("the model's description is no JSON object");
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
    // A line each for what people look for, and for each parameter, file and tensor.
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
  if (runs.size() > 1) text += str(" and ", runs.size() - 1, " more stretches");
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
      throw DataError(str(where, ": no rank has anything of parameter ", quote(spec.name)));
    }
    for (const auto& [state, tensors] : found->second) {
      std::int64_t stretches = 0;
      for (const StoredTensor* tensor : tensors) stretches += stretches_of(*tensor);
      if (stretches > kMostRuns) {
        throw DataError(str(where, ": parameter ", quote(spec.name), ", state ", quote(state),
                            " is cut into ", stretches, " stretches, wanted at most ", kMostRuns));
      }
      std::vector<Run> runs;
      for (const StoredTensor* tensor : tensors) {
        const std::vector<Run> more = to_runs(tensor->stripes);
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
