#include "tessera/huggingface/export.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/fingerprint.h"
#include "tessera/core/index.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/merge.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/publish_folder.h"
#include "tessera/huggingface/shape_json.h"

namespace tessera::huggingface {
namespace {

using checkpoint::bytes_of;
using checkpoint::Checkpoint;
using checkpoint::Outgoing;
using checkpoint::Rounding;

constexpr std::int64_t kMaxBytesCopied = std::int64_t{512} << 20;

const char* torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

// Reads one tensor of the folder from the checkpoint.
class PieceSource {
 public:
  // Loads elements of a parameter, converted to `dtype`, into `into`.
  using Load = std::function<void(const std::string& param, std::int64_t begin, std::int64_t count,
                                  DType dtype, std::byte* into)>;
  PieceSource(Load load, std::string param, const Piece& piece, std::int64_t width, DType dtype,
              checkpoint::BytesDone done)
      : load_(std::move(load)),
        param_(std::move(param)),
        dtype_(dtype),
        piece_(piece),
        width_(width),
        done_(std::move(done)) {}

  const std::byte* operator()(std::int64_t offset, std::int64_t bytes, std::byte* staging) {
    done_(bytes);
    const std::int64_t size = bytes_of(dtype_);
    if (!piece_.transposed) {
      load(piece_.row * width_ + offset / size, bytes / size, staging);
      return staging;
    }
    // Only one transposed tensor is in memory at a time: a linear of GPT-2, a few megabytes.
    if (offset == 0) fill();
    const std::byte* const at = transposed_.data() + offset;
    if (offset + bytes < static_cast<std::int64_t>(transposed_.size())) return at;
    std::memcpy(staging, at, as_size(bytes));
    transposed_ = {};
    return staging;
  }

 private:
  void load(std::int64_t begin, std::int64_t count, std::byte* into) {
    load_(param_, begin, count, dtype_, into);
  }
  void fill() {
    const std::int64_t size = bytes_of(dtype_), rows = piece_.rows;
    std::vector<std::byte> plain(as_size(rows * width_ * size));
    load(piece_.row * width_, rows * width_, plain.data());
    transposed_.resize(plain.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < width_; ++column) {
        std::memcpy(transposed_.data() + (column * rows + row) * size,
                    plain.data() + (row * width_ + column) * size, as_size(size));
      }
    }
  }

