#include "worker/segments/channel.h"

#include <sodium.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "recovery/base/check.h"
#include "worker/transport/pass_fd.h"
#include "worker/transport/same_user.h"

namespace warren::worker {
namespace {

constexpr std::uint32_t kMagic = 0x474e5257;  // "WRNG"
constexpr std::size_t kNameBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr int kBacklog = 1024;

struct WireMessage {
  std::uint32_t magic;
  std::uint32_t kind;
  std::uint64_t life, value, owner;
};
static_assert(sizeof(WireMessage) == 32);

struct Address {
  sockaddr_un un{};
  socklen_t length = 0;
};
std::optional<Address> abstract(const std::string& name) {
  if (name.empty() || name.size() > kNameBytes) return std::nullopt;
  Address a;
  a.un.sun_family = AF_UNIX;
  std::memcpy(a.un.sun_path + 1, name.data(), name.size());
  a.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

bool later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

Result<SegmentListener> listen_for_segments(const std::string& prefix) {
  std::array<unsigned char, 16> random;
  randombytes_buf(random.data(), random.size());
  char hex[2 * sizeof random + 1];
  sodium_bin2hex(hex, sizeof hex, random.data(), random.size());
  return listen_at(prefix + hex);
}

Result<SegmentListener> listen_at(const std::string& name) {
  SegmentListener listener;
  listener.name = name;
  const auto address = abstract(listener.name);
  WARREN_CHECK(address.has_value(), "the names that this program makes fit");
  listener.fd = OwnedFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.fd.open() ||
      ::bind(listener.fd.get(), reinterpret_cast<const sockaddr*>(&address->un), address->length) != 0 ||
      ::listen(listener.fd.get(), kBacklog) != 0) {
    return Status(Code::kUnavailable,
                  std::string("cannot make a socket for the log segments of this host: ") + std::strerror(errno));
  }
  return listener;
}

handshake::LinkKey segment_key(const handshake::LinkKey& link_key) {
  static constexpr unsigned char kLabel[] = "warren segments";
  handshake::LinkKey key;
  crypto_generichash(reinterpret_cast<unsigned char*>(key.data()), key.size(), kLabel, sizeof kLabel,
                     reinterpret_cast<const unsigned char*>(link_key.data()), link_key.size());
  return key;
}

Result<std::unique_ptr<SegmentChannel>> SegmentChannel::connect(const std::string& name, const handshake::LinkKey& key,
                                                                handshake::Hello hello) {
  const auto unavailable = [&name](const std::string& why) {
    return Status(Code::kUnavailable, "cannot connect to the socket @" + name + ": " + why);
  };
  const auto address = abstract(name);
  if (!address) return unavailable("not a name of a socket");
  OwnedFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.open() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address->un), address->length) != 0) {
    return unavailable(std::strerror(errno));
  }
  if (!is_same_user(fd.get())) return Status(Code::kRefused, "the socket @" + name + " belongs to another user");
  std::unique_ptr<SegmentChannel> c(new SegmentChannel(std::move(fd), key));
  randombytes_buf(hello.nonce.data(), hello.nonce.size());
  c->hello_ = hello;
  c->hello_bytes_ = handshake::encode(hello);
  c->put(c->hello_bytes_);
  c->state_ = State::kAwaitChallenge;
  return c;
}

std::unique_ptr<SegmentChannel> SegmentChannel::accept(OwnedFd fd, const handshake::LinkKey& key, Judge judge) {
  std::unique_ptr<SegmentChannel> c(new SegmentChannel(std::move(fd), key));
  c->judge_ = std::move(judge);
  c->state_ = State::kAwaitHello;
  return c;
}

SegmentChannel::~SegmentChannel() {
  sodium_memzero(key_.data(), key_.size());
}

void SegmentChannel::close(Status why) {
  state_ = State::kClosed;
  trouble_ = std::move(why);
  waiting_.clear();
  fd_ = OwnedFd();
}

void SegmentChannel::put(std::span<const std::byte> bytes) {
  waiting_.push_back({{bytes.begin(), bytes.end()}, nullptr});
}

void SegmentChannel::send(const SegmentMessage& message, std::shared_ptr<const OwnedFd> fd) {
  if (closed()) return;
  WARREN_CHECK(open(), "messages follow the handshake");
  WARREN_CHECK(SegmentMessage::carries(message.kind) == (fd != nullptr), "a segment has its descriptor");
  const WireMessage w{kMagic, static_cast<std::uint32_t>(message.kind), message.life.value, message.value,
                      message.owner};
  const auto bytes = std::as_bytes(std::span(&w, 1));
  waiting_.push_back({{bytes.begin(), bytes.end()}, std::move(fd)});
  flush();
}

