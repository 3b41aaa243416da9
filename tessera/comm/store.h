#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::comm {

// Where ranks that do not know each other's addresses yet exchange them: a key is written once and
// read by many.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for the key; throws Error naming it if it does not come in time.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // How often this key has been counted, this time included.
  virtual std::int64_t count(const std::string& key) = 0;
};

// More than any rank writes. Whoever asks for more is refused before memory is taken.
inline constexpr std::size_t kLongestKey = 1024;
inline constexpr std::size_t kLongestValue = 64 * 1024;

// The same store, with every value sealed by the secret: one that somebody else wrote, or moved
// from another key, is a DataError instead of a value. For stores that let anybody write.
std::shared_ptr<Store> make_sealed_store(std::shared_ptr<Store> store, const std::string& secret);

}  // namespace tessera::comm
