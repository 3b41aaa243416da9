#pragma once

#include <unistd.h>

#include <exception>
#include <string>

#include "tessera/checkpoint/file_system.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::huggingface {

// Creates the folder `target` atomically: write(draft) fills a temporary folder next to it, which
// is then renamed. If write() throws, nothing is left behind.
template <typename Write>
void publish_folder(checkpoint::FileSystem& files, const std::string& target, const Write& write) {
  const std::size_t slash = target.rfind('/');
  const std::string above = slash == std::string::npos ? "." : target.substr(0, slash + 1);
  const std::string draft = str(above, "/.tmp-", target.substr(slash + 1), "-", ::getpid());
  checkpoint::remove_tree(files, draft);
  files.make_folder(draft);
  try {
    write(draft);
    files.sync_folder(draft);
    files.rename(draft, target);
    files.sync_folder(above);
  } catch (const std::exception&) {
    try {
      checkpoint::remove_tree(files, draft);
    } catch (const DataError&) {  // the first error is rethrown
    }
    throw;
  }
}

}  // namespace tessera::huggingface