void SegmentChannel::flush() {
  while (!waiting_.empty()) {
    const Packet& p = waiting_.front();
    const auto sent = send_with_fd(fd_.get(), p.bytes, p.fd ? p.fd->get() : -1);
    if (!sent.ok()) close(sent.status());
    if (!sent.ok() || !sent.value()) return;
    waiting_.pop_front();
  }
}

// One packet of exactly this size. Descriptors are not taken: the kernel closes them.
bool SegmentChannel::take(std::span<std::byte> bytes) {
  std::array<std::byte, 256> buffer;
  const ssize_t n = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0 && later(errno)) return false;
  if (n <= 0) {
    close(n == 0 ? Status() : Status(Code::kUnavailable, std::strerror(errno)));
    return false;
  }
  if (static_cast<std::size_t>(n) != bytes.size()) {
    close({Code::kCorrupt, "a packet of " + std::to_string(n) + " bytes in the handshake"});
    return false;
  }
  std::memcpy(bytes.data(), buffer.data(), bytes.size());
  return true;
}

void SegmentChannel::run() {
  while (!closed()) {
    flush();
    if (closed() || open() || !advance()) return;
  }
}

// One step of the handshake; false: nothing to do for now.
bool SegmentChannel::advance() {
  using handshake::Verdict;
  switch (state_) {
    case State::kAwaitChallenge: {
      if (!take(challenge_)) return false;
      const Status status = handshake::check_challenge(key_, hello_bytes_, challenge_);
      if (!status.ok()) {
        close(status);
        return false;
      }
      put(handshake::make_proof(key_, hello_bytes_, challenge_));
      state_ = State::kAwaitVerdict;
      return true;
    }
    case State::kAwaitVerdict: {
      handshake::VerdictBytes bytes;
      if (!take(bytes)) return false;
      const auto verdict = handshake::decode_verdict(bytes);
      if (!verdict.ok()) {
        close(verdict.status());
      } else if (verdict.value() != Verdict::kWelcome) {
        close({Code::kRefused, handshake::to_string(verdict.value())});
      } else {
        state_ = State::kOpen;
      }
      return true;
    }
    case State::kAwaitHello: {
      if (!take(hello_bytes_)) return false;
      auto hello = handshake::decode_hello(hello_bytes_);
      if (!hello.ok()) {
        close(hello.status());
        return false;
      }
      hello_ = hello.value();
      verdict_ = judge_(hello_);
      handshake::Nonce nonce;
      randombytes_buf(nonce.data(), nonce.size());
      challenge_ = handshake::make_challenge(key_, hello_bytes_, nonce);
      put(challenge_);
      state_ = State::kAwaitProof;
      return true;
    }
    case State::kAwaitProof: {
      handshake::ProofBytes proof;
      if (!take(proof)) return false;
      if (!handshake::check_proof(key_, hello_bytes_, challenge_, proof).ok()) verdict_ = Verdict::kBadProof;
      put(handshake::make_verdict(verdict_));
      flush();
      if (closed()) return false;
      if (verdict_ == Verdict::kWelcome) {
        state_ = State::kOpen;
      } else {
        close({Code::kRefused, handshake::to_string(verdict_)});
      }
      return true;
    }
    case State::kOpen:
    case State::kClosed: return false;
  }
  return false;
}

std::optional<SegmentChannel::Received> SegmentChannel::receive() {
  if (!open()) return std::nullopt;
  WireMessage w{};
  auto came = receive_with_fd(fd_.get(), std::as_writable_bytes(std::span(&w, 1)));
  if (came.ok() && !came.value()) return std::nullopt;
  if (!came.ok() || came.value()->bytes == 0) {
    close(came.status());
    return std::nullopt;
  }
  Parcel& parcel = *came.value();
  const bool known = w.kind >= static_cast<std::uint32_t>(SegmentMessage::Kind::kSegment) &&
                     w.kind <= static_cast<std::uint32_t>(SegmentMessage::Kind::kGpuMemory);
  const bool carries = SegmentMessage::carries(static_cast<SegmentMessage::Kind>(w.kind));
  if (parcel.bytes != sizeof w || parcel.cut || w.magic != kMagic || !known || parcel.fd.open() != carries) {
    close({Code::kCorrupt, "a packet that is not Warren's"});
    return std::nullopt;
  }
  Received r;
  r.message = {static_cast<SegmentMessage::Kind>(w.kind), Incarnation(w.life), w.value, w.owner};
  r.fd = std::move(parcel.fd);
  return r;
}

pollfd SegmentChannel::wait_for(bool reading) const {
  const bool read = reading || (!open() && !closed());
  return {fd_.get(), static_cast<short>((read ? POLLIN : 0) | (waiting_.empty() ? 0 : POLLOUT)), 0};
}

}  // namespace warren::worker
