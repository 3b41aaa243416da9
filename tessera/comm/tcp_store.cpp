#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <exception>
#include <utility>
#include <vector>

#include "tessera/comm/bootstrap.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

class C10dStore final : public Store {
 public:
  C10dStore(c10::intrusive_ptr<c10d::TCPStore> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    try {
      store_->wait({prefix_ + key}, timeout);
    } catch (const std::exception& error) {
      throw Error(str("no rank wrote ", quote(key), " to the store at ", store_->getHost(), ":",
                      store_->getPort(), " within ", timeout.count() / 1000.0,
                      " s; did all ranks start? (", error.what(), ")"));
    }
    const std::vector<std::uint8_t> value = store_->get(prefix_ + key);
    return {value.begin(), value.end()};
  }

  std::int64_t count(const std::string& key) override { return store_->add(prefix_ + key, 1); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::string prefix_;
};

}  // namespace

TcpStore open_tcp_store(const std::string& address, int port, bool host,
                        std::chrono::milliseconds timeout, const std::string& prefix) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = host;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
    const int actual = store->getPort();
    return {std::make_shared<C10dStore>(std::move(store), prefix), actual};
  } catch (const std::exception& error) {
    throw Error(str("cannot ", host ? "host" : "reach", " the rendezvous store at ", address, ":",
                    port, host ? "; is the port taken?" : "; is rank 0, or the launcher, running?",
                    " (", error.what(), ")"));
  }
}

}  // namespace tessera::comm
