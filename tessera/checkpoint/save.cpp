#include "tessera/checkpoint/save.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/checkpoint/shard_file.h"
#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::checkpoint {
namespace {

// A text that travels between ranks: what was done, or why it was not: because the file system
// could not, which another time it may, or for a reason that stays.
constexpr char kGood = '+', kBad = '-', kWrong = '!';

// A step that this rank does, and whose outcome the others must hear of.
struct Outcome {
  std::string text;          // with the mark in front
  std::exception_ptr error;  // this rank's own
};
template <typename F>
Outcome attempt(F&& body) {
  try {
    return {kGood + body(), nullptr};
  } catch (const DataError& error) {
    return {str(kBad, error.what()), std::current_exception()};
  } catch (const std::exception& error) {
    return {str(kWrong, message_of(error)), std::current_exception()};
  }
}

// Bytes [offset, offset + bytes) of the runs, one after the other.
Source source_of(const Shard& shard) {
  const std::int64_t size = bytes_of(shard.dtype);
  bool together = true;
  std::int64_t next = shard.runs[0].local;
  for (const Run& run : shard.runs) {
    together = together && run.local == next;
    next = run.local + run.count;
  }
  if (together && !shard.fetch) {
    const std::byte* begin = shard.data + shard.runs[0].local * size;
    return [begin](std::int64_t offset, std::int64_t, std::byte*) { return begin + offset; };
  }
  struct Cursor {
    std::size_t run = 0;
    std::int64_t done = 0;  // elements of it
  };
  return [&shard, size, cursor = std::make_shared<Cursor>()](
             std::int64_t, std::int64_t bytes, std::byte* staging) -> const std::byte* {
    const std::int64_t wanted = bytes / size;
    for (std::int64_t filled = 0; filled < wanted;) {
      const Run& run = shard.runs[cursor->run];
      const std::int64_t n = std::min(wanted - filled, run.count - cursor->done);
      shard.copy(run.local + cursor->done, n, staging + filled * size);
      filled += n;
      cursor->done += n;
      if (cursor->done == run.count) *cursor = {cursor->run + 1, 0};
    }
    return staging;
  };
}

void check_shard(const Shard& shard, const std::map<std::string, std::int64_t>& elements) {
  const std::string what =
      str("a shard of parameter ", quote(shard.param), ", state ", quote(shard.state));
  const auto param = elements.find(shard.param);
  if (param == elements.end()) {
    throw UsageError(what + ", but the description has no such parameter");
  }
  for (const Run& run : shard.runs) {
    if (run.count < 0 || run.local < 0 || run.whole < 0 || run.whole > param->second - run.count) {
      throw UsageError(str(what, " has ", run.count, " elements from ", run.whole,
                           " on, but the parameter has ", param->second));
    }
  }
  if (shard.data == nullptr && !shard.fetch && count_of(shard.runs) > 0)
    throw UsageError(what + " has no data");
}

ShardFileTable write_shards(const std::string& folder, int rank, const Description& about,
                            const std::vector<Shard>& shards, const SaveOptions& options) {
  std::map<std::string, std::int64_t> elements;
  for (const ParamSpec& spec : about.params) elements[spec.name] = elements_of(spec.shape);
  std::vector<ShardFileTensor> tensors;
  for (const Shard& shard : shards) {
    check_shard(shard, elements);
    std::vector<Stripe> stripes = to_stripes(shard.runs);
    if (stripes.empty()) continue;
    tensors.push_back(
        {shard.param, shard.state, shard.dtype, std::move(stripes), source_of(shard)});
  }
  return write_shard_file(*options.files, folder, rank, about, std::move(tensors), options.charge);
}

Manifest assemble(Description about, const std::vector<std::string>& tables) {
  Manifest manifest;
  about.params.clear();
  std::map<std::string, std::size_t> known;
  for (std::size_t rank = 0; rank < tables.size(); ++rank) {
    ShardFileTable table =
        parse_table(std::string_view(tables[rank]).substr(1), str("the table of rank ", rank));
    for (ParamSpec& spec : table.params) {
      const auto [at, fresh] = known.emplace(spec.name, about.params.size());
      if (fresh) {
        about.params.push_back(std::move(spec));
      } else if (about.params[at->second] != spec) {
        throw UsageError(str("rank ", rank, " describes parameter ", quote(spec.name),
                             " in another way than the ranks before it"));
      }
    }
    about.extra.merge(table.extra);
    manifest.files.push_back(std::move(table.file));
  }
  manifest.about = std::move(about);
  return manifest;
}

// What all are told when a rank failed: the mark, its number, and why.
std::string bad_news(int rank, const std::string& said) {
  const std::string why = said.empty() ? str(kWrong, "it said nothing") : said;
  return str(why[0], rank, " rank ", rank, " cannot save: ", why.substr(1));
}
bool is_good(const std::string& text) { return !text.empty() && text[0] == kGood; }

std::string reason_in(const std::string& news) {
  const std::size_t space = news.find(' ');
  return space == std::string::npos ? "another rank cannot save" : news.substr(space + 1);
}

// Throws this rank's own error, or what it was told of another's.
[[noreturn]] void fail_together(const std::exception_ptr& own, const std::string& news) {
  if (own) std::rethrow_exception(own);
  int rank = PeerError::kUnknownRank;
  const std::size_t space = news.find(' ');
  if (space != std::string::npos) std::from_chars(news.data() + 1, news.data() + space, rank);
  throw PeerError(reason_in(news), rank);
}

// One try of all ranks: the same verdict on each, and its own error where it had one.
struct Try {
  std::string verdict;  // the folder that was published, or bad news
  std::exception_ptr error;
  std::int64_t bytes = 0;
};

Try save_once(const std::string& dir, const Description& about, const std::vector<Shard>& shards,
              const Team& team, const SaveOptions& options) {
  FileSystem& files = *options.files;
  // 1. Rank 0 makes the folder.
  Outcome begun{std::string(1, kGood), nullptr};
  if (team.rank == 0) {
    begun = attempt([&] { return begin_folder(files, dir, about.step, options.warn); });
    if (begun.error) begun.text = bad_news(0, begun.text);
  }
  const std::string folder = team.broadcast(begun.text);
  if (!is_good(folder)) return {folder, begun.error};

  // 2. All write.
  ShardFileTable table;
  const Outcome wrote = attempt([&] {
    table = write_shards(folder.substr(1), team.rank, about, shards, options);
    return to_text(table);
  });
  const std::vector<std::string> tables = team.gather(wrote.text);

  // 3. Rank 0 publishes, if all could write.
  Outcome published{std::string(1, kGood), nullptr};
  if (team.rank == 0) {
    for (std::size_t rank = 0; rank < tables.size() && is_good(published.text); ++rank) {
      if (!is_good(tables[rank])) published.text = bad_news(static_cast<int>(rank), tables[rank]);
    }
    if (is_good(published.text)) {
      published = attempt(
          [&] { return publish_folder(files, dir, assemble(about, tables), options.warn); });
      if (published.error) published.text = bad_news(0, published.text);
    }
    if (!is_good(published.text)) {
      // The space it takes may be what is missing. Whatever stays, the next save removes.
      attempt([&] {
        remove_tree(files, folder.substr(1));
        return std::string();
      });
    }
  }
  const std::string verdict = team.broadcast(published.text);
  return {verdict, wrote.error ? wrote.error : published.error, table.file.bytes};
}

}  // namespace

