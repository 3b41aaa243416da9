// The programs as a user runs them.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/core/fd.h"
#include "tessera/core/text.h"
#include "tessera/version.h"
#include "tests/processes.h"
#include "tests/temporary_folder.h"

namespace tessera::cli {
namespace {

Outcome tessera(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TESSERA_PROGRAM);
  return outcome_of(arguments);
}

TEST(Program, HelpListsEveryCommand) {
  const Outcome help = tessera({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(contains(help.out, "Examples"));
  for (const std::string& name : command_names()) EXPECT_TRUE(contains(help.out, "  " + name));
}

TEST(Program, PrintsItsVersion) {
  const Outcome version = tessera({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(contains(version.out, TESSERA_VERSION));
}

TEST(Program, MistakesAreStatus2WithASuggestionAndNothingOnStdout) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "Usage"},
      {{"dcotor"}, "did you mean doctor?"},
      {{"--hepl"}, "did you mean --help?"},
      {{"completion", "bahs"}, "did you mean bash?"},
      {{"elephant"}, "unknown command"}};
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(contains(outcome.err, expected)) << outcome.err;
  }
}

TEST(Program, ReportsAFullDiskBehindStdout) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const char* words : {"--help", "--version", "plan --help", "plan --list-models",
                            "explain zero", "completion bash", "import deepspeed --help"}) {
    Capture out, err;
    const std::string call = str(TESSERA_PROGRAM, " ", words, " > /dev/full");
    EXPECT_EQ(execute({"/bin/sh", "-c", call}, out, err), 1) << words;
    EXPECT_TRUE(contains(err.text(), "cannot write to stdout: No space left"))
        << words << err.text();
  }
}

// Otherwise the next file that the program opens would receive its standard error.
TEST(Program, ReservesClosedStandardDescriptors) {
  Capture out, err;
  const std::string look = "readlink /proc/$PPID/fd/0 /proc/$PPID/fd/2";
  const int status = execute(
      {"/bin/sh", "-c", str("exec ", TESSERA_PROGRAM, " run -n 1 -- sh -c '", look, "' <&- 2>&-")},
      out, err);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(out.text(), "[0] /dev/null\n[0] /dev/null\n");
}

TEST(Program, CompletesCommands) {
  const Outcome script = tessera({"completion", "bash"});
  EXPECT_EQ(script.status, 0);
  for (const std::string& name : command_names()) EXPECT_TRUE(contains(script.out, name));
}

// As bash calls it: the words so far; the last one is to be completed.
TEST(Program, CompletesSubcommandsAndOptions) {
  const std::string script = tessera({"completion", "bash"}).out;
  const auto completed = [&](const std::string& words) {
    Capture out, err;
    execute({"/bin/bash", "-c",
             str(script, "\nCOMP_WORDS=(", TESSERA_PROGRAM, " ", words,
                 "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tessera; "
                 "printf '%s\\n' \"${COMPREPLY[@]}\" | sort -u | tr '\\n' ' '")},
            out, err);
    return out.text() + err.text();
  };
  EXPECT_EQ(completed("expl"), "explain ");
  EXPECT_EQ(completed("explain ba"), "batch ");
  EXPECT_EQ(completed("data prep"), "prepare ");
  EXPECT_EQ(completed("data prepare --tok"), "--tokenizer ");
  EXPECT_EQ(completed("plan --lay"), "--layers --layout ");
  EXPECT_EQ(completed("completion z"), "zsh ");
}

TEST(Program, RunsProgramsWithoutTheTorchProgram) {
  // A copy in its own folder has no sibling to execute.
  const TemporaryFolder folder;
  const std::string copy = folder / "tessera";
  std::filesystem::copy_file(TESSERA_PROGRAM, copy);
  Capture out, err;
  EXPECT_EQ(execute({copy, "doctor"}, out, err), 1);
  EXPECT_EQ(out.text(), "");
  EXPECT_TRUE(contains(err.text(), folder / "tessera-torch")) << err.text();
  EXPECT_EQ(execute({copy, "run", "-n", "2", "--", "true"}, out, err), 0) << err.text();
}

