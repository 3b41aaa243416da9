#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera {

// Exceptions, classified by what the caller can do about them. Every message states the value, what
// is allowed and what to do.

// Base class. Thrown itself if no derived class fits.
class Error : public std::runtime_error {
 public:
  // `message` states the value, what is allowed and what to do.
  explicit Error(const std::string& message);
  ~Error() override;
};

// Name of a command-line flag without its dashes, for UsageError.
struct Flag {
  // Explicit, so that a message is not taken for a flag.
  explicit Flag(std::string_view flag) : name(flag) {}
  std::string name;
};

// The call is wrong: fix the call.
class UsageError : public Error {
 public:
  // `message` names the argument, its value and what is allowed.
  explicit UsageError(const std::string& message, std::string field = {});
  // The message is "--flag: problem".
  UsageError(const Flag& flag, const std::string& problem);
  ~UsageError() override;

  // Name of the field that the error is about, as a flag without dashes; "" if unknown.
  const std::string& field() const noexcept { return field_; }
  // Returns the same error with "where: " before its message.
  UsageError within(const std::string& where) const;

 private:
  std::string field_;
};

// Another rank failed: this process is fine, look at that rank.
class PeerError : public Error {
 public:
  static constexpr int kUnknownRank = -1;

  // `rank`: the rank that failed, if known.
  explicit PeerError(const std::string& message, int rank = kUnknownRank);
  ~PeerError() override;

  // The rank that failed, in the numbering of the whole job, or kUnknownRank.
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

// A file (or another input) is bad: replace it.
class DataError : public Error {
 public:
  // `message` names the file and the position in it.
  explicit DataError(const std::string& message);
  ~DataError() override;
};

// The memory limit was reached: use less, or raise the limit. The message contains the ledger.
class OutOfMemoryError : public Error {
 public:
  // `message`: memory::out_of_memory_message().
  explicit OutOfMemoryError(const std::string& message);
  ~OutOfMemoryError() override;
};

}  // namespace tessera
