// Parser of manifests and shard file tables. It checks every number before using it.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/step_folder.h"
#include "tessera/core/errors.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

using ReadJson = nlohmann::json;

// A value of the manifest, with its path for messages.
class Node {
 public:
  Node(const ReadJson& value, std::string path) : value_(value), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& wanted) const {
    std::string got = value_.dump(-1, ' ', true);
    if (got.size() > 60) got = got.substr(0, 57) + "…";
    throw DataError(str(path_, " is ", got, "; must be ", wanted));
  }
  Node at(const std::string& key) const {
    if (!value_.is_object()) refuse("an object");
    const auto found = value_.find(key);
    if (found == value_.end()) throw DataError(str(path_, " has no ", quote(key)));
    return {*found, path_ + "." + key};
  }
  bool has(const std::string& key) const { return value_.is_object() && value_.contains(key); }
  std::vector<Node> list() const {
    if (!value_.is_array()) refuse("a list");
    std::vector<Node> nodes;
    nodes.reserve(value_.size());
    for (std::size_t i = 0; i < value_.size(); ++i) {
      nodes.emplace_back(value_[i], str(path_, "[", i, "]"));
    }
    return nodes;
  }
  const std::string& text() const {
    if (!value_.is_string()) refuse("a string");
    return value_.get_ref<const std::string&>();
  }
  std::int64_t number(std::int64_t least, std::int64_t most) const {
    const bool whole = value_.is_number_integer() &&
                       !(value_.is_number_unsigned() &&
                         value_.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX));
    const std::int64_t got = whole ? value_.get<std::int64_t>() : 0;
    if (!whole || got < least || got > most) {
      refuse(str("a whole number from ", least, " to ", most));
    }
    return got;
  }
  const ReadJson& json() const { return value_; }
  const std::string& path() const { return path_; }

 private:
  const ReadJson& value_;
  std::string path_;
};

constexpr std::int64_t kMost = kMaxCount;
// Printing a value in a message uses stack for every level.
constexpr int kMaxDepth = 100;

// Throws DataError for an axis that this program does not have.
Axis read_axis(const std::string& name, const Node& node) {
  if (const Axis* const axis = find_axis(name)) return *axis;
  throw DataError(
      str(node.path(), ": this program has no axis ", quote(name), "; use a newer Tessera"));
}

// Reads the segments of a cut dim of this size.
std::vector<ParamSpec::Segment> read_segments(const Node& node, std::int64_t size) {
  std::vector<ParamSpec::Segment> segments;
  std::int64_t sum = 0;
  for (const Node& segment : node.list()) {
    const std::vector<Node> pair = segment.list();
    if (pair.size() != 2) segment.refuse("[length, parts]");
    segments.push_back({pair[0].number(0, size - sum), pair[1].number(0, kMost)});
    sum += segments.back().length;
  }
  if (!segments.empty() && sum != size) node.refuse(str("lengths that add up to ", size));
  return segments;
}

// Reads the dim of a cut, and its segments if there are any.
ParamSpec::Cut read_cut(Axis axis, const Node& node, const char* dim, const ParamSpec& spec) {
  ParamSpec::Cut cut;
  cut.axis = axis;
  const auto dims = static_cast<std::int64_t>(spec.shape.size());
  cut.dim = static_cast<int>(node.at(dim).number(0, dims - 1));
  if (node.has("segments")) {
    const std::int64_t size = spec.shape[static_cast<std::size_t>(cut.dim)];
    cut.segments = read_segments(node.at("segments"), size);
  }
  return cut;
}

std::vector<ParamSpec::Cut> read_cuts(const Node& node, const ParamSpec& spec) {
  std::vector<ParamSpec::Cut> cuts;
  for (const Node& each : node.list()) {
    const Node name = each.at("axis");
    const Axis axis = read_axis(name.text(), name);
    if (kTokenAxes.contains(axis)) name.refuse("an axis that is not data- or context-parallel");
    const ParamSpec::Cut cut = read_cut(axis, each, "dim", spec);
    for (const ParamSpec::Cut& other : cuts) {
      if (cut.axis == other.axis) name.refuse("unique");
      if (cut.dim == other.dim) each.at("dim").refuse("unique");
    }
    cuts.push_back(cut);
  }
  return cuts;
}

