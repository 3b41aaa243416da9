#include "tessera/comm/c10d_store.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <exception>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

class C10dStore final : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    const std::vector<std::uint8_t> bytes(value.begin(), value.end());
    attempt("write", key, [&] { store_->set(key, bytes); });
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    try {
      store_->wait({key}, timeout);
    } catch (const std::exception& error) {
      throw StoreTimeout(str("no rank wrote ", quote(key), " to the store at ", address(),
                             " within ", static_cast<double>(timeout.count()) / 1000.0,
                             " s; did all ranks start? (", message_of(error), ")"));
    }
    std::vector<std::uint8_t> value;
    attempt("read", key, [&] { value = store_->get(key); });
    if (value.size() > kLongestValue) {
      throw DataError(str("the value of ", quote(key), " in the store at ", address(), " has ",
                          value.size(), " bytes; the limit is ", kLongestValue,
                          ". Another program is writing to this store"));
    }
    return {value.begin(), value.end()};
  }

  std::int64_t count(const std::string& key) override {
    std::int64_t times = 0;
    attempt("count", key, [&] { times = store_->add(key, 1); });
    return times;
  }

 private:
  std::string address() const { return str(store_->getHost(), ":", store_->getPort()); }

  template <typename Action>
  void attempt(const char* what, const std::string& key, const Action& action) const {
    try {
      action();
    } catch (const std::exception& error) {
      throw Error(str("cannot ", what, " ", quote(key), " in the store at ", address(), ": ",
                      message_of(error)));
    }
  }

  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::shared_ptr<Store> connect_c10d_store(const std::string& address, int port,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return std::make_shared<C10dStore>(c10::make_intrusive<c10d::TCPStore>(address, options));
  } catch (const std::exception& error) {
    throw Error(str("cannot reach the rendezvous store at ", address, ":", port,
                    "; is the launcher running? (", message_of(error), ")"));
  }
}

}  // namespace tessera::comm
