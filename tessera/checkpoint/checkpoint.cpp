#include "tessera/checkpoint/checkpoint.h"

#include <algorithm>
#include <new>

#include "tessera/checkpoint/buffer.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

constexpr std::int64_t kReadBytes = std::int64_t{8} << 20;
constexpr std::int64_t kMaxManifestBytes = std::int64_t{4} << 30;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

// Reads a manifest. Of any other file it reads only the beginning, however large it is.
std::string read_manifest(FileSystem& files, const std::string& path) {
  const std::unique_ptr<File> file = files.open(path);
  std::string begin(kChecksumBefore.size(), '\0');
  if (file->size() >= static_cast<std::int64_t>(begin.size())) {
    file->read(0, reinterpret_cast<std::byte*>(begin.data()),
               static_cast<std::int64_t>(begin.size()));
  }
  if (begin != kChecksumBefore) parse_manifest(begin, path);  // throws
  return read_text(files, path, kMaxManifestBytes);
}

}  // namespace

Checkpoint::Checkpoint(std::string folder, std::shared_ptr<FileSystem> files, Charge charge)
    : folder_(std::move(folder)), files_(std::move(files)), charge_(std::move(charge)) {
  const std::string path = folder_ + "/" + kManifestName;
  try {
    manifest_ = parse_manifest(read_manifest(*files_, path), path);
  } catch (const std::bad_alloc&) {
    throw DataError(
        path +
        " needs more memory than this process can allocate; it is damaged or forged, or "
        "needs a larger machine");
  }
  sized_.resize(manifest_.files.size(), false);
  for (std::size_t i = 0; i < manifest_.about.params.size(); ++i) {
    params_[manifest_.about.params[i].name] = i;
  }
  for (std::size_t f = 0; f < manifest_.files.size(); ++f) {
    const StoredFile& file = manifest_.files[f];
    for (std::size_t t = 0; t < file.tensors.size(); ++t) {
      const StoredTensor& tensor = file.tensors[t];
      auto& list = stored_[{tensor.param, tensor.state}];
      if (!list.empty()) {
        const auto [f0, t0] = list[0];
        const DType dtype = manifest_.files[static_cast<std::size_t>(f0)]
                                .tensors[static_cast<std::size_t>(t0)]
                                .dtype;
        if (dtype != tensor.dtype) {
          throw DataError(str(path, ": parameter ", quote(tensor.param), ", state ",
                              quote(tensor.state), " is ", stored_name(dtype), " in one file and ",
                              stored_name(tensor.dtype), " in ", file.name));
        }
      }
      list.emplace_back(static_cast<int>(f), static_cast<int>(t));
    }
  }
}

const ParamSpec* Checkpoint::find(const std::string& param) const {
  const auto found = params_.find(param);
  return found == params_.end() ? nullptr : &manifest_.about.params[found->second];
}

void Checkpoint::expect(const std::vector<ParamSpec>& params) const {
  for (const ParamSpec& wanted : params) {
    const ParamSpec* have = find(wanted.name);
    if (have == nullptr) refuse_param(wanted.name);
    if (have->shape != wanted.shape) {
      throw DataError(str(folder_, ": parameter ", quote(wanted.name), " is ",
                          shape_text(have->shape), ", but the model has ", shape_text(wanted.shape),
                          "; it was saved by another model"));
    }
  }
}

void Checkpoint::refuse_param(const std::string& param) const {
  std::vector<std::string> names;
  for (const ParamSpec& p : manifest_.about.params) names.push_back(p.name);
  constexpr std::size_t kMaxNames = 8;
  const std::size_t all = names.size();
  const std::string near = did_you_mean(param, names);
  if (all > kMaxNames) names.resize(kMaxNames);
  throw DataError(str(folder_, " has no parameter ", quote(param), near,
                      "; it was saved by another ", "model, and has ", join(names, ", "),
                      all > kMaxNames ? str(" and ", all - kMaxNames, " more") : std::string()));
}

std::map<std::string, DType> Checkpoint::states(const std::string& param) const {
  std::map<std::string, DType> states;
  for (auto it = stored_.lower_bound({param, ""}); it != stored_.end() && it->first.first == param;
       ++it) {
    const auto [f, t] = it->second[0];
    states[it->first.second] =
        manifest_.files[static_cast<std::size_t>(f)].tensors[static_cast<std::size_t>(t)].dtype;
  }
  return states;
}

void Checkpoint::check_size(const StoredFile& file, File& open) const {
  const std::int64_t size = open.size();
  if (size != file.bytes) {
    throw DataError(str(folder_, "/", file.name, " has ", size, " bytes, expected ", file.bytes,
                        ": it was truncated or changed; use another copy"));
  }
}

void Checkpoint::check_size(int file) {
  if (sized_[static_cast<std::size_t>(file)]) return;
  const StoredFile& stored = manifest_.files[static_cast<std::size_t>(file)];
  check_size(stored, *files_->open(folder_ + "/" + stored.name));
  sized_[static_cast<std::size_t>(file)] = true;
}

void Checkpoint::check_files() {
  for (int file = 0; file < static_cast<int>(manifest_.files.size()); ++file) check_size(file);
}

std::int64_t Checkpoint::bytes() const {
  std::int64_t bytes = 0;
  for (const StoredFile& file : manifest_.files) bytes += file.bytes;
  return bytes;
}

