#include "tessera/checkpoint/shard_file.h"

#include <map>
#include <utility>

#include "tessera/checkpoint/folder.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {

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