// The loader itself would name one library and no remedy.
TEST(Program, ReportsMissingLibrariesWithARemedy) {
  std::ifstream program(TESSERA_PROGRAM, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(program), {}};
  const std::string known = "libstdc++.so.6";
  if (!contains(whole, known)) GTEST_SKIP() << "linked without " << known;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"libc10.so", {"libc10.so of LibTorch", "pip install torch==", "ln -s ", "LD_LIBRARY_PATH"}},
      {"libmpi.so.99", {"libmpi.so.99: install", "apt-file search libmpi.so.99"}}};
  for (const auto& [missing, parts] : cases) {
    const TemporaryFolder folder;
    const std::string copy = folder / "tessera", sibling = folder / "tessera-torch";
    std::filesystem::copy_file(TESSERA_PROGRAM, copy);
    std::string other = whole;
    other.replace(other.find(known), missing.size() + 1, missing + '\0');
    std::ofstream(sibling, std::ios::binary) << other;
    std::filesystem::permissions(sibling, std::filesystem::perms::owner_all);
    for (const char* command : {"train", "doctor"}) {
      Capture out, err;
      EXPECT_EQ(execute({copy, command}, out, err), 1);
      EXPECT_EQ(err.lines().size(), 1u) << err.text();
      EXPECT_TRUE(contains(err.text(), command)) << err.text();
      for (const std::string& part : parts) {
        EXPECT_TRUE(contains(err.text(), part)) << part << " in " << err.text();
      }
    }
  }
}

// File with the secret of a job, created as the message describes.
class SecretFile {
 public:
  SecretFile() {
    path_ = (std::filesystem::temp_directory_path() / "tessera-secret-XXXXXX").string();
    const Fd fd(::mkstemp(path_.data()));
    const std::string bytes = path_ + path_;  // unique and long enough
    EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  ~SecretFile() { std::filesystem::remove(path_); }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class TorchProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!TESSERA_WITH_TORCH) GTEST_SKIP() << "built without LibTorch";
  }
};

TEST_F(TorchProgram, HelpOfEveryCommandHasExamples) {
  for (const std::string& name : command_names()) {
    const Outcome help = tessera({name, "--help"});
    if (contains(help.err, "`make build` builds it")) continue;  // built without the dashboard
    EXPECT_EQ(help.status, 0) << name << help.err;
    EXPECT_TRUE(contains(help.out, "Examples")) << name;
    EXPECT_EQ(tessera({"help", name}).out, help.out);
  }
}

TEST(Program, RunStartsRanksThatReachTheStore) {
  const Outcome run = tessera({"run", "-n", "3", "--", "bash", "-c",
                               "exec 3<>/dev/tcp/${TESSERA_STORE%:*}/${TESSERA_STORE##*:} && "
                               "echo rank $RANK of $WORLD_SIZE connects"});
  EXPECT_EQ(run.status, 0) << run.err;
  for (const char* line :
       {"[0] rank 0 of 3 connects\n", "[1] rank 1 of 3 connects\n", "[2] rank 2 of 3 connects\n"}) {
    EXPECT_TRUE(contains(run.out, line)) << run.out;
  }
}

