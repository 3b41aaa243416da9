#include "tessera/checkpoint/reshard.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "tessera/checkpoint/shard.h"
#include "tessera/core/errors.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

// As [Note: chunks] of the engine: equal, and a multiple of 16 elements.
std::int64_t chunk_of(std::int64_t elements, int ranks) {
  const std::int64_t part = (elements + ranks - 1) / ranks;
  return (part + 15) / 16 * 16;
}

// Reads a stretch of a state through the checkpoint that is being copied.
Source copied(Checkpoint& from, std::string param, std::string state, DType dtype,
              std::vector<Run> runs, Rounding rounding, std::function<void(std::int64_t)> done) {
  return [&from, rounding, done = std::move(done),
          want = Wanted{std::move(param), std::move(state), dtype, {}, nullptr},
          runs = std::move(runs)](std::int64_t offset, std::int64_t bytes,
                                  std::byte* staging) mutable -> const std::byte* {
    const std::int64_t size = size_of(want.dtype);
    want.runs = cut(runs, offset / size, bytes / size);
    want.into = staging;
    from.load({want}, rounding);
    done(bytes);
    return staging;
  };
}

// Counts what several sources have done.
std::function<void(std::int64_t)> counter(const Progress& progress) {
  return [progress, total = std::make_shared<std::int64_t>(0)](std::int64_t bytes) {
    *total += bytes;
    if (progress) progress(*total);
  };
}

}  // namespace

std::vector<Share> shares_of(const std::vector<ParamSpec>& params, const Mesh& mesh, int rank) {
  const int t = rank % mesh.tp, d = rank / mesh.tp % mesh.dp, p = rank / (mesh.tp * mesh.dp);
  double all = 0, before = 0;
  for (const ParamSpec& spec : params) all += static_cast<double>(elements_of(spec.shape));
  std::vector<Share> shares;
  for (const ParamSpec& spec : params) {
    // The stage in whose part of all elements this one has its middle.
    const auto elements = static_cast<double>(elements_of(spec.shape));
    const double middle = all > 0 ? (before + elements / 2) / all : 0;
    before += elements;
    if (std::min(mesh.pp - 1, static_cast<int>(middle * mesh.pp)) != p) continue;
    const std::int64_t local = elements_of(local_shape(spec, t, mesh.tp));
    const std::int64_t chunk = chunk_of(local, mesh.dp);
    std::vector<Run> runs = cut(counted_runs(spec, t, mesh.tp), d * chunk, chunk);
    if (!runs.empty()) shares.push_back({&spec, std::move(runs)});
  }
  return shares;
}

void check_reshard(const Checkpoint& from, const std::string& dir, const Mesh& mesh,
                   FileSystem& files) {
  const std::string asked = str("got a mesh of dp ", mesh.dp, ", tp ", mesh.tp, ", pp ", mesh.pp);
  if (mesh.dp < 1 || mesh.tp < 1 || mesh.pp < 1) {
    throw UsageError(asked + ", wanted at least 1 of each");
  }
  constexpr std::int64_t kMostFiles = 1 << 20;
  const std::int64_t planes = std::int64_t{mesh.dp} * mesh.tp;
  if (planes > kMostFiles || planes * mesh.pp > kMostFiles) {
    throw UsageError(str(asked, ", wanted at most ", kMostFiles, " ranks, which have a file each"));
  }
  const std::string final_path = str(dir, "/", folder_name(from.about().step));
  if (files.exists(final_path)) {
    throw UsageError(final_path + " is there already; choose another folder");
  }
  for (const ParamSpec& spec : from.about().params) local_shape(spec, 0, mesh.tp);
}

Saved reshard(Checkpoint& from, const std::string& dir, const Mesh& mesh,
              const std::shared_ptr<FileSystem>& files, const Progress& progress) {
  check_reshard(from, dir, mesh, *files);
  const auto began = std::chrono::steady_clock::now();
  Manifest manifest;
  manifest.about = from.about();
  manifest.about.mesh = mesh;
  const std::string folder = begin_folder(*files, dir, manifest.about.step);
  Saved saved;
  const auto done = counter(progress);
  try {
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      std::vector<ShardTensor> tensors;
      for (const Share& share : shares_of(manifest.about.params, mesh, rank)) {
        std::vector<Stripe> stripes = to_stripes(share.runs);
        // In the file the runs follow one another, whatever lay between them in the part.
        const std::vector<Run> packed = to_runs(stripes);
        for (const auto& [state, dtype] : from.states(share.spec->name)) {
          tensors.push_back(
              {share.spec->name, state, dtype, stripes,
               copied(from, share.spec->name, state, dtype, packed, Rounding::exact, done)});
        }
      }
      manifest.files.push_back(
          write_shard(*files, folder, rank, manifest.about, std::move(tensors)).file);
      saved.bytes += manifest.files.back().bytes;
    }
    saved.folder = publish_folder(*files, dir, manifest);
  } catch (const std::exception&) {
    try {
      remove_tree(*files, folder);
    } catch (const DataError&) {  // the first error is the one to tell
    }
    throw;
  }
  saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return saved;
}

std::int64_t export_model(Checkpoint& from, const std::string& path, const ExportOptions& options) {
  std::vector<Outgoing> tensors;
  const auto done = counter(options.progress);
  for (const ParamSpec& spec : from.about().params) {
    const std::map<std::string, DType> states = from.states(spec.name);
    const std::string state =
        !options.state.empty() ? options.state : (states.count("master") != 0 ? "master" : "param");
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
      throw UsageError(str("parameter ", quote(spec.name), " is ", name(stored),
                           ", which cannot be written as ", name(dtype)));
    }
    Outgoing& out = tensors.emplace_back();
    out.entry.name = spec.name;
    out.entry.dtype = dtype;
    out.entry.shape = spec.shape;
    out.source = copied(from, spec.name, state, dtype, {{0, 0, elements}}, Rounding::nearest, done);
  }
  const PublishTarget target = publish_target(path);
  if (target.direct) {
    throw UsageError(path +
                     " is no regular file, and a model is written as one; give the name of "
                     "a file");
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
    } catch (const DataError&) {  // the first error is the one to tell
    }
    throw;
  }
}

}  // namespace tessera::checkpoint
