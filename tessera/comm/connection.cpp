#include "tessera/comm/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/comm/socket.h"

namespace tessera::comm {
namespace {

struct Frame {
  ControlMessage type;
  std::uint32_t bytes;
};

}  // namespace

bool Connection::send(ControlMessage type, std::initializer_list<std::string_view> parts,
                      std::shared_ptr<const Fd> descriptor) {
  Frame frame{type, 0};
  for (const std::string_view part : parts) frame.bytes += static_cast<std::uint32_t>(part.size());
  std::string bytes;
  bytes.reserve(sizeof(frame) + frame.bytes);
  bytes.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
  for (const std::string_view part : parts) bytes += part;
  {
    std::lock_guard lock(sending_);
    unsent_.push_back({std::move(bytes), 0, std::move(descriptor)});
  }
  return flush();
}

void Connection::connect(Fd connected) {
  std::lock_guard lock(sending_);
  socket = std::move(connected);
}

bool Connection::flush(bool* progress) {
  std::lock_guard lock(sending_);
  if (!socket.open()) return unsent_.empty();
  while (!unsent_.empty()) {
    Outgoing& next = unsent_.front();
    const auto sent =
        send_some(socket, next.bytes.data() + next.sent, next.bytes.size() - next.sent,
                  next.descriptor ? next.descriptor->get() : -1);
    if (!sent) {
      // No message may follow one that was cut off. Both sides notice the end by this.
      shutdown(socket.get(), SHUT_RDWR);
      unsent_.clear();
      break;
    }
    if (*sent == 0) return false;
    if (progress != nullptr) *progress = true;
    next.sent += *sent;
    next.descriptor.reset();
    if (next.sent == next.bytes.size()) unsent_.pop_front();
  }
  return true;
}

bool Connection::has_unsent() const {
  std::lock_guard lock(sending_);
  return !unsent_.empty();
}

Connection::End Connection::receive(const Handler& handle) {
  End end = End::none;
  for (;;) {
    char buffer[kLongestText];
    iovec part{buffer, sizeof(buffer)};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const bool open = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      if (!open) end = End::closed;
      break;
    }
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
        descriptors_.emplace_back(fd);
      }
    }
    // Later descriptors would come with the wrong messages.
    if ((message.msg_flags & MSG_CTRUNC) != 0) return End::descriptor_lost;
    unread_.append(buffer, static_cast<std::size_t>(got));
    if (unread_.size() >= 2 * kLongestText) {
      end = End::more;
      break;
    }
  }
  Frame frame{};
  std::string_view rest = unread_;
  while (rest.size() >= sizeof(frame)) {
    std::memcpy(&frame, rest.data(), sizeof(frame));
    if (frame.bytes > kLongestText) return End::closed;  // no peer sends this
    if (rest.size() < sizeof(frame) + frame.bytes) break;
    Fd descriptor;
    if (frame.type == ControlMessage::segment && !descriptors_.empty()) {
      descriptor = std::move(descriptors_.front());
      descriptors_.pop_front();
    }
    handle(frame.type, rest.substr(sizeof(frame), frame.bytes), std::move(descriptor));
    rest.remove_prefix(sizeof(frame) + frame.bytes);
  }
  unread_.erase(0, unread_.size() - rest.size());
  return end;
}

}  // namespace tessera::comm