// Programs that join through torch.distributed's env:// need a port that rank 0 can listen on.
TEST(Program, RunLeavesTheMasterPortToRank0) {
  const Outcome run =
      tessera({"run", "-n", "1", "--", "python3", "-c",
               "import os, socket; s = socket.socket(); "
               "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
               "s.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))); s.listen(); "
               "print('agent:', os.environ['TORCHELASTIC_USE_AGENT_STORE'], 'listens')"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(contains(run.out, "agent: False listens")) << run.out;
}

TEST(Program, PassesTheSecretOnlyInADescriptor) {
  const Outcome run = tessera(
      {"run", "-n", "2", "--", "bash", "-c",
       "hex() { od -An -v -tx1 | tr -d ' \\n'; };"
       "echo secret $(hex < /proc/self/fd/$TESSERA_SECRET_FD);"
       "echo seen $(cat /proc/$$/environ /proc/$$/cmdline /proc/$PPID/environ /proc/$PPID/cmdline"
       " | hex)"});
  EXPECT_EQ(run.status, 0) << run.err;
  std::istringstream lines(run.out);
  std::string secret;
  std::vector<std::string> seen;
  for (std::string rank, what, hex; lines >> rank >> what >> hex;) {
    if (what == "seen") seen.push_back(hex);
    if (what != "secret") continue;
    EXPECT_TRUE(secret.empty() || secret == hex) << "the ranks share one";
    secret = hex;
  }
  EXPECT_EQ(secret.size(), 64u) << run.out;
  ASSERT_EQ(seen.size(), 2u);
  for (const std::string& text : seen) {
    EXPECT_GT(text.size(), 100u);
    EXPECT_FALSE(contains(text, secret));
  }
}

TEST_F(TorchProgram, RunReturnsTheStatusAndRefusesMistakes) {
  const SecretFile secret, open_to_all;
  ASSERT_EQ(::chmod(open_to_all.path().c_str(), 0644), 0);
  EXPECT_EQ(tessera({"run", "-n", "2", "--", "sh", "-c", "exit 9"}).status, 9);
  EXPECT_EQ(tessera({"run", "-n", "2", "--", "./no-such-program"}).status, 127);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"run", "--rnaks", "2", "--", "true"}, "--rnaks: unknown; did you mean --ranks?"},
      {{"run", "-n", "2"}, "no program to run"},
      {{"run", "-n", "0", "--", "true"}, "got 0; must be 1 to"},
      {{"bench", "comm", "--ranks", "0"}, "got 0; must be 2 to"},
      {{"calibrate", "--ranks", "0"}, "got 0; must be 1 to"},
      {{"calibrate", "--time", "0s"}, "--time: got 0 s; must be 1ms to 1h"},
      {{"calibrate", "--out", "/dev/full"}, "--out: cannot write \"/dev/full\""},
      {{"calibrate", "--out", "/proc/here.toml"}, "--out: cannot write \"/proc/here.toml\""},
      {{"run", "--", "true"}, "--ranks is required"},
      {{"run", "-n", "2", "--nodes", "2", "--", "true"}, "--master-addr"},
      {{"run", "-n", "2", "--nodes", "2", "--master-addr", "127.0.0.1", "--", "true"},
       "head -c 32 /dev/urandom > F && chmod 600 F"},
      {{"run", "-n", "2", "--secret-file", open_to_all.path(), "--", "true"}, "has mode 0644"},
      {{"run", "-n", "1", "--nodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1",
        "--interface", "no-such", "--secret-file", secret.path(), "--", "true"},
       "there is no network interface"},
      {{"run", "-n", "2", "--node-rank", "1", "--", "true"}, "--node-rank is 1"}};
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(contains(outcome.err, expected)) << outcome.err;
  }
}

// Work of a rank in these jobs: connect to the others and sum.
const std::vector<std::string> kBench = {
    TESSERA_PROGRAM, "bench", "comm", "--ops", "all_reduce", "--sizes", "1KiB", "--repeat", "2"};

std::string in_shell(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += "'" + word + "' ";
  return text;
}

