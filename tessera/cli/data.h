#pragma once

#include <string>

#include "tessera/data/prepare.h"

namespace tessera::cli {

// Subcommands of `tessera data`. Each returns the exit status.
int prepare_data(const data::PrepareOptions& options, bool json);
int inspect_data(const std::string& path, int samples, bool json);
int verify_data(const std::string& path, std::int64_t vocab, bool json);

}  // namespace tessera::cli
