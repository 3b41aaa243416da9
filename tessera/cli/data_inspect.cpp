#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/cli/checkpoint_verify.h"
#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/data_inspect.h"
#include "tessera/cli/json_output.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/core/utf8.h"
#include "tessera/data/token_data.h"
#include "tessera/data/token_files.h"
#include "tessera/data/tokenizer.h"

namespace tessera::cli {
namespace {

using InspectJson = nlohmann::ordered_json;
using data::TokenData;

constexpr std::uint64_t kSampleTokens = 200;  // shown per document

std::string with_commas(std::uint64_t count) {
  return format_grouped(static_cast<std::int64_t>(count));
}

// Histogram of document lengths: bin i counts documents of 2^i to 2^(i+1) - 1 tokens.
struct Lengths {
  std::array<std::uint64_t, 64> bins{};
  std::uint64_t shortest = 0, median = 0, longest = 0;
};

std::uint64_t power_of(std::uint64_t length) {
  return static_cast<std::uint64_t>(std::bit_width(length | 1u) - 1);
}

Lengths lengths_of(const TokenData& from) {
  Lengths out;
  out.shortest = UINT64_MAX;
  // An exact median would need all lengths in memory; a finer histogram approximates it.
  std::vector<std::uint64_t> fine(64 * 64);
  const auto fine_bin = [](std::uint64_t length) {
    const std::uint64_t power = power_of(length);
    return power * 64 + (power >= 6 ? (length >> (power - 6)) - 64 : (length << (6 - power)) - 64);
  };
  for (std::uint64_t i = 0; i < from.documents(); ++i) {
    const data::Document document = from.document(i);
    const std::uint64_t length = document.end - document.begin;
    ++out.bins[power_of(length)];
    ++fine[fine_bin(length)];
    out.shortest = std::min(out.shortest, length);
    out.longest = std::max(out.longest, length);
  }
  std::uint64_t seen = 0;
  for (std::uint64_t bin = 0; bin < fine.size(); ++bin) {
    seen += fine[bin];
    if (2 * seen < from.documents()) continue;
    const std::uint64_t power = bin / 64;
    out.median = power >= 6 ? (bin % 64 + 64) << (power - 6) : (bin % 64 + 64) >> (6 - power);
    break;
  }
  return out;
}

std::string histogram(const Lengths& lengths) {
  const std::uint64_t most = *std::max_element(lengths.bins.begin(), lengths.bins.end());
  std::size_t first = 0, last = lengths.bins.size() - 1;
  while (first < last && lengths.bins[first] == 0) ++first;
  while (last > first && lengths.bins[last] == 0) --last;
  std::string text;
  for (std::size_t i = first; i <= last; ++i) {
    constexpr std::uint64_t kCells = 40;
    const std::uint64_t count = lengths.bins[i];
    const std::string range =
        str(with_commas(std::uint64_t{1} << i), "–", with_commas((std::uint64_t{2} << i) - 1));
    const std::size_t width = range.size() - 2;  // the dash has three bytes
    std::uint64_t cells = most == 0 ? 0 : count * kCells / most;
    if (count > 0) cells = std::max<std::uint64_t>(1, cells);
    text += str("    ", std::string(width < 21 ? 21 - width : 0, ' '), range, "  ");
    for (std::uint64_t cell = 0; cell < cells; ++cell) text += "█";
    text += str(count > 0 ? " " : "", with_commas(count), "\n");
  }
  return text;
}

struct Sample {
  std::uint64_t number = 0, tokens = 0;
  std::string text;     // decoded; token ids if there is no tokenizer
  std::string learned;  // tokens that the loss covers, if there is a mask
};

// Returns evenly spaced documents.
std::vector<Sample> samples_of(const TokenData& from, const data::Tokenizer* tokenizer,
                               std::uint64_t count) {
  std::vector<Sample> all;
  count = std::min(count, from.documents());
  for (std::uint64_t i = 0; i < count; ++i) {
    Sample sample;
    sample.number = i * (from.documents() / count);
    const data::Document document = from.document(sample.number);
    sample.tokens = document.end - document.begin;
    const std::uint64_t shown = std::min(sample.tokens, kSampleTokens);
    std::vector<std::int64_t> ids(shown);
    std::vector<std::uint8_t> mask(shown);
    from.read(document.begin, ids);
    from.read_mask(document.begin, mask);
    std::vector<data::TokenId> some, learned;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      some.push_back(static_cast<data::TokenId>(ids[k]));
      if (mask[k] != 0) learned.push_back(some.back());
    }
    const auto text_of = [&](const std::vector<data::TokenId>& tokens) {
      if (tokenizer != nullptr) return printable(tokenizer->decode(tokens));
      std::vector<std::string> numbers;
      for (const data::TokenId id : tokens) numbers.push_back(std::to_string(id));
      return join(numbers, " ");
    };
    const std::string more = shown < sample.tokens ? " …" : "";
    sample.text = text_of(some) + more;
    if (from.masked()) sample.learned = text_of(learned) + more;
    all.push_back(std::move(sample));
  }
  return all;
}

std::unique_ptr<TokenData> open_data(const std::string& path) {
  // Files of nanoGPT have no header, so any file could be one. Require the extension.
  if (path.empty() || (!path.ends_with(".bin") && kind_of_file(path) == "a regular file")) {
    throw UsageError(str(quote(path), " is ", path.empty() ? "empty" : kind_of_file(path),
                         "; must be a folder of tokens, or a .bin"));
  }
  return data::open_tokens(path);
}

// Contents of a folder of tokens or a .bin, for `tessera data inspect`.
struct Inspection {
  std::string path;
  std::unique_ptr<TokenData> from;
  std::optional<data::TokenManifest> manifest;  // nullopt for a .bin
  Lengths lengths;
  std::vector<Sample> samples;
  std::string problem;  // the tokenizer cannot be used; reported after the figures
};

InspectJson to_json(const Inspection& inspection) {
  const TokenData& from = *inspection.from;
  InspectJson out = {{"path", inspection.path},
                     {"tokens", from.tokens()},
                     {"documents", from.documents()},
                     {"bytes_of_text", from.bytes_of_text()},
                     {"vocab", from.vocab()},
                     {"masked", from.masked()},
                     {"fingerprint", from.fingerprint()}};
  if (const auto& manifest = inspection.manifest) {
    out["tokenizer"] = manifest->tokenizer;
    out["bytes_per_token"] = manifest->bytes_per_token;
    out["reading"] = manifest->reading;
    out["shards"] = InspectJson::array();
    for (const data::TokenShard& shard : manifest->shards) {
      out["shards"].push_back({{"file", shard.name + ".bin"},
                               {"tokens", shard.tokens},
                               {"documents", shard.documents}});
    }
  }
  const Lengths& lengths = inspection.lengths;
  InspectJson bins = InspectJson::array();
  for (std::size_t i = 0; i < lengths.bins.size(); ++i) {
    if (lengths.bins[i] > 0) {
      bins.push_back({{"from", std::uint64_t{1} << i}, {"documents", lengths.bins[i]}});
    }
  }
  out["lengths"] = {{"shortest", lengths.shortest},
                    {"median", lengths.median},
                    {"longest", lengths.longest},
                    {"histogram", bins}};
  out["samples"] = InspectJson::array();
  for (const Sample& sample : inspection.samples) {
    InspectJson one = {
        {"document", sample.number}, {"tokens", sample.tokens}, {"text", sample.text}};
    if (from.masked()) one["learned"] = sample.learned;
    out["samples"].push_back(std::move(one));
  }
  out["problem"] = inspection.problem.empty() ? InspectJson() : InspectJson(inspection.problem);
  return out;
}

std::string facts_of(const Inspection& inspection) {
  const TokenData& from = *inspection.from;
  Table facts("ll");
  facts.row({"tokens", with_commas(from.tokens())});
  facts.row({"documents", with_commas(from.documents())});
  if (from.bytes_of_text() > 0) {
    facts.row({"text", str(with_commas(from.bytes_of_text()), " bytes, ",
                           fixed(static_cast<double>(from.bytes_of_text()) /
                                     static_cast<double>(from.tokens()),
                                 2),
                           " a token")});
  }
  if (const auto& manifest = inspection.manifest) {
    facts.row({"tokenizer", str(manifest->tokenizer, ", vocabulary ",
                                with_commas(static_cast<std::uint64_t>(manifest->vocab)), ", ",
                                manifest->fingerprint.substr(0, 12))});
    facts.row({"files", str(plural(static_cast<std::int64_t>(manifest->shards.size()), "shard"),
                            ", ", manifest->bytes_per_token, " bytes a token",
                            manifest->masked ? ", with masks: only some tokens have a loss" : "")});
    for (const auto& [key, value] : manifest->reading) {
      if (key == "call") continue;
      std::string name = key;
      std::replace(name.begin(), name.end(), '_', ' ');
      facts.row({name, printable(value)});
    }
  }
  const Lengths& lengths = inspection.lengths;
  const bool alike = lengths.shortest == lengths.longest;
  facts.row(
      {"lengths",
       alike ? str(with_commas(lengths.shortest), " tokens", from.documents() == 1 ? "" : " each")
             : str(with_commas(lengths.shortest), " to ", with_commas(lengths.longest),
                   " tokens, half of the documents up to about ", with_commas(lengths.median))});
  return facts.text();
}

std::string to_text(const Inspection& inspection) {
  std::string text = str(inspection.path, "\n", facts_of(inspection));
  text += histogram(inspection.lengths);
  for (const Sample& sample : inspection.samples) {
    text += str("  document ", with_commas(sample.number), " (", with_commas(sample.tokens),
                " tokens)\n    ", sample.text, "\n");
    if (inspection.from->masked()) text += str("    learned: ", sample.learned, "\n");
  }
  if (!inspection.problem.empty()) text += str("  PROBLEM: ", inspection.problem, "\n");
  return text;
}

}  // namespace

