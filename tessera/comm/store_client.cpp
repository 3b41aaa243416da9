#include "tessera/comm/store_client.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/comm/handshake.h"
#include "tessera/comm/socket.h"
#include "tessera/comm/store_wire.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

class StoreClient final : public Store {
 public:
  explicit StoreClient(const StoreClientOptions& options) : options_(options) {
    connect(options_.timeout);
  }

  void set(const std::string& key, const std::string& value) override {
    ask(StoreOp::set, key, value, options_.timeout);
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return ask(StoreOp::get, key, "", timeout);
  }

  std::int64_t count(const std::string& key) override {
    const std::string text = ask(StoreOp::count, key, "", options_.timeout);
    std::int64_t times = 0;
    if (text.size() != sizeof(times)) {
      throw DataError(str("the store at ", address(), " returned ", text.size(),
                          " bytes for the counter ", quote(key), "; must be ", sizeof(times),
                          ". Use the same version of Tessera on all hosts"));
    }
    std::memcpy(&times, text.data(), sizeof(times));
    return times;
  }

 private:
  static constexpr std::chrono::seconds kReconnect{1};

  std::string address() const {
    return str(join(options_.addresses, " or "), " port ", options_.port);
  }

  // Retries, because the server may not have started yet, or may be flooded and drop connections.
  void connect(std::chrono::milliseconds timeout) {
    const Credentials credentials{Credentials::Purpose::store, options_.secret, options_.run,
                                  options_.size, -1};
    const auto end = Clock::now() + timeout;
    JoinNotice notice(options_.notice);
    std::string why;
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
      try {
        socket_ = connect_tcp(options_.addresses, static_cast<std::uint16_t>(options_.port),
                              std::max(left, std::chrono::milliseconds(1)));
        switch (run_handshake(socket_, credentials, options_.rank, end)) {
          case HandshakeResult::accepted: return;
          case HandshakeResult::closed: why = "it did not answer, or closed the connection"; break;
          case HandshakeResult::refused:
            throw UsageError(str("the store at ", address(), " refuses rank ", options_.rank,
                                 " of ", options_.size,
                                 ": it has another secret, or belongs to another ",
                                 "run; give all ranks the same secret"));
          case HandshakeResult::stranger:
            throw UsageError(str("the program at ", address(), " does not have the secret of this ",
                                 "job; is the address of the store right?"));
        }
      } catch (const UsageError&) {
        throw;
      } catch (const Error& error) {
        why = error.what();
      }
      socket_.reset();
      if (Clock::now() > end) {
        throw Error(str("rank ", options_.rank, " cannot reach the rendezvous store at ", address(),
                        " within ", static_cast<double>(timeout.count()) / 1000.0,
                        " s; is rank 0, or the launcher, running? (", why, ")"));
      }
      if (notice.is_due()) {
        notice.report(
            options_.rank,
            str("for the rendezvous store at ", address(), ". Rank 0, or the launcher, has ",
                "not started, is not reachable there, or is itself waiting for other ranks ",
                "and reports which (", why, ")."));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::string ask(StoreOp op, const std::string& key, const std::string& value,
                  std::chrono::milliseconds timeout) {
    if (key.empty() || key.size() > kLongestKey || value.size() > kLongestValue) {
      throw UsageError(str("store: a key of ", key.size(), " bytes and a value of ", value.size(),
                           " bytes; must be 1 to ", kLongestKey, " and at most ", kLongestValue));
    }
    if (!socket_.open()) connect(std::max<std::chrono::milliseconds>(timeout, kReconnect));
    const StoreRequest request{op, static_cast<std::uint32_t>(key.size()),
                               static_cast<std::uint32_t>(value.size())};
    std::string text(reinterpret_cast<const char*>(&request), sizeof(request));
    text += key;
    text += value;
    const auto end = Clock::now() + timeout;
    StoreAnswer header{};
    std::string answer;
    bool whole = send_all(socket_, text.data(), text.size()) &&
                 receive_all(socket_, &header, sizeof(header), end) &&
                 header.bytes <= kLongestValue;
    if (whole) {
      answer.resize(header.bytes);
      whole = receive_all(socket_, answer.data(), answer.size(), end);
    }
    if (whole && header.verdict == StoreVerdict::good) return answer;
    socket_.reset();  // a late answer would be mistaken for that of the next request
    if (whole && header.verdict == StoreVerdict::rank_failed) throw failure_of(answer);
    if (whole) throw Error(str("the store at ", address(), " refuses ", quote(key), ": ", answer));
    if (op == StoreOp::get && Clock::now() > end) {
      throw StoreTimeout(str("no rank wrote ", quote(key), " to the store at ", address(),
                             " within ", static_cast<double>(timeout.count()) / 1000.0,
                             " s; did all ranks start?"));
    }
    throw Error(str("the store at ", address(), " closed the connection while rank ", options_.rank,
                    " requested ", quote(key), "; did rank 0, or the launcher, end?"));
  }

  PeerError failure_of(const std::string& text) const {
    int rank = PeerError::kUnknownRank;
    const char* const end = text.data() + text.size();
    const char* how = std::from_chars(text.data(), end, rank).ptr;
    if (how != end && *how == ' ') ++how;
    return PeerError(str("rank ", options_.rank, " waited for the others to join: ",
                         std::string_view(how, static_cast<std::size_t>(end - how))),
                     rank);
  }

  const StoreClientOptions options_;
  Fd socket_;
};

}  // namespace

std::shared_ptr<Store> connect_store(const StoreClientOptions& options) {
  return std::make_shared<StoreClient>(options);
}

}  // namespace tessera::comm
