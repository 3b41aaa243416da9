#include "tessera/huggingface/model_folder.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/index.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"

namespace tessera::huggingface {
namespace {

using checkpoint::stored_name;

constexpr std::int64_t kMaxConfigBytes = std::int64_t{16} << 20;
constexpr std::int64_t kMaxIndexBytes = std::int64_t{256} << 20;
constexpr std::size_t kMaxFiles = 10'000;
constexpr std::size_t kMaxListed = 100;
constexpr std::int64_t kManyExperts = 20'000;  // of all layers
constexpr const char* kHeadName = "lm_head.weight";

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return str("[", join(sizes, ", "), "]");
}

// Returns the path without links and dots, or "" if it does not exist.
std::string real_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> found(::realpath(path.c_str(), nullptr),
                                                          &std::free);
  return found ? std::string(found.get()) : std::string();
}

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

bool read_dtype(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

void check_name(const std::string& name, const std::string& where) {
  const bool plain = !name.empty() && name.size() <= NAME_MAX &&
                     name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
                     name.ends_with(".safetensors") && name.front() != '.';
  if (plain) return;
  throw DataError(str(where, ": the file of a tensor is ", quote(name),
                      "; must be the name of a .safetensors file in the same folder"));
}

}  // namespace

std::string file_in(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  const std::string top = real_path(folder), real = real_path(path);
  if (top.empty()) throw DataError(str(folder, " does not exist"));
  if (real.empty()) throw DataError(str(path, " does not exist"));
  const auto within = [&](const std::string& place) { return real.starts_with(place + "/"); };
  if (within(top)) return real;
  const std::string above = parent(top);
  if (above.ends_with("/snapshots") && within(parent(above) + "/blobs")) return real;
  throw DataError(
      str(path, " is a link to ", real, ", outside of its folder. Copy the file into the folder."));
}

Config read_config(const std::string& folder) {
  const std::string path = folder + "/" + kConfigName;
  const std::string wanted = "the config.json of a model";
  if (!has_config(folder))
    return parse_config(read_small_file(path, kMaxConfigBytes, wanted), path);
  return parse_config(read_small_file(file_in(folder, kConfigName), kMaxConfigBytes, wanted), path);
}

bool has_config(const std::string& path) {
  return kind_of_file(path + "/" + kConfigName) == "a regular file";
}

ModelShape find_model(const std::string& name_or_folder) {
  const std::string kind = kind_of_file(name_or_folder);
  if (has_config(name_or_folder)) return read_config(name_or_folder).shape;
  if (name_or_folder.find('/') != std::string::npos) {
    throw UsageError(str("model ", quote(name_or_folder), " is ",
                         kind == "nothing"    ? "missing"
                         : kind == "a folder" ? "a folder without a config.json"
                                              : kind,
                         "; must be the name of a model or a folder with a config.json"));
  }
  try {
    return find_model_shape(name_or_folder);
  } catch (const UsageError& error) {
    throw UsageError(str(error.what(), ", or a folder with a config.json"));
  }
}

std::map<std::string, std::string> parse_index(std::string_view json, const std::string& where) {
  const nlohmann::json index = parse_strictly(json, 16, where);
  const auto wrong = [&](const std::string& what) {
    throw DataError(str(where, " ", what, "; must have \"weight_map\", the file of each tensor"));
  };
  if (!index.is_object() || !index.contains("weight_map")) wrong("has no \"weight_map\"");
  const nlohmann::json& files = index["weight_map"];
  if (!files.is_object() || files.empty())
    wrong("has a \"weight_map\" that is empty or not an object");
  std::map<std::string, std::string> out;
  for (const auto& [tensor, file] : files.items()) {
    if (!file.is_string()) wrong(str("has no file name for ", quote(tensor)));
    check_name(file.get_ref<const std::string&>(), where);
    out[tensor] = file.get<std::string>();
  }
  return out;
}

Folder::Folder(const std::string& path) : path_(path), config_(read_config(path)) {
  open_files();
  resolve_head();
  check_tensors();
}

void Folder::open(const std::string& name) {
  OpenFile& file = files_.emplace_back();
  file.path = path_ + "/" + name;
  file.file = checkpoint::local_files()->open(file_in(path_, name));
  file.header = checkpoint::read_header(*file.file, file.path);
}

