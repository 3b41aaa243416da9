#include "tessera/cli/checkpoint_export.h"

#include <optional>

#include "tessera/checkpoint/reshard.h"
#include "tessera/cli/checkpoint_verify.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/peft.h"

namespace tessera::cli {
namespace {

std::optional<DType> export_dtype(const std::string& text) {
  if (text.empty()) return std::nullopt;
  try {
    return parse_dtype(text);
  } catch (const UsageError& error) {
    throw UsageError(str("--dtype: ", error.what()));
  }
}

int export_file(const ExportArguments& arguments) {
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
  return write_all(1, str(arguments.to, ": ", from.about().params.size(), " tensors of step ",
                          from.about().step, ", ", format_bytes(written), "\n"))
             ? 0
             : 1;
}

int export_huggingface(const ExportArguments& arguments) {
  if (!arguments.state.empty()) {
    throw UsageError(
        "--state: a Hugging Face folder has the parameters; wanted --format safetensors");
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
  huggingface::WrittenFolder written;
  {
    MegabyteBar bar("exporting", from.bytes());
    options.told = bar.function();
    written = huggingface::export_folder(from, arguments.to, options);
  }
  const std::string beside = written.companions.empty()
                                 ? "no files of a tokenizer (--tokenizer DIR adds them)"
                                 : join(written.companions, ", ");
  return write_all(
             1, str(arguments.to, ": step ", from.about().step, ", ", format_bytes(written.bytes),
                    " in ", plural(written.files, "file"), "; ", beside, "\n"))
             ? 0
             : 1;
}

int export_peft(const ExportArguments& arguments) {
  if (!arguments.state.empty() || !arguments.tokenizer.empty()) {
    throw UsageError("--format peft: got --state or --tokenizer, and it has adapters alone");
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
  return write_all(1, str(arguments.to, ": step ", from.about().step, ", ",
                          plural(written.tensors, "tensor"), " of adapters, ",
                          format_bytes(written.bytes), "\n"))
             ? 0
             : 1;
}

}  // namespace

int export_checkpoint(const ExportArguments& arguments) {
  if (arguments.format == "peft") return export_peft(arguments);
  return arguments.format == "huggingface" ? export_huggingface(arguments) : export_file(arguments);
}

}  // namespace tessera::cli
