#include "tessera/comm/store.h"

#include <algorithm>
#include <utility>

#include "tessera/core/crypto.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

class SealedStore final : public Store {
 public:
  SealedStore(std::shared_ptr<Store> store, std::string secret)
      : store_(std::move(store)), secret_(std::move(secret)) {}

  void set(const std::string& key, const std::string& value) override {
    const Digest digest = seal(key, value);
    store_->set(key, std::string(digest.begin(), digest.end()) + value);
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    const std::string text = store_->get(key, timeout);
    Digest digest{};
    if (text.size() >= digest.size()) {
      std::copy_n(text.begin(), digest.size(), digest.begin());
      std::string value = text.substr(digest.size());
      if (equal_in_constant_time(digest, seal(key, value))) return value;
    }
    throw DataError(str("the value of ", quote(key), " in the store (", text.size(),
                        " bytes) was written by another program, or by a rank with another "
                        "secret; find out which other programs use this store"));
  }

  // Counters are not authenticated. A forged one can only prevent the ranks from joining.
  std::int64_t count(const std::string& key) override { return store_->count(key); }

 private:
  Digest seal(const std::string& key, const std::string& value) const {
    return hmac_sha256(secret_, str("tessera value ", key.size(), " ", key, value));
  }

  std::shared_ptr<Store> store_;
  std::string secret_;
};

}  // namespace

std::shared_ptr<Store> make_sealed_store(std::shared_ptr<Store> store, const std::string& secret) {
  return std::make_shared<SealedStore>(std::move(store), secret);
}

}  // namespace tessera::comm
