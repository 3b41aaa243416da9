#include "tessera/cli/checkpoint_export.h"

#include <array>
#include <optional>

#include "tessera/checkpoint/reshard.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/cli/checkpoint_verify.h"
#include "tessera/cli/commands.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/data/token_data.h"
#include "tessera/data/tokenizer.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/peft.h"

namespace tessera::cli {
namespace {

constexpr std::array kExportDTypes = {DType::f32, DType::bf16, DType::f16};

std::optional<DType> export_dtype(const std::string& text) {
  if (text.empty() || text == "auto") return std::nullopt;
  try {
    return parse_dtype(text, kExportDTypes);
  } catch (const UsageError& error) {
    throw UsageError(str("--dtype: ", error.what()));
  }
}

// Returns true if the model was trained on bytes, so that there is no tokenizer.json.
bool read_as_bytes(const checkpoint::Checkpoint& from) {
  const auto& extra = from.about().extra;
  const auto tokenizer = extra.find("tokenizer"), data = extra.find("data");
  if (tokenizer != extra.end() && !tokenizer->second.empty()) {
    return tokenizer->second == data::byte_tokenizer()->fingerprint();
  }
  return data != extra.end() && kind_of_file(data->second) == "a regular file" &&
         !data::is_token_data(data->second);
}

// Sets the begin and end tokens from the tokenizer that is exported with the model.
void name_end_tokens(const checkpoint::Checkpoint& from, huggingface::FolderOptions& options) {
  const std::string folder =
      options.tokenizer.empty() ? huggingface::companions_of(from.folder()) : options.tokenizer;
  if (folder.empty() || kind_of_file(folder + "/tokenizer.json") != "a regular file") return;
  try {
    const auto tokenizer = data::load_tokenizer(folder);
    options.end_token = tokenizer->end_of_text();
    options.begin_token = tokenizer->begin_of_text();
    const std::vector<data::TokenId> before = tokenizer->before_text();
    if (!options.begin_token && before.size() == 1) options.begin_token = before.front();
  } catch (const Error&) {
    // The tokenizer files are copied even if they cannot be parsed here.
  }
}

// Throws UsageError if `path` is a file other than safetensors. An earlier export may be replaced;
// another kind of file suggests a mistyped name.
void refuse_other_file(const std::string& path) {
  if (kind_of_file(path) != "a regular file") return;
  const auto file = checkpoint::local_files()->open(path);
  if (file->size() == 0) return;
  try {
    checkpoint::read_header(*file, path);
  } catch (const DataError&) {
    throw UsageError(str(quote(path),
                         " exists and is not a safetensors file. Use another name, or remove "
                         "it first."));
  }
}

int export_file(const ExportArguments& arguments) {
  refuse_other_file(arguments.to);
  checkpoint::Checkpoint from = open_checkpoint(arguments.from);
  checkpoint::ExportOptions options;
  options.state = arguments.state;
  options.dtype = export_dtype(arguments.dtype);
  std::int64_t written = 0;
  {
    MegabyteBar bar("exporting", from.bytes());
    options.told = bar.function();
    written = checkpoint::export_model(from, arguments.to, options);
  }
  return print_out(str(arguments.to, ": ", from.about().params.size(), " tensors of step ",
                       from.about().step, ", ", format_bytes(written), "\n"));
}

int export_huggingface(const ExportArguments& arguments) {
  if (!arguments.state.empty()) {
    throw UsageError(
        "--state: a Hugging Face folder holds only parameters; use --format safetensors");
  }
  huggingface::FolderOptions options;
  options.dtype = export_dtype(arguments.dtype);
  options.tokenizer = arguments.tokenizer;
  options.base = arguments.base;
  try {
    options.shard_bytes = parse_bytes(arguments.shard_size);
  } catch (const UsageError& error) {
    throw UsageError(str("--shard-size: ", error.what()));
  }
  checkpoint::Checkpoint from = open_checkpoint(arguments.from);
  name_end_tokens(from, options);
  huggingface::WrittenFolder written;
  {
    MegabyteBar bar("exporting", from.bytes());
    options.told = bar.function();
    written = huggingface::export_folder(from, arguments.to, options);
  }
  const std::string beside = !written.companions.empty() ? join(written.companions, ", ")
                             : read_as_bytes(from)
                                 ? "trained on bytes: tessera generate needs --tokenizer bytes"
                                 : "no tokenizer files (--tokenizer DIR adds them)";
  return print_out(str(arguments.to, ": step ", from.about().step, ", ",
                       format_bytes(written.bytes), " in ", plural(written.files, "file"), "; ",
                       beside, "\n"));
}

int export_peft(const ExportArguments& arguments) {
  if (!arguments.state.empty() || !arguments.tokenizer.empty()) {
    throw UsageError("--format peft: exports only adapters; omit --state and --tokenizer");
  }
  huggingface::AdapterOptions options;
  options.dtype = export_dtype(arguments.dtype).value_or(DType::f32);
  checkpoint::Checkpoint from = open_checkpoint(arguments.from);
  options.base = arguments.base;
  if (const auto start = from.about().extra.find("init_from");
      options.base.empty() && start != from.about().extra.end()) {
    options.base = start->second;
  }
  const huggingface::WrittenAdapter written =
      huggingface::export_adapter(from, arguments.to, options);
  return print_out(str(arguments.to, ": step ", from.about().step, ", ",
                       plural(written.tensors, "tensor"), " of adapters, ",
                       format_bytes(written.bytes), "\n"));
}

}  // namespace

int export_checkpoint(const ExportArguments& arguments) {
  if (arguments.format == "peft") return export_peft(arguments);
  return arguments.format == "huggingface" ? export_huggingface(arguments) : export_file(arguments);
}

}  // namespace tessera::cli