int inspect_data(const std::string& path, int samples, bool json) {
  Inspection inspection;
  inspection.path = path;
  inspection.from = open_data(path);
  inspection.manifest = dynamic_cast<const data::TokenFiles&>(*inspection.from).manifest();
  std::unique_ptr<data::Tokenizer> tokenizer;
  try {
    tokenizer = data::tokenizer_of(*inspection.from);
  } catch (const Error& error) {
    inspection.problem = error.what();
  }
  inspection.lengths = lengths_of(*inspection.from);
  inspection.samples =
      samples_of(*inspection.from, tokenizer.get(), static_cast<std::uint64_t>(samples));
  print_out(json ? json_text(to_json(inspection)) : to_text(inspection));
  return inspection.problem.empty() ? 0 : 1;
}

int verify_data(const std::string& path, std::int64_t vocab, bool json) {
  const std::unique_ptr<TokenData> from = open_data(path);
  std::uint64_t bytes = 0;
  for (const data::TokenFile& file : dynamic_cast<const data::TokenFiles&>(*from).files()) {
    bytes += file.bin.size() + file.idx.size() + file.mask.size();
  }
  std::string problem;
  try {
    MegabyteBar bar("verifying", static_cast<std::int64_t>(bytes));
    const auto report = bar.function();
    data::verify_tokens(*from, vocab,
                        [&](std::uint64_t done) { report(static_cast<std::int64_t>(done)); });
    data::tokenizer_of(*from);
  } catch (const Error& error) {
    if (!json) throw;
    problem = error.what();
  }
  if (json) {
    const InspectJson out = {{"path", path},
                             {"good", problem.empty()},
                             {"tokens", from->tokens()},
                             {"documents", from->documents()},
                             {"problem", problem.empty() ? InspectJson() : InspectJson(problem)}};
    print_out(json_text(out));
    return problem.empty() ? 0 : 1;
  }
  const std::int64_t below = vocab != 0 ? vocab : from->vocab();
  return print_out(str("Good: ", with_commas(from->tokens()), " tokens in ",
                       with_commas(from->documents()),
                       from->documents() == 1 ? " document" : " documents",
                       below != 0 ? str(", all below ", format_grouped(below))
                                  : "; give --vocab to check the tokens themselves",
                       "\n"));
}

}  // namespace tessera::cli
