#include "tessera/data/input_parts.h"

#include <algorithm>
#include <cstring>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::data {
namespace {

constexpr std::size_t kLookedForNul = 64 << 10;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
// ASCII character that is neither white space nor 0; other bytes may start Unicode white space.
bool is_ascii_text(char c) {
  return static_cast<unsigned char>(c) < 0x80 && !is_blank(c) && c != 0;
}
bool is_inside_character(char c) { return (static_cast<unsigned char>(c) & 0xc0u) == 0x80; }

// Returns the position after the last complete blank line; 0 if there is none.
std::size_t after_last_blank_line(std::string_view text) {
  for (std::size_t end = text.rfind('\n'); end != std::string_view::npos && end > 0;) {
    const std::size_t before = text.rfind('\n', end - 1);
    if (before == std::string_view::npos) return 0;
    std::size_t behind = 0;
    if (is_blank_line(text, before + 1, behind)) return end + 1;
    end = before;
  }
  return 0;
}

}  // namespace

bool is_blank_line(std::string_view text, std::size_t begin, std::size_t& end) {
  end = begin;
  while (end < text.size() && text[end] != '\n' && is_blank(text[end])) ++end;
  if (end < text.size() && text[end] == '\n') {
    ++end;
    return true;
  }
  return false;
}

std::size_t place_to_cut(std::string_view text, bool at_space) {
  const std::size_t least = text.size() - text.size() / 4;  // a much shorter part is of no use
  // Returns the position after the last `c` whose neighbors both satisfy `fits`; otherwise 0.
  const auto last = [&](char c, const auto& fits) {
    std::size_t i = text.size();
    for (;;) {
      const void* const found = i < 2 ? nullptr : ::memrchr(text.data(), c, i - 1);
      i = found == nullptr
              ? 0
              : static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) + 1;
      if (i <= least || i < 2) return std::size_t{0};
      if (fits(text[i - 2]) && fits(text[i])) return i;
    }
  };
  const auto is_not_blank = [](char c) { return !is_blank(c); };
  if (at_space) {
    if (const std::size_t i = last(' ', is_ascii_text); i > 0) return i - 1;
  }
  if (const std::size_t i = last('\n', is_ascii_text); i > 0) return i;
  if (const std::size_t i = last('\n', is_not_blank); i > 0) return i;
  if (const std::size_t i = last(' ', is_ascii_text); i > 0) return i - 1;
  // Not before white space: the next part would appear to start with an empty line.
  for (std::size_t i = text.size() - 1; i > 0; --i) {
    if (!is_inside_character(text[i]) && !is_blank(text[i])) return i;
  }
  return std::max<std::size_t>(1, text.size() - 1);
}

PartReader::PartReader(const InputList& list, PartOptions options, InputPosition from)
    : list_(list), options_(options), at_(from) {
  for (std::size_t i = 0; i < std::min<std::size_t>(at_.file, list_.files.size()); ++i) {
    consumed_before_ += list_.files[i].bytes;
  }
}

std::uint64_t PartReader::consumed() const {
  return consumed_before_ + (stream_ ? stream_->consumed() : 0);
}

// Reads until the buffer has `wanted` bytes or the file ends.
void PartReader::read_more(std::size_t wanted) {
  while (!ended_ && buffer_.size() < wanted) {
    const std::size_t size = buffer_.size();
    buffer_.resize(wanted);
    const std::size_t got = stream_->read(buffer_.data() + size, wanted - size);
    buffer_.resize(size + got);
    ended_ = got == 0;
  }
}

void PartReader::begin_file() {
  const InputFile& file = list_.files[at_.file];
  stream_ = open_input(file.path, at_.offset);
  ended_ = false;
  buffer_.clear();
  if (at_.offset > 0) return;
  // Even a tiny part must contain a whole byte order mark.
  read_more(std::max(options_.part_bytes + 1, kByteOrderMark.size()));
  const std::string_view text(buffer_.data(), buffer_.size());
  const std::size_t nul = text.substr(0, kLookedForNul).find('\0');
  if (text.starts_with(kByteOrderMark)) {
    at_.offset = kByteOrderMark.size();
    buffer_.erase(buffer_.begin(), buffer_.begin() + kByteOrderMark.size());
  }
  if (nul != std::string_view::npos) {
    throw DataError(str(quote(file.path), " is not text: the byte at offset ", nul,
                        " is 0; must be UTF-8 text or JSON lines"));
  }
  if (!buffer_.empty()) return;
  if (file.named) throw DataError(str(quote(file.path), " is empty; must contain text"));
  ++at_.empty_files;
}

// Returns where the part in the buffer ends if the file continues; 0: not within the buffer.
std::size_t PartReader::cut(const InputFile& file, bool& open) const {
  const std::string_view text(buffer_.data(), buffer_.size());
  open = false;
  if (file.jsonl || options_.split == SplitDocuments::line) {
    const std::size_t end = text.rfind('\n');
    if (end != std::string_view::npos) return end + 1;
    if (file.jsonl) {
      if (text.size() < options_.longest_line) return 0;
      throw DataError(
          str(quote(file.path), " line ", at_.line, " has more than ",
              format_bytes(static_cast<std::int64_t>(options_.longest_line), ByteUnits::kBinary),
              "; must be JSON lines. It may be a single JSON document."));
    }
  } else if (options_.split == SplitDocuments::blank_line) {
    if (const std::size_t end = after_last_blank_line(text); end > 0) return end;
  }
  open = true;
  return place_to_cut(text, options_.at_space);
}

std::optional<InputPart> PartReader::next(UninitializedVector<char> spare) {
  for (; at_.file < list_.files.size();) {
    const InputFile& file = list_.files[at_.file];
    if (!stream_) begin_file();
    InputPart part;
    std::size_t end = 0;
    for (std::size_t wanted = options_.part_bytes; end == 0;) {
      // One byte after the part shows whether the file continues.
      if (buffer_.size() <= wanted) read_more(wanted + 1);
      if (ended_) {
        end = buffer_.size();
        part.open = false;
        break;
      }
      end = cut(file, part.open);
      wanted *= 2;
    }
    if (end == 0) {  // end of the file
      const bool unfinished = at_.begun;
      consumed_before_ += file.bytes;
      stream_.reset();
      at_ = {at_.file + 1, 0, 1, false, at_.empty_files, at_.cuts};
      if (!unfinished) continue;
    } else {
      spare.resize(buffer_.size() - end);
      if (!spare.empty()) std::memcpy(spare.data(), buffer_.data() + end, spare.size());
      part.bytes = std::move(buffer_);
      part.bytes.resize(end);
      buffer_ = std::move(spare);
    }
    part.number = number_++;
    part.file = &file;
    part.begun = end == 0 || at_.begun;
    part.offset = at_.offset;
    part.line = at_.line;
    if (end > 0) {
      at_.offset += end;
      if (file.jsonl) {
        at_.line +=
            static_cast<std::uint64_t>(std::count(part.bytes.begin(), part.bytes.end(), '\n'));
      }
      at_.begun = part.open;
      if (part.open) ++at_.cuts;
    }
    part.after = at_;
    return part;
  }
  return std::nullopt;
}

}  // namespace tessera::data