Saved save(const std::string& dir, const Description& about, const std::vector<Shard>& shards,
           const Team& team, const SaveOptions& options) {
  const auto began = std::chrono::steady_clock::now();
  check_counts(about);
  const auto warn = [&](const std::string& text) {
    if (team.rank == 0 && options.warn) options.warn(text);
  };
  constexpr double kLongestPause = 60;
  double pause = options.retry_seconds;
  Try tried = save_once(dir, about, shards, team, options);
  for (int retry = 1; retry <= options.retries && tried.verdict[0] == kBad; ++retry) {
    warn(str("step ", about.step, " is not saved yet: ", reason_in(tried.verdict),
             "; trying again in ", format_time(pause), " (", retry, " of ", options.retries, ")"));
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    tried = save_once(dir, about, shards, team, options);
    pause = std::min(2 * pause, kLongestPause);
  }
  Saved saved;
  if (is_good(tried.verdict)) {
    if (team.rank == 0) {
      const Outcome cleaned = attempt([&] {
        apply_retention(*options.files, dir, about.step, options.retention);
        return std::string();
      });
      if (cleaned.error) {
        warn("saved, but an older checkpoint stays: " + cleaned.text.substr(1));
      }
    }
    saved.folder = tried.verdict.substr(1);
    saved.bytes = tried.bytes;
  } else {
    if (!options.return_failures || tried.verdict[0] != kBad) {
      fail_together(tried.error, tried.verdict);
    }
    saved.failure = reason_in(tried.verdict);
    warn(str("step ", about.step, " is NOT SAVED: ", saved.failure));
  }
  saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return saved;
}

}  // namespace tessera::checkpoint
