#include "worker/transport/link_transport.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "recovery/check.h"
#include "recovery/limits.h"
#include "worker/transport/frame_checksum.h"

namespace warren::worker {
namespace {

constexpr std::size_t kHeader = FrameHeader::kWireBytes;
constexpr std::size_t kMaxLinks = 65536;

std::string errno_text(int error) {
  return std::strerror(error);
}

}  // namespace

void LinkTransport::open(Epoch epoch, std::uint32_t streams, bool checksums) {
  WARREN_CHECK(links_.empty(), "an epoch begins after the one before was closed (I6)");
  WARREN_CHECK(streams >= 1 && streams <= limits::kMaxStreams, "streams were validated");
  epoch_ = epoch;
  streams_ = streams;
  checksums_ = checksums;
}

LinkTransport::Link& LinkTransport::at(LinkId link) {
  WARREN_CHECK(link < links_.size(), "a link id of this epoch");
  return *links_[link];
}

LinkId LinkTransport::make_link(GroupId group, Rank peer) {
  const auto id = static_cast<LinkId>(links_.size());
  auto link = std::make_unique<Link>();
  link->group = group;
  link->peer = peer;
  for (std::uint32_t i = 0; i < streams_; i++) {
    auto stream = std::make_unique<Stream>();
    stream->index = static_cast<std::uint16_t>(i);
    stream->link = id;
    link->streams.push_back(std::move(stream));
  }
  links_.push_back(std::move(link));
  by_name_.emplace(std::pair(group, peer), id);
  return id;
}

LinkId LinkTransport::link(GroupId group, Rank peer) {
  const auto it = by_name_.find({group, peer});
  const LinkId id = it != by_name_.end() ? it->second : make_link(group, peer);
  const Link& l = at(id);
  const bool up = std::all_of(l.streams.begin(), l.streams.end(), [](const auto& s) { return s->fd >= 0; });
  if (!up && l.broken.ok()) want_(group, peer);
  return id;
}

Status LinkTransport::adopt(Epoch epoch, GroupId group, Rank peer, std::uint16_t stream, int fd,
                            std::unique_ptr<HostPipe> pipe) {
  const auto refuse = [fd](std::string why) {
    ::close(fd);
    return Status(Code::kRefused, std::move(why));
  };
  if (epoch != epoch_) return refuse("a connection of epoch " + std::to_string(epoch.value) + " came too late");
  if (stream >= streams_) return refuse("stream " + std::to_string(stream) + " of " + std::to_string(streams_));
  const auto it = by_name_.find({group, peer});
  if (it == by_name_.end() && links_.size() >= kMaxLinks) return refuse("too many links");
  Link& l = at(it != by_name_.end() ? it->second : make_link(group, peer));
  Stream& s = *l.streams[stream];
  if (s.fd >= 0) return refuse("the stream is connected already");
  if (!l.broken.ok()) return refuse("the link broke before");
  s.fd = fd;
  s.pipe = std::move(pipe);
  if (!s.sends.empty() || !s.recvs.empty()) activate(s);
  return {};
}

void LinkTransport::fail_link(GroupId group, Rank peer, const Status& why) {
  const auto it = by_name_.find({group, peer});
  if (it != by_name_.end()) break_link(at(it->second), why);
}

void LinkTransport::activate(Stream& stream) {
  if (stream.active) return;
  stream.active = true;
  active_.push_back(&stream);
}

void LinkTransport::complete(Token token, Status status) {
  completed_.push() = {token, std::move(status)};
}

void LinkTransport::break_link(Link& link, const Status& why) {
  if (!link.broken.ok()) return;
  link.broken = why;
  for (auto& s : link.streams) {
    // Descriptors stay open until the epoch ends: peers must not take our reaction to one failure for another.
    for (; !s->recvs.empty(); s->recvs.pop()) complete(s->recvs.front().token, why);
    for (; !s->sends.empty(); s->sends.pop()) complete(s->sends.front().token, why);
  }
}

void LinkTransport::post_send(LinkId id, const FrameHeader& header, std::span<const std::byte> payload, Token token) {
  WARREN_CHECK(payload.size() <= limits::kMaxChunkBytes, "a frame carries at most one chunk");
  Link& link = at(id);
  if (!link.broken.ok()) return complete(token, link.broken);
  Stream& s = *link.streams[link.frames_sent++ % streams_];
  Outgoing& out = s.sends.push();
  out.header = header;
  out.header.stream = s.index;
  out.header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  out.payload = payload;
  out.token = token;
  // At once: one system call less of latency for small messages, and big ones start while the caller posts more.
  if (s.fd >= 0 && s.sends.size() == 1) pump_send(s);
  if (!s.sends.empty()) activate(s);
}

void LinkTransport::post_recv(LinkId id, const FrameHeader& expected, std::span<std::byte> payload, Token token) {
  WARREN_CHECK(payload.size() <= limits::kMaxChunkBytes, "a frame carries at most one chunk");
  Link& link = at(id);
  if (!link.broken.ok()) return complete(token, link.broken);
  Stream& s = *link.streams[link.frames_received++ % streams_];
  Incoming& in = s.recvs.push();
  in.expected = expected;
  in.expected.stream = s.index;
  in.expected.payload_bytes = static_cast<std::uint32_t>(payload.size());
  in.payload = payload;
  in.token = token;
  activate(s);
}

std::optional<std::size_t> LinkTransport::put(Stream& s, std::span<const std::byte> header,
                                              std::span<const std::byte> payload, std::string& why) {
  if (s.pipe) {
    const auto put = s.pipe->write(header, payload);
    if (!put) why = "the memory of the link is damaged";
    if (put && *put != 0 && s.pipe->must_wake_reader()) wake(s);
    return put;
  }
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  for (const auto part : {header, payload}) {
    if (!part.empty()) parts[message.msg_iovlen++] = {const_cast<std::byte*>(part.data()), part.size()};
  }
  while (true) {
    const ssize_t sent = ::sendmsg(s.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    why = errno_text(errno);
    return std::nullopt;
  }
}

std::optional<std::size_t> LinkTransport::take(Stream& s, std::span<std::byte> header, std::span<std::byte> payload,
                                               std::string& why) {
  if (s.pipe) {
    const auto taken = s.pipe->read(header, payload);
    if (!taken) why = "the memory of the link is damaged";
    if (taken && *taken != 0 && s.pipe->must_wake_writer()) wake(s);
    return taken;
  }
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  for (const auto part : {header, payload}) {
    if (!part.empty()) parts[message.msg_iovlen++] = {part.data(), part.size()};
  }
  while (true) {
    const ssize_t got = ::recvmsg(s.fd, &message, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    why = got == 0 ? "closed by the other end" : errno_text(errno);
    return std::nullopt;
  }
}

// A socket that takes no byte has some that nobody has read, which wake as well.
void LinkTransport::wake(Stream& s) {
  const std::byte byte{};
  (void)!::send(s.fd, &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void LinkTransport::hear(Stream& s) {
  s.slept = true;
  std::array<std::byte, 256> bytes;
  // One who never ceases to wake is heard again the next time.
  for (int reads = 0; reads < 4 && s.ended.empty(); reads++) {
    const ssize_t n = ::recv(s.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      s.slept = sleepers_ > 0;
      break;
    }
    s.ended = n == 0 ? "closed by the other end" : errno_text(errno);
  }
  if (sleepers_ == 0) return;
  // Others sleep on this socket, and what has woken them may be taken here.
  (void)s.pipe->wait_to_read();
  (void)s.pipe->wait_to_write();
}

bool LinkTransport::pump_send(Stream& s) {
  bool moved = false;
  while (!s.sends.empty()) {
    Outgoing& out = s.sends.front();
    if (s.sent == 0) {
      // Here rather than when it was posted: the payload is in the cache when the kernel copies it.
      seal(out.header, out.payload, checksums_ && !s.pipe, s.send_header);
    }
    const std::size_t total = kHeader + out.payload.size();
    const std::size_t offset = s.sent > kHeader ? s.sent - kHeader : 0;
    std::string why;
    const auto sent =
        put(s, std::span(s.send_header).subspan(std::min(s.sent, kHeader)), out.payload.subspan(offset), why);
    if (!sent) {
      Link& link = at(s.link);
      break_link(link, Status(Code::kPeerLost,
                              "the link to rank " + std::to_string(link.peer.value) + " broke while sending: " + why));
      return true;
    }
    if (*sent == 0) return moved;
    moved = true;
    s.sent += *sent;
    if (s.sent < total) continue;
    bytes_sent_ += out.payload.size();
    s.sent = 0;
    const Token token = out.token;
    s.sends.pop();
    complete(token, Status());
  }
  return moved;
}

bool LinkTransport::pump_recv(Stream& s, std::size_t budget) {
  bool moved = false;
  while (!s.recvs.empty() && budget > 0) {
    Incoming& in = s.recvs.front();
    Link& link = at(s.link);
    const std::size_t total = kHeader + in.payload.size();
    const std::size_t offset = s.received > kHeader ? s.received - kHeader : 0;
    std::string why;
    const auto got =
        take(s, std::span(s.recv_header).subspan(std::min(s.received, kHeader)), in.payload.subspan(offset), why);
    if (!got) {
      break_link(link, Status(Code::kPeerLost, "the link to rank " + std::to_string(link.peer.value) +
                                                   " broke while receiving: " + why));
      return true;
    }
    if (*got == 0) return moved;
    moved = true;
    const bool had_header = s.received >= kHeader;
    s.received += *got;
    if (!had_header && s.received >= kHeader) {
      // The payload may have come in the same call, into scratch that nobody reads before this check.
      if (checksums_ && !s.pipe && !header_holds(s.recv_header)) {
        break_link(link, Status(Code::kCorrupt, "a chunk's header from rank " + std::to_string(link.peer.value) +
                                                    " does not match its checksum (I10)"));
        return true;
      }
      auto header = decode(s.recv_header);
      const Status verdict = header.ok() ? match(in.expected, header.value()) : header.status();
      if (!verdict.ok()) {
        break_link(link, verdict.because_of_this("rank " + std::to_string(link.peer.value) + " sent what is not due"));
        return true;
      }
    }
    if (s.received < total) continue;
    if (checksums_ && !s.pipe && !payload_holds(s.recv_header, in.payload)) {
      break_link(link, Status(Code::kCorrupt, "a chunk from rank " + std::to_string(link.peer.value) +
                                                  " does not match its checksum (I10)"));
      return true;
    }
    s.received = 0;
    const Token token = in.token;
    s.recvs.pop();
    complete(token, Status());
    // A big chunk goes to its reduction before the next one pushes it out of the cache.
    constexpr std::size_t kBigChunk = std::size_t{32} << 10;
    budget = total >= kBigChunk ? 0 : budget - 1;
  }
  return moved;
}

std::size_t LinkTransport::poll(std::span<Completion> out) {
  if (completed_.empty()) {
    for (std::size_t i = 0; i < active_.size() && completed_.size() < out.size(); i++) {
      Stream& s = *active_[i];
      if (s.fd >= 0) {
        if (s.slept) hear(s);
        bool moved = !s.sends.empty() && pump_send(s);
        moved = (!s.recvs.empty() && pump_recv(s, out.size())) || moved;
        if (!moved && !s.ended.empty()) {
          Link& link = at(s.link);
          break_link(link, Status(Code::kPeerLost,
                                  "the link to rank " + std::to_string(link.peer.value) + " broke: " + s.ended));
        }
      }
      if (s.sends.empty() && s.recvs.empty()) {
        s.active = false;
        active_[i] = active_.back();
        active_.pop_back();
        i--;
      }
    }
  }
  std::size_t n = 0;
  for (; n < out.size() && !completed_.empty(); n++) {
    out[n] = std::move(completed_.front());
    completed_.pop();
  }
  return n;
}

void LinkTransport::collect_pollfds(std::vector<pollfd>& out) {
  sleepers_++;
  for (Stream* s : active_) {
    if (s->fd < 0) continue;
    short events = 0;
    if (s->pipe) {
      s->slept = true;
      events = POLLIN;
      // What can go on at once is not waited for: a socket that takes bytes, as this one does, ends the wait.
      if (!s->recvs.empty() && !s->pipe->wait_to_read()) events |= POLLOUT;
      if (!s->sends.empty() && !s->pipe->wait_to_write()) events |= POLLOUT;
      out.push_back({s->fd, events, 0});
      continue;
    }
    if (!s->recvs.empty()) events |= POLLIN;
    if (!s->sends.empty()) events |= POLLOUT;
    if (events != 0) out.push_back({s->fd, events, 0});
  }
}

void LinkTransport::close_all() {
  for (auto& link : links_) {
    for (auto& s : link->streams) {
      if (s->fd >= 0) ::close(s->fd);
    }
  }
  links_.clear();
  by_name_.clear();
  active_.clear();
  completed_.clear();
}

}  // namespace warren::worker
