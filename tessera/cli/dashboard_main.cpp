// The program that serves the dashboard; the front program `tessera` executes it.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
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
    "  tessera dashboard --port 8080\n"
    "\n"
    "It prints the address to open in a browser, and serves until Ctrl-C.";

struct DashboardArguments {
  std::string address = "127.0.0.1", token, pages;
  int port = 0;
};

// The server that a signal ends.
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

int serve(int argc, char** argv) {
  DashboardArguments a;
  CommandLine line("dashboard", "Serves a page on this machine: calculators, schedules, live runs.",
                   kDashboardExamples);
  CLI::App& app = line.app();
  line.integer(app, "--port", a.port, 0, 65535, "to listen at; 0: a free one");
  app.add_option("--address", a.address,
                 "of this machine, in numbers; others than 127.0.0.1 need --token")
      ->capture_default_str();
  app.add_option("--token", a.token, "that a browser must show: 16 letters and digits or more");
  app.add_option("--pages", a.pages, "for work on the page: serve it from this folder")
      ->type_name("DIR");
  if (!line.parse(argc, argv)) return 0;
  if (!dashboard::is_loopback(a.address) && a.token.empty()) {
    throw UsageError(str("--address: ", a.address,
                         " can be reached from elsewhere: wanted --token too, or 127.0.0.1"));
  }
  dashboard::SiteOptions site;
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
  write_all(1, str("Tessera's dashboard: http://", host, ":", server.port(), "/",
                   a.token.empty() ? "" : "?token=" + a.token, "\n"));
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
