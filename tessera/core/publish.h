#pragma once

#include <string>
#include <string_view>

namespace tessera {

// [Note: publishing] A result appears whole or not at all: it is written to a draft beside its
// place, synced, and renamed. A rename would put a file in the place of a device or a pipe, so only
// regular files (and names where nothing is yet) are replaced so; what else can be written to is
// written to directly. Links are followed: what they lead to is replaced, and the link stays.
struct PublishTarget {
  std::string path;     // where the bytes go, after all links
  bool direct = false;  // a device, a pipe, a terminal: cannot be replaced
};
// Throws UsageError for a folder, and for what cannot be looked at.
PublishTarget publish_target(const std::string& path);

// Writes `text` so. A draft that cannot be finished is removed, and what was at `path` stays.
// Throws DataError with the path, the bytes, the system's reason and what to do. A pipe that nobody
// reads is an error, not a wait.
void publish(const std::string& path, std::string_view text);

// What publish() leaves when it is killed is its draft: the name of the file that it was to become,
// or "" where `draft` is not named like one.
std::string_view published_by(std::string_view draft);

// Throws UsageError, with `flag` in front, if publish() cannot write there. Tries to make a draft,
// and leaves nothing behind.
void check_publishable(const std::string& path, std::string_view flag);

// "; free some space, or …" for an error of the system that one can do something about, else "".
std::string advice_on(int error);

}  // namespace tessera
