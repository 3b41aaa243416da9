#include "tessera/models/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/utf8.h"

namespace tessera::models {
namespace {

using GenerateClock = std::chrono::steady_clock;

double since(GenerateClock::time_point began) {
  return std::chrono::duration<double>(GenerateClock::now() - began).count();
}

// Returns the number of bytes at the end of the text that start a character and do not complete it.
std::size_t unfinished(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const Utf8Sequence sequence = utf8_sequence(text, text.size() - back);
    if (sequence.kind == Utf8Sequence::Kind::truncated) return back;
  }
  return 0;
}

// Returns the number of bytes at the end that may be the beginning of `stop`.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

Generated generate(Decoder& decoder, std::span<const std::vector<std::int64_t>> texts,
                   const GenerateOptions& options, const OnToken& on_token) {
  check(options.sampling);
  Generated out;
  if (options.tokens <= 0) return out;
  struct Writing {
    std::int64_t slot = 0;
    std::size_t text = 0;
    std::int64_t written = 0, token = 0;
  };
  std::vector<Writing> writing;
  std::vector<std::int64_t> free_slots, slots, tokens;
  for (std::int64_t slot = decoder.options().slots; slot-- > 0;) free_slots.push_back(slot);
  std::vector<Candidate> scratch;

  // Samples the next token. Returns true if the text ends.
  const auto write = [&](Writing& one, std::span<const float> logits) {
    const double uniform =
        uniform_of(options.seed, one.text, static_cast<std::uint64_t>(one.written));
    one.token = sample(logits, options.sampling, uniform, scratch);
    ++one.written;
    ++out.tokens;
    return !on_token(one.text, one.token) || one.written >= options.tokens ||
           decoder.length(one.slot) >= decoder.options().capacity;
  };
  for (std::size_t next = 0; next < texts.size() || !writing.empty();) {
    const auto began = GenerateClock::now();
    // Free slots read the next texts; if there are none, all texts get a token.
    const bool reads = next < texts.size() && !free_slots.empty();
    const std::size_t first = reads ? writing.size() : 0;
    while (reads && next < texts.size() && !free_slots.empty()) {
      out.read += static_cast<std::int64_t>(texts[next].size());
      writing.push_back({free_slots.back(), next++});
      free_slots.pop_back();
    }
    slots.clear();
    tokens.clear();
    for (const Writing& one : std::span(writing).subspan(first)) {
      slots.push_back(one.slot);
      tokens.push_back(one.token);
    }
    const at::Tensor logits =
        reads ? decoder.read_each(slots, texts.subspan(next - slots.size(), slots.size()))
              : decoder.step(slots, tokens);
    if (!reads) out.stepped += static_cast<std::int64_t>(slots.size());
    const auto vocab = static_cast<std::size_t>(logits.size(1));
    const float* row = logits.data_ptr<float>();
    const auto ended = [&](Writing& one) {
      const bool ends = write(one, {row, vocab});
      row += vocab;
      if (ends) free_slots.push_back(one.slot);
      return ends;
    };
    const auto begin = writing.begin() + static_cast<std::ptrdiff_t>(first);
    writing.erase(std::remove_if(begin, writing.end(), ended), writing.end());
    (reads ? out.read_s : out.write_s) += since(began);
  }
  return out;
}

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw UsageError("a stop text is empty; must have at least one character");
  }
}

std::string TextStream::take(bool all) {
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    std::string text = held_.substr(0, end);
    held_.clear();
    return text;
  }
  std::size_t back = 0;
  if (!all) {
    back = unfinished(held_);
    for (const std::string& stop : stops_) back = std::max(back, begun(held_, stop));
  }
  std::string text = held_.substr(0, held_.size() - back);
  held_.erase(0, held_.size() - back);
  return text;
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return "";
  held_ += bytes;
  return take(false);
}

std::string TextStream::finish() {
  if (stopped_) return "";
  if (const std::size_t open = unfinished(held_); open > 0) {
    held_.resize(held_.size() - open);
    held_ += "\xef\xbf\xbd";
  }
  return take(true);
}

}  // namespace tessera::models
