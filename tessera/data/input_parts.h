#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/input_list.h"
#include "tessera/data/input_stream.h"
#include "tessera/data/uninitialized_vector.h"

namespace tessera::data {

// Unit of text that is one document. (In JSON lines each line is one.)
enum class SplitDocuments : std::uint8_t {
  file,        // the whole file
  blank_line,  // text between blank lines
  line,        // each line that is not blank
};

// Position in the input after a part, sufficient to resume there.
struct InputPosition {
  std::uint64_t file = 0;                   // index in the list
  std::uint64_t offset = 0;                 // in the decompressed contents
  std::uint64_t line = 1;                   // at `offset`
  bool begun = false;                       // `offset` is inside a document
  std::uint64_t empty_files = 0, cuts = 0;  // so far

  friend bool operator==(const InputPosition&, const InputPosition&) = default;
};

// Part of the input that is encoded on its own.
struct InputPart {
  std::uint64_t number = 0;
  const InputFile* file = nullptr;
  UninitializedVector<char> bytes;
  std::uint64_t offset = 0, line = 1;  // of its first byte
  bool begun = false;                  // it continues the last document of the previous part
  bool open = false;                   // its last document continues in the next part
  InputPosition after;

  std::string_view text() const { return {bytes.data(), bytes.size()}; }
};

// Options of PartReader.
struct PartOptions {
  SplitDocuments split = SplitDocuments::file;
  std::size_t part_bytes = std::size_t{1} << 20;
  std::size_t longest_line = std::size_t{64} << 20;  // of JSON lines, bytes
  bool at_space = false;  // prefer cutting at spaces: Tokenizer::may_cut_at_space()
};

// [Note: parts] Splits the input into parts of about part_bytes that are encoded separately. The
// cuts depend only on the input and part_bytes. They are placed between documents. A document
// longer than a part is cut too: after a line that is neither empty nor followed by an empty or
// indented one, because no tokenizer's pattern puts both sides of such a position into one word;
// otherwise at a space; otherwise between two characters. Tokenizers that mark spaces have no
// words, so their documents are cut at a space first.
class PartReader {
 public:
  PartReader(const InputList& list, PartOptions options, InputPosition from = {});

  // Returns the next part, or nullopt at the end. Throws DataError if a file is not text, is
  // damaged, or is empty and was given by name. `spare` is a buffer to reuse.
  std::optional<InputPart> next(UninitializedVector<char> spare = {});
  const InputPosition& position() const { return at_; }
  std::uint64_t consumed() const;  // bytes read from disk

 private:
  void read_more(std::size_t wanted);
  std::size_t cut(const InputFile& file, bool& open) const;
  void begin_file();

  const InputList& list_;
  PartOptions options_;
  InputPosition at_;
  std::uint64_t number_ = 0;
  std::uint64_t consumed_before_ = 0;  // of the previous files
  std::unique_ptr<InputStream> stream_;
  bool ended_ = false;
  UninitializedVector<char> buffer_;
};

// Returns true if the line at `begin` is blank and ends in '\n'. Sets `end` to the position after
// that newline, or of the first character that is not white space.
bool is_blank_line(std::string_view text, std::size_t begin, std::size_t& end);
// Returns where to cut a document that is too long: see [Note: parts]. Never 0.
std::size_t place_to_cut(std::string_view text, bool at_space = false);

}  // namespace tessera::data
