#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tessera::comm {

// A piece of memory mapped by several ranks; unmapped when the last handle in the process goes.
class Segment {
 public:
  virtual ~Segment() = default;
  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 protected:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Whether memory has all its pages from the start ([Note: reserved pages] in shared_memory.h), or
// each when it is first touched: for memory of which most is never used.
enum class Pages : std::uint8_t { reserved, when_touched };

enum class PeerState : std::uint8_t { alive, left, dead };

// Why the job is over, as the rank that noticed it told everybody.
struct Failure {
  enum class Kind : std::uint8_t { usage, peer };
  Kind kind = Kind::peer;
  int rank = -1;      // whose fault it is, -1 if nobody's in particular
  int reporter = -1;  // who noticed
  std::string text;
};
[[noreturn]] void raise(const Failure& failure);

// The control plane of a job: who is there, who died and why, the passing round of memory, and
// short notes. It carries no tensors. Ranks here are ranks of the whole job.
//
// [Note: liveness] Every rank holds a connection to every other one. A connection that closes
// without an announcement is a death; the kernel closes it whatever killed the process, so a death
// is known in milliseconds. A stopped process keeps its connection: only a deadline finds that.
class Peers {
 public:
  virtual ~Peers() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool same_host(int rank) const = 0;

  virtual PeerState state(int rank) const = 0;

  // Tells every rank that the job is over; the first report a rank hears is the one it keeps.
  virtual void report(const Failure& failure) = 0;
  // The report this rank keeps, if any. Cheap when there is none.
  virtual std::optional<Failure> failure() const = 0;

  // Collective over `members`, which are on one host: zeroed memory that all of them have mapped.
  // The name must be new. Throws PeerError if one dies or does not come in time, and
  // OutOfMemoryError if there is not so much.
  virtual std::shared_ptr<Segment> share(const std::string& name, std::span<const int> members,
                                         std::size_t bytes, Pages pages,
                                         std::chrono::milliseconds timeout) = 0;

  // [Note: notes] A few bytes (up to kLongestNote) for another rank, kept for it under a topic
  // until it takes them; in order for each sender and topic. Sending never waits.
  virtual void send_note(int rank, const std::string& topic, const std::string& bytes) = 0;
  // The oldest one from that rank, if any has come.
  virtual std::optional<std::string> take_note(int rank, const std::string& topic) = 0;
  // How many notes have come, and a wait until there are more than `seen`, a peer is gone or the
  // job has failed, but not for longer than `longest`.
  virtual std::uint64_t notes_heard() const = 0;
  virtual void wait_for_notes(std::uint64_t seen, std::chrono::milliseconds longest) const = 0;
};
inline constexpr std::size_t kLongestNote = 48 * 1024;

}  // namespace tessera::comm
