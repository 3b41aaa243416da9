#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/token_data.h"

namespace tessera::data {

// In-memory token data.
class MemoryTokens final : public TokenData {
 public:
  using Documents = std::vector<std::vector<std::int64_t>>;
  explicit MemoryTokens(const Documents& documents, std::vector<std::uint8_t> mask = {},
                        std::string name = "memory", std::int64_t vocab = 100)
      : mask_(std::move(mask)), name_(std::move(name)), vocab_(vocab) {
    for (const auto& each : documents) {
      tokens_.insert(tokens_.end(), each.begin(), each.end());
      ends_.push_back(tokens_.size());
    }
  }

  std::string path() const override { return name_; }
  std::uint64_t tokens() const override { return tokens_.size(); }
  std::uint64_t documents() const override { return ends_.size(); }
  std::int64_t vocab() const override { return vocab_; }
  std::string fingerprint() const override { return print_; }
  std::uint64_t bytes_of_text() const override { return 3 * tokens_.size(); }
  bool masked() const override { return !mask_.empty(); }
  Document document(std::uint64_t number) const override {
    return {number == 0 ? 0 : ends_.at(number - 1), ends_.at(number)};
  }
  std::uint64_t document_at(std::uint64_t token) const override {
    return static_cast<std::uint64_t>(std::upper_bound(ends_.begin(), ends_.end(), token) -
                                      ends_.begin());
  }
  void read(std::uint64_t begin, std::span<std::int64_t> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = tokens_.at(begin + i);
  }
  void read_mask(std::uint64_t begin, std::span<std::uint8_t> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = masked() ? mask_.at(begin + i) : 1;
  }
  void set_fingerprint(std::string print) { print_ = std::move(print); }

 private:
  std::vector<std::int64_t> tokens_;
  std::vector<std::uint64_t> ends_;
  std::vector<std::uint8_t> mask_;
  std::string name_, print_;
  std::int64_t vocab_;
};

// Documents of these lengths, whose tokens count up from 0 across all of them.
inline MemoryTokens::Documents counting(const std::vector<std::int64_t>& lengths) {
  MemoryTokens::Documents out;
  std::int64_t next = 0;
  for (const std::int64_t length : lengths) {
    auto& document = out.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) document.push_back(next++);
  }
  return out;
}

inline std::shared_ptr<MemoryTokens> counting_tokens(const std::vector<std::int64_t>& lengths,
                                                     std::vector<std::uint8_t> mask = {}) {
  return std::make_shared<MemoryTokens>(counting(lengths), std::move(mask), "memory", 1 << 20);
}

}  // namespace tessera::data