ParamSpec read_spec(const Node& node, std::int64_t version) {
  ParamSpec spec;
  spec.name = node.at("name").text();
  for (const Node& size : node.at("shape").list()) spec.shape.push_back(size.number(0, kMost));
  const std::int64_t elements = elements_of(spec.shape);
  if (elements < 0 || elements > kMost) {
    node.at("shape").refuse(str("at most ", kMost, " elements"));
  }
  if (version == 1) {
    constexpr const char* kDimOfTp = "tp_dim";
    if (node.has(kDimOfTp)) spec.cuts = {read_cut(Axis::tp, node, kDimOfTp, spec)};
  } else if (node.has("cuts")) {
    spec.cuts = read_cuts(node.at("cuts"), spec);
  }
  return spec;
}

std::vector<ParamSpec> read_specs(const Node& node, std::int64_t version) {
  std::vector<ParamSpec> specs;
  std::set<std::string> names;
  std::int64_t elements = 0;
  for (const Node& spec : node.list()) {
    specs.push_back(read_spec(spec, version));
    if (!names.insert(specs.back().name).second) spec.refuse("uniquely named");
    elements += elements_of(specs.back().shape);
    if (elements > kMost) spec.refuse(str("at most ", kMost, " elements in total"));
  }
  return specs;
}

// Returns the index after the last element, or -1 on overflow.
std::int64_t end_of(const StridedRun& run) {
  std::int64_t end = 0;
  if (__builtin_mul_overflow(run.times - 1, run.stride, &end) ||
      __builtin_add_overflow(end, run.whole, &end) ||
      __builtin_add_overflow(end, run.count, &end)) {
    return -1;
  }
  return end;
}

StoredTensor read_tensor(const Node& node, const std::map<std::string, std::int64_t>& elements,
                         std::int64_t data_bytes) {
  StoredTensor tensor;
  tensor.name = node.at("name").text();
  tensor.param = node.at("param").text();
  tensor.state = node.at("state").text();
  const Node dtype = node.at("dtype");
  const auto found_dtype = find_dtype(dtype.text());
  if (!found_dtype) dtype.refuse("a supported dtype");
  tensor.dtype = *found_dtype;
  const auto param = elements.find(tensor.param);
  if (param == elements.end()) node.at("param").refuse("a parameter of the manifest");
  const std::int64_t most = data_bytes / bytes_of(tensor.dtype);
  std::int64_t total = 0, runs = 0;
  for (const Node& item : node.at("elements").list()) {
    const std::vector<Node> numbers = item.list();
    if (numbers.size() != 2 && numbers.size() != 4) item.refuse("[begin, count(, times, stride)]");
    StridedRun run{numbers[0].number(0, kMost), numbers[1].number(1, kMost), 1, 0};
    if (numbers.size() == 4) {
      run.times = numbers[2].number(1, kMost);
      run.stride = numbers[3].number(run.count, kMost);
    }
    const std::int64_t end = end_of(run);
    if (end < 0 || end > param->second) {
      item.refuse(str("elements of a parameter that has ", param->second));
    }
    runs += run.times;  // no overflow: `runs` and `times` are at most 2^53
    if (runs > kMaxRuns) item.refuse(str("at most ", kMaxRuns, " runs of a tensor"));
    // No overflow: the runs do not overlap, so they have at most `end` elements.
    if (run.count * run.times > most - total) {
      item.refuse(str("at most the ", data_bytes, " bytes of data of the file"));
    }
    total += run.count * run.times;
    tensor.strided_runs.push_back(run);
  }
  const Node checksums = node.at("crc32c");
  if (!from_hex(checksums.text(), tensor.checksums) ||
      static_cast<std::int64_t>(tensor.checksums.size()) !=
          block_count(total * bytes_of(tensor.dtype))) {
    checksums.refuse("eight hexadecimal digits for every block");
  }
  return tensor;
}

StoredFile read_file(const Node& node, const std::map<std::string, std::int64_t>& elements) {
  StoredFile file;
  const Node name = node.at("name");
  file.name = name.text();
  // The name is appended to the path of the folder and must stay in it. It is also written to lists
  // with one name per line.
  const auto odd = [](unsigned char c) { return c == '/' || c == '\\' || c < ' ' || c == 127; };
  if (file.name.empty() || file.name[0] == '.' || file.name == kManifestName ||
      std::any_of(file.name.begin(), file.name.end(), odd)) {
    name.refuse("a file name without slashes, leading dots and control characters");
  }
  file.bytes = node.at("bytes").number(kLengthBytes, kMost);
  file.header_bytes = node.at("header_bytes").number(kLengthBytes, file.bytes);
  std::vector<std::uint32_t> checksum;
  if (!from_hex(node.at("header_crc32c").text(), checksum) || checksum.size() != 1) {
    node.at("header_crc32c").refuse("eight hexadecimal digits");
  }
  file.header_checksum = checksum[0];
  std::set<std::string> names;
  for (const Node& tensor : node.at("tensors").list()) {
    file.tensors.push_back(read_tensor(tensor, elements, file.bytes - file.header_bytes));
    if (!names.insert(file.tensors.back().name).second) tensor.refuse("uniquely named");
  }
  return file;
}

