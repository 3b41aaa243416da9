#include "tessera/comm/peers_rendezvous.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/comm/socket.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kTokenDigits = 32;
constexpr std::size_t kLongestHostKey = 512;
constexpr std::size_t kLongestField = 64;      // of a table
constexpr std::size_t kPartBytes = 60 * 1024;  // of a table in one value, below kLongestValue

struct Contact {
  std::string token;
  std::string host;
};

std::string contact_key(int rank) { return str("peers/", rank); }

[[noreturn]] void refuse(const std::string& key, const std::string& got,
                         const std::string& expected) {
  throw DataError(str("Store key ", quote(key), " is ", quote(got), ", expected ", expected,
                      ". Another process may be writing to this store."));
}

bool is_token(std::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kTokenDigits && std::all_of(text.begin(), text.end(), is_digit);
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

bool is_address(const std::string& text) {
  in6_addr parsed{};
  return inet_pton(AF_INET, text.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &parsed) == 1;
}

Contact parse_contact(const std::string& key, const std::string& text) {
  if (text.size() <= kTokenDigits + 1 || text.size() > kTokenDigits + 1 + kLongestHostKey ||
      !is_token(std::string_view(text).substr(0, kTokenDigits)) || text[kTokenDigits] != ' ') {
    refuse(key, text, "32 hexadecimal digits, a blank and the key of the host");
  }
  return {text.substr(0, kTokenDigits), text.substr(kTokenDigits + 1)};
}

// Parses "port", blank or @, and address.
PeerAddress parse_address(const std::string& key, const std::string& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const auto port = parse_number<std::uint16_t>(std::string_view(text).substr(0, end));
  std::string ip = text.substr(std::min(end + 1, text.size()));
  if (!port || *port == 0 || !is_address(ip)) {
    refuse(key, text, str("a port from 1 to 65535, '", separator, "' and a numeric address"));
  }
  return {"", std::move(ip), *port};
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> fields;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

// Reads keys that other ranks write. Reports missing ranks while it waits for them.
class StoreReader {
 public:
  StoreReader(Store& store, int rank, int size, Clock::time_point end, JoinNotice notice)
      : store_(store), rank_(rank), size_(size), end_(end), notice_(notice) {}

  std::string read(const std::string& key) {
    for (;;) {
      const auto left =
          std::max(std::chrono::duration_cast<milliseconds>(end_ - Clock::now()), milliseconds(1));
      const bool last = left <= notice_.left();
      if (auto text = look_up(key, last ? left : notice_.left())) return *text;
      if (last) fail_with_missing(key);
      if (notice_.is_due()) report();
    }
  }

  std::vector<std::string> read_table(const std::string& key, std::size_t most_fields) {
    std::string text = read(key);
    const std::size_t blank = std::min(text.find(' '), text.size());
    const auto parts = parse_number<std::size_t>(std::string_view(text).substr(0, blank));
    if (!parts || *parts == 0 || *parts > 1 + most_fields * kLongestField / kPartBytes) {
      refuse(key, text, "a number of parts and the first part of a table");
    }
    text.erase(0, blank + 1);
    for (std::size_t part = 1; part < *parts; ++part) text += read(str(key, "/", part));
    return split(text);
  }

 private:
  static constexpr milliseconds kLook{100};
  static constexpr milliseconds kLongestSearch{2000};  // for the rank that is missing
  static constexpr std::size_t kMaxMissing = 16;       // looked up for one report

  // Returns nothing if the key is not written in time.
  std::optional<std::string> look_up(const std::string& key, milliseconds timeout) {
    try {
      return store_.get(key, timeout);
    } catch (const StoreTimeout&) {
      return std::nullopt;
    }
  }

  // Throws the store's error for the contact of the first missing rank, or else for the key.
  [[noreturn]] void fail_with_missing(const std::string& key) {
    const auto end = Clock::now() + kLongestSearch;
    for (int r = 0; r < size_ && Clock::now() < end; ++r) {
      if (r != rank_ && !look_up(contact_key(r), kLook)) {
        store_.get(contact_key(r), milliseconds(1));
      }
    }
    store_.get(key, milliseconds(1));
    throw Error(str("Store key ", quote(key), " was written too late."));
  }

  // All ranks wait for the same ones; the lowest that has joined reports.
  void report() {
    std::vector<int> joined, missing;
    for (int r = 0; r < size_ && missing.size() < kMaxMissing; ++r) {
      const bool here = r == rank_ || look_up(contact_key(r), kLook).has_value();
      if (here && joined.empty() && r != rank_) return;
      (here ? joined : missing).push_back(r);
    }
    if (missing.empty()) return;
    const bool more = missing.size() == kMaxMissing;
    if (more && joined.empty()) joined.push_back(rank_);
    notice_.report_missing(rank_, size_, joined, missing, more);
  }

  Store& store_;
  const int rank_, size_;
  const Clock::time_point end_;
  JoinNotice notice_;
};

// Rank 0: numbers the hosts in the order of their first ranks and writes the tables of contacts.
void publish_hosts(Store& store, StoreReader& reader, int size) {
  std::map<std::string, std::size_t> number_of;
  std::vector<std::vector<std::string>> tokens;
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) {
    const Contact contact = parse_contact(contact_key(r), reader.read(contact_key(r)));
    const auto [found, is_new] = number_of.try_emplace(contact.host, tokens.size());
    if (is_new) tokens.emplace_back();
    tokens[found->second].push_back(contact.token);
    hosts.push_back(str(found->second));
  }
  for (std::size_t h = 0; h < tokens.size(); ++h)
    write_table(store, str("peers/host/", h), tokens[h]);
  write_table(store, "peers/hosts", hosts);
}

void publish_addresses(Store& store, StoreReader& reader, int size) {
  std::vector<std::string> fields;
  std::string before;
  for (int r = 0; r < size; ++r) {
    const std::string key = str("peers/tcp/", r);
    const PeerAddress address = parse_address(key, reader.read(key), ' ');
    fields.push_back(address.ip == before ? str(address.port) : str(address.port, "@", address.ip));
    before = address.ip;
  }
  write_table(store, "peers/tcp", fields);
}

std::vector<int> read_hosts(StoreReader& reader, int size) {
  const std::vector<std::string> fields = reader.read_table("peers/hosts", as_size(size));
  std::vector<int> hosts;
  for (const std::string& field : fields) {
    const auto number = parse_number<int>(field);
    if (!number || *number < 0 || *number >= size) refuse("peers/hosts", field, "number of a host");
    hosts.push_back(*number);
  }
  if (hosts.size() != as_size(size)) {
    refuse("peers/hosts", str(hosts.size(), " fields"), str(size, ", one per rank"));
  }
  return hosts;
}

void read_tokens(StoreReader& reader, int host, PeerContacts& contacts) {
  const std::string key = str("peers/host/", host);
  const auto here = static_cast<std::size_t>(
      std::count(contacts.same_host.begin(), contacts.same_host.end(), true));
  const std::vector<std::string> tokens = reader.read_table(key, here);
  if (tokens.size() != here) {
    refuse(key, str(tokens.size(), " tokens"), str(here, ", one per rank of the host"));
  }
  std::size_t next = 0;
  for (std::size_t r = 0; r < contacts.same_host.size(); ++r) {
    if (!contacts.same_host[r]) continue;
    if (!is_token(tokens[next])) refuse(key, tokens[next], "32 hexadecimal digits");
    contacts.addresses[r].unix_name = "tessera-" + tokens[next++];
  }
}

void read_addresses(StoreReader& reader, PeerContacts& contacts) {
  const std::vector<std::string> fields = reader.read_table("peers/tcp", contacts.addresses.size());
  if (fields.size() != contacts.addresses.size()) {
    refuse("peers/tcp", str(fields.size(), " fields"),
           str(contacts.addresses.size(), ", one per rank"));
  }
  std::string before;
  for (std::size_t r = 0; r < fields.size(); ++r) {
    const bool complete = fields[r].find('@') != std::string::npos;
    const PeerAddress address =
        parse_address("peers/tcp", complete ? fields[r] : str(fields[r], "@", before), '@');
    before = address.ip;
    if (!contacts.same_host[r]) contacts.addresses[r] = address;
  }
}

}  // namespace

