#pragma once

#include <stdexcept>
#include <string>

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

// The call is wrong: fix the call.
class UsageError : public Error {
 public:
  // `message` names the argument, its value and what is allowed.
  explicit UsageError(const std::string& message);
  ~UsageError() override;
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
