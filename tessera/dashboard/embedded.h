#pragma once

#include <cstddef>

namespace tessera::dashboard {

// The page's files, gzipped, in the source that cmake/embed_pages.py makes.
struct EmbeddedFile {
  const char* path;
  const unsigned char* bytes;
  std::size_t size;
};
extern const EmbeddedFile kEmbeddedFiles[];
extern const std::size_t kEmbeddedCount;

}  // namespace tessera::dashboard
