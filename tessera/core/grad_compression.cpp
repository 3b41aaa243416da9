#include "tessera/core/grad_compression.h"

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {

const std::vector<std::string>& grad_compression_names() {
  static const std::vector<std::string> names = {"none", "bf16", "fp16", "powersgd"};
  return names;
}

std::string_view name(GradCompression compression) {
  return grad_compression_names()[static_cast<std::size_t>(compression)];
}

GradCompression parse_grad_compression(std::string_view text) {
  const std::vector<std::string>& names = grad_compression_names();
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    throw UsageError(str("gradient compression: got ", quote(std::string(text)),
                         "; must be none, bf16, fp16 or powersgd"));
  }
  return static_cast<GradCompression>(found - names.begin());
}

}  // namespace tessera
