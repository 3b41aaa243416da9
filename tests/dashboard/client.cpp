#include "tests/dashboard/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "tessera/core/text.h"

namespace tessera::dashboard {
namespace {

constexpr int kHangMs = 60'000;  // only tells a hang from slowness

}  // namespace

Served::Served(SiteOptions site, ServerOptions options)
    : server_(std::make_unique<Server>(options, make_site(std::move(site)))),
      thread_([this] { server_->run(); }) {}

Served::~Served() {
  server_->stop();
  thread_.join();
}

RawClient::RawClient(int port) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

RawClient::~RawClient() { ::close(fd_); }

bool RawClient::send(const std::string& text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const ssize_t sent = ::send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<std::size_t>(sent);
  }
  return true;
}

void RawClient::end_sending() { ::shutdown(fd_, SHUT_WR); }

bool RawClient::more() {
  pollfd entry{fd_, POLLIN, 0};
  if (::poll(&entry, 1, kHangMs) <= 0) {
    ADD_FAILURE() << "nothing came; so far: " << got_;
    return false;
  }
  char buffer[4096];
  const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
  if (got <= 0) return false;
  got_.append(buffer, static_cast<std::size_t>(got));
  return true;
}

std::string RawClient::until(const std::string& part) {
  while (got_.find(part) == std::string::npos && more()) {
  }
  return got_;
}

std::string RawClient::answer() {
  std::size_t head = std::string::npos;
  while ((head = got_.find("\r\n\r\n")) == std::string::npos && more()) {
  }
  if (head == std::string::npos) return std::exchange(got_, {});
  std::size_t length = 0;
  const std::size_t at = got_.find("Content-Length: ");
  if (at < head) length = std::strtoull(got_.c_str() + at + 16, nullptr, 10);
  while (got_.size() < head + 4 + length && more()) {
  }
  const std::string one = got_.substr(0, head + 4 + length);
  got_.erase(0, one.size());
  return one;
}

Reply parse_reply(const std::string& text) {
  Reply reply;
  const std::size_t head = text.find("\r\n\r\n");
  reply.head = text.substr(0, head);
  if (head != std::string::npos) reply.body = text.substr(head + 4);
  if (text.rfind("HTTP/1.1 ", 0) == 0) reply.status = std::atoi(text.c_str() + 9);
  return reply;
}

Reply get(int port, const std::string& path, const std::string& headers) {
  RawClient client(port);
  client.send(
      str("GET ", path, " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n", headers, "\r\n"));
  return parse_reply(client.answer());
}

Reply post(int port, const std::string& path, const std::string& body, const std::string& headers) {
  RawClient client(port);
  client.send(str("POST ", path, " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n", headers,
                  "Content-Length: ", body.size(), "\r\n\r\n", body));
  return parse_reply(client.answer());
}

}  // namespace tessera::dashboard
