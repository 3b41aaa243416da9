#include "tessera/comm/secret.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/join_notice.h"
#include "tessera/comm/socket.h"
#include "tessera/core/crypto.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Reads a small file from its beginning, independently of its offset.
std::string read_all(int fd, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::size_t have = 0;
  while (have < bytes) {
    const ssize_t got = pread(fd, text.data() + have, bytes - have, static_cast<off_t>(have));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  return text;
}

bool right_size(const struct stat& info) {
  return S_ISREG(info.st_mode) && info.st_size >= static_cast<off_t>(kShortestSecret) &&
         info.st_size <= static_cast<off_t>(kLongestSecret);
}

constexpr const char* kOtherWay =
    " Or set a secret file that all ranks can read: TESSERA_SECRET_FILE=path";

}  // namespace

std::string random_secret() { return random_bytes(kSecretBytes); }

Fd secret_descriptor(const std::string& secret) {
  const Fd made(memfd_create("tessera-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Above the standard descriptors, which are replaced in a child.
  Fd fd(made.open() ? fcntl(made.get(), F_DUPFD_CLOEXEC, 3) : -1);
  if (!fd.open() ||
      pwrite(fd.get(), secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    throw_errno("cannot store the job's secret in memory");
  }
  fchmod(fd.get(), 0400);
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  return fd;
}

std::string read_secret_descriptor(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !right_size(info)) {
    throw UsageError(str("TESSERA_SECRET_FD is ", fd,
                         ", but no secret can be read from that descriptor; was it closed by a "
                         "program between the launcher and this one? Let that program keep "
                         "descriptors open (Python: close_fds=False), or start with tessera run "
                         "--secret-file F.",
                         kOtherWay));
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return read_all(fd, static_cast<std::size_t>(info.st_size));
}

std::string how_to_make_secret_file(const std::string& path) {
  return str("head -c 32 /dev/urandom > ", path, " && chmod 600 ", path);
}

std::string read_secret_file(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto refuse = [&](const std::string& why) -> std::string {
    throw UsageError(str("the secret file ", quote(path), " ", why,
                         "; make one with: ", how_to_make_secret_file(path)));
  };
  struct stat info {};
  if (!fd.open() || fstat(fd.get(), &info) != 0) {
    return refuse(str("cannot be read: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return refuse("is not a regular file");
  if (info.st_uid != geteuid()) {
    return refuse(str("belongs to user ", info.st_uid, "; must belong to user ", geteuid()));
  }
  if ((info.st_mode & 0177) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return refuse(str("has mode ", mode, "; must be 0600 or stricter"));
  }
  if (!right_size(info)) {
    return refuse(
        str("has ", info.st_size, " bytes; must be ", kShortestSecret, " to ", kLongestSecret));
  }
  const std::string secret = read_all(fd.get(), static_cast<std::size_t>(info.st_size));
  if (secret.size() < kShortestSecret) return refuse("became shorter while it was read");
  return secret;
}

bool same_user(const Fd& socket) {
  ucred other{};
  socklen_t length = sizeof(other);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
         other.uid == geteuid();
}

namespace {

// A rank's request for rank 0's text, and the answer. If it is `good`, `bytes` of text follow.
struct SecretRequest {
  std::int32_t rank, size;
};
enum class SecretVerdict : std::int32_t { good = 0, other_size = 1, taken = 2 };
struct SecretAnswer {
  SecretVerdict verdict;
  std::int32_t size;  // rank 0's number of ranks
  std::int32_t bytes;
};

Fd listen_as_rank_0(const std::string& name) {
  bool taken = false;
  Fd listener = listen_unix(name, SOMAXCONN, &taken);
  if (taken) {
    throw UsageError(
        "rank 0 of this job runs already: another process of this host and user was started with "
        "RANK=0 and the same MASTER_PORT. Give every rank its own RANK, and every job its own "
        "MASTER_PORT");
  }
  fcntl(listener.get(), F_SETFL, O_NONBLOCK);
  return listener;
}

// Rank 0: sends the text once to every other rank, serving them concurrently.
void hand_out(const std::string& text, const std::string& name, int size, Clock::time_point end,
              JoinNotice notice) {
  const Fd listener = listen_as_rank_0(name);
  std::map<int, Fd> served;  // by rank
  std::vector<Fd> callers;   // connections whose rank is not known yet
  while (static_cast<int>(served.size()) < size - 1) {
    std::vector<int> joined{0}, missing;
    for (int r = 1; r < size; ++r) (served.contains(r) ? joined : missing).push_back(r);
    if (Clock::now() > end) {
      throw PeerError(str("rank ", ranks_text(missing),
                          " did not fetch the job's secret from rank 0 in time; did all ranks "
                          "start, on this host and as this user?",
                          kOtherWay));
    }
    if (notice.is_due()) notice.report_missing(0, size, joined, missing);
    std::vector<pollfd> polls{{listener.get(), POLLIN, 0}};
    for (const Fd& caller : callers) polls.push_back({caller.get(), POLLIN, 0});
    if (poll(polls.data(), polls.size(), 100) <= 0) continue;
    std::vector<Fd> undecided;
    for (std::size_t i = 0; i < callers.size(); ++i) {
      if (polls[i + 1].revents == 0) {
        undecided.push_back(std::move(callers[i]));
        continue;
      }
      SecretRequest asked{-1, -1};
      if (recv(callers[i].get(), &asked, sizeof(asked), MSG_DONTWAIT) != sizeof(asked)) continue;
      SecretAnswer answer{SecretVerdict::good, size, static_cast<std::int32_t>(text.size())};
      if (served.contains(asked.rank) || asked.rank == 0) answer.verdict = SecretVerdict::taken;
      if (asked.size != size) answer.verdict = SecretVerdict::other_size;
      if (asked.rank < 0 || asked.rank >= asked.size) continue;
      if (send_all(callers[i], &answer, sizeof(answer)) && answer.verdict == SecretVerdict::good &&
          send_all(callers[i], text.data(), text.size())) {
        served.emplace(asked.rank, std::move(callers[i]));
      }
    }
    callers = std::move(undecided);
    Fd caller(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (caller.open() && same_user(caller)) callers.push_back(std::move(caller));
  }
}

std::string fetch(const std::string& name, int rank, int size, Clock::time_point end,
                  JoinNotice notice) {
  for (;;) {
    const Fd socket = try_connect_unix(name);
    if (socket.open()) {
      if (!same_user(socket)) {
        throw Error(
            str("a process of another user listens at the address of rank 0 of this job; choose "
                "another MASTER_PORT.",
                kOtherWay));
      }
      const SecretRequest own{rank, size};
      SecretAnswer answer{};
      if (send_all(socket, &own, sizeof(own)) &&
          receive_all(socket, &answer, sizeof(answer), end)) {
        if (answer.verdict == SecretVerdict::other_size) {
          throw UsageError(str("rank ", rank, " was started with WORLD_SIZE ", size,
                               " and rank 0 with ", answer.size,
                               "; give all ranks the same WORLD_SIZE"));
        }
        if (answer.verdict == SecretVerdict::taken) {
          throw UsageError(str("another process of this job is rank ", rank,
                               " already; give every rank its own RANK"));
        }
        std::string text(
            std::min<std::size_t>(static_cast<std::uint32_t>(answer.bytes), kLongestSecret), '\0');
        if (receive_all(socket, text.data(), text.size(), end)) return text;
      }
    }
    if (Clock::now() > end) {
      throw PeerError(
          str("rank ", rank, " got no secret from rank 0 in time; did rank 0 start, on ",
              "this host and as this user?", kOtherWay),
          0);
    }
    if (notice.is_due()) {
      notice.report(rank,
                    "for rank 0, which has not started on this host as this user. Start it "
                    "with the same MASTER_PORT and WORLD_SIZE.");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

std::string agree_on_secret(const std::string& name, int rank, int size,
                            std::chrono::milliseconds timeout, std::chrono::milliseconds notice) {
  return share_on_host(name, rank, size, rank == 0 ? random_secret() : "", timeout, notice);
}

std::string share_on_host(const std::string& name, int rank, int size, const std::string& text,
                          std::chrono::milliseconds timeout, std::chrono::milliseconds notice) {
  const auto end = Clock::now() + timeout;
  if (rank != 0) return fetch(name, rank, size, end, JoinNotice(notice));
  hand_out(text, name, size, end, JoinNotice(notice));
  return text;
}

}  // namespace tessera::comm
