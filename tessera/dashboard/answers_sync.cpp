// Answer of a real run: `tessera explain sync` as a separate process.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "tessera/core/fd.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/api.h"

namespace tessera::dashboard {
namespace {

constexpr double kSyncSeconds = 60;
constexpr std::size_t kMaxOutput = std::size_t{8} << 20;

struct Ended {
  int status = -1;  // as in a shell: 128 + n after signal n
  std::string out;
};

// Runs a program and kills it if it takes too long. The arguments must not come from the client.
Ended run_program(const std::vector<std::string>& words,
                  const std::vector<std::string>& environment) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Unavailable(str("cannot create a pipe: ", std::strerror(errno)));
  const Fd in(ends[0]);
  Fd out(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, out.get(), 2);
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
    all.push_back(nullptr);
    return all;
  };
  const std::vector<char*> arguments = pointers(words), variables = pointers(environment);
  pid_t pid = -1;
  const int problem =
      ::posix_spawn(&pid, words[0].c_str(), &actions, nullptr, arguments.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (problem != 0) {
    throw Unavailable(
        str("this view needs tessera-torch, which cannot be started: ", std::strerror(problem),
            ". It is built if LibTorch is found: run `make build`"));
  }
  out.reset();
  Ended ended;
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(kSyncSeconds);
  std::vector<char> buffer(1 << 16);
  bool whole = false;
  while (ended.out.size() < kMaxOutput) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd entry{in.get(), POLLIN, 0};
    const int ready = left <= 0 ? 0 : ::poll(&entry, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;  // read() would block without a limit
    if (ready <= 0) break;
    const ssize_t got = ::read(in.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    whole = got == 0;
    if (got <= 0) break;
    ended.out.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (!whole) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!whole) throw Unavailable("explain sync took too long");
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

}  // namespace

Json sync_answer(const Knowledge& known, Ask& ask) {
  const auto ranks = ask.integer("ranks", 2, 1, 4);
  const auto bucket = ask.integer("bucket_size", 2'000'000, 16, 1 << 26);
  const auto width = ask.integer("width", 512, 16, 1024);
  const auto layers = ask.integer("layers", 8, 1, 12);
  ask.nothing_else();
  if (known.torch_program.empty()) {
    throw Unavailable("this view needs tessera-torch, which is built if LibTorch is found");
  }
  const std::vector<std::string> flags = {"--ranks",  str(ranks), "--bucket-size", str(bucket),
                                          "--width",  str(width), "--layers",      str(layers),
                                          "--rounds", "5"};
  std::vector<std::string> words = {known.torch_program, "explain_sync", "--json"};
  words.insert(words.end(), flags.begin(), flags.end());
  const Ended ended = run_program(words, known.environment);
  Json json = Json::parse(ended.out, nullptr, /*allow_exceptions=*/false);
  if (ended.status != 0 || !json.is_object()) {
    throw Unavailable(
        str("explain sync failed with status ", ended.status, ": ", ended.out.substr(0, 300)));
  }
  json["command"] = "tessera explain sync " + join(flags, " ");
  return json;
}

}  // namespace tessera::dashboard
