#include "tessera/data/data_set.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/data/interleave.h"
#include "tessera/data/source.h"
#include "tessera/data/token_data.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/windows.h"

namespace tessera::data {
namespace {

constexpr const char* kSynthetic = "synthetic";
// Validation samples of the synthetic task, far from any used for training or questions.
constexpr std::uint64_t kValidation = std::uint64_t{1} << 61, kValidationSamples = 256;

struct WeightedPath {
  std::string path, weight;  // weight: "" if not given
};

// Parses "a=0.7,b=0.3", "a,b" or one path. An existing path may contain commas and equals signs.
std::vector<WeightedPath> parse_data(const std::string& text, const char* flag = "--data") {
  if (text == kSynthetic || kind_of_file(text) != "nothing") return {{text, ""}};
  std::vector<WeightedPath> out;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    const std::string piece = text.substr(from, comma - from);
    from = comma + 1;
    const std::size_t equals = piece.rfind('=');
    const bool weighed = equals != std::string::npos && kind_of_file(piece) == "nothing";
    out.push_back(weighed ? WeightedPath{piece.substr(0, equals), piece.substr(equals + 1)}
                          : WeightedPath{piece, ""});
    if (out.back().path.empty()) {
      throw UsageError(str(flag, ": got ", quote(text),
                           ", where a path is empty; must be a path, or several with "
                           "weights: a=0.7,b=0.3"));
    }
  }
  const auto given = std::count_if(out.begin(), out.end(),
                                   [](const WeightedPath& each) { return !each.weight.empty(); });
  if (given != 0 && given != static_cast<std::ptrdiff_t>(out.size())) {
    throw UsageError(
        str(flag, ": got ", quote(text), ", where only some have a weight; give all or none"));
  }
  return out;
}

bool is_tokens(const std::string& path) {
  return path != kSynthetic && (is_token_data(path) || kind_of_file(path) == "a folder");
}

std::shared_ptr<const TokenData> open_data(const std::string& path, const char* flag) {
  if (!is_tokens(path)) return text_tokens(path);
  try {
    return open_tokens(path);
  } catch (const UsageError& error) {
    throw UsageError(str(flag, ": ", error.what()));
  } catch (const DataError& error) {
    throw DataError(str(flag, ": ", error.what()));
  }
}

Order order_of(const DataOptions& options, const std::string& path) {
  if (options.order == "sequential") return Order::sequential;
  if (options.order == "shuffle") return Order::shuffle;
  const bool walks = options.epochs > 0 || options.pack == "none";
  if (options.order == "random") {
    if (walks) {
      throw UsageError(Flag("order"),
                       str("got random with ",
                           options.epochs > 0 ? "--epochs, but random order has no epochs"
                                              : "--pack none, whose rows are whole documents",
                           "; must be shuffle or sequential"));
    }
    return Order::random;
  }
  return walks || is_tokens(path) ? Order::shuffle : Order::random;
}

WindowOptions window_options(const DataOptions& options, std::uint64_t stream) {
  WindowOptions out;
  out.seq = options.seq;
  out.seed = options.seed;
  out.stream = stream;
  out.packed = options.pack != "none";
  out.separate = options.documents == "separate";
  return out;
}

// Cuts windows, with a decoder for showing tokens to the user.
std::unique_ptr<Source> cut(const std::shared_ptr<const TokenData>& part, const std::string& path,
                            const TokenData& whole, const WindowOptions& options) {
  return windows(part, options, is_tokens(path) ? decoder_of(whole) : Decode(decode_bytes));
}

std::unique_ptr<Source> training_part(const DataOptions& options, const std::string& path,
                                      std::uint64_t stream) {
  if (path == kSynthetic) return sorting(options.seq, options.seed);
  const auto whole = open_data(path, "--data");
  WindowOptions how = window_options(options, stream);
  how.order = order_of(options, path);
  return cut(options.val_fraction > 0 ? split(whole, options.val_fraction).training : whole, path,
             *whole, how);
}

std::unique_ptr<Source> validation_part(const DataOptions& options, const std::string& path,
                                        const char* flag) {
  if (path == kSynthetic) {
    return part_of(sorting(options.seq, options.seed), kValidation, kValidationSamples);
  }
  const auto whole = open_data(path, flag);
  WindowOptions how = window_options(options, 0);
  how.order = Order::sequential;
  how.tail = true;
  const bool own = !options.val_data.empty();
  return cut(own ? whole : split(whole, options.val_fraction).validation, path, *whole, how);
}

void check_options(const DataOptions& options) {
  if (!options.val_data.empty() && options.val_fraction > 0) {
    throw UsageError(Flag("val-fraction"), str("got ", options.val_fraction, " with --val-data ",
                                               options.val_data, "; give only one of them"));
  }
  if (options.val_fraction == 0 && options.epochs == 0) return;
  for (const WeightedPath& each : parse_data(options.data)) {
    if (each.path != kSynthetic) continue;
    throw UsageError(str(options.epochs > 0 ? "--epochs" : "--val-fraction", ": got ",
                         options.epochs > 0 ? str(options.epochs) : str(options.val_fraction),
                         " with --data synthetic, which is unlimited. Use ",
                         options.epochs > 0 ? "--steps." : "--val-data synthetic."));
  }
}

}  // namespace

