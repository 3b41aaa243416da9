#include "tessera/comm/hierarchical/transport.h"

#include <cstring>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::hierarchical {
namespace {
// Largest data that a host appends to the records of a call.
constexpr std::size_t kSmallBytes = 4 << 10;
}  // namespace

// Header of a call inside one host. The data of a small call follows it.
struct HierarchicalTransport::LocalHeader {
  Record record;
  Address in;
};

HierarchicalTransport::HierarchicalTransport(Levels levels) : levels_(std::move(levels)) {
  const auto hosts = static_cast<std::size_t>(levels_.layout.hosts);
  const auto locals = static_cast<std::size_t>(levels_.layout.per_host);
  local_headers_.resize(locals * (sizeof(LocalHeader) + kSmallBytes));
  host_records_.resize(hosts * (locals * sizeof(Record) + kSmallBytes));
}

void HierarchicalTransport::post(const Collective& call) {
  ++sequence_;
  levels_.peers->set_context(
      str(", during #", sequence_, " ", describe(call), " of group ", levels_.name));
}

bool HierarchicalTransport::finish(const Collective& call, bool) {
  try {
    carry_out(call);
  } catch (const PeerError& error) {
    std::string text = error.what();
    const std::string context = levels_.peers->context();
    if (text.find(context) == std::string::npos) text += context;
    throw PeerError(text, error.rank());
  }
  levels_.peers->set_context("");
  return true;
}

void HierarchicalTransport::carry_out(const Collective& call) {
  exchange_records(call);
  // All ranks get the same result, so the group stays in step even if this throws.
  compare_calls(
      ranks(), [this](int r) -> const Record& { return record(r); }, sequence_, levels_.name);
  if (is_small(call)) {
    small(call);
  } else {
    large(call);
  }
}

const HierarchicalTransport::LocalHeader& HierarchicalTransport::local_header(int local) const {
  const std::size_t at = static_cast<std::size_t>(local) * (sizeof(LocalHeader) + kSmallBytes);
  return *reinterpret_cast<const LocalHeader*>(local_headers_.data() + at);
}

const std::byte* HierarchicalTransport::payload(int local) const {
  return reinterpret_cast<const std::byte*>(&local_header(local)) + sizeof(LocalHeader);
}

std::byte* HierarchicalTransport::host_record(int host) const {
  const std::size_t bytes =
      static_cast<std::size_t>(levels_.layout.per_host) * sizeof(Record) + kSmallBytes;
  return const_cast<std::byte*>(host_records_.data()) + static_cast<std::size_t>(host) * bytes;
}

std::byte* HierarchicalTransport::host_payload(int host) const {
  return host_record(host) + static_cast<std::size_t>(levels_.layout.per_host) * sizeof(Record);
}

const Record& HierarchicalTransport::record(int rank) const {
  return reinterpret_cast<const Record*>(
      host_record(levels_.layout.host(rank)))[levels_.layout.local(rank)];
}

// Returns whether a host can append its data to the records: partials, the buffer, or the input of
// all its ranks.
bool HierarchicalTransport::is_small(const Collective& call) const {
  const auto locals = static_cast<std::size_t>(levels_.layout.per_host);
  if (call.counts) return false;  // the other ranks' counts are not known yet
  std::size_t elements = call.count, size = size_of(call.dtype);
  if (call.op == Op::barrier) elements = 0;
  if (call.op == Op::all_gather) elements = locals * shard_stride(call.count, ranks());
  if (call.op == Op::all_to_all) elements = locals * call.count;
  if (is_reduction(call.op)) size = size_of(Partial(call.dtype, call.reduce, ranks()).type());
  return elements <= kSmallBytes / size;
}

bool HierarchicalTransport::host_agrees() const {
  for (int l = 1; l < levels_.layout.per_host; ++l) {
    if (!same_call(local_header(0).record, local_header(l).record)) return false;
  }
  return true;
}

void HierarchicalTransport::exchange_records(const Collective& call) {
  auto& mine = const_cast<LocalHeader&>(local_header(local()));
  mine = LocalHeader{make_record(call), {}};
  const std::size_t own =
      call.op == Op::all_gather ? shard_of(call.count, ranks(), levels_.rank).size : call.count;
  const bool gives =
      call.op != Op::barrier && (call.op != Op::broadcast || levels_.rank == call.peer);
  if (is_small(call)) {
    if (gives && own > 0) {
      std::memcpy(const_cast<std::byte*>(payload(local())), call.in, own * size_of(call.dtype));
    }
  } else if (is_reduction(call.op)) {
    mine.in = levels_.memories->address(call.in, call.bytes());
  }
  levels_.local
      ->submit({Op::all_gather, DType::u8, ReduceOp::sum, Traffic::control, &mine,
                local_headers_.data(), local_headers_.size(), -1, ""})
      .wait();
  auto* records = reinterpret_cast<Record*>(host_record(host()));
  for (int l = 0; l < levels_.layout.per_host; ++l) records[l] = local_header(l).record;
  if (is_small(call) && host_agrees()) fill_host_payload(call);
  between_hosts(Op::all_gather, DType::u8, ReduceOp::sum, records, host_records_.data(),
                host_records_.size())
      .wait();
}

