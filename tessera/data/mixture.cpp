// Sources that combine other sources.

#include <algorithm>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/interleave.h"
#include "tessera/data/source.h"

namespace tessera::data {
namespace {

// Base of sources that combine several.
class CompositeSource : public Source {
 public:
  explicit CompositeSource(std::vector<std::unique_ptr<Source>> sources)
      : sources_(std::move(sources)) {
    if (sources_.empty()) throw UsageError("a mixture must have at least one source");
    for (const auto& each : sources_) {
      if (each->seq() != first().seq()) {
        throw UsageError(str("a mixture of ", first().name(), " with sequences of ", first().seq(),
                             " and ", each->name(), " with ", each->seq(),
                             "; the lengths must be equal"));
      }
      // Ids of different tokenizers mean different things.
      if (!each->fingerprint().empty() && !fingerprint().empty() &&
          each->fingerprint() != fingerprint()) {
        throw DataError(str("--data: ", each->name(), " was made with another tokenizer (",
                            each->fingerprint(), ") than the data before it (", fingerprint(),
                            "). Prepare both with the same one."));
      }
    }
  }

  std::int64_t vocab() const override {
    std::int64_t most = 0;
    for (const auto& each : sources_) {
      if (each->vocab() == 0) return 0;
      most = std::max(most, each->vocab());
    }
    return most;
  }
  std::int64_t seq() const override { return first().seq(); }
  bool separate() const override {
    return std::any_of(sources_.begin(), sources_.end(),
                       [](const auto& each) { return each->separate(); });
  }
  std::uint64_t samples_per_epoch() const override {
    std::uint64_t sum = 0;
    for (const auto& each : sources_) {
      if (each->samples_per_epoch() == 0) return 0;
      sum += each->samples_per_epoch();
    }
    return sum;
  }
  std::string fingerprint() const override {
    for (const auto& each : sources_) {
      if (!each->fingerprint().empty()) return each->fingerprint();
    }
    return "";
  }
  void fill(std::uint64_t sample, const Row& row) const override {
    const Interleave::Pick pick = pick_of(sample);
    const Source& source = *sources_[pick.source];
    if (!row.starts.empty() && !source.separate()) {
      std::fill(row.starts.begin(), row.starts.end(), 0);
    }
    source.fill(pick.sample, row);
  }
  std::string where(std::uint64_t sample) const override {
    const Interleave::Pick pick = pick_of(sample);
    return sources_[pick.source]->where(pick.sample);
  }
  std::vector<std::string> notes() const override {
    std::vector<std::string> all;
    for (const auto& each : sources_) {
      for (std::string& note : each->notes()) all.push_back(std::move(note));
    }
    return all;
  }
  void check(std::int64_t vocabulary) const override {
    for (const auto& each : sources_) each->check(vocabulary);
  }
  // Takes the questions of the sources in turn.
  Question question(std::uint64_t number) const override {
    const std::uint64_t count = sources_.size();
    return sources_[number % count]->question(number / count);
  }
  std::string show(const Question& question, std::span<const Token> answer) const override {
    const auto knows = [](const auto& each) { return !each->fingerprint().empty(); };
    const auto found = std::find_if(sources_.begin(), sources_.end(), knows);
    return (found == sources_.end() ? first() : **found).show(question, answer);
  }

 protected:
  virtual Interleave::Pick pick_of(std::uint64_t sample) const = 0;
  const Source& first() const { return *sources_.front(); }
  const std::vector<std::unique_ptr<Source>>& sources() const { return sources_; }

 private:
  std::vector<std::unique_ptr<Source>> sources_;
};

class Mixture final : public CompositeSource {
 public:
  Mixture(std::vector<std::unique_ptr<Source>> sources, std::vector<std::uint64_t> weights)
      : CompositeSource(std::move(sources)), weights_(weights), interleave_(std::move(weights)) {
    if (weights_.size() != this->sources().size()) {
      throw UsageError(str("a mixture of ", this->sources().size(), " sources has ",
                           weights_.size(), " weights; must have one per source"));
    }
  }

