#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tessera::comm {

// Memory mapped by several ranks. Unmapped when the last handle in the process is destroyed.
class Segment {
 public:
  virtual ~Segment() = default;
  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 protected:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Allocation of memory pages: all at the start ([Note: reserved pages] in shared_memory.h), or each
// on first use, for memory of which most is never used.
enum class Pages : std::uint8_t { reserved, when_touched };

enum class PeerState : std::uint8_t { alive, left, dead };

// Reason why the job has failed, as reported by the rank that noticed it.
struct Failure {
  enum class Kind : std::uint8_t { usage, peer };
  Kind kind = Kind::peer;
  int rank = -1;      // the rank that failed, -1 if there is none in particular
  int reporter = -1;  // the rank that noticed it
  std::string text;
};
[[noreturn]] void raise(const Failure& failure);

// Control plane of a job: state of its ranks, failures, shared memory and short notes. Ranks are
// ranks of the whole job.
//
// [Note: liveness] A rank holds connections to a few others ([Note: control graph]). One that
// closes without an announcement is a death; the kernel closes it whatever killed the process. A
// rank forwards each new departure, death and failure over all its connections, so all ranks are
// informed of a death in milliseconds. A stopped process keeps its connections: only a deadline
// detects it.
class Peers {
 public:
  virtual ~Peers() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool same_host(int rank) const = 0;

  virtual PeerState state(int rank) const = 0;

  // Requests a direct connection to a rank, so that its end is noticed even if no rank reports it.
  // Returns at once. For ranks that have been awaited for some time.
  virtual void watch(int rank) { static_cast<void>(rank); }

  // Reports to every rank that the job has failed. Each rank keeps the first report that it gets.
  virtual void report(const Failure& failure) = 0;
  // Returns the report that this rank keeps, if any. Cheap if there is none.
  virtual std::optional<Failure> failure() const = 0;

  // Returns zeroed memory that all `members`, ranks of one host, have mapped. Collective over them.
  // The name must be new. Throws PeerError if a member dies or does not call it in time, and
  // OutOfMemoryError if memory does not suffice.
  virtual std::shared_ptr<Segment> share(const std::string& name, std::span<const int> members,
                                         std::size_t bytes, Pages pages,
                                         std::chrono::milliseconds timeout) = 0;

  // [Note: notes] Sends up to kLongestNote bytes to another rank, which keeps them under a topic
  // until it takes them, in order for each sender and topic. Never waits. The first note to a rank
  // may open a connection to it.
  virtual void send_note(int rank, const std::string& topic, const std::string& bytes) = 0;
  // Returns the oldest note from that rank, if any has arrived.
  virtual std::optional<std::string> take_note(int rank, const std::string& topic) = 0;
  // Number of notes that have arrived; and a wait until it differs from `seen`, a peer is gone, the
  // job has failed, or `longest` has passed.
  virtual std::uint64_t notes_heard() const = 0;
  virtual void wait_for_notes(std::uint64_t seen, std::chrono::milliseconds longest) const = 0;
};
inline constexpr std::size_t kLongestNote = 48 * 1024;

}  // namespace tessera::comm
