// Parsing of request heads: accepted and refused input.

#include "tessera/dashboard/request_head.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::dashboard {
namespace {

RequestHead parsed(const std::string& lines) { return parse_head(lines + "\r\n"); }

int status_of(const std::string& lines) {
  const RequestHead head = parsed(lines);
  return head.refused ? head.refused->status : 200;
}

TEST(RequestHead, ReadsMethodPathQueryAndHeaders) {
  const RequestHead head = parsed(
      "POST /api/a%20b/+?x=1&y=a+b%26&x=2&empty&= HTTP/1.1\r\nHost: localhost:80\r\n"
      "CONTENT-LENGTH:\t7 \r\nAccept: a\r\nAccept: b\r\nX-Value: 100%25 %0d%0aX: y\r\n");
  ASSERT_FALSE(head.refused) << head.refused->body;
  EXPECT_EQ(head.request.method, "POST");
  EXPECT_EQ(head.request.path, "/api/a b/+");
  EXPECT_EQ(head.request.query.at("x"), "1");
  EXPECT_EQ(head.request.query.at("y"), "a b&");
  EXPECT_EQ(head.request.query.at("empty"), "");
  EXPECT_EQ(head.request.header("host"), "localhost:80");
  EXPECT_EQ(head.request.header("accept"), "a, b");
  EXPECT_EQ(head.request.header("x-value"), "100%25 %0d%0aX: y") << "values are not decoded";
  EXPECT_EQ(head.body_bytes, 7U);
  EXPECT_TRUE(head.has_length);
  EXPECT_FALSE(head.closes);
}

TEST(RequestHead, HeadEndsAtABlankLineOrABareLineFeed) {
  const std::string head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  for (std::size_t n = 0; n < head.size(); ++n) {
    EXPECT_EQ(find_head_end(head.substr(0, n), 0), std::string::npos) << n;
  }
  for (std::size_t from = 0; from < head.size(); ++from) {
    EXPECT_EQ(find_head_end(head + "body", from), head.size()) << from;
  }
  EXPECT_EQ(find_head_end("GET / HTTP/1.1\nHost", 0), 15U);
  EXPECT_EQ(find_head_end("\r\nGET", 0), 2U);
}

TEST(RequestHead, ClosesOnRequestAndForHttp10) {
  EXPECT_TRUE(parsed("GET / HTTP/1.0\r\n").closes);
  EXPECT_TRUE(parsed("GET / HTTP/1.1\r\nConnection: keep-alive , Close\r\n").closes);
  EXPECT_FALSE(parsed("GET / HTTP/1.1\r\nConnection: closed\r\n").closes);
}

TEST(RequestHead, RefusesLinesThatAreNotHttp) {
  for (const char* line : {"",
                           "GET",
                           "GET /",
                           "GET / HTTP/1.1 ",
                           "GET  / HTTP/1.1",
                           " GET / HTTP/1.1",
                           "GET / HTTP/2",
                           "GET / HTTP/1.10",
                           "GET / http/1.1",
                           "G(T / HTTP/1.1",
                           "GET /a b HTTP/1.1",
                           "GET /a\tb HTTP/1.1",
                           "GET /\x80 HTTP/1.1",
                           "GET * HTTP/1.1",
                           "GET a HTTP/1.1",
                           "GET http://localhost/ HTTP/1.1",
                           "GET /%4 HTTP/1.1",
                           "GET /%zz HTTP/1.1",
                           "GET /%-1 HTTP/1.1",
                           "GET /?a=% HTTP/1.1"}) {
    EXPECT_EQ(status_of(std::string(line) + "\r\n"), 400) << line;
    EXPECT_TRUE(parsed(std::string(line) + "\r\n").closes) << line;
  }
  for (const char* header :
       {"Host", ": a", "Host : a", "Ho st: a", " Host: a", "\tfolded", "Host: a\rb",
        "Host: a\nX: b", "X: \x01", "X: \x7f", "H\xc3\xb6st: a"}) {
    EXPECT_EQ(status_of(std::string("GET / HTTP/1.1\r\n") + header + "\r\n"), 400) << header;
  }
  EXPECT_EQ(status_of(std::string("GET / HTTP/1.1\r\nX: a\0b\r\n", 24)), 400);
}

TEST(RequestHead, RefusesBodiesOfAmbiguousLength) {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(status_of(post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: identity\r\nContent-Length: 5\r\n"), 400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: chunked\r\n"), 411);
  EXPECT_EQ(status_of(post + "Transfer-Encoding:\r\n"), 411);
  for (const char* length : {"", "-1", "+5", "5, 5", "0x5", "5 5", "5.0", "five"}) {
    EXPECT_EQ(status_of(post + "Content-Length: " + length + "\r\n"), 400) << length;
  }
  for (const char* length : {"65537", "99999999999999999999999999"}) {
    EXPECT_EQ(status_of(post + "Content-Length: " + length + "\r\n"), 413) << length;
  }
  EXPECT_EQ(status_of(post + "Content-Length: 5\r\nContent-Length: 5\r\n"), 400);
  EXPECT_EQ(status_of(post + "HOST: b\r\n"), 400);
}

TEST(RequestHead, RefusesCompressedBodiesBeforeTheyAreRead) {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n";
  for (const char* encoding : {"gzip", "br", "deflate", "zstd", "identity, br", "x"}) {
    const RequestHead head = parsed(post + "content-encoding: " + encoding + "\r\n");
    ASSERT_TRUE(head.refused) << encoding;
    EXPECT_EQ(head.refused->status, 415) << encoding;
    EXPECT_TRUE(head.closes) << encoding;
  }
  EXPECT_EQ(status_of(post + "Content-Encoding: identity\r\n"), 200);
}

TEST(RequestHead, LimitsTheAddressAndTheNumberOfHeaders) {
  EXPECT_EQ(status_of("GET /" + std::string(8191, 'a') + " HTTP/1.1\r\n"), 200);
  EXPECT_EQ(status_of("GET /" + std::string(8192, 'a') + " HTTP/1.1\r\n"), 414);
  std::string lines = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 100; ++i) lines += "X-" + std::to_string(i) + ": a\r\n";
  EXPECT_EQ(status_of(lines), 200);
  EXPECT_EQ(status_of(lines + "Y: a\r\n"), 431);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nExpect: something\r\n"), 417);
}

TEST(Response, HeadersCannotBeSplit) {
  Answer answer;
  answer.headers["X"] = "a";
  EXPECT_NE(response_text(answer, false).find("X: a\r\n"), std::string::npos);
  answer.headers["X"] = "a\r\nSet-Cookie: b";
  EXPECT_ANY_THROW(response_text(answer, false));
}

}  // namespace
}  // namespace tessera::dashboard
