// Mutates valid requests by cutting, copying and inserting bytes that tend to break parsers, with a
// fixed seed. Bodies are passed to the answers directly, heads are sent over a socket.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/dashboard/client.h"

namespace tessera::dashboard {
namespace {

using nlohmann::json;

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (std::size_t left = 1 + below(4); left > 0; --left) mutate(input);
    if (input.size() > 8192) input.resize(8192);
    return input;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

 private:
  void mutate(std::string& input) {
    static const std::vector<std::string> words = {"0",
                                                   "-1",
                                                   "1e308",
                                                   "1e999",
                                                   "9223372036854775808",
                                                   "nan",
                                                   "null",
                                                   "true",
                                                   "\"\"",
                                                   "{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ":",
                                                   ",",
                                                   "\"",
                                                   "\\u0000",
                                                   "\\ud800",
                                                   "\xff",
                                                   "\r\n",
                                                   "\r\n\r\n",
                                                   "%00",
                                                   "%2e%2e/",
                                                   "..",
                                                   "\"dp\":",
                                                   "\"pp\":4,",
                                                   "\"schedule\":\"zb-v\",",
                                                   "\"chunks\":7,",
                                                   "\"stragglers\":[{}],",
                                                   "\"schedules\":[\"1f1b\",\"gpipe\"],",
                                                   "Content-Length: 7\r\n",
                                                   "Transfer-Encoding: chunked\r\n",
                                                   "Host: x\r\n",
                                                   "Expect: 100-continue\r\n",
                                                   "Range: bytes=0-1\r\n",
                                                   "HTTP/1.0",
                                                   "HTTP/9.9"};
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(input.size() - at, below(16) + 1);
    switch (below(6)) {
      case 0: input.erase(at, length); break;
      case 1: input.insert(at, words[below(words.size())]); break;
      case 2: input.replace(at, length, words[below(words.size())]); break;
      case 3: input.insert(at, input.substr(below(input.size() + 1), below(64))); break;
      case 4: input.insert(at, 1, static_cast<char>(below(256))); break;
      case 5:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1U << below(8)));
        break;
    }
  }

  std::mt19937_64 random_{20240607};
  std::vector<std::string> seeds_;
};

TEST(Fuzz, AnswersOrRefusesEveryBody) {
  const Site site = make_site({});
  std::vector<std::pair<std::string, Mutator>> routes;
  for (const Route& route : all_routes()) {
    // Skips slow routes (a search takes 0.1 s, a run 1 s): the same code parses their bodies.
    if (route.body.is_null() || route.path == "/api/search" || route.path == "/api/compare" ||
        route.path == "/api/sync") {
      continue;
    }
    routes.emplace_back(route.path, Mutator({route.example.dump()}));
  }
  for (int i = 0; i < 6000; ++i) {
    auto& [path, mutator] = routes[static_cast<std::size_t>(i) % routes.size()];
    Request request;
    request.method = "POST";
    request.path = path;
    request.body = mutator.next();
    const Answer answer = site.answer(request);
    ASSERT_TRUE(answer.status == 200 || answer.status == 400) << path << "\n"
                                                              << request.body << "\n"
                                                              << answer.body;
    const json body = json::parse(answer.body, nullptr, false);
    ASSERT_TRUE(body.is_object()) << path << "\n" << request.body;
    ASSERT_EQ(body.contains("error"), answer.status == 400) << path << "\n" << request.body;
  }
}

TEST(Fuzz, ServerSurvivesAnyHead) {
  ServerOptions options;
  options.request_seconds = 0.05;
  const Served served({}, options);
  Mutator mutator({"GET /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n",
                   "GET /api/runs/abc?points=10&from=3 HTTP/1.1\r\nHost: localhost\r\n\r\n",
                   "POST /api/collective HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                   "application/json\r\nContent-Length: 11\r\n\r\n{\"ranks\":4}"});
  for (int i = 0; i < 1500; ++i) {
    RawClient client(served.port());
    client.send(mutator.next());
    client.end_sending();
    const std::string answer = client.answer();
    if (answer.empty()) continue;
    const int status = parse_reply(answer).status;
    ASSERT_TRUE(status == 100 || (status >= 200 && status < 500)) << answer;
  }
  EXPECT_EQ(get(served.port(), "/api/about").status, 200);
}

}  // namespace
}  // namespace tessera::dashboard
