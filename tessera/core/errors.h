#pragma once

#include <stdexcept>
#include <string>

namespace tessera {

// The kinds of error, split by what the caller can do about them. Every message says what was
// got, what was wanted and what to do.

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
  ~Error() override;
};

// The call is wrong: fix the call.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message);
  ~UsageError() override;
};

// Another rank failed: nothing in this process is wrong, look at that rank.
class PeerError : public Error {
 public:
  static constexpr int kUnknownRank = -1;

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
  explicit DataError(const std::string& message);
  ~DataError() override;
};

// Memory is at its limit: ask for less, or raise the limit. The message holds the ledger.
class OutOfMemoryError : public Error {
 public:
  explicit OutOfMemoryError(const std::string& message);
  ~OutOfMemoryError() override;
};

}  // namespace tessera
