#pragma once

// Malicious checkpoints: numbers that are too large, values of the wrong kind, links, pipes, files
// with wrong sizes. All have correct checksums, so that the checks after those are tested.

#include <functional>
#include <string>
#include <vector>

namespace tessera::checkpoint {

struct Hostile {
  std::string name;
  // True if a reader must reject it. Otherwise it may be harmless (such as the name of another
  // layout) and may be accepted or rejected.
  bool refused = true;
  std::function<void(const std::string& folder)> spoil;  // changes a good checkpoint in this folder
  bool large = false;                                    // only for processes with a memory limit
};

std::vector<Hostile> hostile_checkpoints();

// Adds the first line, with the correct checksum, to the rest of a manifest.
std::string sealed(const std::string& body);
std::string manifest_body(const std::string& folder);
void write_manifest(const std::string& folder, const std::string& text);

}  // namespace tessera::checkpoint
