#include "tessera/data/documents.h"

#include <algorithm>
#include <cstring>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/json_line.h"
#include "tessera/data/split_text.h"

namespace tessera::data {
namespace {

bool is_all_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

// Field that must be a string and may occur once.
struct StringField {
  explicit StringField(std::string field) : name(std::move(field)) {}

  std::string name;
  std::string storage;
  std::string_view text;
  bool there = false;

  void read(JsonReader& json) {
    if (there) json.fail(str("it has ", quote(name), " twice"));
    if (json.peek() != '"') json.fail(str(quote(name), " is not a string"));
    text = json.string(storage);
    there = true;
  }
};

// Returns true for fields that change a conversation in ways that no built-in template supports.
bool is_unsupported_field(std::string_view key) {
  for (const char* name : {"tools", "functions", "tool_calls", "function_call", "tool_call_id",
                           "weight", "train", "prefix", "reasoning_content"}) {
    if (key == name) return true;
  }
  return false;
}

ChatMessage read_message(JsonReader& json) {
  StringField role("role"), content("content");
  if (json.peek() != '{') json.fail("a message must be an object with \"role\" and \"content\"");
  json.object([&](std::string_view key) {
    if (key == role.name) return role.read(json);
    if (key == content.name) return content.read(json);
    if (is_unsupported_field(key)) {
      json.fail(str("a message has ", quote(key), ", which the built-in templates do not support"));
    }
    json.skip_value(2);
  });
  for (const StringField* field : {&role, &content}) {
    if (!field->there) json.fail(str("a message has no ", quote(field->name)));
  }
  return {std::string(role.text), std::string(content.text)};
}

// Returns the text of a part with invalid UTF-8 replaced, or throws with its position.
CleanText clean_part(const InputPart& part, BadUtf8 policy, std::string& storage) {
  try {
    return clean_utf8(part.text(), policy, storage);
  } catch (const DataError& error) {
    throw DataError(
        str(quote(part.file->path), ", counted from byte ", part.offset, ": ", error.what()));
  }
}

template <typename Stored>
void store(const std::vector<TokenId>& ids, std::int64_t vocab, TokenPart& part) {
  part.tokens.resize(ids.size() * sizeof(Stored));
  TokenId largest = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    largest = std::max(largest, ids[i]);
    const auto id = static_cast<Stored>(ids[i]);
    std::memcpy(part.tokens.data() + i * sizeof(Stored), &id, sizeof(Stored));
  }
  if (!ids.empty() && largest >= vocab) {
    throw Error(str("the tokenizer returned id ", largest,
                    ", which is not below its vocabulary of ", vocab));
  }
}

}  // namespace

void DocumentCounts::add(const DocumentCounts& other) {
  documents += other.documents;
  bytes_of_text += other.bytes_of_text;
  learned += other.learned;
  replaced += other.replaced;
  empty += other.empty;
}

struct DocumentEncoder::Work {
  std::vector<TokenId> ids;
  std::vector<std::uint8_t> learned;
  std::vector<std::uint64_t> ends;
  DocumentCounts& counts;
  std::string clean;  // storage of clean_utf8()
};

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, DocumentOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      width_(bytes_per_token(tokenizer.vocab())),
      bytes_(tokenizer.name() == "bytes" && !options_.special_text && options_.begin.empty()) {
  if (options_.format == DocumentFormat::chat) {
    template_.emplace(options_.chat_template, tokenizer_, options_.end);
  }
}

TokenPart DocumentEncoder::encode(InputPart&& part, DocumentCounts& counts) const {
  if (bytes_ && !part.file->jsonl) return encode_bytes(std::move(part), counts);
  Work work{.ids = {}, .learned = {}, .ends = {}, .counts = counts, .clean = {}};
  work.ids.reserve(part.bytes.size() / 3);
  part.file->jsonl ? encode_lines(part, work) : encode_text(part, work);
  TokenPart out;
  width_ == 2 ? store<std::uint16_t>(work.ids, tokenizer_.vocab(), out)
              : store<std::uint32_t>(work.ids, tokenizer_.vocab(), out);
  out.ends = std::move(work.ends);
  out.learned = std::move(work.learned);
  counts.documents += out.ends.size();
  counts.learned += static_cast<std::uint64_t>(
      std::count(out.learned.begin(), out.learned.end(), std::uint8_t{1}));
  out.crc = checksum_of(out);
  return out;
}

void DocumentEncoder::append(std::string_view text, bool begins, Work& work) const {
  using Behind = EncodeOptions::Behind;
  tokenizer_.encode(text, work.ids,
                    {.special = options_.special_text,
                     .around = false,
                     .behind = begins ? Behind::nothing : Behind::text});
  work.counts.bytes_of_text += text.size();
}

void DocumentEncoder::begin_document(Work& work) const {
  work.ids.insert(work.ids.end(), options_.begin.begin(), options_.begin.end());
}

void DocumentEncoder::end_document(Work& work) const {
  work.ids.push_back(options_.end);
  work.ends.push_back(work.ids.size());
}

void DocumentEncoder::encode_text(const InputPart& part, Work& work) const {
  const CleanText clean = clean_part(part, options_.bad_utf8, work.clean);
  work.counts.replaced += static_cast<std::uint64_t>(clean.replaced);
  split_text(clean.text, options_.split, part.begun, part.open, [&](const TextPiece& piece) {
    if (piece.begins) begin_document(work);
    append(piece.text, piece.begins, work);
    if (piece.ends) end_document(work);
  });
}

