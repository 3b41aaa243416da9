#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/comm/peers.h"
#include "tessera/comm/record.h"

namespace tessera::comm::tcp {

// Description of a call and the bytes of it that one rank sends to another.
struct Letter {
  Record record;
  std::string bytes;
};

// Letters between this rank and the others of a group, of any size, in order for each pair.
class Mail {
 public:
  Mail(std::shared_ptr<Peers> peers, std::vector<int> members, std::string topic);

  // The bytes of the letter are those of `pieces`, one after another.
  void send(int to, const Record& record, std::span<const std::string_view> pieces);
  // Returns the oldest letter from that rank if all of it has arrived.
  std::optional<Letter> take(int from);

  const Peers& peers() const { return *peers_; }

 private:
  // Letter that has arrived in part.
  struct Half {
    bool begun = false;
    std::size_t wanted = 0;
    Letter letter;
  };
  int job_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  const std::shared_ptr<Peers> peers_;
  const std::vector<int> members_;
  const std::string topic_;
  std::vector<Half> halves_;
};

}  // namespace tessera::comm::tcp
