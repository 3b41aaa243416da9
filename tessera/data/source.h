#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

// Samples from here on are questions for the end of a run: far from any that it trains on.
inline constexpr std::uint64_t kQuestions = std::uint64_t{1} << 62;

using Token = std::int64_t;
inline constexpr Token kIgnored = -1;  // a target that no loss is taken of

// int64 [B, T]: targets[b][t] is what should follow ids[b][0..t], or kIgnored.
struct Batch {
  at::Tensor ids;
  at::Tensor targets;
  std::int64_t predicted = 0;  // targets that are not kIgnored
  // int32 [B, T]: the position at which the document of each token begins, as in nn/pass.h.
  // Undefined where rows are not separated.
  at::Tensor document_starts = {};
};
// One sample of it, to be filled.
struct Row {
  std::span<Token> ids, targets;
  std::span<std::int32_t> starts = {};  // empty: nobody asks
};

// What a trained model is asked at the end, and what it should say.
struct Question {
  std::vector<Token> prompt;
  std::int64_t answer_length = 0;
  std::vector<Token> answer;  // empty where any answer will do
};

// Samples by number. A sample is a function of the source's seed and its number alone, so what a
// run sees does not depend on how many ranks or micro-batches it is divided over.
class Source {
 public:
  virtual ~Source() = default;

  virtual std::string name() const = 0;
  virtual std::int64_t vocab() const = 0;  // every token is below; 0: not known
  virtual std::int64_t seq() const = 0;    // T
  // From any thread.
  virtual void fill(std::uint64_t sample, const Row& row) const = 0;

  // Do rows hold documents that must not see each other? Then fill() says where they begin.
  virtual bool separate() const { return false; }
  // So many samples are all there is, and what follows is the next epoch. 0: they never end.
  virtual std::uint64_t samples_per_epoch() const { return 0; }
  virtual std::string fingerprint() const { return ""; }  // of the tokenizer; "": not known
  // Of text, that a predicted token stands for, on average; 0: not known.
  virtual double bytes_per_token() const { return 0; }
  // Which tokens a sample has, for errors: "document 3 from its token 128 of tokens.bin".
  virtual std::string where(std::uint64_t sample) const;
  // Lines for people, said once before training: what is left out or cut.
  virtual std::vector<std::string> notes() const { return {}; }
  // Throws DataError, with the place, if a token is not below this and nobody knows that yet; then
  // all of them are read.
  virtual void check(std::int64_t vocabulary) const { static_cast<void>(vocabulary); }

  virtual Question question(std::uint64_t number) const = 0;
  // A line that shows the question and what a model answered; where the answer can be judged it
  // ends in a tick or a cross.
  virtual std::string show(const Question& question, std::span<const Token> answer) const = 0;

  // Samples first … first + count - 1.
  Batch batch(std::uint64_t first, std::int64_t count) const;
};

// A row of which nothing is learnt.
void blank(const Row& row);

// [Note: sorting] Seven digits, a bar, the same digits in order, and so on until the sequence is
// full; only the sorted half is predicted. A small transformer goes from knowing nothing, ln(vocab)
// where vocab is the model's, to nearly no mistakes.
std::unique_ptr<Source> sorting(std::int64_t seq, std::uint64_t seed);

// Windows of a file at random places, byte by byte: tokens 0 to 255. Throws UsageError where there
// is no such file, and DataError for one that is empty or shorter than a window.
std::unique_ptr<Source> text_file(const std::string& path, std::int64_t seq, std::uint64_t seed);

// Samples of several sources of the same length, in these proportions: see [Note: interleave]. An
// epoch has as many samples as theirs have together, in whatever proportion they come.
std::unique_ptr<Source> mixture(std::vector<std::unique_ptr<Source>> sources,
                                std::vector<std::uint64_t> weights);
// All samples of one source, then all of the next; each has an end.
std::unique_ptr<Source> one_after_another(std::vector<std::unique_ptr<Source>> sources);
// `count` samples of another, from its number `first` on, and blank ones after them.
std::unique_ptr<Source> part_of(std::unique_ptr<Source> source, std::uint64_t first,
                                std::uint64_t count);

}  // namespace tessera::data
