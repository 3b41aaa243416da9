#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/peers.h"
#include "tessera/comm/record.h"

namespace tessera::comm::tcp {

// A call as one rank tells another of it: what it is, and the bytes that are for that one.
struct Letter {
  Record record;
  std::string bytes;
};

// Letters between this rank and the others of a group, of any size, in order for each pair.
class Mail {
 public:
  Mail(std::shared_ptr<Peers> peers, std::vector<int> members, std::string topic);

  void send(int to, const Record& record, const std::string& bytes);
  // The oldest letter from there, if it has come whole.
  std::optional<Letter> take(int from);

  const Peers& peers() const { return *peers_; }

 private:
  // What has come of a letter so far.
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