  const Load load_;
  const std::string param_;
  const DType dtype_;
  const Piece piece_;
  const std::int64_t width_;
  const checkpoint::BytesDone done_;
  std::vector<std::byte> transposed_;
};

// Throws unless the checkpoint has exactly the model's parameters.
void check_params(const Checkpoint& from, const std::vector<ParamPieces>& params) {
  std::vector<std::string> problems;
  std::set<std::string> known;
  for (const ParamPieces& param : params) {
    known.insert(param.param);
    const ParamSpec* const spec = from.find(param.param);
    if (spec == nullptr) {
      problems.push_back("missing " + param.param);
    } else if (spec->shape != param.shape) {
      problems.push_back(param.param + " has a different shape");
    } else if (const char* const state = state_of(param.param);
               !from.states(param.param).contains(state)) {
      problems.push_back(str(param.param, " has no state ", quote(state)));
    }
  }
  for (const ParamSpec& spec : from.about().params) {
    if (!known.contains(spec.name)) problems.push_back("extra " + visible(spec.name));
  }
  if (problems.empty()) return;
  cut_list(problems, 40);
  throw UsageError(
      str(from.folder(), ": the parameters do not match the model: ", join(problems, ", ")));
}

// Returns the model's original config.json if it still describes the model, since it has more
// fields than the shape (special token ids); otherwise one generated from the shape.
std::string config_text(const ModelShape& shape, const std::string& companions, DType dtype,
                        const FolderOptions& options) {
  auto made = nlohmann::ordered_json::parse(config_json(shape, torch_name(dtype)));
  if (options.begin_token) made["bos_token_id"] = *options.begin_token;
  if (options.end_token) made["eos_token_id"] = *options.end_token;
  const std::string fresh = made.dump(2) + "\n";
  const std::string path = companions + "/" + kConfigName;
  if (companions.empty() || !has_config(companions)) return fresh;
  const std::string text = read_small_file(path, kMaxBytesCopied);
  try {
    ModelShape was = parse_config(text, path).shape, is = parse_config(fresh, path).shape;
    was.tied = is.tied;  // may differ from the tensors: see Folder::shape()
    was.init_range = is.init_range;
    if (shape_json(was) != shape_json(is)) return fresh;
  } catch (const DataError&) {
    return fresh;  // a tokenizer's folder may have a config.json of another kind
  }
  auto kept = nlohmann::ordered_json::parse(text);
  kept.erase("dtype");
  kept["torch_dtype"] = torch_name(dtype);
  kept["tie_word_embeddings"] = shape.tied;
  return kept.dump(2) + "\n";
}

struct FilePlan {
  std::vector<Outgoing> tensors;
  std::int64_t bytes = 0;
};

// Source of the model's parameters.
struct ModelSource {
  PieceSource::Load load;
  std::function<DType(const std::string& param)> dtype;
  std::function<void()> check = [] {};  // called after everything was read; throws if it is invalid
};

ModelSource from_checkpoint(Checkpoint& from) {
  return {[&from](const std::string& param, std::int64_t begin, std::int64_t count, DType dtype,
                  std::byte* into) {
            from.load({{param, state_of(param), dtype, {{begin, 0, count}}, into, {}}},
                      Rounding::nearest);
          },
          [&from](const std::string& param) { return from.states(param).at(state_of(param)); }};
}

// Base model with the adapters of `from` added.
ModelSource merged_source(Checkpoint& from, const ModelShape& shape, const std::string& base) {
  const auto& texts = from.about().extra;
  const auto frozen = texts.find(kFrozenKey);
  auto checked = std::make_shared<CheckedBase>(
      open_base(base, shape), frozen == texts.end() ? std::string() : frozen->second);
  auto merged = std::make_shared<MergedModel>(
      shape,
      [checked](const std::string& param, const std::vector<Run>& runs, float* into) {
        checked->read(param, runs, into);
      },
      [&from](const std::string& param, const std::vector<Run>& runs, float* into) {
        from.load({{param, "param", DType::f32, runs, reinterpret_cast<std::byte*>(into), {}}});
      });
  return {[merged](const std::string& param, std::int64_t begin, std::int64_t count, DType dtype,
                   std::byte* into) {
            std::vector<float> values(as_size(count));
            merged->read(param, {{begin, 0, count}}, values.data());
            checkpoint::convert(DType::f32, reinterpret_cast<const std::byte*>(values.data()),
                                dtype, into, count, Rounding::nearest);
          },
          [](const std::string&) { return DType::f32; }, [checked, base] { checked->check(base); }};
}

std::vector<FilePlan> plan_files(const ModelSource& from, const std::vector<ParamPieces>& params,
                                 const FolderOptions& options) {
  std::vector<FilePlan> plans(1);
  const auto done = [report = options.report,
                     total = std::make_shared<std::int64_t>(0)](std::int64_t bytes) {
    *total += bytes;
    if (report) report(*total);
  };
  for (const ParamPieces& param : params) {
    const DType stored = from.dtype(param.param);
    const DType dtype = is_model_buffer(param.param) ? DType::f32 : options.dtype.value_or(stored);
    if (!checkpoint::convertible(stored, dtype)) {
      throw UsageError(str("parameter ", quote(param.param), " is ",
                           checkpoint::stored_name(stored), ", which cannot be written as ",
                           checkpoint::stored_name(dtype)));
    }
    const std::int64_t width = param.shape.size() > 1 ? param.shape[1] : 1;
    for (const Piece& piece : param.pieces) {
      const std::int64_t bytes = piece.rows * width * bytes_of(dtype);
      if (plans.back().bytes > 0 && plans.back().bytes + bytes > options.shard_bytes) {
        plans.emplace_back();
      }
      Outgoing& out = plans.back().tensors.emplace_back();
      plans.back().bytes += bytes;
      out.entry.name = piece.tensor;
      out.entry.dtype = dtype;
      out.entry.shape = piece.shape;
      out.source = PieceSource(from.load, param.param, piece, width, dtype, done);
    }
  }
  return plans;
}

std::string shard_name(std::size_t i, std::size_t count) {
  if (count == 1) return kModelName;
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", i + 1, count);
  return text;
}

// Returns `path` without trailing slashes. Throws unless it is missing or an empty folder.
std::string target_of(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::string kind = kind_of_file(path);
  if (kind == "nothing") return path;
  if (kind != "a folder")
    throw UsageError(str(path, " is ", kind, "; must be the name of a new folder"));
  if (!checkpoint::local_files()->list(path).empty()) {
    throw UsageError(str(path, " exists and is not empty; must be the name of a new folder"));
  }
  return path;
}

}  // namespace

