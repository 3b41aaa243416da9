#pragma once

#include <array>
#include <string>

#include "tessera/data/documents.h"

namespace tessera::data {

// Names used in flags and files.
inline std::string name_of(DocumentFormat format) {
  return format == DocumentFormat::text     ? "text"
         : format == DocumentFormat::prompt ? "prompt"
                                            : "chat";
}
inline std::string name_of(SplitDocuments split) {
  return split == SplitDocuments::file   ? "file"
         : split == SplitDocuments::line ? "line"
                                         : "blank-line";
}

// Files that a tokenizer's folder may contain.
inline constexpr std::array<const char*, 8> kTokenizerFiles = {"tokenizer.json",
                                                               "tokenizer_config.json",
                                                               "special_tokens_map.json",
                                                               "added_tokens.json",
                                                               "vocab.json",
                                                               "merges.txt",
                                                               "tokenizer.model",
                                                               "chat_template.jinja"};

}  // namespace tessera::data
