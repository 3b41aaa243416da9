#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/errors.h"

namespace tessera::comm {

// A key that was not written in time.
class StoreTimeout : public Error {
 public:
  using Error::Error;
};

// Key-value store through which ranks exchange their addresses at startup. A key is written once
// and read by many.
class Store {
 public:
  virtual ~Store() = default;
  // Writes a key.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists and returns its value. Throws StoreTimeout with the key after the
  // timeout.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // Increments the key's counter, which starts at 0, and returns the new value.
  virtual std::int64_t count(const std::string& key) = 0;
};

// Limits in bytes, larger than any rank needs. Larger requests are rejected before allocating.
inline constexpr std::size_t kLongestKey = 1024;
inline constexpr std::size_t kLongestValue = 64 * 1024;

// Wraps a store without access control: every value is authenticated with the secret. get() throws
// DataError for a value that another program wrote, or that was moved from another key.
std::shared_ptr<Store> make_sealed_store(std::shared_ptr<Store> store, const std::string& secret);

}  // namespace tessera::comm
