#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace tessera::comm {

struct StoreServerOptions {
  std::string address = "127.0.0.1";                // numeric; it listens at no other address
  int port = 0;                                     // 0 selects a free port
  std::string secret{};                             // of the job
  std::string run{};                                // identifies the run
  int size = 1;                                     // ranks of the job
  std::size_t most_bytes = std::size_t{256} << 20;  // limit of all keys and values together
  // Called by the thread of the store instead of keeping a key that begins with kReportPrefix,
  // before the client gets its answer. Null: such keys are kept as others.
  std::function<void(const std::string& key, const std::string& value)> on_report = nullptr;
};

// Store through which the ranks of a job exchange addresses, served by a thread of this process
// until the object is destroyed. Only requests of connections that proved to have the secret are
// read. Numbers of connections, sizes of keys and values, and their sum are limited.
class StoreServer {
 public:
  // Throws UsageError if it cannot listen there.
  explicit StoreServer(const StoreServerOptions& options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const;
  // Accepts no more connections and keeps the open ones. Returns when the port is free.
  void stop_listening();
  // Answers every request from now on, including those that wait for a key, with the failure of a
  // rank. `how` describes it. Only the first call has an effect.
  void report_failure(int rank, const std::string& how);
  // Sets a key, as a client does. If `stale_prefix` is not empty, removes the keys that begin with
  // it, and answers requests for them with the failure of a rank, from now on.
  void set(const std::string& key, const std::string& value, const std::string& stale_prefix = "");

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace tessera::comm