void write_table(Store& store, const std::string& key, const std::vector<std::string>& fields) {
  std::vector<std::string> parts(1);
  for (const std::string& field : fields) {
    if (parts.back().size() + field.size() + 1 > kPartBytes) parts.emplace_back();
    parts.back() += field + " ";
  }
  for (std::size_t part = 1; part < parts.size(); ++part) {
    store.set(str(key, "/", part), parts[part]);
  }
  store.set(key, str(parts.size(), " ", parts.front()));
}

PeerContacts exchange_contacts(Store& store, int rank, int size, const PeersOptions& options) {
  PeerContacts contacts;
  const std::string token = random_token();
  contacts.listeners.push_back(listen_unix("tessera-" + token, SOMAXCONN));
  StoreReader reader(store, rank, size, Clock::now() + options.timeout, JoinNotice(options.notice));
  store.set(contact_key(rank), token + " " + (options.host.empty() ? host_key() : options.host));
  if (rank == 0) publish_hosts(store, reader, size);
  const std::vector<int> hosts = read_hosts(reader, size);
  const int here = nth(hosts, rank);
  contacts.addresses.resize(as_size(size));
  for (const int host : hosts) contacts.same_host.push_back(host == here);
  read_tokens(reader, here, contacts);
  if (std::count(hosts.begin(), hosts.end(), here) == size) return contacts;
  if (options.address.empty()) {
    throw UsageError(str("the ranks are on several hosts, but rank ", rank,
                         " has no address at which to listen for the others"));
  }
  std::uint16_t port = 0;
  contacts.listeners.push_back(listen_tcp(options.address, port));
  store.set(str("peers/tcp/", rank), str(port, " ", options.address));
  if (rank == 0) publish_addresses(store, reader, size);
  read_addresses(reader, contacts);
  return contacts;
}

}  // namespace tessera::comm
