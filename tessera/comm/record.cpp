#include "tessera/comm/record.h"

#include "tessera/core/errors.h"
#include "tessera/core/hash.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

constexpr std::uint8_t kUnequalCounts = 8;  // bit of Record::form

bool same_buffer(const Record& a, const Record& b) {
  const bool same_count = a.count == b.count || (has_unequal_counts(a) && has_unequal_counts(b));
  return a.dtype == b.dtype && same_count && a.label_hash == b.label_hash;
}

std::uint64_t hash_parts(const Collective& call) {
  if (!call.parts) return call.copies > 1 ? mix(kHashStart, call.copies) | 1 : 0;
  const std::vector<std::size_t>& parts = *call.parts;
  std::uint64_t hash = mix(kHashStart, parts.size());
  if (call.copies > 1) hash = mix(hash, call.copies);
  return mix(hash, parts.data(), parts.size() * sizeof(std::size_t)) | 1;
}

}  // namespace

bool has_unequal_counts(const Record& record) noexcept {
  return (record.form & kUnequalCounts) != 0;
}

bool same_call(const Record& a, const Record& b) {
  return a.op == b.op && a.peer == b.peer && a.form == b.form && a.parts_hash == b.parts_hash &&
         same_buffer(a, b) && (!is_reduction(a.op) || a.reduce == b.reduce);
}

Record make_record(const Collective& call) {
  const auto form =
      static_cast<std::uint8_t>(call.shared + 2 * (call.parts != nullptr) + 4 * call.in_place() +
                                (call.counts ? kUnequalCounts : 0));
  Record record{call.op,   call.dtype, call.reduce,           form,
                call.peer, call.count, hash_text(call.label), hash_parts(call),
                {}};
  call.label.copy(record.label, sizeof(record.label) - 1);
  return record;
}

std::string describe(const Record& record) {
  Collective call;
  call.op = record.op;
  call.dtype = record.dtype;
  call.reduce = record.reduce;
  call.peer = record.peer;
  call.count = record.count;
  call.label = record.label;
  if (has_unequal_counts(record)) call.counts = std::make_shared<const ExchangeCounts>();
  // Truncated labels may look equal although they differ; the hash shows the difference.
  if (hash_text(call.label) != record.label_hash)
    call.label += str("… #", record.label_hash % 10'000);
  return describe(call) +
         (record.parts_hash == 0 ? "" : str(" in parts (#", record.parts_hash % 10'000, ")"));
}

void compare_calls(int ranks, const std::function<const Record&(int rank)>& record,
                   std::uint64_t sequence, const std::string& group) {
  bool same = true;
  for (int r = 1; r < ranks; ++r) same = same && same_call(record(0), record(r));
  if (same) return;
  std::string text = str("the ranks disagree in call #", sequence, " of group ", group, ":");
  for (int r = 0; r < ranks; ++r) {
    text += str(r == 0 ? " " : "; ", "rank ", r, " called ", describe(record(r)));
  }
  throw UsageError(text + ". All ranks must make the same calls in the same order");
}

std::string compare_message(const Record& send, int sender, const Record& recv, int receiver,
                            const std::string& group) {
  if (same_buffer(send, recv)) return "";
  return str("a send and its receive in group ", group, " do not match: rank ", sender, " called ",
             describe(send), "; rank ", receiver, " called ", describe(recv),
             ". Both must pass the same count, type and label, in the same order");
}

}  // namespace tessera::comm
