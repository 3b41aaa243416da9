#pragma once

#include <functional>
#include <set>
#include <string>

namespace tessera::huggingface {

// Fields of a config.json that do not change what the model computes: [Note: fields].
const std::set<std::string, std::less<>>& harmless_fields();

}  // namespace tessera::huggingface
