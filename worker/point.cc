#include "worker/point.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "recovery/check.h"
#include "recovery/limits.h"

namespace warren::worker {
namespace {

// Links for point-to-point messages carry a group id of their own.
constexpr std::uint64_t kPointGroupMark = 0x706f696e74000000u;

struct WireAnnouncement {
  std::uint32_t tag;
  std::uint32_t type;
  std::uint64_t count, bytes, site, reserved;
};

}  // namespace

PointChannels::PointChannels(Transport& transport, GroupId group, std::uint32_t channel, std::vector<Rank> members,
                             std::uint32_t slot, Epoch epoch, std::uint64_t chunk_bytes)
    : transport_(transport),
      group_(group.value ^ kPointGroupMark),
      link_group_(channel ^ kPointGroupMark),
      members_(std::move(members)),
      slot_(slot),
      epoch_(epoch),
      chunk_bytes_(chunk_bytes) {
  static_assert(sizeof(WireAnnouncement) == kAnnouncementBytes);
  static_assert(limits::kMaxWorldSize <= 1u << 14, "a peer fits in its field of the token");
}

Token PointChannels::token(Kind kind, std::int32_t peer, std::uint32_t low) const {
  return (static_cast<Token>(slot_) << 32) | (static_cast<Token>(kind) << 30) | (static_cast<Token>(peer) << 16) |
         (low & 0xffff);
}

LinkId PointChannels::link_to(std::int32_t peer) {
  Peer& p = peers_[peer];
  if (!p.link) p.link = transport_.link(link_group_, members_[static_cast<std::size_t>(peer)]);
  return *p.link;
}

FrameHeader PointChannels::header(std::uint64_t sequence, std::uint32_t message) const {
  FrameHeader h;
  h.kind = FrameKind::kPoint;
  h.epoch = epoch_;
  h.round = {Timeline(0), group_, Version(0), Sequence(sequence)};
  h.message = message;
  h.fingerprint.collective = Collective::kPoint;
  h.fingerprint.type = DataType::kU8;  // what the message really is stands in its announcement
  return h;
}

std::uint32_t PointChannels::chunks_of(std::uint64_t bytes) const {
  return static_cast<std::uint32_t>((bytes + chunk_bytes_ - 1) / chunk_bytes_);
}

std::uint64_t PointChannels::chunk_size(std::uint64_t bytes, std::uint32_t chunk) const {
  return std::min(chunk_bytes_, bytes - std::uint64_t{chunk} * chunk_bytes_);
}

Status PointChannels::send(Call& call) {
  const std::int32_t peer = call.spec.root;
  const std::uint64_t bytes = call.spec.count * element_bytes(call.spec);
  if (bytes / chunk_bytes_ >= kMaxChunks) {
    return {Code::kInvalidArgument, "send: " + std::to_string(bytes) + " bytes in chunks of " +
                                        std::to_string(chunk_bytes_) + " are too many chunks: raise chunk_bytes"};
  }
  link_to(peer);
  Peer& p = peers_[peer];
  Sending& s = p.sending.emplace_back();
  s.call = &call;
  s.bytes = bytes;
  s.chunks = chunks_of(bytes);
  const WireAnnouncement w{static_cast<std::uint32_t>(call.spec.tag),
                           static_cast<std::uint32_t>(call.spec.type),
                           call.spec.count,
                           bytes,
                           call.spec.site,
                           0};
  std::memcpy(s.announcement.data(), &w, sizeof w);
  s.sequence = p.sent++;
  post_sends(peer);
  return {};
}

// Keeps the window full; a message begins when all of the one before it has been posted.
void PointChannels::post_sends(std::int32_t peer) {
  Peer& p = peers_[peer];
  for (Sending& s : p.sending) {
    const Token sent = token(Kind::kSend, peer, static_cast<std::uint32_t>(s.sequence & 0xffff));
    if (!s.announced) {
      s.announced = true;
      transport_.post_send(*p.link, header(s.sequence, 0), s.announcement, sent);
    }
    const auto* data = static_cast<const std::byte*>(s.call->spec.input);
    while (s.posted < s.chunks && s.posted + 1 < s.done + 2 * kWindow) {
      const std::uint32_t c = s.posted++;
      transport_.post_send(*p.link, header(s.sequence, c + 1),
                           {data + std::uint64_t{c} * chunk_bytes_, chunk_size(s.bytes, c)}, sent);
    }
    if (s.posted < s.chunks) return;
  }
}

Status PointChannels::agree(std::int32_t peer, const Announcement& what, const Call& call) const {
  if (what.type == call.spec.type && what.count == call.spec.count) return {};
  const auto name = [](DataType type, std::uint64_t count) { return std::to_string(count) + " × " + to_string(type); };
  return {Code::kDesync, "rank " + std::to_string(members_[static_cast<std::size_t>(peer)].value) + " sent " +
                             name(what.type, what.count) + " with tag " + std::to_string(what.tag) +
                             ", the receive here is for " + name(call.spec.type, call.spec.count)};
}

void PointChannels::recv(Call& call) {
  const std::int32_t peer = call.spec.root;
  link_to(peer);
  Peer& p = peers_[peer];
  const auto tag = static_cast<std::uint32_t>(call.spec.tag);
  // Messages of one tag are taken in order: one that lies aside, or is on its way there, comes before later ones.
  for (auto& message : p.aside) {
    if (message->call == nullptr && message->what.tag == tag) return deliver_aside(peer, *message, call);
  }
  if (p.arriving && p.arriving->call == nullptr && p.arriving->what.tag == tag) {
    const Status status = agree(peer, p.arriving->what, call);
    if (status.ok()) {
      p.arriving->call = &call;
      return;
    }
    p.wanted.push_back(&call);
    return fail(peer, status);
  }
  p.wanted.push_back(&call);
  listen(peer);
}

void PointChannels::deliver_aside(std::int32_t peer, Arriving& message, Call& call) {
  const Status status = agree(peer, message.what, call);
  if (!status.ok()) {
    peers_[peer].wanted.push_back(&call);
    return fail(peer, status);
  }
  if (message.what.bytes != 0) std::memcpy(call.spec.output, message.aside.data(), message.what.bytes);
  Peer& p = peers_[peer];
  p.aside_bytes -= message.what.bytes;
  std::erase_if(p.aside, [&](const auto& m) { return m.get() == &message; });
  finished_.push_back({&call, Status()});
}

void PointChannels::listen(std::int32_t peer) {
  Peer& p = peers_[peer];
  if (p.announcement_posted || p.arriving || p.wanted.empty() || !status_.ok()) return;
  p.announcement_posted = true;
  transport_.post_recv(*p.link, header(p.received, 0), p.announcement, token(Kind::kAnnouncement, peer, 0));
}

void PointChannels::on_announcement(std::int32_t peer) {
  Peer& p = peers_[peer];
  p.announcement_posted = false;
  WireAnnouncement w;
  std::memcpy(&w, p.announcement.data(), sizeof w);
  auto message = std::make_unique<Arriving>();
  message->what = {w.tag, static_cast<DataType>(w.type), w.count, w.bytes, w.site};
  const std::size_t width = w.type >= 1 && w.type <= 10 ? element_bytes(message->what.type) : 0;
  const std::string who = "rank " + std::to_string(members_[static_cast<std::size_t>(peer)].value);
  if (width == 0 || w.tag > limits::kMaxTag || w.reserved != 0 || w.count > limits::kMaxBufferBytes / width ||
      w.bytes != w.count * width || w.bytes / chunk_bytes_ >= kMaxChunks) {
    return fail(peer, Status(Code::kCorrupt, who + " announced a message that cannot be"));
  }
  const auto wanted = std::find_if(p.wanted.begin(), p.wanted.end(),
                                   [&](const Call* c) { return static_cast<std::uint32_t>(c->spec.tag) == w.tag; });
  if (wanted != p.wanted.end()) {
    message->call = *wanted;
    p.wanted.erase(wanted);
    const Status status = agree(peer, message->what, *message->call);
    if (!status.ok()) {
      p.wanted.push_front(message->call);
      return fail(peer, status);
    }
  } else {
    if (p.aside_bytes + w.bytes > limits::kMaxUnexpectedBytes) {
      return fail(peer, Status(Code::kExhausted, who + " sent over " + std::to_string(limits::kMaxUnexpectedBytes) +
                                                     " bytes with tags that nobody receives here: receive tag " +
                                                     std::to_string(w.tag) + " before the tags sent after it"));
    }
    p.aside_bytes += w.bytes;
    message->aside.resize(w.bytes);
  }
  p.arriving = std::move(message);
  post_chunks(peer);
}

void PointChannels::post_chunks(std::int32_t peer) {
  Peer& p = peers_[peer];
  Arriving& a = *p.arriving;
  const std::uint32_t chunks = chunks_of(a.what.bytes);
  std::byte* scratch = p.chunks.reserve(kWindow * chunk_bytes_);
  while (a.chunks_posted < chunks && a.chunks_posted < a.chunks_done + kWindow) {
    const std::uint32_t c = a.chunks_posted++;
    transport_.post_recv(*p.link, header(p.received, c + 1),
                         {scratch + c % kWindow * chunk_bytes_, chunk_size(a.what.bytes, c)},
                         token(Kind::kChunk, peer, c));
  }
  if (a.chunks_done < chunks) return;
  p.received++;
  auto message = std::move(p.arriving);
  if (message->call != nullptr) {
    // Asked for after it had begun to go aside: what lies there goes to its place now.
    if (!message->aside.empty()) {
      std::memcpy(message->call->spec.output, message->aside.data(), message->what.bytes);
      p.aside_bytes -= message->what.bytes;
    }
    finished_.push_back({message->call, Status()});
  } else {
    p.aside.push_back(std::move(message));
  }
  listen(peer);
}

void PointChannels::on_chunk(std::int32_t peer, std::uint32_t low) {
  Peer& p = peers_[peer];
  Arriving& a = *p.arriving;
  // The chunk of the window that has these low bits.
  const std::uint32_t c = a.chunks_done + ((low - a.chunks_done) & 0xffff);
  WARREN_CHECK(c < a.chunks_posted, "chunks finish after they were asked for");
  std::byte* to = a.aside.empty() ? static_cast<std::byte*>(a.call->spec.output) : a.aside.data();
  const std::uint64_t bytes = chunk_size(a.what.bytes, c);
  std::memcpy(to + std::uint64_t{c} * chunk_bytes_, p.chunks.reserve(0) + c % kWindow * chunk_bytes_, bytes);
  a.ahead[c % kWindow] = true;
  for (; a.ahead[a.chunks_done % kWindow]; a.chunks_done++) a.ahead[a.chunks_done % kWindow] = false;
  post_chunks(peer);
}

void PointChannels::on_completion(Token t, const Status& status) {
  const auto kind = static_cast<Kind>(t >> 30 & 3);
  const auto peer = static_cast<std::int32_t>(t >> 16 & 0x3fff);
  const auto low = static_cast<std::uint32_t>(t & 0xffff);
  if (!status_.ok()) return;
  if (!status.ok()) return fail(peer, status);
  switch (kind) {
    case Kind::kSend: {
      Peer& p = peers_[peer];
      // Over several streams the frames of two messages finish in any order.
      const auto s = std::find_if(p.sending.begin(), p.sending.end(),
                                  [&](const Sending& m) { return (m.sequence & 0xffff) == low; });
      WARREN_CHECK(s != p.sending.end(), "frames finish before their message does");
      if (++s->done == s->chunks + 1) {
        finished_.push_back({s->call, Status()});
        p.sending.erase(s);
      }
      post_sends(peer);
      break;
    }
    case Kind::kAnnouncement: on_announcement(peer); break;
    case Kind::kChunk: on_chunk(peer, low); break;
  }
}

void PointChannels::fail(std::int32_t peer, const Status& status) {
  if (!status_.ok()) return;
  status_ = status.because_of_this("point-to-point with rank " +
                                   std::to_string(members_[static_cast<std::size_t>(peer)].value));
  failed_peer_ = members_[static_cast<std::size_t>(peer)];
}

std::vector<Call*> PointChannels::abandon() {
  std::vector<Call*> calls;
  for (auto& [peer, p] : peers_) {
    for (const Sending& s : p.sending) calls.push_back(s.call);
    calls.insert(calls.end(), p.wanted.begin(), p.wanted.end());
    if (p.arriving && p.arriving->call != nullptr) calls.push_back(p.arriving->call);
  }
  peers_.clear();
  return calls;
}

bool PointChannels::busy() const {
  for (const auto& [peer, p] : peers_) {
    if (!p.sending.empty() || !p.wanted.empty() || (p.arriving && p.arriving->call != nullptr)) return true;
  }
  return false;
}

std::vector<Rank> PointChannels::receivers() const {
  std::vector<Rank> ranks;
  for (const auto& [peer, p] : peers_) {
    if (!p.sending.empty()) ranks.push_back(members_[static_cast<std::size_t>(peer)]);
  }
  return ranks;
}

std::vector<Rank> PointChannels::senders() const {
  std::vector<Rank> ranks;
  for (const auto& [peer, p] : peers_) {
    if (!p.wanted.empty() || p.arriving) ranks.push_back(members_[static_cast<std::size_t>(peer)]);
  }
  return ranks;
}

}  // namespace warren::worker