// encode_text() for tokenizers in which every byte is a token.
TokenPart DocumentEncoder::encode_bytes(InputPart&& part, DocumentCounts& counts) const {
  std::string storage;
  const CleanText clean = clean_part(part, options_.bad_utf8, storage);
  counts.replaced += static_cast<std::uint64_t>(clean.replaced);
  TokenPart out;
  out.end = static_cast<std::uint16_t>(options_.end);
  const bool as_it_is = options_.split == SplitDocuments::file && clean.replaced == 0;
  // The end-of-document token replaces the newline, or is appended to the part.
  if (!as_it_is) out.text.resize(clean.text.size() + 1);
  std::size_t size = 0;
  split_text(clean.text, options_.split, part.begun, part.open, [&](const TextPiece& piece) {
    if (!as_it_is && !piece.text.empty()) {
      std::memcpy(out.text.data() + size, piece.text.data(), piece.text.size());
    }
    size += piece.text.size();
    counts.bytes_of_text += piece.text.size();
    if (!piece.ends) return;
    if (!as_it_is) out.text[size] = 0;
    out.ends.push_back(++size);
  });
  if (as_it_is) out.text = std::move(part.bytes);
  out.text.resize(size);
  out.crc = checksum_of(out);
  counts.documents += out.ends.size();
  return out;
}

void DocumentEncoder::encode_lines(const InputPart& part, Work& work) const {
  const std::string_view text = part.text();
  std::uint64_t number = part.line;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (is_all_blank(line)) continue;
    const auto where = [&] { return str(quote(part.file->path), " line ", number); };
    try {
      const CleanText clean = clean_utf8(line, options_.bad_utf8, work.clean);
      work.counts.replaced += static_cast<std::uint64_t>(clean.replaced);
      encode_line(clean.text, work);
    } catch (const JsonProblem& problem) {
      throw DataError(str(where(), " byte ", problem.at() + 1, ": ", problem.what()));
    } catch (const Error& error) {
      throw DataError(str(where(), ": ", error.what()));
    }
  }
}

void DocumentEncoder::encode_line(std::string_view line, Work& work) const {
  JsonReader json(line, options_.bad_utf8 == BadUtf8::refuse);
  StringField text(options_.text_field), prompt("prompt"), response("response"),
      completion("completion");
  std::vector<ChatMessage> messages;
  bool conversation = false;
  std::vector<std::string> others;  // some of the other field names
  if (json.peek() != '{') json.fail("the line must be an object in braces");
  json.object([&](std::string_view key) {
    const DocumentFormat format = options_.format;
    if (format == DocumentFormat::text && key == text.name) return text.read(json);
    if (format == DocumentFormat::prompt) {
      for (StringField* field : {&prompt, &response, &completion}) {
        if (key == field->name) return field->read(json);
      }
    }
    if (format == DocumentFormat::chat && key == "messages") {
      if (conversation) json.fail("it has \"messages\" twice");
      if (json.peek() != '[') json.fail("\"messages\" is not a list");
      conversation = true;
      return json.array([&] { messages.push_back(read_message(json)); });
    }
    if (format == DocumentFormat::chat && is_unsupported_field(key)) {
      json.fail(str("it has ", quote(key), ", which the built-in templates do not support"));
    }
    if (others.size() < 8) others.push_back(quote(key));
    json.skip_value(1);
  });
  json.finish();
  work.counts.replaced += static_cast<std::uint64_t>(json.replaced());

  const auto missing = [&](const std::string& what, const std::string& advice) {
    throw DataError(
        str("it has no ", what, others.empty() ? "" : str(", but ", join(others, ", ")), advice));
  };
  if (options_.format == DocumentFormat::text) {
    if (!text.there) missing(quote(text.name), ". Select the field with --text-field.");
    if (text.text.empty()) {
      ++work.counts.empty;
      return;
    }
    begin_document(work);
    append(text.text, true, work);
    end_document(work);
    return;
  }
  if (options_.format == DocumentFormat::prompt) {
    if (!prompt.there) missing("\"prompt\"", "; must have \"prompt\" and \"response\"");
    if (response.there && completion.there) {
      throw DataError("it has \"response\" and \"completion\"; must have only one of them");
    }
    if (!response.there && !completion.there) {
      missing("\"response\" and no \"completion\"", "; must have one of them besides \"prompt\"");
    }
    begin_document(work);
    append(prompt.text, true, work);
    work.learned.resize(work.ids.size(), 0);
    append(response.there ? response.text : completion.text, prompt.text.empty(), work);
    end_document(work);
    work.learned.resize(work.ids.size(), 1);
    return;
  }
  if (!conversation) missing("\"messages\"", "; must have a list of {\"role\", \"content\"}");
  if (std::none_of(messages.begin(), messages.end(),
                   [](const ChatMessage& one) { return one.role == "assistant"; })) {
    throw DataError(
        "it has no message with the role \"assistant\", so there is nothing to train on");
  }
  ChatTemplate::Out out{work.ids, work.learned, work.counts.bytes_of_text};
  template_->append(messages, {.special = options_.special_text, .around = false}, out);
  work.ends.push_back(work.ids.size());
}

}  // namespace tessera::data
