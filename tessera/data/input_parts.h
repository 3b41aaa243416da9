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
#include "tessera/data/uninitialised.h"

namespace tessera::data {

// What is one document in a text. (Of JSON lines each is one.)
enum class SplitDocuments : std::uint8_t {
  file,        // the whole file
  blank_line,  // what stands between lines with nothing in them
  line,        // each line that has something in it
};

// Where a part ends: enough to go on from there.
struct InputPosition {
  std::uint64_t file = 0;                   // in the list
  std::uint64_t offset = 0;                 // in what the file holds
  std::uint64_t line = 1;                   // there
  bool begun = false;                       // a document goes on there
  std::uint64_t empty_files = 0, cuts = 0;  // so far

  friend bool operator==(const InputPosition&, const InputPosition&) = default;
};

struct InputPart {
  std::uint64_t number = 0;
  const InputFile* file = nullptr;
  Uninitialised<char> bytes;
  std::uint64_t offset = 0, line = 1;  // of its beginning
  bool begun = false;                  // it goes on with the document that the part before ended in
  bool open = false;                   // its last document goes on in the next part
  InputPosition after;

  std::string_view text() const { return {bytes.data(), bytes.size()}; }
};

struct PartOptions {
  SplitDocuments split = SplitDocuments::file;
  std::size_t part_bytes = std::size_t{1} << 20;
  std::size_t longest_line = std::size_t{64} << 20;  // of JSON lines
  bool at_space = false;  // long documents are cut there first: Tokenizer::may_cut_at_space()
};

// [Note: parts] The input, cut into pieces of about part_bytes that are encoded apart: where they
// are cut follows from the input and part_bytes alone. Cuts are made between documents. A document
// that is longer than a part is cut too: behind a line that is neither empty nor followed by an
// empty or indented one, because no tokenizer's pattern puts both sides of such a place into one
// word; else at a space, else between two characters. Tokenizers that mark spaces have no words:
// with them at a space first.
class PartReader {
 public:
  PartReader(const InputList& list, PartOptions options, InputPosition from = {});

  // The next one; nothing at the end. Throws DataError for a file that is no text, is damaged, or
  // is empty and was given by name. `spare` is memory that nobody needs any more.
  std::optional<InputPart> next(Uninitialised<char> spare = {});
  const InputPosition& position() const { return at_; }
  std::uint64_t consumed() const;  // bytes of the files, compressed as they are

 private:
  void read_more(std::size_t wanted);
  std::size_t cut(const InputFile& file, bool& open) const;
  void begin_file();

  const InputList& list_;
  PartOptions options_;
  InputPosition at_;
  std::uint64_t number_ = 0;
  std::uint64_t consumed_before_ = 0;  // of the files before
  std::unique_ptr<InputStream> stream_;
  bool ended_ = false;
  Uninitialised<char> buffer_;
};

// Is there nothing but white space in the line that begins at `begin`? Its end, behind its '\n', or
// npos where it has none.
bool is_blank_line(std::string_view text, std::size_t begin, std::size_t& end);
// Where a document that is too long may be cut: see [Note: parts]. Never 0.
std::size_t place_to_cut(std::string_view text, bool at_space = false);

}  // namespace tessera::data
