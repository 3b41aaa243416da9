#include "tests/checkpoint/fuzz_targets.h"

#include <cstring>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/hashes.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/checkpoint/memory_file.h"
#include "tests/fuzz.h"

namespace tessera::checkpoint {

void fuzz_header(std::string_view input) {
  if (input.empty()) return;
  const auto first = static_cast<unsigned char>(input[0]);
  std::string file(input.substr(1));
  if (first < 128) {
    const std::uint64_t length = file.size();
    std::string begin(8, '\0');
    std::memcpy(begin.data(), &length, 8);
    file = begin + file + std::string(first, 'd');
  }
  MemoryFile memory(file);
  try {
    const Header header = read_header(memory, "f");
    std::int64_t at = 0;
    for (const TensorEntry& tensor : header.tensors) {
      must(tensor.begin == at && tensor.end >= at, "a gap", input);
      must(tensor.bytes() == elements_of(tensor.shape) * bytes_of(tensor.dtype), "a size", input);
      at = tensor.end;
    }
    must(header.data_begin + at == memory.size(), "the end", input);
    // A writer can write what was read, and it can be read again.
    const std::string again = header_bytes(header.tensors, header.metadata);
    MemoryFile written(again + std::string(static_cast<std::size_t>(at), 'd'));
    const Header second = read_header(written, "g");
    must(second.tensors == header.tensors && second.metadata == header.metadata, "the way back",
         input);
  } catch (const DataError&) {
  }
}

namespace {

// Checks that the cuts of a parsed spec are consistent and that, if the axes divide it, its ranks
// together count every element once.
void check_cuts(const ParamSpec& spec, std::string_view input) {
  for (const ParamSpec::Cut& cut : spec.cuts) {
    must(cut.dim >= 0 && cut.dim < static_cast<int>(spec.shape.size()), "the dim of a cut", input);
    must(!kDataAxes.contains(cut.axis) && spec.cut_along(cut.axis) == &cut, "an axis", input);
    std::int64_t sum = 0;
    for (const ParamSpec::Segment& segment : cut.segments) sum += segment.length;
    must(cut.segments.empty() || sum == spec.shape[static_cast<std::size_t>(cut.dim)], "segments",
         input);
  }
  const std::int64_t elements = elements_of(spec.shape);
  if (elements > 1 << 12) return;
  const Axes axes{{Axis::tp, 2}, {Axis::pp, spec.cut_along(Axis::pp) ? 2 : 1}};
  std::int64_t counted = 0;
  try {
    for (int rank = 0; rank < axes.world(); ++rank) {
      for (const Run& run : counted_runs(spec, axes, axes.coordinate_of(rank))) {
        must(run.whole >= 0 && run.count > 0 && run.whole + run.count <= elements, "a run", input);
        counted += run.count;
      }
    }
  } catch (const UsageError&) {  // two ranks do not divide it
    return;
  }
  must(counted == elements, "counted elements", input);
}

}  // namespace

void fuzz_manifest(std::string_view input) {
  const std::string text =
      str(kChecksumBefore, to_hex({crc32c(input)}), kChecksumAfter, std::string(input));
  try {
    const Manifest manifest = parse_manifest(text, "m");
    const Description& about = manifest.about;
    must(about.step >= 0 && about.step <= kMaxCount && about.samples >= 0 &&
             about.samples <= kMaxCount,
         "counts", input);
    must(about.mesh.world() > 0 && about.mesh.world() <= kMaxRanks, "a mesh", input);
    std::int64_t bytes = 0, elements = 0, run_total = 0;  // none of them overflows
    for (const ParamSpec& spec : about.params) {
      elements += elements_of(spec.shape);
      check_cuts(spec, input);
    }
    must(elements <= kMaxCount, "elements", input);
    for (const StoredFile& file : manifest.files) {
      bytes += file.bytes;
      must(bytes <= kMaxCount, "bytes", input);
      must(file.name.find('/') == std::string::npos && file.name.find('\n') == std::string::npos,
           "a file's name", input);
      for (const StoredTensor& tensor : file.tensors) run_total += run_count(tensor);
      for (const StoredTensor& tensor : file.tensors) {
        must(tensor.elements() >= 0 && tensor.elements() * bytes_of(tensor.dtype) <= file.bytes,
             "a tensor larger than its file", input);
        must(block_count(tensor.elements() * bytes_of(tensor.dtype)) ==
                 static_cast<std::int64_t>(tensor.checksums.size()),
             "checksums", input);
      }
    }
    const Manifest again = parse_manifest(to_text(manifest), "m");
    must(again.about.params == about.params, "the parameters", input);
    must(to_text(again) == to_text(manifest), "the way back", input);
    // As when a checkpoint is read: not for sizes that the files cannot have.
    if (bytes < (1 << 20) && run_total < (1 << 20)) check_complete(manifest, "m");
  } catch (const DataError&) {
  }
}

void fuzz_hashes(std::string_view input) {
  try {
    const std::vector<ListedHash> listed = parse_hashes(input, "l");
    std::string again;
    for (const ListedHash& each : listed) {
      must(each.hex.size() == 64 && !each.path.empty(), "an entry", input);
      again += str(each.hex, "  ", each.path, "\n");
    }
    must(parse_hashes(again, "l").size() == listed.size(), "the way back", input);
    compare_hashes({{"manifest.json", {}}}, listed, "runs/step-00000001", "l");
  } catch (const DataError&) {
  }
}

}  // namespace tessera::checkpoint
