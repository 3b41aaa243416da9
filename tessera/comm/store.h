#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::comm {

// Where ranks that do not know each other yet leave notes: a key is written once and read by many.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for the key; throws Error naming it if it does not come in time.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // How often this key has been counted, this time included.
  virtual std::int64_t count(const std::string& key) = 0;
};

// One that lives in a folder which all ranks see. For tests and for programs that bring no other.
std::shared_ptr<Store> make_file_store(const std::string& folder);

}  // namespace tessera::comm
