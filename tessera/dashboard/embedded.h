#pragma once

#include <cstddef>

namespace tessera::dashboard {

// Gzipped file of the page, in the source that cmake/embed_pages.py generates.
struct EmbeddedFile {
  const char* path;
  const unsigned char* bytes;
  std::size_t size;
};
extern const EmbeddedFile kEmbeddedFiles[];
extern const std::size_t kEmbeddedCount;

}  // namespace tessera::dashboard