WrittenFolder export_folder(Checkpoint& from, const std::string& path,
                            const FolderOptions& options) {
  const std::string target = target_of(path);
  if (options.shard_bytes < 1) {
    throw UsageError(Flag("shard-size"),
                     str("got ", options.shard_bytes, "; must be at least 1 byte"));
  }
  if (!options.tokenizer.empty() && kind_of_file(options.tokenizer) != "a folder") {
    throw UsageError(Flag("tokenizer"), str(quote(options.tokenizer), " is ",
                                            kind_of_file(options.tokenizer), "; must be a folder"));
  }
  ModelShape shape = parse_shape(from.about().model, from.folder());
  family_of(shape);  // throws if no family matches
  const std::vector<ParamPieces> params = pieces_of(shape);
  const bool adapted = shape.lora.any();
  if (adapted == options.base.empty()) {
    throw UsageError(
        adapted ? str("--base: ", from.folder(),
                      " has only adapters. Give their base model (a Hugging Face folder or a "
                      "checkpoint), or use --format peft.")
                : str("--base: ", from.folder(),
                      " has no adapters to add to a base model. Omit --base."));
  }
  if (!adapted) check_params(from, params);
  const ModelSource source =
      adapted ? merged_source(from, shape, options.base) : from_checkpoint(from);
  shape.lora = {};
  const std::string companions =
      options.tokenizer.empty() ? companions_of(from.folder()) : options.tokenizer;
  std::vector<FilePlan> plans = plan_files(source, params, options);
  const DType dtype = plans.front().tensors.front().entry.dtype;

  checkpoint::FileSystem& files = *options.files;
  WrittenFolder written;
  publish_folder(files, target, [&](const std::string& draft) {
    nlohmann::ordered_json index;
    index["metadata"]["total_size"] = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const std::string name = shard_name(i, plans.size());
      checkpoint::write_safetensors(files, draft + "/" + name, plans[i].tensors,
                                    {{"format", "pt"}});
      for (const Outgoing& tensor : plans[i].tensors) index["weight_map"][tensor.entry.name] = name;
      written.bytes += plans[i].bytes;
      ++written.files;
    }
    source.check();
    index["metadata"]["total_size"] = written.bytes;
    if (plans.size() > 1) {
      checkpoint::write_text(files, draft + "/" + kIndexName, index.dump(2) + "\n");
    }
    checkpoint::write_text(files, draft + "/" + kConfigName,
                           config_text(shape, companions, dtype, options));
    if (!companions.empty()) {
      for (const std::string& name : companion_names()) {
        if (kind_of_file(companions + "/" + name) != "a regular file") continue;
        checkpoint::write_text(files, draft + "/" + name,
                               checkpoint::read_text(*checkpoint::local_files(),
                                                     file_in(companions, name), kMaxBytesCopied));
        written.companions.push_back(name);
      }
    }
  });
  return written;
}

const std::vector<std::string>& companion_names() {
  static const std::vector<std::string> names = {"generation_config.json",
                                                 "tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "tokenizer.model",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "chat_template.jinja",
                                                 "chat_template.json"};
  return names;
}

void keep_companions(const std::string& from, const std::string& dir) {
  const auto files = checkpoint::local_files();
  files->make_folder(dir);
  const std::string draft = str(dir, "/.tmp-", kCompanionsName),
                    place = str(dir, "/", kCompanionsName),
                    away = str(dir, "/.old-", kCompanionsName);
  for (const std::string& left : {draft, away}) checkpoint::remove_tree(*files, left);
  files->make_folder(draft);
  std::vector<std::string> names = companion_names();
  names.push_back(kConfigName);
  for (const std::string& name : names) {
    if (kind_of_file(from + "/" + name) != "a regular file") continue;
    checkpoint::write_text(*files, draft + "/" + name,
                           checkpoint::read_text(*files, file_in(from, name), kMaxBytesCopied));
  }
  files->sync_folder(draft);
  const std::string old = checkpoint::put_in_place(*files, draft, place, away);
  files->sync_folder(dir);
  if (!old.empty()) checkpoint::remove_tree(*files, old);
}

std::string companions_of(const std::string& checkpoint_folder) {
  const std::string path = checkpoint_folder + "/../" + kCompanionsName;
  return kind_of_file(path) == "a folder" ? path : "";
}

}  // namespace tessera::huggingface
