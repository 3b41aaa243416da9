// The program tessera-dashboard: serves the dashboard. The front program `tessera` executes it.

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/guard.h"
#include "tessera/dashboard/server.h"
#include "tessera/dashboard/site.h"

namespace tessera::cli {
namespace {

constexpr const char* kDashboardExamples =
    "  tessera dashboard\n"
    "  tessera dashboard --port 8080 --runs out.jsonl\n"
    "  tessera dashboard --runs runs --runs other/out.jsonl          all *.jsonl of a folder\n"
    "  tessera dashboard --address 0.0.0.0 --token new               for other machines too\n"
    "\n"
    "It prints the address to open in a browser, and serves until Ctrl-C.";

struct DashboardArguments {
  std::string address = "127.0.0.1", token, pages, open = "no";
  std::vector<std::string> runs;
  int port = 0;
};

// Server that the signal handler stops.
std::atomic<dashboard::Server*>& served() {
  static std::atomic<dashboard::Server*> server{nullptr};
  return server;
}

void stop_on(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) {
    if (dashboard::Server* const server = served().load()) server->stop();
  };
  ::sigaction(signal, &action, nullptr);
}

std::string new_token() {
  unsigned char bytes[16];
  if (::getentropy(bytes, sizeof bytes) != 0) throw Error("getentropy() failed: no random bytes");
  std::string text;
  for (const unsigned char byte : bytes) text += hex(byte, 2);
  return text;
}

void check_token(const std::string& token) {
  const bool plain = std::all_of(token.begin(), token.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
  if (token.empty() || (plain && token.size() >= 16 && token.size() <= 256)) return;
  throw UsageError(Flag("token"),
                   "must be 16 to 256 letters, digits, - and _, or \"new\" to generate one");
}

// Starts the browser without waiting for it.
void open_browser(const std::string& url) {
  char program[] = "xdg-open";
  std::string word = url;
  char* const arguments[] = {program, word.data(), nullptr};
  pid_t pid = -1;
  if (::posix_spawnp(&pid, program, nullptr, nullptr, arguments, environ) != 0) {
    write_all(2, "tessera dashboard: --open: xdg-open was not found; open the address yourself\n");
  }
}

// Returns the part of the address that opens the run of a single metrics file.
std::string view_of(const std::vector<std::string>& runs) {
  std::error_code problem;
  if (runs.size() != 1 || std::filesystem::is_directory(runs[0], problem)) return "";
  return "#/live?runs=" + dashboard::RunStore::id_of(runs[0]);
}

int serve(int argc, char** argv) {
  DashboardArguments a;
  CommandLine line("dashboard",
                   "Serves a web page on this machine: calculators, schedules, live runs.",
                   kDashboardExamples);
  CLI::App& app = line.app();
  line.integer(app, "--port", a.port, 0, 65535, "port to listen on; 0: a free one");
  app.add_option("--address", a.address,
                 "numeric address of this machine; addresses other than 127.0.0.1 need --token")
      ->capture_default_str();
  app.add_option("--token", a.token,
                 "secret that browsers must send: at least 16 letters and digits; new: generate "
                 "one");
  app.add_option("--runs", a.runs, "metrics of tessera train: a file, or a folder with *.jsonl")
      ->type_name("PATH");
  line.choice(app, "--open", a.open, {"yes", "no"}, "open the page in a browser (xdg-open)");
  app.add_option("--pages", a.pages, "for development: serve the page from this folder")
      ->type_name("DIR");
  if (!line.parse(argc, argv)) return 0;
  if (!dashboard::is_loopback(a.address) && a.token.empty()) {
    throw UsageError(
        Flag("address"),
        str(a.address, " is reachable from other machines; add --token, or use 127.0.0.1"));
  }
  if (a.token == "new") a.token = new_token();
  check_token(a.token);
  dashboard::SiteOptions site;
  site.runs = std::make_shared<dashboard::RunStore>(a.runs);
  site.known.torch_program = sibling("tessera-torch");
  for (char** entry = environ; *entry != nullptr; ++entry) {
    site.known.environment.emplace_back(*entry);
  }
  site.pages = a.pages;
  site.guard.token = a.token;
  site.guard.hosts = {a.address};
  site.guard.any_number = a.address == "0.0.0.0" || a.address == "::";
  dashboard::ServerOptions options;
  options.address = a.address;
  options.port = a.port;
  dashboard::Server server(options, dashboard::make_site(std::move(site)));
  served() = &server;
  stop_on(SIGINT);
  stop_on(SIGTERM);
  ::signal(SIGPIPE, SIG_IGN);
  const std::string host =
      a.address.find(':') == std::string::npos ? a.address : "[" + a.address + "]";
  const std::string url = str("http://", host, ":", server.port(), "/",
                              a.token.empty() ? "" : "?token=" + a.token, view_of(a.runs));
  print_out(str("Tessera's dashboard: ", url, "\n"));
  for (const std::string& path : a.runs) {
    if (::access(path.c_str(), F_OK) == 0) continue;
    write_all(2, str("tessera dashboard: --runs: ", quote(path),
                     " does not exist yet; it is shown when it appears\n"));
  }
  if (a.open == "yes") open_browser(url);
  server.run();
  served() = nullptr;
  return 0;
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  return tessera::cli::guarded("tessera dashboard", [&] {
    static char name[] = "dashboard";
    argv[0] = name;
    return tessera::cli::serve(argc, argv);
  });
}