int free_port() {
  const Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

Outcome shell(const std::string& script) {
  Capture out, err;
  const int status = execute({"/bin/sh", "-c", script}, out, err);
  return {status, out.text(), err.text()};
}

TEST_F(TorchProgram, RanksOfTwoNodesConnectWithTheSameSecret) {
  const SecretFile secret, other;
  const auto node = [&](int rank, int port, const SecretFile& file) {
    return in_shell({TESSERA_PROGRAM, "run", "-n", "1", "--nodes", "2", "--node-rank",
                     std::to_string(rank), "--master-addr", "127.0.0.1", "--master-port",
                     std::to_string(port), "--secret-file", file.path(), "--"}) +
           in_shell(kBench);
  };
  int port = free_port();
  const Outcome good = shell(node(1, port, secret) + "& " + node(0, port, secret) + "&& wait $!");
  EXPECT_EQ(good.status, 0) << good.err;
  EXPECT_TRUE(contains(good.out, "all_reduce")) << good.out;
  port = free_port();
  const Outcome bad =
      shell(node(0, port, secret) + "& " + node(1, port, other) + "; kill $!; wait");
  EXPECT_TRUE(contains(bad.err, "refuses rank 1")) << bad.err;
}

TEST_F(TorchProgram, RanksStartedByHandConnectAndUseASecretFile) {
  const SecretFile secret;
  for (const std::string& more : {std::string(), "TESSERA_SECRET_FILE=" + secret.path() + " "}) {
    const std::string common =
        more + "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(free_port()) +
        " ";
    const Outcome run = shell("RANK=1 " + common + in_shell(kBench) + "& RANK=0 " + common +
                              in_shell(kBench) + "&& wait $!");
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_TRUE(contains(run.out, "all_reduce")) << run.out;
    EXPECT_FALSE(contains(run.err, "warning")) << run.err;
  }
  // If the ranks may be on several hosts, the missing secret is reported once.
  const std::string common =
      "WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=$(hostname) MASTER_PORT=" +
      std::to_string(free_port()) + " TESSERA_INTERFACE=lo ";
  if (shell("getent hosts $(hostname)").status != 0) {
    GTEST_SKIP() << "the name of this machine means nothing here";
  }
  const Outcome open = shell("RANK=1 " + common + in_shell(kBench) + "& RANK=0 " + common +
                             in_shell(kBench) + "&& wait $!");
  EXPECT_EQ(open.status, 0) << open.err;
  const std::string warning = "warning: the ranks are on several hosts and have no secret";
  EXPECT_TRUE(contains(open.err, warning)) << open.err;
  EXPECT_EQ(open.err.find(warning), open.err.rfind(warning));
}

// A rank that waits for the others has nothing to save: a signal ends it immediately.
TEST_F(TorchProgram, SignalEndsARankThatWaitsForOthers) {
  const SecretFile secret;
  for (const int number : {SIGTERM, SIGINT}) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const Fd store(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    ASSERT_TRUE(::bind(store.get(), at, length) == 0 && ::listen(store.get(), 4) == 0 &&
                ::getsockname(store.get(), at, &length) == 0);
    Capture out, err;
    Child rank([&] {
      ::dup2(out.fd(), 1);
      ::dup2(err.fd(), 2);
      ::setenv("RANK", "1", 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", std::to_string(ntohs(address.sin_port)).c_str(), 1);
      ::setenv("TESSERA_SECRET_FILE", secret.path().c_str(), 1);
      ::execl(TESSERA_PROGRAM, TESSERA_PROGRAM, "train", "--steps", "1", nullptr);
      return 127;
    });
    // It has connected to the store, which never answers.
    pollfd entry{store.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, static_cast<int>(kHang * 1000)), 1) << err.text();
    const Fd connection(::accept4(store.get(), nullptr, nullptr, SOCK_CLOEXEC));
    rank.signal(number);
    EXPECT_EQ(rank.wait(), 128 + number) << err.text();
  }
}

TEST_F(TorchProgram, DoctorReportsInBothForms) {
  const Outcome text = tessera({"doctor"});
  EXPECT_EQ(text.status, 0) << text.out << text.err;
  EXPECT_TRUE(contains(text.out, "Backends"));
  const Outcome json = tessera({"doctor", "--json"});
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out)["versions"]["tessera"], TESSERA_VERSION);
}

}  // namespace
}  // namespace tessera::cli