bool has_tokens(const std::string& data) {
  const std::vector<WeightedPath> all = parse_data(data);
  return std::any_of(all.begin(), all.end(),
                     [](const WeightedPath& each) { return is_tokens(each.path); });
}

std::vector<std::string> token_folders(const std::string& data) {
  std::vector<std::string> folders;
  for (const WeightedPath& each : parse_data(data)) {
    if (is_tokens(each.path) && kind_of_file(each.path) == "a folder") folders.push_back(each.path);
  }
  return folders;
}

std::string text_fingerprint() { return byte_tokenizer()->fingerprint(); }

std::unique_ptr<Source> training_source(const DataOptions& options) {
  check_options(options);
  const std::vector<WeightedPath> all = parse_data(options.data);
  if (all.size() == 1) return training_part(options, all.front().path, 0);
  std::vector<std::unique_ptr<Source>> sources;
  std::vector<std::string> texts;
  std::vector<std::uint64_t> counts;
  for (const WeightedPath& each : all) {
    sources.push_back(training_part(options, each.path, sources.size()));
    texts.push_back(each.weight);
    counts.push_back(sources.back()->samples_per_epoch());
    if (each.weight.empty() && counts.back() == 0) {
      throw UsageError(Flag("data"),
                       str(each.path, " is unlimited and needs a weight, as in a=0.7,b=0.3",
                           each.path == kSynthetic ? "" : ", or --order shuffle"));
    }
  }
  const bool weighed = !texts.front().empty();
  return mixture(std::move(sources),
                 weighed ? whole_weights(texts, "--data") : weights_of_counts(std::move(counts)));
}

std::unique_ptr<Source> validation_source(const DataOptions& options) {
  check_options(options);
  const bool own = !options.val_data.empty();
  if (!own && options.val_fraction == 0) return nullptr;
  const char* const flag = own ? "--val-data" : "--data";
  std::vector<std::unique_ptr<Source>> sources;
  for (const WeightedPath& each : parse_data(own ? options.val_data : options.data, flag)) {
    sources.push_back(validation_part(options, each.path, flag));
  }
  auto all =
      sources.size() == 1 ? std::move(sources.front()) : one_after_another(std::move(sources));
  const std::uint64_t count = all->samples_per_epoch();
  return part_of(std::move(all), 0, count);
}

DataFacts facts_of(const DataOptions& options) {
  const auto source = training_source(options);
  return {source->vocab(), source->fingerprint(), source->samples_per_epoch()};
}

}  // namespace tessera::data
