#include "tessera/checkpoint/save.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include "tessera/checkpoint/safetensors_writer.h"
#include "tessera/checkpoint/step_folder.h"
#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::checkpoint {
namespace {

// First character of a message between ranks: success, an error of the file system, which may be
// retried, or a permanent error.
constexpr char kOk = '+', kFileError = '-', kOtherError = '!';

// Result of a phase on this rank, to be sent to the others.
struct Outcome {
  std::string text;          // status character and text
  std::exception_ptr error;  // of this rank
};
template <typename F>
Outcome attempt(F&& body) {
  try {
    return {kOk + body(), nullptr};
  } catch (const DataError& error) {
    return {str(kFileError, error.what()), std::current_exception()};
  } catch (const std::exception& error) {
    return {str(kOtherError, message_of(error)), std::current_exception()};
  }
}

// Returns a source that reads the packed runs of a shard.
Source source_of(const Shard& shard) {
  const std::int64_t size = bytes_of(shard.dtype);
  bool contiguous = true;
  std::int64_t next = shard.runs[0].local;
  for (const Run& run : shard.runs) {
    contiguous = contiguous && run.local == next;
    next = run.local + run.count;
  }
  if (contiguous && !shard.fetch) {
    const std::byte* begin = shard.data + shard.runs[0].local * size;
    return [begin](std::int64_t offset, std::int64_t, std::byte*) { return begin + offset; };
  }
  struct Cursor {
    std::size_t run = 0;
    std::int64_t done = 0;  // elements of the run
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
    throw UsageError(what + ": the description has no such parameter");
  }
  for (const Run& run : shard.runs) {
    if (run.count < 0 || run.local < 0 || run.whole < 0 || run.whole > param->second - run.count) {
      throw UsageError(str(what, " has ", run.count, " elements from index ", run.whole,
                           ", but the parameter has ", param->second));
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
    std::vector<StridedRun> strided_runs = to_strided_runs(shard.runs);
    if (strided_runs.empty()) continue;
    tensors.push_back(
        {shard.param, shard.state, shard.dtype, std::move(strided_runs), source_of(shard)});
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
      const auto [at, inserted] = known.emplace(spec.name, about.params.size());
      if (inserted) {
        about.params.push_back(std::move(spec));
      } else if (about.params[at->second] != spec) {
        throw UsageError(str("the description of parameter ", quote(spec.name), " on rank ", rank,
                             " differs from that of a lower rank"));
      }
    }
    about.extra.merge(table.extra);
    manifest.files.push_back(std::move(table.file));
  }
  manifest.about = std::move(about);
  return manifest;
}

// Returns the message to all ranks after a failure: status character, rank and reason.
std::string failure_of(int rank, const std::string& sent) {
  const std::string why = sent.empty() ? str(kOtherError, "it sent no reason") : sent;
  return str(why[0], rank, " rank ", rank, " cannot save: ", why.substr(1));
}
bool is_ok(const std::string& text) { return !text.empty() && text[0] == kOk; }

std::string reason_in(const std::string& message) {
  const std::size_t space = message.find(' ');
  return space == std::string::npos ? "another rank cannot save" : message.substr(space + 1);
}

// Throws the error of this rank, or a PeerError for that of another rank.
[[noreturn]] void throw_failure(const std::exception_ptr& own, const std::string& message) {
  if (own) std::rethrow_exception(own);
  int rank = PeerError::kUnknownRank;
  const std::size_t space = message.find(' ');
  if (space != std::string::npos) std::from_chars(message.data() + 1, message.data() + space, rank);
  throw PeerError(reason_in(message), rank);
}

// Result of one attempt of all ranks: the same verdict on each, and the error of this rank if any.
struct Attempt {
  std::string verdict;  // published folder, or failure_of()
  std::exception_ptr error;
  std::int64_t bytes = 0;
};

Attempt save_once(const std::string& dir, const Description& about,
                  const std::vector<Shard>& shards, const Team& team, const SaveOptions& options) {
  FileSystem& files = *options.files;
  // 1. Rank 0 creates the folder.
  Outcome begun{std::string(1, kOk), nullptr};
  if (team.rank == 0) {
    begun = attempt([&] { return begin_folder(files, dir, about.step, options.warn); });
    if (begun.error) begun.text = failure_of(0, begun.text);
  }
  const std::string folder = team.broadcast(begun.text);
  if (!is_ok(folder)) return {folder, begun.error};

  // 2. All ranks write.
  ShardFileTable table;
  const Outcome wrote = attempt([&] {
    table = write_shards(folder.substr(1), team.rank, about, shards, options);
    return to_text(table);
  });
  const std::vector<std::string> tables = team.gather(wrote.text);

  // 3. Rank 0 publishes if all ranks succeeded.
  Outcome published{std::string(1, kOk), nullptr};
  if (team.rank == 0) {
    for (std::size_t rank = 0; rank < tables.size() && is_ok(published.text); ++rank) {
      if (!is_ok(tables[rank])) published.text = failure_of(static_cast<int>(rank), tables[rank]);
    }
    if (is_ok(published.text)) {
      published = attempt(
          [&] { return publish_folder(files, dir, assemble(about, tables), options.warn); });
      if (published.error) published.text = failure_of(0, published.text);
    }
    if (!is_ok(published.text)) {
      // Frees the space, which may be what is missing. The next save removes leftovers.
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
  Attempt result = save_once(dir, about, shards, team, options);
  for (int retry = 1; retry <= options.retries && result.verdict[0] == kFileError; ++retry) {
    warn(str("step ", about.step, " is not saved yet: ", reason_in(result.verdict),
             "; trying again in ", format_time(pause), " (", retry, " of ", options.retries, ")"));
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    result = save_once(dir, about, shards, team, options);
    pause = std::min(2 * pause, kLongestPause);
  }
  Saved saved;
  if (is_ok(result.verdict)) {
    if (team.rank == 0) {
      const Outcome cleaned = attempt([&] {
        apply_retention(*options.files, dir, about.step, options.retention);
        return std::string();
      });
      if (cleaned.error) {
        warn("saved, but an older checkpoint stays: " + cleaned.text.substr(1));
      }
    }
    saved.folder = result.verdict.substr(1);
    saved.bytes = result.bytes;
  } else {
    if (!options.return_failures || result.verdict[0] != kFileError) {
      throw_failure(result.error, result.verdict);
    }
    saved.failure = reason_in(result.verdict);
    warn(str("step ", about.step, " is NOT SAVED: ", saved.failure));
  }
  saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return saved;
}

ShardFileTable write_shard_file(FileSystem& files, const std::string& folder, int rank,
                                const Description& about, std::vector<ShardFileTensor> tensors,
                                const Charge& charge) {
  std::map<std::string, const ParamSpec*> specs;
  for (const ParamSpec& spec : about.params) specs[spec.name] = &spec;
  std::map<std::string, StoredTensor> stored;
  std::map<std::string, int> used;
  std::vector<Outgoing> outgoing;
  for (ShardFileTensor& tensor : tensors) {
    StoredTensor entry;
    // Several shards of a state are several tensors. Avoids the names of other parameters.
    const std::string name = tensor.state + "/" + tensor.param;
    entry.name = name;
    for (int& times = used[name]; stored.contains(entry.name);) {
      entry.name = str(name, "#", ++times);
    }
    entry.param = tensor.param;
    entry.state = tensor.state;
    entry.dtype = tensor.dtype;
    entry.strided_runs = std::move(tensor.strided_runs);
    Outgoing& out = outgoing.emplace_back();
    out.entry.name = entry.name;
    out.entry.dtype = entry.dtype;
    // A whole parameter keeps its shape, so that any safetensors reader can use it.
    const ParamSpec& spec = *specs.at(entry.param);
    const std::int64_t elements = entry.elements();
    const bool whole = entry.strided_runs.size() == 1 && elements == elements_of(spec.shape);
    out.entry.shape = whole ? spec.shape : std::vector<std::int64_t>{elements};
    out.source = std::move(tensor.source);
    stored[entry.name] = std::move(entry);
  }
  ShardFileTable table;
  table.params = about.params;
  table.extra = about.extra;
  table.file.name = shard_file_name(rank);
  const WrittenFile written = write_safetensors(
      files, folder + "/" + table.file.name, outgoing,
      {{"format", "tessera"}, {"rank", std::to_string(rank)}, {"step", std::to_string(about.step)}},
      charge);
  table.file.bytes = written.bytes;
  table.file.header_bytes = written.header_bytes;
  table.file.header_checksum = written.header_checksum;
  // The writer has changed the order.
  for (std::size_t i = 0; i < outgoing.size(); ++i) {
    StoredTensor& tensor = stored[outgoing[i].entry.name];
    tensor.checksums = written.checksums[i];
    table.file.tensors.push_back(std::move(tensor));
  }
  return table;
}

}  // namespace tessera::checkpoint
