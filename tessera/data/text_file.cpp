#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/files.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/data/source.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kPrompt = 32, kAnswer = 96;

constexpr std::size_t kLookedAt = 16 << 20;  // bytes: enough to tell a text from something else

// Bytes of the character of UTF-8 that the text begins with; 0 if there is none. A character that
// the end cuts off counts as the rest of the text.
std::size_t utf8_length(std::span<const unsigned char> text) {
  const unsigned char first = text[0];
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xc2   ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  const std::size_t there = std::min(length, text.size());
  for (std::size_t i = 1; i < there; ++i) {
    // Of the second byte less may be used: no long forms, no surrogates, nothing over U+10FFFF.
    const unsigned char least = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (text[i] < least || text[i] > most) return 0;
  }
  return there;
}

// Images, archives and the like train as well as texts do, to no use.
void refuse_binary(std::span<const unsigned char> bytes, const std::string& path) {
  bytes = bytes.first(std::min(bytes.size(), kLookedAt));
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = bytes[at] == 0 ? 0 : utf8_length(bytes.subspan(at));
    if (length == 0) {
      constexpr const char* kHex = "0123456789abcdef";
      throw DataError(str("--data: ", quote(path), " is no text: the byte at offset ", at, " is 0x",
                          kHex[bytes[at] >> 4], kHex[bytes[at] & 15],
                          bytes[at] == 0 ? "" : ", which is not UTF-8 there",
                          "; wanted a text in UTF-8 (iconv converts other encodings)"));
    }
    at += length;
  }
}

// A file's bytes, mapped: ranks on one machine share them.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const Fd file = open_regular(path, "synthetic or the name of a text file", "--data");
    struct stat about {};
    if (::fstat(file.get(), &about) != 0) {
      throw DataError(str("--data: cannot read ", quote(path), ": ", std::strerror(errno)));
    }
    size_ = static_cast<std::size_t>(about.st_size);
    if (size_ == 0) return;
    void* const mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapped == MAP_FAILED) {
      throw DataError(str("--data: cannot map ", quote(path), ": ", std::strerror(errno)));
    }
    data_ = static_cast<const unsigned char*>(mapped);
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<unsigned char*>(data_), size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const unsigned char> bytes() const { return {data_, size_}; }

 private:
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

class TextFile final : public Source {
 public:
  TextFile(std::string path, std::int64_t seq, std::uint64_t seed)
      : path_(std::move(path)), file_(path_), seq_(seq), random_(seed, stream_of("data.text")) {
    const auto size = static_cast<std::int64_t>(file_.bytes().size());
    if (size <= seq) {
      throw DataError(str("--data: ", quote(path_), " has ", format_grouped(size),
                          size == 1 ? " byte" : " bytes", "; --seq ", seq, " needs ", seq + 1,
                          " or more: take a longer file",
                          size > 2 ? str(", or --seq ", size - 1, " or less") : std::string()));
    }
    refuse_binary(file_.bytes(), path_);
  }

  std::string name() const override { return path_; }
  std::int64_t vocab() const override { return 256; }
  std::int64_t seq() const override { return seq_; }

  void fill(std::uint64_t sample, const Row& row) const override {
    const auto window =
        file_.bytes().subspan(offset(sample, seq_ + 1), static_cast<std::size_t>(seq_ + 1));
    for (std::size_t t = 0; t + 1 < window.size(); ++t) {
      row.ids[t] = window[t];
      row.targets[t] = window[t + 1];
    }
  }

  Question question(std::uint64_t number) const override {
    const std::int64_t length = std::min(kPrompt, seq_);
    const auto start = file_.bytes().subspan(offset(kQuestions + number, length),
                                             static_cast<std::size_t>(length));
    return {{start.begin(), start.end()}, kAnswer, {}};
  }

  std::string show(const Question& question, std::span<const Token> answer) const override {
    std::string prompt, said;
    for (const Token token : question.prompt) prompt += static_cast<char>(token);
    for (const Token token : answer) said += token < 256 ? static_cast<char>(token) : '?';
    return printable(prompt) + " → " + printable(said);
  }

 private:
  // Where a window of `length` bytes begins: anywhere that it fits.
  std::size_t offset(std::uint64_t sample, std::int64_t length) const {
    const PhiloxBlock words = random_.block(sample);
    const std::uint64_t wide = (std::uint64_t{words[0]} << 32) | words[1];
    return wide % (file_.bytes().size() - static_cast<std::size_t>(length) + 1);
  }
  // One line, with nothing in it that a terminal would act upon.
  static std::string printable(const std::string& text) {
    std::string out;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '\n') {
        out += "⏎";
      } else if (byte < 0x20 || byte >= 0x7f) {
        out += '.';
      } else {
        out += c;
      }
    }
    return out;
  }

  std::string path_;
  Mapping file_;
  std::int64_t seq_;
  Philox random_;
};

}  // namespace

std::unique_ptr<Source> text_file(const std::string& path, std::int64_t seq, std::uint64_t seed) {
  return std::make_unique<TextFile>(path, seq, seed);
}

}  // namespace tessera::data
