#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace tessera::comm {

struct StoreServerOptions {
  std::string address = "127.0.0.1";                // numeric: the only one it listens at
  int port = 0;                                     // 0 takes a free one
  std::string secret{};                             // of the job
  std::string run{};                                // whose store it is
  int size = 1;                                     // ranks of the job
  std::size_t most_bytes = std::size_t{256} << 20;  // of all keys and values together
};

// The store through which the ranks of a job find each other, served by a thread of this process
// until the object goes. Nobody's request is read who has not proved to know the secret, and
// everything that it keeps is bounded: callers, members, keys, values, and all values together.
class StoreServer {
 public:
  // Throws UsageError when it cannot listen there.
  explicit StoreServer(const StoreServerOptions& options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const;
  // Lets nobody else in; those who are in stay. Returns when the port is free.
  void stop_listening();
  // A rank has failed, so that the others would wait in vain: from now on every request, and
  // whoever waits for a key, is told so. `how` names the rank. The first one counts.
  void tell_failure(int rank, const std::string& how);

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace tessera::comm
