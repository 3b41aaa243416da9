// The server against hostile clients, over real sockets.

#include "tessera/dashboard/server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/dashboard/client.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::dashboard {
namespace {

using nlohmann::json;

std::string reason(const Reply& reply) {
  const json body = json::parse(reply.body, nullptr, false);
  EXPECT_TRUE(body.is_object() && body.contains("error")) << reply.head << "\n" << reply.body;
  return body.is_object() && body.contains("error") ? body["error"]["message"].get<std::string>()
                                                    : "";
}

TEST(Server, SendsSecurityHeaders) {
  const Served served;
  for (const Reply& reply : {get(served.port(), "/api/about"), get(served.port(), "/api/nothing"),
                             post(served.port(), "/api/plan", "{")}) {
    for (const char* header :
         {"Content-Security-Policy: default-src 'none'", "X-Content-Type-Options: nosniff",
          "X-Frame-Options: DENY", "Referrer-Policy: no-referrer"}) {
      EXPECT_TRUE(contains(reply.head, header)) << reply.head;
    }
    EXPECT_FALSE(contains(reply.head, "unsafe")) << reply.head;
  }
}

TEST(Server, RefusesInvalidRequestsWithAReason) {
  const Served served;
  struct Case {
    Reply reply;
    int status;
    const char* says;
  };
  const int port = served.port();
  const std::string mb(1 << 20, ' ');
  const Case cases[] = {
      {post(port, "/api/plan", R"({"dp":0})"), 400, "--dp: got"},
      {post(port, "/api/plan", R"({"dp":NaN})"), 400, "not valid JSON"},
      {post(port, "/api/plan", R"({"dp":1e999})"), 400, "not valid JSON"},
      {post(port, "/api/plan", R"({"dp":{"a":1}})"), 400, "dp"},
      {post(port, "/api/plan", R"([1,2])"), 400, "must be an object"},
      {post(port, "/api/plan", R"({"color":1})"), 400, "color"},
      {post(port, "/api/plan", R"({"model":"../../etc/passwd"})"), 400, "--model"},
      {post(port, "/api/plan", R"({"dp":4000000})"), 400, "--gpus"},
      {post(port, "/api/plan", R"({"pp":32,"grad_accum":1000000})"), 400, "--grad-accum"},
      {post(port, "/api/simulate", R"({"dp":4096,"grad_accum":100000,"jitter":1})"), 400, "events"},
      {post(port, "/api/schedule", R"({"micros":16385})"), 400, "1 to 16384"},
      {post(port, "/api/collective", R"({"ranks":17})"), 400, "--ranks"},
      {post(port, "/api/search", R"({"gpus":65537})"), 400, "must be at most 65536"},
      {post(port, "/api/plan", mb), 413, "too large"},
      {post(port, "/api/plan", std::string(60000, '[')), 400, "not valid JSON"},
      {post(port, "/api/plan", "{}", "Content-Type: text/plain\r\n"), 415, "application/json"},
      {post(port, "/api/plan", "{}", ""), 415, "application/json"},
      {get(port, "/api/plan"), 405, "POST"},
      {post(port, "/api/runs", "{}"), 405, "GET"},
      {post(port, "/api/nothing", "{}"), 404, "not found"},
      {get(port, "/api/nothing"), 404, "not found"},
      {get(port, "/api/runs/../../etc/passwd"), 404, ""},
      {get(port, "/../../../etc/passwd.txt"), 404, ""},
      {get(port, "/%2e%2e/%2e%2e/etc/passwd.txt"), 404, ""},
      {get(port, "/..%2f..%2fetc%2fpasswd.txt"), 404, ""},
      {get(port, "/%00.js"), 404, ""},
      {get(port, "/" + std::string(9000, 'a')), 414, "too long"},
      {get(port, "/", "X-Long: " + std::string(90000, 'a') + "\r\n"), 431, "too long"},
      {get(port, "/api/runs/x?points=99999999"), 400, "--points"},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(each.reply.status, each.status) << each.reply.head << "\n" << each.reply.body;
    EXPECT_TRUE(contains(reason(each.reply), each.says)) << each.says << "\n" << each.reply.body;
  }
  EXPECT_EQ(json::parse(cases[0].reply.body)["error"]["field"], "dp");
  EXPECT_EQ(get(port, "/api/about").status, 200);
}

TEST(Server, AcceptsOnlyItsOwnHostAndOrigin) {
  const Served served;
  const auto ask = [&](const std::string& head) {
    RawClient client(served.port());
    client.send("GET /api/about HTTP/1.1\r\n" + head + "Connection: close\r\n\r\n");
    return parse_reply(client.answer()).status;
  };
  for (const char* good :
       {"Host: 127.0.0.1\r\n", "Host: localhost:80\r\n", "Host: LOCALHOST\r\n",
        "Host: [::1]:8080\r\n", "Host: 127.0.0.1:1\r\nOrigin: http://127.0.0.1:1\r\n"}) {
    EXPECT_EQ(ask(good), 200) << good;
  }
  for (const char* bad :
       {"", "Host: evil.example\r\n", "Host: 127.0.0.1.evil.example\r\n", "Host: 192.168.1.1\r\n",
        "Host: \r\n", "Host: 127.0.0.1:80.evil\r\n", "Host: 127.0.0.1:80@evil\r\n",
        "Host: localhost\r\nOrigin: evil://localhost\r\n",
        "Host: localhost\r\nOrigin: http://evil.example\r\n", "Host: localhost\r\nOrigin: null\r\n",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n"}) {
    EXPECT_EQ(ask(bad), 403) << bad;
  }
  EXPECT_EQ(ask("Host: localhost\r\nHost: evil.example\r\n"), 400);
}

TEST(Server, RequiresItsToken) {
  SiteOptions site;
  site.guard.token = "0123456789abcdef";
  const Served served(site);
  const int port = served.port();
  EXPECT_EQ(get(port, "/api/about").status, 401);
  EXPECT_EQ(get(port, "/?token=0123456789abcdeX").status, 401);
  EXPECT_EQ(get(port, "/api/about", "Authorization: Bearer 0123456789abcdef\r\n").status, 200);
  EXPECT_EQ(get(port, "/api/about", "Cookie: a=b; tessera_token=0123456789abcdef\r\n").status, 200);
  EXPECT_EQ(get(port, "/api/about", "Cookie: tessera_token=\r\n").status, 401);
  const Reply first = get(port, "/?token=0123456789abcdef");
  EXPECT_EQ(first.status, 303);
  EXPECT_TRUE(contains(first.head, "HttpOnly; SameSite=Strict")) << first.head;
}

TEST(Server, KeepsConnectionsAlive) {
  const Served served;
  RawClient client(served.port());
  const std::string body = R"({"dp":8})";
  for (int i = 0; i < 20; ++i) {
    client.send(
        str("POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
            "Content-Length: ", body.size(), "\r\n\r\n", body));
    EXPECT_EQ(parse_reply(client.answer()).status, 200) << i;
  }
}

TEST(Server, AcceptsRequestsInPieces) {
  const Served served;
  RawClient client(served.port());
  const std::string whole =
      "POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 8\r\nConnection: close\r\n\r\n{\"dp\":8}";
  for (const char c : whole) client.send(std::string(1, c));
  EXPECT_EQ(parse_reply(client.answer()).status, 200);
}

TEST(Server, DoesNotWaitForSlowClients) {
  ServerOptions options;
  options.request_seconds = 0.2;
  const Served served({}, options);
  for (const char* part :
       {"", "GET /api/ab", "GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        "POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 50\r\n\r\n{"}) {
    RawClient client(served.port());
    client.send(part);
    const std::string answer = client.answer();
    if (*part != '\0') {
      EXPECT_NE(parse_reply(answer).status, 200) << part << answer;
    }
    EXPECT_EQ(get(served.port(), "/api/about").status, 200);
  }
}

// More connections than allowed: those with partial requests are closed for others and hold no
// thread.
TEST(Server, AnswersWhileAllConnectionsHavePartialRequests) {
  ServerOptions options;
  options.request_seconds = 600;
  const Served served({}, options);
  std::vector<std::unique_ptr<RawClient>> half;
  for (int i = 0; i < 250; ++i) {
    half.push_back(std::make_unique<RawClient>(served.port()));
    half.back()->send("POST /api/plan HTTP/1.1\r\nHost: localhost\r\n");
    if (i % 2 == 0)
      half.back()->send("Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{");
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int answered = 0;
  while (answered < 20 && std::chrono::steady_clock::now() < deadline) {
    for (const auto& client : half) client->send("a");  // byte by byte does not keep a place
    const int status = get(served.port(), "/api/about").status;
    ASSERT_TRUE(status == 200 || status == 503) << status;  // 503 as long as they are new
    answered += status == 200;
  }
  EXPECT_EQ(answered, 20);
}

// An answer that the client does not read holds no thread either.
TEST(Server, AnswersWhileManyClientsDoNotRead) {
  ServerOptions options;
  options.request_seconds = 600;
  options.threads = 4;
  const Served served({}, options);
  std::string many;
  for (int i = 0; i < 400; ++i) many += "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::vector<std::unique_ptr<RawClient>> deaf;
  for (int i = 0; i < 20; ++i) {
    deaf.push_back(std::make_unique<RawClient>(served.port()));
    deaf.back()->send(many);
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(served.port(), "/api/about").status, 200);
  for (int i = 0; i < 400; ++i) {  // and nothing is lost when it reads after all
    ASSERT_EQ(parse_reply(deaf[7]->answer()).status, 200) << i;
  }
}

TEST(Server, RefusesUnboundedAndAmbiguousBodies) {
  const Served served;
  const auto ask = [&](const std::string& lines) {
    RawClient client(served.port());
    client.send("POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
                lines);
    const std::string first = client.answer();
    EXPECT_EQ(client.answer(), "") << "the connection goes on after " << first;
    return parse_reply(first).status;
  };
  // Answered although no byte of the body has arrived.
  EXPECT_EQ(ask("Content-Encoding: br\r\nContent-Length: 1200\r\n\r\n"), 415);
  EXPECT_EQ(ask("Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"), 411);
  EXPECT_EQ(ask("Transfer-Encoding: chunked\r\n\r\n2;" + std::string(100, 'x') + "\r\n{}\r\n"),
            411);
  EXPECT_EQ(ask("\r\n"), 411);
  EXPECT_EQ(ask("Origin: http://evil.example\r\nContent-Length: 0\r\n\r\n"), 403);
  EXPECT_EQ(ask("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                "GET /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            400);
  EXPECT_EQ(ask("Content-Length: 2\r\nContent-Length: 4\r\n\r\n{}"), 400);
  EXPECT_EQ(ask("X: a\r\n Content-Length: 2\r\n\r\n{}"), 400);
  EXPECT_EQ(ask("X: a\nContent-Length: 2\r\n\r\n{}"), 400);
}

// If threads waited for clients, all would be taken.
TEST(Server, AnswersWhileManyRequestsAreIncomplete) {
  ServerOptions options;
  options.request_seconds = 60;
  const Served served({}, options);
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 150; ++i) {
    slow.push_back(std::make_unique<RawClient>(served.port()));
    slow.back()->send(
        "POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 8\r\n\r\n{\"dp");
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(served.port(), "/api/about").status, 200);
  for (const auto& client : slow) client->send("\":8}");
  for (const auto& client : slow) EXPECT_EQ(parse_reply(client->answer()).status, 200);
}

TEST(Server, IdleConnectionsHoldNoThreads) {
  ServerOptions options;
  options.threads = 2;
  const Served served({}, options);
  const std::string ask = "GET /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 50; ++i) clients.push_back(std::make_unique<RawClient>(served.port()));
  for (int round = 0; round < 3; ++round) {
    for (const auto& client : clients) client->send(ask);
    for (const auto& client : clients) EXPECT_EQ(parse_reply(client->answer()).status, 200);
  }
}

TEST(Server, ClosesIdleConnectionsForNewOnes) {
  ServerOptions options;
  options.connections = 3;
  const Served served({}, options);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(std::make_unique<RawClient>(served.port()));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int status = 0;
  while (status != 200 && std::chrono::steady_clock::now() < deadline) {
    status = get(served.port(), "/api/about").status;  // 503 as long as they are new
  }
  EXPECT_EQ(status, 200);
}

TEST(Server, AnswersPipelinedRequestsInOrder) {
  const Served served;
  RawClient client(served.port());
  client.send(
      "GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
      "GET /api/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
      "GET /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (const int status : {200, 404, 200}) EXPECT_EQ(parse_reply(client.answer()).status, status);
}

TEST(Server, RefusesUnknownMethods) {
  const Served served;
  for (const char* method : {"PUT", "DELETE", "QUERY", "OPTIONS", "TRACE"}) {
    RawClient client(served.port());
    client.send(str(method, " /api/plan HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    const Reply reply = parse_reply(client.answer());
    EXPECT_EQ(reply.status, 405) << method;
    EXPECT_TRUE(contains(reply.head, "Allow: POST")) << reply.head;
  }
  RawClient client(served.port());
  client.send("HEAD /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(contains(client.until("\r\n\r\n"), "200 OK"));
}

TEST(Server, SendsContinueBeforeReadingTheBody) {
  const Served served;
  RawClient client(served.port());
  client.send(
      "POST /api/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 8\r\n\r\n");
  EXPECT_EQ(parse_reply(client.answer()).status, 100);
  client.send("{\"dp\":8}");
  EXPECT_EQ(parse_reply(client.answer()).status, 200);
}

TEST(Server, RefusesConnectionsBeyondTheLimit) {
  ServerOptions options;
  options.connections = 6;
  options.threads = 2;
  options.request_seconds = 1;
  const Served served({}, options);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(std::make_unique<RawClient>(served.port()));
  // Some were refused immediately. It is random which ones.
  int refused = 0;
  for (const auto& client : clients) {
    const Reply reply = parse_reply(client->answer());
    if (reply.status != 503) continue;
    ++refused;
    EXPECT_TRUE(contains(reason(reply), "too many"));
  }
  EXPECT_GT(refused, 0);
  clients.clear();
  // Idle connections were closed, and the server continues.
  int status = 0;
  for (int i = 0; i < 100 && status != 200; ++i) status = get(served.port(), "/api/about").status;
  EXPECT_EQ(status, 200);
}

TEST(Server, ServesThePageFromItsMap) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "tessera-pages-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(fs::path(folder) / "index.html") << "<p>page</p>";
  std::ofstream(fs::path(folder) / "page.js") << "1;";
  {
    SiteOptions site;
    site.pages = folder;
    const Served served(site);
    const Reply page = get(served.port(), "/");
    EXPECT_EQ(page.body, "<p>page</p>");
    EXPECT_TRUE(contains(page.head, "Content-Type: text/html")) << page.head;
    EXPECT_TRUE(contains(get(served.port(), "/page.js").head, "text/javascript"));
    const std::size_t at = page.head.find("ETag: ");
    ASSERT_NE(at, std::string::npos);
    const std::string etag = page.head.substr(at + 6, page.head.find('\r', at) - at - 6);
    EXPECT_EQ(get(served.port(), "/", "If-None-Match: " + etag + "\r\n").status, 304);
    EXPECT_EQ(get(served.port(), "/other.js").status, 404);
  }
  fs::remove_all(folder);
}

TEST(Server, ThePageInTheProgramIsGzipped) {
  const Served served;
  const Reply plain = get(served.port(), "/");
  const Reply packed = get(served.port(), "/", "Accept-Encoding: gzip, br\r\n");
  ASSERT_EQ(plain.status, 200);
  EXPECT_TRUE(contains(plain.body, "<html")) << plain.body;
  EXPECT_TRUE(contains(packed.head, "Content-Encoding: gzip")) << packed.head;
  EXPECT_EQ(packed.body.substr(0, 2), "\x1f\x8b");
}

TEST(Server, SendsEventsWhenTheFileGrows) {
  namespace fs = std::filesystem;
  const fs::path file = fs::temp_directory_path() / str("tessera-events-", ::getpid(), ".jsonl");
  std::ofstream(file) << "{\"step\":1,\"loss\":2.5}\n";
  {
    SiteOptions site;
    site.runs = std::make_shared<RunStore>(std::vector<std::string>{file.string()}, 0.01);
    site.runs->catch_up();
    site.most_listeners = 1;
    const Served served(site);
    const json runs = json::parse(get(served.port(), "/api/runs").body);
    ASSERT_EQ(runs.size(), 1U);
    const std::string path = "/api/runs/" + runs[0]["id"].get<std::string>();
    RawClient listener(served.port());
    listener.send("GET " + path + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    listener.until("retry: ");
    EXPECT_EQ(get(served.port(), path + "/events").status, 503);
    std::ofstream(file, std::ios::app) << "{\"step\":2,\"loss\":1.5}\n{\"step\":3,\"lo";
    EXPECT_TRUE(contains(listener.until("\"steps\":[2]"), "event: points"));
    std::ofstream(file, std::ios::app) << "ss\":1.25}\n";
    EXPECT_TRUE(contains(listener.until("\"loss\":[1.25]"), "\"steps\":[3]"));
    std::ofstream(file) << "{\"step\":1,\"loss\":9}\n";
    EXPECT_TRUE(contains(listener.until("event: again"), "event: again"));
    const json run = json::parse(get(served.port(), path).body);
    EXPECT_EQ(run["loss"], json::array({9.0}));
  }
  fs::remove(file);
}

TEST(Server, OneStreamHasTheEventsOfSeveralRunsAndTheStatesAtTheEnd) {
  const TemporaryFolder folder;
  const auto append = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name, std::ios::app) << text;
  };
  append("a.jsonl", "{\"step\":1}\n");
  append("b.jsonl", "{\"step\":1}\n");
  const std::string a = RunStore::id_of(folder / "a.jsonl");
  const std::string b = RunStore::id_of(folder / "b.jsonl");
  SiteOptions site;
  site.runs = std::make_shared<RunStore>(std::vector<std::string>{folder.path}, 0.01);
  site.runs->catch_up();
  site.most_listeners = 1;
  auto served = std::make_unique<Served>(site);
  EXPECT_EQ(get(served->port(), "/api/runs/events?runs=unknown").status, 404);
  RawClient listener(served->port());
  listener.send("GET /api/runs/events?runs=" + a + ",unknown," + b +
                " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  listener.until("retry: ");
  append("b.jsonl", "{\"step\":2}\n");
  EXPECT_FALSE(contains(listener.until(b), a));
  append("a.jsonl", "{\"step\":2}\n");
  listener.until(a);
  // The server is stopped at the moment when the run fails.
  append("a.jsonl", R"({"end":{"state":"failed","reason":"rank 1 was killed"}})"
                    "\n");
  served.reset();
  const std::string text = listener.until("0\r\n\r\n");
  const std::string end = text.substr(std::min(text.find("event: state"), text.size()));
  EXPECT_TRUE(contains(end, "\"state\":\"failed\"") && contains(end, "rank 1 was killed")) << text;
  EXPECT_TRUE(contains(end, a)) << end;
}

TEST(Server, ErrorsNameTheWrongAddressOrPort) {
  const Served served;
  ServerOptions options;
  options.port = served.port();
  const Site empty_site{[](const Request&) { return std::optional<Answer>(); },
                        [](const Request&) { return Answer(); }};
  EXPECT_TRUE(contains(error_of([&] { Server(options, empty_site); }), "--port"));
  options.address = "somewhere";
  EXPECT_TRUE(contains(error_of([&] { Server(options, empty_site); }), "--address"));
}

}  // namespace
}  // namespace tessera::dashboard
