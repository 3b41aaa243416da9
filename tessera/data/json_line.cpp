#include "tessera/data/json_line.h"

#include "tessera/core/text.h"
#include "tessera/core/utf8.h"

namespace tessera::data {
namespace {

bool is_json_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

char JsonReader::peek() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return c;
    ++at_;
  }
  return 0;
}

void JsonReader::expect(char c) {
  const char next = peek();
  if (at_ < text_.size() && next == c) {
    ++at_;
    return;
  }
  fail(at_ == text_.size() ? str("it ends where '", c, "' should be")
                           : str("got ", quote(text_.substr(at_, 1)), ", must be '", c, "'"));
}

bool JsonReader::take(char c) {
  if (peek() != c || at_ == text_.size()) return false;
  ++at_;
  return true;
}

std::string_view JsonReader::string(std::string& storage) {
  expect('"');
  const std::size_t begin = at_;
  bool copied = false;
  for (std::size_t from = begin;;) {
    std::size_t end = from;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
           static_cast<unsigned char>(text_[end]) >= 0x20) {
      ++end;
    }
    at_ = end;
    if (end == text_.size()) fail("a string is not terminated");
    if (text_[end] == '"') {
      ++at_;
      if (!copied) return text_.substr(begin, end - begin);
      storage.append(text_.substr(from, end - from));
      return storage;
    }
    if (text_[end] != '\\') fail("a string has a control character; it must be escaped as \\u00..");
    if (!copied) storage.clear();
    copied = true;
    storage.append(text_.substr(from, end - from));
    ++at_;
    escape(storage);
    from = at_;
  }
}

std::uint32_t JsonReader::four_digits() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const int digit = is_json_digit(c)       ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail("\\u must have four hexadecimal digits");
    value = value * 16 + static_cast<std::uint32_t>(digit);
  }
  return value;
}

// Reads the rest of an escape after the backslash.
void JsonReader::escape(std::string& out) {
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  ++at_;
  switch (c) {
    case '"':
    case '\\':
    case '/': out += c; return;
    case 'b': out += '\b'; return;
    case 'f': out += '\f'; return;
    case 'n': out += '\n'; return;
    case 'r': out += '\r'; return;
    case 't': out += '\t'; return;
    case 'u': break;
    default: --at_; fail("a string has an invalid escape");
  }
  const std::size_t begin = at_ - 2;
  std::uint32_t code = four_digits();
  const auto half = [&] {
    at_ = refuse_surrogates_ ? begin : at_;
    if (refuse_surrogates_) fail("an unpaired surrogate");
    ++replaced_;
    return std::uint32_t{0xfffd};
  };
  if (code >= 0xdc00 && code < 0xe000) {
    code = half();
  } else if (code >= 0xd800 && code < 0xdc00) {
    const std::size_t behind = at_;
    std::uint32_t low = 0;
    if (text_.substr(at_).starts_with("\\u")) {
      at_ += 2;
      low = four_digits();
    }
    if (low >= 0xdc00 && low < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else {
      at_ = behind;
      code = half();
    }
  }
  append_utf8(out, code);
}

void JsonReader::number() {
  const auto digits = [&] {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_json_digit(text_[at_])) ++at_;
    if (at_ == begin) fail("a number lacks a digit");
  };
  const auto is = [&](char c) { return at_ < text_.size() && text_[at_] == c; };
  if (is('-')) ++at_;
  if (is('0')) {
    ++at_;
  } else {
    digits();
  }
  if (is('.')) {
    ++at_;
    digits();
  }
  if (is('e') || is('E')) {
    ++at_;
    if (is('+') || is('-')) ++at_;
    digits();
  }
}

void JsonReader::word(std::string_view wanted) {
  if (!text_.substr(at_).starts_with(wanted)) fail("this is not a JSON value");
  at_ += wanted.size();
}

void JsonReader::skip_value(int depth) {
  if (depth > kMostDepth) fail("it is nested too deeply");
  std::string storage;
  switch (peek()) {
    case '{': object([&](std::string_view) { skip_value(depth + 1); }); return;
    case '[': array([&] { skip_value(depth + 1); }); return;
    case '"': string(storage); return;
    case 't': word("true"); return;
    case 'f': word("false"); return;
    case 'n': word("null"); return;
    default:
      if (peek() == '-' || is_json_digit(peek())) return number();
      fail(at_ == text_.size() ? "it ends where a value should be" : "this is not a JSON value");
  }
}

void JsonReader::finish() {
  peek();
  if (at_ != text_.size()) fail("there is text after the value; a line must have one value");
}

}  // namespace tessera::data
