#include "tessera/comm/mpi/agreement.h"

#include <algorithm>
#include <cstring>

#include "tessera/comm/mpi/endpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/hash.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"

namespace tessera::comm::mpi {
namespace {

// What members send to the first of the list, and what that one answers.
struct Proposal {
  std::int64_t number = 0;    // or one of these
  std::uint64_t name = 0;     // of the group, as a hash
  std::uint64_t members = 0;  // likewise
};
constexpr std::int64_t kOtherGroup = -1;  // somebody means another group
constexpr std::int64_t kTaken = -2;       // by another group of somebody

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
  // What rank 0 makes of what all say, told to all.
  const auto decide = [&](std::int64_t said, const auto& combine) {
    mine->number = said;
    if (rank != 0) {
      endpoint.await(send(mine, 0), 0, doing);
      return receive(0)->number;
    }
    for (int r = 1; r < ranks; ++r) said = combine(said, *receive(r));
    mine->number = said;
    std::vector<TransferPtr> answers;
    for (int r = 1; r < ranks; ++r) answers.push_back(send(mine, r));
    for (int r = 1; r < ranks; ++r) endpoint.await(nth(answers, r - 1), r, doing);
    return said;
  };
  const auto largest = [&](std::int64_t so_far, const Proposal& theirs) {
    const bool same = theirs.name == mine->name && theirs.members == mine->members;
    return same && so_far != kOtherGroup ? std::max(so_far, theirs.number) : kOtherGroup;
  };
  const auto taken_by_any = [](std::int64_t so_far, const Proposal& theirs) {
    return theirs.number == kTaken ? kTaken : so_far;
  };
  for (std::uint64_t attempt = 0;; ++attempt) {
    // Two groups that got into each other's way do not try the same number again.
    const auto further = attempt == 0 ? 0 : static_cast<int>(mix(mine->name, attempt) % 16);
    const std::int64_t number = decide(runtime->next_group_number() + further, largest);
    if (number == kOtherGroup) {
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
    const bool ours = runtime->claim_group_number(static_cast<int>(number));
    if (decide(ours ? number : kTaken, taken_by_any) == kTaken) continue;
    return static_cast<int>(first);
  }
}

}  // namespace tessera::comm::mpi
