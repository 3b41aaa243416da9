#include <algorithm>
#include <tuple>

#include "tessera/checkpoint/buffer.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {

struct Checkpoint::Copy {
  int file = 0, tensor = 0;
  std::int64_t from = 0, count = 0;  // in elements of the tensor
  const WantedShard* to = nullptr;
  std::int64_t local = 0;  // target, as Run::local
};

const std::vector<Checkpoint::StoredRun>& Checkpoint::stored_runs(const Key& key) {
  if (stored_runs_of_ == key && !stored_runs_.empty()) return stored_runs_;
  std::vector<StoredRun> all;
  const auto found = stored_.find(key);
  if (found != stored_.end()) {
    std::int64_t run_total = 0;
    for (const auto& [f, t] : found->second) {
      const StoredFile& file = manifest_.files[static_cast<std::size_t>(f)];
      check_size(f);  // before memory is allocated for its runs
      run_total += run_count(file.tensors[static_cast<std::size_t>(t)]);
      if (run_total > kMaxRuns) {
        throw DataError(str(folder_, ": parameter ", quote(key.first), ", state ",
                            quote(key.second), " is cut into ", run_total,
                            " runs or more; must be at most ", kMaxRuns));
      }
      for (const Run& run : to_runs(file.tensors[static_cast<std::size_t>(t)].strided_runs)) {
        all.push_back({run, f, t});
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const StoredRun& a, const StoredRun& b) {
    return a.run.whole < b.run.whole;
  });
  // Uses the first copy of elements that several ranks saved (KV heads).
  stored_runs_.clear();
  std::int64_t at = 0;
  for (StoredRun stored : all) {
    const std::int64_t known = std::max<std::int64_t>(0, at - stored.run.whole);
    if (known >= stored.run.count) continue;
    stored.run = {stored.run.whole + known, stored.run.local + known, stored.run.count - known};
    at = stored.run.whole + stored.run.count;
    stored_runs_.push_back(stored);
  }
  stored_runs_of_ = key;
  return stored_runs_;
}

void Checkpoint::plan(const WantedShard& wanted, std::vector<Copy>& copies) {
  const ParamSpec* spec = find(wanted.param);
  if (spec == nullptr) refuse_param(wanted.param);
  const std::string what =
      str(folder_, ": parameter ", quote(wanted.param), ", state ", quote(wanted.state));
  if (wanted.runs.empty()) return;
  const std::int64_t elements = elements_of(spec->shape);
  const std::map<std::string, DType> have = states(wanted.param);
  const auto state = have.find(wanted.state);
  if (state == have.end()) {
    std::vector<std::string> names;
    for (const auto& [name, dtype] : have) names.push_back(visible(name));
    throw DataError(str(what, " does not exist; it has: ", join(names, ", "),
                        ". It was saved with layout ", quote(manifest_.about.layout)));
  }
  if (!convertible(state->second, wanted.dtype)) {
    throw DataError(str(what, " is ", stored_name(state->second), ", which cannot be loaded as ",
                        stored_name(wanted.dtype)));
  }
  const std::vector<StoredRun>& found = stored_runs({wanted.param, wanted.state});
  std::vector<Run> missing;
  for (const Run& run : wanted.runs) {
    if (run.count < 0 || run.whole < 0 || run.whole > elements - run.count) {
      throw DataError(str(what, ": elements ", run.whole, " to ", run.whole + run.count - 1,
                          " were requested, but the parameter has ", elements,
                          "; it was saved by a model with another shape"));
    }
    std::int64_t at = run.whole;
    const std::int64_t end = run.whole + run.count;
    auto stored = std::partition_point(found.begin(), found.end(), [&](const StoredRun& p) {
      return p.run.whole + p.run.count <= at;
    });
    while (at < end) {
      const std::int64_t begins = stored == found.end() ? end : std::min(end, stored->run.whole);
      if (begins > at) {
        missing.push_back({at, 0, begins - at});
        at = begins;
        continue;
      }
      const std::int64_t count = std::min(end, stored->run.whole + stored->run.count) - at;
      copies.push_back({stored->file, stored->tensor, stored->run.local + at - stored->run.whole,
                        count, &wanted, run.local + at - run.whole});
      at += count;
      ++stored;
    }
  }
  if (!missing.empty()) {
    throw DataError(str(what, ": no file has ", describe(missing), " of its ", elements));
  }
}

// Maximum bytes per read.
constexpr std::int64_t kLoadBytes = std::int64_t{8} << 20;

void Checkpoint::run(std::vector<Copy>& copies, Rounding rounding) {
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
    return std::tie(a.file, a.tensor, a.from) < std::tie(b.file, b.tensor, b.from);
  });
  Buffer read(charge_), converted(charge_);
  OpenFile* from_file = nullptr;
  int open_file = -1, open_tensor = -1;
  std::int64_t buffered = -1;  // index of the block in `read`; -1: none
  std::int64_t tensor_at = 0, size = 1, tensor_bytes = 0;
  for (const Copy& copy : copies) {
    const StoredFile& file = manifest_.files[static_cast<std::size_t>(copy.file)];
    const StoredTensor& tensor = file.tensors[static_cast<std::size_t>(copy.tensor)];
    if (copy.file != open_file) {
      from_file = &opened(copy.file);
      open_file = copy.file;
      open_tensor = -1;
    }
    if (copy.tensor != open_tensor) {
      open_tensor = copy.tensor;
      buffered = -1;
      tensor_at = from_file->offsets[static_cast<std::size_t>(copy.tensor)];
      size = bytes_of(tensor.dtype);
      tensor_bytes = tensor.elements() * size;
    }
    const WantedShard& to = *copy.to;
    const std::int64_t to_size = bytes_of(to.dtype);
    std::int64_t at = copy.from * size, local = copy.local;
    const std::int64_t end = at + copy.count * size;
    while (at < end) {
      const std::int64_t block = at / kBlockBytes, block_at = block * kBlockBytes;
      const std::int64_t block_end = std::min(block_at + kBlockBytes, tensor_bytes);
      if (tensor.dtype == to.dtype && !to.store && at == block_at && end >= block_end) {
        // Reads whole blocks directly into the target.
        std::int64_t until = std::min(end, block_at + kLoadBytes);
        if (until != tensor_bytes) until -= until % kBlockBytes;
        std::byte* const into = to.into + local * to_size;
        from_file->file->read(tensor_at + at, into, until - at);
        check_blocks(file, tensor, tensor_at, block, into, until - at);
        local += (until - at) / size;
        at = until;
        continue;
      }
      if (block != buffered) {
        std::byte* const into = read.get(std::min(kBlockBytes, tensor_bytes));
        from_file->file->read(tensor_at + block_at, into, block_end - block_at);
        check_blocks(file, tensor, tensor_at, block, into, block_end - block_at);
        buffered = block;
      }
      const std::int64_t count = (std::min(end, block_end) - at) / size;
      const std::byte* from = read.get(0) + (at - block_at);
      if (to.store && tensor.dtype == to.dtype) {
        to.store(local, count, from);
      } else {
        std::byte* const into =
            to.store ? converted.get(count * to_size) : to.into + local * to_size;
        const std::int64_t done = convert(tensor.dtype, from, to.dtype, into, count, rounding);
        if (done < count) {
          throw DataError(str(folder_, "/", file.name, ": tensor ", quote(tensor.name), " has the ",
                              stored_name(tensor.dtype), " value ",
                              value_at(tensor.dtype, from, done), " at element ", at / size + done,
                              ", which ", stored_name(to.dtype), " cannot represent: load it as ",
                              stored_name(tensor.dtype)));
        }
        if (to.store) to.store(local, count, into);
      }
      local += count;
      at += count * size;
    }
  }
  copies.clear();
}

void Checkpoint::load(const std::vector<WantedShard>& wanted, Rounding rounding) {
  // A matrix cut by columns has a copy per row. This bounds the memory for a whole model.
  constexpr std::size_t kMaxCopies = 16384;
  std::vector<Copy> copies;
  for (const WantedShard& want : wanted) {
    plan(want, copies);
    if (copies.size() >= kMaxCopies) run(copies, rounding);
  }
  run(copies, rounding);
}

}  // namespace tessera::checkpoint