std::map<std::string, std::string> read_extra(const Node& node) {
  if (!node.json().is_object()) node.refuse("an object");
  std::map<std::string, std::string> extra;
  for (const auto& item : node.json().items()) extra[item.key()] = node.at(item.key()).text();
  return extra;
}

std::map<std::string, std::int64_t> count_elements(const std::vector<ParamSpec>& params) {
  std::map<std::string, std::int64_t> elements;
  for (const ParamSpec& spec : params) elements[spec.name] = elements_of(spec.shape);
  return elements;
}

}  // namespace

ShardFileTable parse_table(std::string_view text, const std::string& where) {
  const ReadJson json = parse_strictly(text, kMaxDepth, where);
  const Node root(json, where);
  ShardFileTable table;
  table.params = read_specs(root.at("params"), kVersion);
  table.extra = read_extra(root.at("extra"));
  table.file = read_file(root.at("file"), count_elements(table.params));
  return table;
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const std::size_t begin = kChecksumBefore.size() + kChecksumDigits + kChecksumAfter.size();
  std::vector<std::uint32_t> checksum;
  if (text.size() < begin || text.substr(0, kChecksumBefore.size()) != kChecksumBefore ||
      !from_hex(text.substr(kChecksumBefore.size(), kChecksumDigits), checksum) ||
      text.substr(begin - kChecksumAfter.size(), kChecksumAfter.size()) != kChecksumAfter) {
    throw DataError(where + " does not start with its checksum: it is damaged or not a manifest");
  }
  const std::string_view body = text.substr(begin);
  if (crc32c(body) != checksum[0]) {
    throw DataError(str(where, " is damaged: its checksum is ", to_hex({crc32c(body)}),
                        ", expected ", to_hex(checksum)));
  }
  const ReadJson json = parse_strictly(text, kMaxDepth, where);
  const Node root(json, where);
  if (root.at("format").text() != kFormat) root.at("format").refuse(str("\"", kFormat, "\""));
  const std::int64_t version = root.at("version").number(1, kMost);
  if (version > kVersion) {
    throw DataError(str(where, " has version ", version,
                        " of the format, but this program reads versions 1 to ", kVersion,
                        "; use a newer Tessera"));
  }
  Manifest manifest;
  Description& about = manifest.about;
  about.step = root.at("step").number(0, kMost);
  about.samples = root.at("samples").number(0, kMost);
  const ReadJson& seed = root.at("seed").json();
  if (!seed.is_number_unsigned()) root.at("seed").refuse("a whole number from 0 to 2^64 - 1");
  about.seed = seed.get<std::uint64_t>();
  const Node mesh = root.at("mesh");
  if (!mesh.json().is_object() || mesh.json().empty()) {
    mesh.refuse("an object with the sizes of axes, such as {\"dp\": 2, \"tp\": 1, \"pp\": 1}");
  }
  for (const auto& item : mesh.json().items()) {  // a missing axis has one rank
    const Axis axis = read_axis(item.key(), mesh);
    about.mesh.set_given(axis, static_cast<int>(mesh.at(item.key()).number(1, kMaxRanks)));
  }
  if (!about.mesh.replicas_divide()) {
    mesh.refuse("a mesh whose dp_replicate divides dp");
  }
  if (about.mesh.world() > kMaxRanks) mesh.refuse(str("a mesh of at most ", kMaxRanks, " ranks"));
  about.stage = static_cast<int>(root.at("stage").number(0, 3));
  about.layout = root.at("layout").text();
  if (!root.at("model").json().is_object()) root.at("model").refuse("an object");
  about.model = root.at("model").json().dump();
  about.extra = read_extra(root.at("extra"));
  if (root.at("block_bytes").number(1, kMost) != kBlockBytes) {
    root.at("block_bytes").refuse(str(kBlockBytes));
  }
  about.params = read_specs(root.at("params"), version);
  const std::map<std::string, std::int64_t> elements = count_elements(about.params);
  std::set<std::string> names;
  std::int64_t bytes = 0;
  for (const Node& file : root.at("files").list()) {
    manifest.files.push_back(read_file(file, elements));
    bytes += manifest.files.back().bytes;
    if (bytes > kMost) file.at("bytes").refuse(str("at most ", kMost, " bytes in total"));
    if (!names.insert(manifest.files.back().name).second) file.refuse("uniquely named");
  }
  return manifest;
}

}  // namespace tessera::checkpoint
