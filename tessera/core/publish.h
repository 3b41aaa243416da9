#pragma once

#include <string>
#include <string_view>

namespace tessera {

// [Note: publishing] A file appears complete or not at all: it is written to a draft (a temporary
// file in the same folder), synced and renamed. A rename would replace a device or a pipe by a
// file, so only regular files and new names are written this way. Devices and pipes are written to
// directly. Symbolic links are followed: their target is replaced, and the link stays.
struct PublishTarget {
  std::string path;     // path after following all links
  bool direct = false;  // a device, pipe or terminal, which cannot be replaced
};
// Throws UsageError for a folder and for a path that cannot be inspected.
PublishTarget publish_target(const std::string& path);

// Publishes `text` at `path`. On failure it removes the draft, leaves the old file and throws
// DataError with the path, the number of bytes, the system error and what to do. Throws for a pipe
// without a reader instead of waiting.
void publish(const std::string& path, std::string_view text);

// Returns the name of the file that `draft` was to become, or "" if it is not named like a draft.
// publish() leaves a draft behind if the process is killed.
std::string_view published_by(std::string_view draft);

// Throws UsageError that starts with `flag` if publish() cannot write to `path`. Creates a draft to
// test this, and removes it.
void check_publishable(const std::string& path, std::string_view flag);

// Returns advice on an errno for the end of a message ("; free some space, …"), or "".
std::string advice_on(int error);

}  // namespace tessera
