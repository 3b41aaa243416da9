#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

// First sample number of questions for the end of a run, far from any training sample.
inline constexpr std::uint64_t kQuestions = std::uint64_t{1} << 62;

using Token = std::int64_t;
inline constexpr Token kIgnored = -1;  // target without loss

// Batch of samples, int64 [B, T]: targets[b][t] is the token after ids[b][0..t], or kIgnored.
struct Batch {
  at::Tensor ids;
  at::Tensor targets;
  std::int64_t predicted = 0;  // number of targets that are not kIgnored
  // int32 [B, T]: position where the document of each token starts, as in nn/pass.h. Undefined if
  // documents are not separated.
  at::Tensor document_starts = {};
};

// Assignment of samples to ranks. A step's global batch is `ranks · micro_batches · micro_batch`
// consecutive samples: first those of rank 0, divided into its micro-batches, then rank 1, and so
// on. One process that takes the whole batch sees the same samples.
struct Sampler {
  std::int64_t ranks = 1;
  std::int64_t micro_batches = 1;
  std::int64_t micro_batch = 1;

  std::int64_t global_batch() const { return ranks * micro_batches * micro_batch; }
  // Returns the first of the `micro_batch` samples of a micro-batch.
  std::uint64_t first(std::int64_t step, std::int64_t rank, std::int64_t micro) const {
    const std::int64_t before = (rank * micro_batches + micro) * micro_batch;
    return static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(global_batch()) +
           static_cast<std::uint64_t>(before);
  }
};

// One row of a batch, to be filled.
struct Row {
  std::span<Token> ids, targets;
  std::span<std::int32_t> starts = {};  // empty: not requested
};

// Prompt for the trained model at the end of a run, and the expected answer.
struct Question {
  std::vector<Token> prompt;
  std::int64_t answer_length = 0;
  std::vector<Token> answer;  // empty if any answer is accepted
};

// Numbered samples. A sample is a function of the source's seed and its number alone, so the data
// of a run does not depend on how it is divided over ranks and micro-batches.
class Source {
 public:
  virtual ~Source() = default;

  virtual std::string name() const = 0;
  virtual std::int64_t vocab() const = 0;  // all tokens are below; 0: unknown
  virtual std::int64_t seq() const = 0;    // sequence length T
  // Fills a row. Thread-safe.
  virtual void fill(std::uint64_t sample, const Row& row) const = 0;

  // Returns true if the documents of a row must not attend to each other; fill() then sets their
  // starts.
  virtual bool separate() const { return false; }
  // Number of samples of an epoch, after which the next one starts. 0: unlimited.
  virtual std::uint64_t samples_per_epoch() const { return 0; }
  virtual std::string fingerprint() const { return ""; }  // of the tokenizer; "": unknown
  // Average bytes of text per predicted token; 0: unknown.
  virtual double bytes_per_token() const { return 0; }
  // Describes the tokens of a sample for errors: "document 3 from its token 128 of tokens.bin".
  virtual std::string where(std::uint64_t sample) const;
  // Notes for the user, printed once before training: what is left out or cut.
  virtual std::vector<std::string> notes() const { return {}; }
  // Throws DataError with the position if a token is not below `vocabulary`. Reads all tokens
  // unless vocab() already guarantees it.
  virtual void check(std::int64_t vocabulary) const { static_cast<void>(vocabulary); }

  virtual Question question(std::uint64_t number) const = 0;
  // Returns a line with the question and the model's answer. It ends in a tick or a cross if the
  // answer can be judged.
  virtual std::string show(const Question& question, std::span<const Token> answer) const = 0;

  // Returns samples first … first + count - 1.
  Batch batch(std::uint64_t first, std::int64_t count) const;
};

// Fills a row without any loss.
void blank(const Row& row);

// [Note: sorting] Synthetic task: seven digits, a bar, the same digits sorted, repeated until the
// sequence is full. Only the sorted half is predicted. The loss of a small transformer falls from
// ln(vocab), where vocab is the model's, to nearly 0.
std::unique_ptr<Source> sorting(std::int64_t seq, std::uint64_t seed);

// Mixes several sources of equal sequence length in these proportions: see [Note: interleave]. An
// epoch has as many samples as those of the sources together.
std::unique_ptr<Source> mixture(std::vector<std::unique_ptr<Source>> sources,
                                std::vector<std::uint64_t> weights);
// All samples of one source, then all of the next. None may be unlimited.
std::unique_ptr<Source> one_after_another(std::vector<std::unique_ptr<Source>> sources);
// `count` samples of a source starting at `first`, followed by blank ones.
std::unique_ptr<Source> part_of(std::unique_ptr<Source> source, std::uint64_t first,
                                std::uint64_t count);

}  // namespace tessera::data
