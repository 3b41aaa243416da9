#include "tessera/checkpoint/reshard.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "tessera/checkpoint/save.h"
#include "tessera/core/errors.h"
#include "tessera/core/publish.h"
#include "tessera/core/shard.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

// Returns a source that reads a state from a checkpoint.
Source source_from(Checkpoint& from, std::string param, std::string state, DType dtype,
                   std::vector<Run> runs, Rounding rounding, BytesDone done) {
  return [&from, rounding, done = std::move(done),
          want = WantedShard{std::move(param), std::move(state), dtype, {}, nullptr},
          runs = std::move(runs)](std::int64_t offset, std::int64_t bytes,
                                  std::byte* staging) mutable -> const std::byte* {
    const std::int64_t size = bytes_of(want.dtype);
    want.runs = cut(runs, offset / size, bytes / size);
    want.into = staging;
    from.load({want}, rounding);
    done(bytes);
    return staging;
  };
}

// Adds up the bytes of several sources and reports the sum.
BytesDone counter(const BytesDone& progress) {
  return [progress, total = std::make_shared<std::int64_t>(0)](std::int64_t bytes) {
    *total += bytes;
    if (progress) progress(*total);
  };
}

}  // namespace

std::vector<ParamShard> shards_of(const std::vector<ParamSpec>& params, const Axes& mesh,
                                  int rank) {
  const Coordinate at = mesh.coordinate_of(rank);
  if (at[Axis::dp_replicate] > 0) return {};  // the first replica saves
  const auto stages = static_cast<int>(mesh.ranks(kLayerAxes));
  double all = 0, before = 0;
  for (const ParamSpec& spec : params) all += static_cast<double>(elements_of(spec.shape));
  std::vector<ParamShard> shards;
  for (const ParamSpec& spec : params) {
    // Chooses the stage by the position of the middle of this parameter among all elements.
    const auto elements = static_cast<double>(elements_of(spec.shape));
    const double middle = all > 0 ? (before + elements / 2) / all : 0;
    before += elements;
    const int stage = std::min(stages - 1, static_cast<int>(middle * stages));
    if (!spec.cut_along(Axis::pp) && stage != mesh.index(kLayerAxes, at)) continue;
    const std::int64_t local = elements_of(local_shape(spec, mesh, at));
    const std::int64_t each = shard_size(local, mesh.shards());
    const ShardRange own = nth_shard(local, each, mesh.index(kShardAxes, at));
    std::vector<Run> runs = cut(counted_runs(spec, mesh, at), own.begin, own.size);
    if (!runs.empty()) shards.push_back({&spec, std::move(runs)});
  }
  return shards;
}

void check_reshard(const Checkpoint& from, const std::string& dir, const Axes& mesh,
                   FileSystem& files) {
  const std::string got = str("got a mesh of ", mesh.words(", "));
  if (mesh.world() < 1) {
    throw UsageError(got + "; must have at least 1 rank along each axis");
  }
  constexpr std::int64_t kMaxFiles = 1 << 20;
  if (mesh.world() > kMaxFiles) {
    throw UsageError(str(got, "; must have at most ", kMaxFiles, " ranks: each has a file"));
  }
  const std::string final_path = str(dir, "/", folder_name(from.about().step));
  if (files.exists(final_path)) {
    throw UsageError(final_path + " already exists; choose another folder");
  }
  for (const ParamSpec& spec : from.about().params) local_shape(spec, mesh, {});
}

Saved reshard(Checkpoint& from, const std::string& dir, const Axes& mesh,
              const std::shared_ptr<FileSystem>& files, const BytesDone& progress) {
  check_reshard(from, dir, mesh, *files);
  const auto began = std::chrono::steady_clock::now();
  Manifest manifest;
  manifest.about = from.about();
  manifest.about.mesh = mesh;
  const std::string folder = begin_folder(*files, dir, manifest.about.step);
  Saved saved;
  const auto done = counter(progress);
  try {
    for (int rank = 0; rank < mesh.world(); ++rank) {
      std::vector<ShardFileTensor> tensors;
      for (const ParamShard& shard : shards_of(manifest.about.params, mesh, rank)) {
        std::vector<StridedRun> strided_runs = to_strided_runs(shard.runs);
        // Runs are packed in the file, without the gaps between them in memory.
        const std::vector<Run> packed = to_runs(strided_runs);
        for (const auto& [state, dtype] : from.states(shard.spec->name)) {
          tensors.push_back(
              {shard.spec->name, state, dtype, strided_runs,
               source_from(from, shard.spec->name, state, dtype, packed, Rounding::exact, done)});
        }
      }
      manifest.files.push_back(
          write_shard_file(*files, folder, rank, manifest.about, std::move(tensors)).file);
      saved.bytes += manifest.files.back().bytes;
    }
    saved.folder = publish_folder(*files, dir, manifest);
  } catch (const std::exception&) {
    try {
      remove_tree(*files, folder);
    } catch (const DataError&) {  // report the first error
    }
    throw;
  }
  saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return saved;
}

std::int64_t export_model(Checkpoint& from, const std::string& path, const ExportOptions& options) {
  std::vector<Outgoing> tensors;
  const auto done = counter(options.report);
  for (const ParamSpec& spec : from.about().params) {
    const std::map<std::string, DType> states = from.states(spec.name);
    const bool buffer = states.count("buffer") != 0;
    if (buffer && !options.state.empty()) continue;
    const std::string state = buffer ? "buffer" : options.state.empty() ? "param" : options.state;
    const auto found = states.find(state);
    const std::int64_t elements = elements_of(spec.shape);
    if (found == states.end() && elements > 0) {
      std::vector<std::string> names;
      for (const auto& [name, dtype] : states) names.push_back(name);
      throw DataError(str(from.folder(), ": parameter ", quote(spec.name), " has no state ",
                          quote(state), "; it has: ", join(names, ", ")));
    }
    const DType stored = found == states.end() ? DType::f32 : found->second;
    const DType dtype = options.dtype.value_or(stored);
    if (!convertible(stored, dtype)) {
      throw UsageError(str("parameter ", quote(spec.name), " is ", stored_name(stored),
                           ", which cannot be written as ", stored_name(dtype)));
    }
    Outgoing& out = tensors.emplace_back();
    out.entry.name = spec.name;
    out.entry.dtype = dtype;
    out.entry.shape = spec.shape;
    out.source =
        source_from(from, spec.name, state, dtype, {{0, 0, elements}}, Rounding::nearest, done);
  }
  const PublishTarget target = publish_target(path);
  if (target.direct) {
    throw UsageError(path + " is not a regular file; give the name of a file");
  }
  const std::string temporary = str(target.path, ".", ::getpid(), ".part");
  options.files->remove(temporary);
  try {
    const WrittenFile written =
        write_safetensors(*options.files, temporary, tensors,
                          {{"format", "pt"}, {"tessera_step", std::to_string(from.about().step)}});
    options.files->rename(temporary, target.path);
    const std::size_t slash = target.path.rfind('/');
    options.files->sync_folder(slash == std::string::npos ? "." : target.path.substr(0, slash + 1));
    return written.bytes;
  } catch (const std::exception&) {
    try {
      options.files->remove(temporary);
    } catch (const DataError&) {  // report the first error
    }
    throw;
  }
}

}  // namespace tessera::checkpoint
