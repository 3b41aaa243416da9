#include "tessera/comm/tcp/mail.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tessera/comm/tcp/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::tcp {
namespace {

// The first note of a letter begins with this, the others are bytes.
struct Envelope {
  Record record;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Envelope) == 88, "no padding: it travels between processes");

}  // namespace

Mail::Mail(std::shared_ptr<Peers> peers, std::vector<int> members, std::string topic)
    : peers_(std::move(peers)),
      members_(std::move(members)),
      topic_(std::move(topic)),
      halves_(members_.size()) {}

void Mail::send(int to, const Record& record, std::span<const std::string_view> pieces) {
  Envelope envelope{record, 0};
  for (const std::string_view piece : pieces) envelope.bytes += piece.size();
  std::string note(reinterpret_cast<const char*>(&envelope), sizeof(envelope));
  for (std::string_view piece : pieces) {
    while (!piece.empty()) {
      if (note.size() == kLongestNote) {
        peers_->send_note(job_rank(to), topic_, note);
        note.clear();
      }
      const std::size_t some = std::min(kLongestNote - note.size(), piece.size());
      note.append(piece.substr(0, some));
      piece.remove_prefix(some);
    }
  }
  peers_->send_note(job_rank(to), topic_, note);
}

std::optional<Letter> Mail::take(int from) {
  Half& half = halves_[static_cast<std::size_t>(from)];
  while (const auto note = peers_->take_note(job_rank(from), topic_)) {
    std::size_t begin = 0;
    if (!half.begun) {
      Envelope envelope;
      begin = sizeof(envelope);
      if (note->size() >= begin) std::memcpy(&envelope, note->data(), begin);
      // Ranks of the same version never send this.
      if (note->size() < begin || envelope.bytes > 2 * kMaxBytes) {
        throw DataError(
            str("rank ", job_rank(from), " sent ", note->size(),
                " bytes that do not have the form of this version; use the same on all hosts"));
      }
      half.begun = true;
      half.wanted = envelope.bytes;
      half.letter.record = envelope.record;
      half.letter.record.label[sizeof(half.letter.record.label) - 1] = '\0';
      half.letter.bytes.reserve(half.wanted);
    }
    half.letter.bytes.append(*note, begin, std::string::npos);
    if (half.letter.bytes.size() < half.wanted) continue;
    half.begun = false;
    return std::exchange(half.letter, {});
  }
  return std::nullopt;
}

}  // namespace tessera::comm::tcp
