#pragma once

#include <cstdint>
#include <string>

namespace tessera::cli {

// Subcommands of `tessera data` on finished tokens. Each returns the exit status.
int inspect_data(const std::string& path, int samples, bool json);
int verify_data(const std::string& path, std::int64_t vocab, bool json);

}  // namespace tessera::cli