Checkpoint::OpenFile Checkpoint::open_file(const StoredFile& file) const {
  const std::string path = folder_ + "/" + file.name;
  OpenFile open{files_->open(path), {}};
  check_size(file, *open.file);
  std::string raw;
  Header header;
  try {
    header = read_header(*open.file, path, &raw);
  } catch (const DataError& error) {
    throw DataError(str(error.what(), " (in its first ", file.header_bytes, " bytes)"));
  } catch (const std::bad_alloc&) {
    throw DataError(path + ": its header needs more memory than this process can allocate");
  }
  const std::uint32_t checksum = crc32c(raw);
  if (header.data_begin != file.header_bytes || checksum != file.header_checksum) {
    throw DataError(str(path, ": the header, bytes 0 to ", header.data_begin - 1,
                        ", is damaged: its checksum is ", to_hex({checksum}), ", expected ",
                        to_hex({file.header_checksum})));
  }
  std::map<std::string, const TensorEntry*> entries;
  for (const TensorEntry& entry : header.tensors) entries[entry.name] = &entry;
  for (const StoredTensor& tensor : file.tensors) {
    const auto entry = entries.find(tensor.name);
    if (entry == entries.end()) throw DataError(str(path, " has no tensor ", quote(tensor.name)));
    if (entry->second->dtype != tensor.dtype ||
        entry->second->bytes() != tensor.elements() * bytes_of(tensor.dtype)) {
      throw DataError(str(path, ": tensor ", quote(tensor.name), " does not match the manifest"));
    }
    open.offsets.push_back(header.data_begin + entry->second->begin);
  }
  return open;
}

Checkpoint::OpenFile& Checkpoint::opened(int file) {
  constexpr std::size_t kMaxOpen = 64;
  const auto found = open_files_.find(file);
  if (found != open_files_.end()) return found->second;
  if (open_files_.size() == kMaxOpen) open_files_.clear();
  return open_files_.emplace(file, open_file(manifest_.files[static_cast<std::size_t>(file)]))
      .first->second;
}

void Checkpoint::check_blocks(const StoredFile& file, const StoredTensor& tensor,
                              std::int64_t tensor_at, std::int64_t first_block,
                              const std::byte* data, std::int64_t bytes) const {
  std::vector<std::uint32_t> checksums;
  crc32c_blocks(data, bytes, checksums);
  for (std::int64_t at = 0; at < bytes; at += kBlockBytes) {
    const std::int64_t block = first_block + at / kBlockBytes;
    const std::int64_t size = std::min(kBlockBytes, bytes - at);
    const std::uint32_t got = checksums[static_cast<std::size_t>(at / kBlockBytes)];
    const std::uint32_t wanted = tensor.checksums[static_cast<std::size_t>(block)];
    if (got != wanted) {
      const std::int64_t begin = tensor_at + block * kBlockBytes;
      throw DataError(str(folder_, "/", file.name, ": tensor ", quote(tensor.name),
                          " is damaged within bytes ", begin, " to ", begin + size - 1,
                          " of the file: their checksum is ", to_hex({got}), ", expected ",
                          to_hex({wanted}), "; use another checkpoint"));
    }
  }
}

std::vector<std::string> Checkpoint::verify(const BytesDone& progress) {
  std::vector<std::string> problems;
  Buffer buffer(charge_);
  std::int64_t done = 0;
  const auto collect_errors = [&](const auto& body) {
    try {
      body();
    } catch (const DataError& error) {
      problems.emplace_back(error.what());
    }
  };
  for (int file = 0; file < static_cast<int>(manifest_.files.size()); ++file) {
    collect_errors([&] { check_size(file); });
  }
  // Allocates memory for the contents of the manifest only if the files are large enough for them.
  if (problems.empty()) collect_errors([&] { check_complete(manifest_, folder_); });
  for (std::size_t f = 0; f < manifest_.files.size(); ++f) {
    if (!sized_[f]) continue;  // reported above
    const StoredFile& file = manifest_.files[f];
    collect_errors([&] {
      const OpenFile open = open_file(file);
      for (std::size_t t = 0; t < file.tensors.size(); ++t) {
        const StoredTensor& tensor = file.tensors[t];
        const std::int64_t bytes = tensor.elements() * bytes_of(tensor.dtype);
        for (std::int64_t at = 0; at < bytes; at += kReadBytes) {
          const std::int64_t size = std::min(kReadBytes, bytes - at);
          std::byte* const into = buffer.get(size);
          open.file->read(open.offsets[t] + at, into, size);
          collect_errors(
              [&] { check_blocks(file, tensor, open.offsets[t], at / kBlockBytes, into, size); });
          done += size;
          if (progress) progress(done);
        }
      }
    });
  }
  return problems;
}

Latest find_latest(const std::string& dir, bool whole, std::shared_ptr<FileSystem> files) {
  Latest latest;
  std::vector<std::int64_t> steps = steps_in(*files, dir);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string folder = str(dir, "/", folder_name(*step));
    try {
      Checkpoint checkpoint(folder, files);
      checkpoint.check_files();
      if (checkpoint.about().step != *step) {
        throw DataError(str(folder, " has step ", checkpoint.about().step, " in its manifest"));
      }
      const std::vector<std::string> problems =
          whole ? checkpoint.verify() : std::vector<std::string>{};
      if (!problems.empty()) throw DataError(problems[0]);
      latest.folder = folder;
      return latest;
    } catch (const DataError& error) {
      latest.skipped.push_back(str(folder_name(*step), " is skipped: ", error.what()));
    }
  }
  return latest;
}

}  // namespace tessera::checkpoint
