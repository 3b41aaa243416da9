#include "tessera/comm/threads.h"

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/local_peers.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/core/errors.h"

namespace tessera::comm {

void run_threads(int ranks, const std::function<void(std::shared_ptr<Backend>)>& body,
                 GroupOptions options) {
  std::vector<std::shared_ptr<Peers>> peers = make_local_peers(ranks);
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back(
        [&, r, own = std::exchange(peers[static_cast<std::size_t>(r)], nullptr)]() mutable {
          try {
            body(shm::make_backend(std::exchange(own, nullptr), members, "world", options));
          } catch (...) {
            errors[static_cast<std::size_t>(r)] = std::current_exception();
          }
        });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr first;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const PeerError&) {
      if (!first) first = error;
    } catch (...) {
      std::rethrow_exception(error);
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace tessera::comm