  std::string name() const override {
    double sum = 0;
    for (const std::uint64_t weight : weights_) sum += static_cast<double>(weight);
    std::string text;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      text += str(i == 0 ? "" : " + ", fixed(100 * static_cast<double>(weights_[i]) / sum, 1), "% ",
                  sources()[i]->name());
    }
    return text;
  }
  double bytes_per_token() const override {
    double sum = 0, bytes = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (sources()[i]->bytes_per_token() == 0) return 0;
      sum += static_cast<double>(weights_[i]);
      bytes += static_cast<double>(weights_[i]) * sources()[i]->bytes_per_token();
    }
    return bytes / sum;
  }

 private:
  Interleave::Pick pick_of(std::uint64_t sample) const override { return interleave_.pick(sample); }

  std::vector<std::uint64_t> weights_;
  Interleave interleave_;
};

class ConcatenatedSources final : public CompositeSource {
 public:
  explicit ConcatenatedSources(std::vector<std::unique_ptr<Source>> all)
      : CompositeSource(std::move(all)) {
    for (const auto& each : sources()) {
      if (each->samples_per_epoch() == 0) {
        throw UsageError(str(each->name(), " is unlimited, so no source can follow it"));
      }
    }
  }

  std::string name() const override {
    std::vector<std::string> names;
    for (const auto& each : sources()) names.push_back(each->name());
    return join(names, ", ");
  }
  double bytes_per_token() const override {
    double bytes = 0;
    for (const auto& each : sources()) {
      if (each->bytes_per_token() == 0) return 0;
      bytes += each->bytes_per_token() * static_cast<double>(each->samples_per_epoch());
    }
    return bytes / static_cast<double>(samples_per_epoch());
  }

 private:
  Interleave::Pick pick_of(std::uint64_t sample) const override {
    const std::uint64_t epoch = sample / samples_per_epoch();
    sample %= samples_per_epoch();
    std::size_t at = 0;
    for (; sample >= sources()[at]->samples_per_epoch(); ++at) {
      sample -= sources()[at]->samples_per_epoch();
    }
    return {at, epoch * sources()[at]->samples_per_epoch() + sample};
  }
};

class PartOfSource final : public Source {
 public:
  PartOfSource(std::unique_ptr<Source> whole, std::uint64_t first, std::uint64_t count)
      : whole_(std::move(whole)), first_(first), count_(count) {}

  std::string name() const override { return whole_->name(); }
  std::int64_t vocab() const override { return whole_->vocab(); }
  std::int64_t seq() const override { return whole_->seq(); }
  bool separate() const override { return whole_->separate(); }
  std::uint64_t samples_per_epoch() const override {
    const std::uint64_t whole = whole_->samples_per_epoch();
    return whole == 0 ? count_ : std::min(whole, count_);
  }
  std::string fingerprint() const override { return whole_->fingerprint(); }
  double bytes_per_token() const override { return whole_->bytes_per_token(); }
  void fill(std::uint64_t sample, const Row& row) const override {
    if (sample >= count_) return blank(row);
    whole_->fill(first_ + sample, row);
  }
  std::string where(std::uint64_t sample) const override {
    return sample >= count_ ? "padding" : whole_->where(first_ + sample);
  }
  std::vector<std::string> notes() const override { return whole_->notes(); }
  void check(std::int64_t vocabulary) const override { whole_->check(vocabulary); }
  Question question(std::uint64_t number) const override { return whole_->question(number); }
  std::string show(const Question& question, std::span<const Token> answer) const override {
    return whole_->show(question, answer);
  }

 private:
  std::unique_ptr<Source> whole_;
  std::uint64_t first_, count_;
};

}  // namespace

std::unique_ptr<Source> mixture(std::vector<std::unique_ptr<Source>> sources,
                                std::vector<std::uint64_t> weights) {
  return std::make_unique<Mixture>(std::move(sources), std::move(weights));
}

std::unique_ptr<Source> one_after_another(std::vector<std::unique_ptr<Source>> sources) {
  return std::make_unique<ConcatenatedSources>(std::move(sources));
}

std::unique_ptr<Source> part_of(std::unique_ptr<Source> source, std::uint64_t first,
                                std::uint64_t count) {
  return std::make_unique<PartOfSource>(std::move(source), first, count);
}

}  // namespace tessera::data