void Folder::open_files() {
  const std::string single = path_ + "/" + kModelName, index = path_ + "/" + kIndexName;
  std::map<std::string, std::string> where;
  if (kind_of_file(single) != "nothing") {
    open(kModelName);
  } else if (kind_of_file(index) != "nothing") {
    where = parse_index(read_small_file(file_in(path_, kIndexName), kMaxIndexBytes), index);
    std::set<std::string> names;
    for (const auto& [tensor, file] : where) names.insert(file);
    if (names.size() > kMaxFiles) {
      throw DataError(str(index, " names ", names.size(), " files; must be at most ", kMaxFiles));
    }
    std::vector<std::string> missing;
    for (const std::string& name : names) {
      if (kind_of_file(path_ + "/" + name) == "nothing") missing.push_back(name);
    }
    if (!missing.empty()) {
      for (std::string& name : missing) name = visible(name);
      cut_list(missing, kMaxListed);
      throw DataError(str(path_, " lacks files that its index names: ", join(missing, ", ")));
    }
    for (const std::string& name : names) open(name);
  } else {
    const bool older = kind_of_file(path_ + "/pytorch_model.bin") != "nothing" ||
                       kind_of_file(path_ + "/pytorch_model.bin.index.json") != "nothing";
    throw DataError(str(path_, " has no ", kModelName, " and no ", kIndexName,
                        older
                            ? "; pytorch_model.bin is not supported. Convert it with "
                              "save_pretrained() of a newer transformers, which writes safetensors."
                            : "; must be a folder written by save_pretrained()"));
  }
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const checkpoint::TensorEntry& entry : files_[i].header.tensors) {
      const auto listed = where.find(entry.name);
      const bool here = where.empty() ||
                        (listed != where.end() && files_[i].path == path_ + "/" + listed->second);
      if (!here) {
        problems.push_back(
            str("  ", files_[i].path, " has ", visible(entry.name), " ", shape_text(entry.shape),
                ", which the index ",
                listed == where.end() ? "does not list" : "assigns to another file"));
      } else {
        tensors_[entry.name] = {&entry, i};
      }
    }
  }
  for (const auto& [tensor, file] : where) {
    if (!tensors_.contains(tensor)) {
      problems.push_back(str("  ", path_, "/", visible(file), " lacks ", visible(tensor)));
    }
  }
  if (!problems.empty()) {
    cut_list(problems, kMaxListed);
    throw DataError(str(index, " does not match its files:\n", join(problems, "\n")));
  }
}

bool Folder::same_values(const TensorPlace& a, const TensorPlace& b) const {
  // Compares bytes if the types are equal, otherwise as fp32, which represents all of them exactly.
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  const bool converts = a.entry->dtype != b.entry->dtype;
  const std::int64_t all = checkpoint::elements_of(a.entry->shape);
  std::vector<std::byte> raw, values[2];
  for (std::int64_t at = 0; at < all; at += kElements) {
    const std::int64_t count = std::min(kElements, all - at);
    for (const bool second : {false, true}) {
      const TensorPlace& place = second ? b : a;
      const std::int64_t size = checkpoint::bytes_of(place.entry->dtype);
      const OpenFile& from = files_[place.file];
      raw.resize(as_size(count * size));
      from.file->read(from.header.data_begin + place.entry->begin + at * size, raw.data(),
                      count * size);
      std::vector<std::byte>& into = values[second ? 1 : 0];
      if (!converts) {
        into.swap(raw);
        continue;
      }
      into.resize(as_size(count) * sizeof(float));
      checkpoint::convert(place.entry->dtype, raw.data(), DType::f32, into.data(), count,
                          checkpoint::Rounding::nearest);
    }
    if (values[0] != values[1]) return false;
  }
  return true;
}

void Folder::resolve_head() {
  ModelShape& shape = config_.shape;
  if (!shape.tied) return;
  const std::string embedding = pieces_of(shape).front().pieces.front().tensor;
  const std::string bare = embedding.substr(prefix_of(shape).size());
  const auto head = tensors_.find(kHeadName);
  auto tokens = tensors_.find(embedding);
  if (tokens == tensors_.end()) tokens = tensors_.find(bare);
  if (head == tensors_.end() || tokens == tensors_.end()) return;
  const std::vector<std::int64_t> wanted = {shape.vocab, shape.hidden};
  for (const auto& each : {head, tokens}) {  // check_tensors() reports any other problem
    if (each->second.entry->shape != wanted || !read_dtype(each->second.entry->dtype)) return;
  }
  if (same_values(head->second, tokens->second)) return;
  shape.tied = false;
  config_.notes.push_back(str(
      path_, "/", kConfigName, " ties the head to the embedding (tie_word_embeddings), but ",
      kHeadName, " and ", tokens->first,
      " both exist and differ. The head is untied, as in transformers. Set tie_word_embeddings to "
      "false in the file."));
}