void HierarchicalTransport::fill_host_payload(const Collective& call) {
  const Layout& layout = levels_.layout;
  const std::size_t size = size_of(call.dtype);
  std::byte* to = host_payload(host());
  if (is_reduction(call.op)) {
    std::vector<const void*> values;
    for (int l = 0; l < layout.per_host; ++l) values.push_back(payload(l));
    Partial(call.dtype, call.reduce, ranks()).first(values, to, call.count);
  } else if (call.op == Op::broadcast) {
    if (layout.host(call.peer) == host()) copy(to, payload(layout.local(call.peer)), call.bytes());
  } else if (call.op != Op::barrier) {
    const std::size_t each =
        (call.op == Op::all_gather ? shard_stride(call.count, ranks()) : call.count) * size;
    for (int l = 0; l < layout.per_host; ++l) {
      copy(to + static_cast<std::size_t>(l) * each, payload(l), each);
    }
  }
}

// The data of all hosts came with the records; each rank takes what it needs.
void HierarchicalTransport::small(const Collective& call) {
  const Layout& layout = levels_.layout;
  const std::size_t size = size_of(call.dtype);
  const Shard own = shard_of(call.count, ranks(), levels_.rank);
  auto* out = static_cast<std::byte*>(call.out);
  if (is_reduction(call.op)) {
    const Partial partial(call.dtype, call.reduce, ranks());
    const bool scatter = call.op == Op::reduce_scatter;
    const std::size_t begin = scatter ? own.begin : 0, count = scatter ? own.size : call.count;
    std::vector<const void*> partials;
    for (int h = 0; h < layout.hosts; ++h) {
      partials.push_back(host_payload(h) + begin * size_of(partial.type()));
    }
    if (count > 0 && (call.op != Op::reduce || levels_.rank == call.peer)) {
      partial.last(partials, out, count);
      levels_.meter->copied(count * size);
    }
    return;
  }
  if (call.op == Op::broadcast)
    return copy(out, host_payload(layout.host(call.peer)), call.bytes());
  if (call.op == Op::barrier) return;
  const bool gather = call.op == Op::all_gather;
  const std::size_t each = (gather ? shard_stride(call.count, ranks()) : call.count) * size;
  for (int r = 0; r < ranks(); ++r) {
    const std::byte* from =
        host_payload(layout.host(r)) + static_cast<std::size_t>(layout.local(r)) * each;
    if (gather) {
      const Shard theirs = shard_of(call.count, ranks(), r);
      copy(out + theirs.begin * size, from, theirs.size * size);
    } else {
      copy(out + static_cast<std::size_t>(r) * own.size * size, from + own.begin * size,
           own.size * size);
    }
  }
}

Work HierarchicalTransport::between_hosts(Op op, DType dtype, ReduceOp reduce, const void* in,
                                          void* out, std::size_t count, int root) const {
  return levels_.inter_host->submit(
      {op, dtype, reduce, Traffic::control, in, out, count, root, ""});
}

void HierarchicalTransport::host_barrier() const { levels_.local->submit({}).wait(); }

void HierarchicalTransport::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0 || to == from) return;
  copy_bytes(to, from, bytes);
  levels_.meter->copied(bytes);
}

bool HierarchicalTransport::direct_sources(const Collective& call,
                                           std::vector<const std::byte*>& bases) const {
  for (int l = 0; l < levels_.layout.per_host; ++l) {
    const Address in = local_header(l).in;
    if (in.memory == 0) return false;
    bases.push_back(levels_.memories->resolve(in, l));
    if (bases.back() != nullptr) continue;
    const Failure failure{
        Failure::Kind::usage, levels_.peers->rank(), levels_.peers->rank(),
        str(describe(call), ": rank ", levels_.rank,
            " has released the symmetric memory that rank ", levels_.layout.rank(host(), l),
            " uses; keep it until all ranks are done with it")};
    levels_.peers->report(failure);
    raise(failure);
  }
  return true;
}

}  // namespace tessera::comm::hierarchical
