#include "tessera/comm/mpi/agreement.h"

#include <algorithm>
#include <cstring>

#include "tessera/comm/mpi/endpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/hash.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

// What a member proposes to the first of the list, and what that one answers.
struct Proposal {
  std::int64_t number = 0;
  std::uint64_t name = 0;     // of the group, as a hash
  std::uint64_t members = 0;  // likewise
};

std::string list(const std::vector<int>& members) {
  std::vector<std::string> parts;
  for (const int member : members) parts.push_back(str(member));
  return join(parts, " ");
}

}  // namespace

int agree_on_tags(const std::shared_ptr<Runtime>& runtime,
                  const std::shared_ptr<Liveness>& liveness, int rank) {
  const int ranks = static_cast<int>(liveness->members().size());
  auto mine = std::make_shared<Proposal>();
  mine->number = runtime->next_group_number();
  mine->name = hash_text(liveness->group());
  mine->members = hash_text(list(liveness->members()));
  const int half = runtime->max_tag() / 2;
  Endpoint endpoint(
      runtime, liveness,
      half + static_cast<int>(mine->name % static_cast<unsigned>(half - kTagsPerGroup)));
  const auto doing = [] { return std::string("the creation"); };
  const auto send = [&](const std::shared_ptr<Proposal>& what, int to) {
    return endpoint.send(what.get(), sizeof(Proposal), to, Tag::header, what);
  };
  const auto receive = [&](int from) {
    auto theirs = std::make_shared<Proposal>();
    endpoint.await(endpoint.receive(theirs.get(), sizeof(Proposal), from, Tag::header, theirs),
                   from, doing);
    return theirs;
  };
  bool same = true;
  std::int64_t number = mine->number;
  if (rank == 0) {
    for (int r = 1; r < ranks; ++r) {
      const auto theirs = receive(r);
      number = std::max(number, theirs->number);
      same = same && theirs->name == mine->name && theirs->members == mine->members;
    }
    mine->number = same ? number : -1;
    std::vector<TransferPtr> answers;
    for (int r = 1; r < ranks; ++r) answers.push_back(send(mine, r));
    for (int r = 1; r < ranks; ++r)
      endpoint.await(answers[static_cast<std::size_t>(r - 1)], r, doing);
  } else {
    endpoint.await(send(mine, 0), 0, doing);
    const auto answer = receive(0);
    same = answer->number >= 0;
    number = answer->number;
  }
  if (!same) {
    throw UsageError(str("the ranks that create group ", quote(liveness->group()),
                         " over mpi do not agree who is in it; rank ", liveness->peers().rank(),
                         " says: ", list(liveness->members()),
                         ". All members must call with the same list and the same name"));
  }
  const std::int64_t first = kFirstGroupTag + number * kTagsPerGroup;
  if (first + kTagsPerGroup > half) {
    throw Error(str("group ", quote(liveness->group()), " is the ", number + 1,
                    "th of this process over mpi; this MPI library has tags for ",
                    (half - kFirstGroupTag) / kTagsPerGroup, ". Reuse groups"));
  }
  runtime->use_group_number(static_cast<int>(number));
  return static_cast<int>(first);
}

}  // namespace tessera::comm::mpi
