#pragma once

// Checkpoints that somebody made to do harm: every number too large, every part of the wrong kind,
// links, pipes, files that are not as long as they say. All have right checksums, so that what is
// behind those is reached.

#include <functional>
#include <string>
#include <vector>

namespace tessera::checkpoint {

struct Hostile {
  std::string name;
  // Whether a reader must refuse it. Otherwise it may be harmless (another layout's name, say):
  // then it may be read or refused.
  bool refused = true;
  std::function<void(const std::string& folder)> spoil;  // a good checkpoint, given its folder
  bool large = false;  // only for processes with a limit on their memory
};

std::vector<Hostile> hostile_checkpoints();

// Of a manifest without its first line: with that line, and the right checksum in it.
std::string sealed(const std::string& body);
std::string manifest_body(const std::string& folder);
void write_manifest(const std::string& folder, const std::string& text);

}  // namespace tessera::checkpoint
