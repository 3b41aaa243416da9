#include "tessera/core/errors.h"

#include <utility>

namespace tessera {

// The destructors are out of line so that the type information of each class is emitted once:
// catching across shared libraries then works on every platform.

Error::Error(const std::string& message) : std::runtime_error(message) {}
Error::~Error() = default;

UsageError::UsageError(const std::string& message, std::string field)
    : Error(message), field_(std::move(field)) {}
UsageError::UsageError(const Flag& flag, const std::string& problem)
    : Error("--" + flag.name + ": " + problem), field_(flag.name) {}
UsageError UsageError::within(const std::string& where) const {
  return UsageError(where + ": " + what(), field_);
}
UsageError::~UsageError() = default;

PeerError::PeerError(const std::string& message, int rank) : Error(message), rank_(rank) {}
PeerError::~PeerError() = default;

DataError::DataError(const std::string& message) : Error(message) {}
DataError::~DataError() = default;

OutOfMemoryError::OutOfMemoryError(const std::string& message) : Error(message) {}
OutOfMemoryError::~OutOfMemoryError() = default;

}  // namespace tessera