// A small config.json can ask for many experts, whose list of parameters would need much memory.
void Folder::check_expert_count() const {
  const std::int64_t experts = shape().experts.count, layers = shape().expert_layers();
  double values = 0;
  for (const auto& [name, place] : tensors_) {
    values += static_cast<double>(place.entry->bytes() / size_of(place.entry->dtype));
  }
  const auto params = static_cast<double>(shape().params());
  if (experts * layers <= kManyExperts || params <= 2 * values) return;
  throw DataError(str(path_, ": config.json has ", experts, " experts in each of ",
                      plural(layers, "layer"), ", a model of ", params, " parameters, but the ",
                      "files have only ", values, " values"));
}

void Folder::check_tensors() {
  const std::string prefix = prefix_of(shape());
  // Files of a model saved without its head have no prefix.
  bool prefixed = false;
  for (const auto& [name, place] : tensors_) prefixed = prefixed || name.starts_with(prefix);
  bool stacked = false;
  for (const auto& [name, place] : tensors_) stacked = stacked || is_stacked(name);
  check_expert_count();
  std::set<std::string> used;
  std::vector<std::string> missing, others;
  for (ParamPieces& param :
       pieces_of(shape(), stacked ? ExpertTensors::stacked : ExpertTensors::separate)) {
    for (Piece& piece : param.pieces) {
      if (!prefixed && piece.tensor.starts_with(prefix)) piece.tensor.erase(0, prefix.size());
      auto found = tensors_.find(piece.tensor);
      if (found == tensors_.end() && shape().tied && param.param == "tok.weight") {
        found = tensors_.find(kHeadName);  // the same matrix under its other name
        if (found != tensors_.end()) piece.tensor = kHeadName;
      }
      if (!used.insert(piece.tensor).second) continue;  // reported for the first expert
      if (found == tensors_.end()) {
        missing.push_back(str("  missing ", piece.tensor, " ", shape_text(piece.shape)));
        continue;
      }
      const checkpoint::TensorEntry& entry = *found->second.entry;
      if (entry.shape != piece.shape) {
        others.push_back(str("  ", piece.tensor, " is ", shape_text(entry.shape), ", must be ",
                             shape_text(piece.shape)));
      }
      if (!read_dtype(entry.dtype)) {
        others.push_back(str("  ", piece.tensor, " is ", stored_name(entry.dtype),
                             ", must be F32, BF16 or F16"));
      } else if (bytes_ == 0 ||
                 (size_of(entry.dtype) > size_of(dtype_) && !is_model_buffer(param.param))) {
        dtype_ = entry.dtype;
      }
      bytes_ += entry.bytes();
    }
    const std::string name = param.param;
    params_.emplace(name, std::move(param));
  }
  for (const auto& [name, place] : tensors_) {
    if (used.contains(name) || is_buffer(shape(), name)) continue;
    if (shape().tied && name == kHeadName) {  // a copy of the embedding
      const std::vector<std::int64_t> wanted = {shape().vocab, shape().hidden};
      if (place.entry->shape != wanted) {
        others.push_back(str("  ", name, " is ", shape_text(place.entry->shape), ", must be ",
                             shape_text(wanted)));
      }
      continue;
    }
    others.push_back(str("  extra ", visible(name), " ", shape_text(place.entry->shape), " ",
                         stored_name(place.entry->dtype)));
  }
  if (missing.empty() && others.empty()) return;
  missing.insert(missing.end(), others.begin(), others.end());
  cut_list(missing, kMaxListed);
  throw DataError(str(path_, ": the tensors do not match config.json (", name(config_.shape.family),
                      ", ", plural(shape().layers, "layer"), "):\n", join(missing, "\n")));
}

const std::vector<std::int64_t>& Folder::shape_of(const std::string& param) const {
  const auto found = params_.find(param);
  if (found == params_.end()) {
    throw UsageError(str(path_, " has no parameter ", quote(param)));
  }
  return found->second.shape;
}

}  // namespace tessera::huggingface
