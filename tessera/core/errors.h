#pragma once

#include <stdexcept>
#include <string>

namespace tessera {

// The kinds of error, split by what the caller can do about them. Every message says what was
// got, what was wanted and what to do.

// What all of them are; itself thrown where none of the kinds fits.
class Error : public std::runtime_error {
 public:
  // `message`: what was got, what was wanted, what to do.
  explicit Error(const std::string& message);
  ~Error() override;
};

// The call is wrong: fix the call.
class UsageError : public Error {
 public:
  // `message` names the argument, the value and what would do.
  explicit UsageError(const std::string& message);
  ~UsageError() override;
};

// Another rank failed: nothing in this process is wrong, look at that rank.
class PeerError : public Error {
 public:
  static constexpr int kUnknownRank = -1;

  // `rank`: the one that failed, where that is known.
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
  // `message` names the file and the place in it.
  explicit DataError(const std::string& message);
  ~DataError() override;
};

// Memory is at its limit: ask for less, or raise the limit. The message holds the ledger.
class OutOfMemoryError : public Error {
 public:
  // `message`: memory::out_of_memory_message().
  explicit OutOfMemoryError(const std::string& message);
  ~OutOfMemoryError() override;
};

}  // namespace tessera
