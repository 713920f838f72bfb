#include "worker/rounds/point.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"

namespace warren::worker {

PointChannels::PointChannels(Transport& transport, FramesAtOnce& frames, GroupId group, std::uint32_t channel,
                             std::vector<Rank> members, std::int32_t self, std::uint32_t slot,
                             std::uint64_t chunk_bytes, Recall* recall, Version version, RoundBoard& board)
    : transport_(transport),
      frames_(frames),
      group_(group.value ^ kPointGroupMark),
      link_group_(channel ^ kPointGroupMark),
      members_(std::move(members)),
      self_(self),
      slot_(slot),
      chunk_bytes_(chunk_bytes),
      recall_(recall),
      board_(board),
      version_(version) {
  static_assert(limits::kMaxWorldSize <= 1u << 14, "a peer fits in its field of the token");
  static_assert(kMaxGreetingRanges * sizeof(Interval) <= limits::kMaxChunkBytes, "ranges fit in one frame");
}

// ---- generations and versions

void PointChannels::open(Generation generation, Timeline timeline, bool greets) {
  generation_ = generation;
  timeline_ = timeline;
  greets_ = greets;
  open_ = true;
  moves_++;
  // All that went between the two is obsolete: a new life there begins after it, and need never use the link.
  std::erase_if(peers_, [](const auto& entry) {
    const Peer& p = entry.second;
    return p.numbers.empty() && p.sending.empty() && p.wanted.empty();
  });
  for (auto& [peer, p] : peers_) {
    // Also where nothing is under way here: a new life there may have to know what has arrived.
    if (!greets && p.sending.empty() && p.wanted.empty()) continue;
    link_to(peer);
    if (departed_) end(peer);
    post_sends(peer);
    listen(peer);
    settle(peer);
  }
}

void PointChannels::suspend() {
  open_ = false;
  status_ = Status();
  failed_peer_ = kNoRank;
  for (auto& [peer, p] : peers_) {
    p.link.reset();
    p.sent = p.received = 0;
    p.knows = p.announcement_posted = p.announcement_taken = p.ended = false;
    std::erase_if(p.sending, [](const Sending& s) { return s.end; });
    // What a life that has left has spilled may be read from the next plan on.
    for (auto& [version, numbers] : p.numbers) numbers.first_unlogged.reset();
    for (Sending& s : p.sending) {
      s.announced = false;
      s.posted = s.done = 0;
      s.logged.clear();
    }
    if (p.arriving && p.arriving->call != nullptr) p.wanted.emplace(p.arriving->order, p.arriving->call);
    p.arriving.reset();
    p.aside.clear();  // its sender has it still
    p.aside_bytes = 0;
    settle(peer);
  }
}

Status PointChannels::begin_version(Version version) {
  for (auto& [peer, p] : peers_) {
    const Arriving* left = p.aside.empty() ? nullptr : p.aside.front().get();
    if (p.arriving && p.arriving->what.version < version) left = p.arriving.get();
    if (left != nullptr) {
      return {Code::kDesync, "a message with tag " + std::to_string(left->what.tag) + " from rank " +
                                 std::to_string(members_[static_cast<std::size_t>(peer)].value) +
                                 " was not received before the checkpoint that follows it"};
    }
  }
  version_ = version;
  // Where nothing is logged there is no commit that would end them.
  if (recall_ == nullptr) committed(version);
  for (auto& [peer, p] : peers_) {
    if (p.arriving) admit(peer);
  }
  return {};
}

void PointChannels::committed(Version version) {
  for (auto& [peer, p] : peers_) {
    std::erase_if(p.numbers, [&](const auto& n) { return n.first < version && n.first != kPreamble; });
  }
}

void PointChannels::depart() {
  WARREN_CHECK(!busy() && !departed_, "a group departs once, when its calls have finished");
  departed_ = true;
  for (auto& [peer, p] : peers_) {
    p.aside.clear();
    p.aside_bytes = 0;
    if (!open_ || !p.link) continue;
    end(peer);
    if (p.arriving) admit(peer);
    post_sends(peer);
    listen(peer);
    settle(peer);
  }
}

// The last word on this link.
void PointChannels::end(std::int32_t peer) {
  Sending& s = peers_[peer].sending.emplace_back();
  s.end = true;
  s.version = version_;
  s.number = UINT64_MAX;
}

bool PointChannels::clean() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    const Peer& p = entry.second;
    return !p.link ? p.sending.empty() : p.ended && p.sending.empty();
  });
}

bool PointChannels::obsolete() const {
  return recall_ == nullptr ||
         std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) { return entry.second.numbers.empty(); });
}

void PointChannels::settle(std::int32_t peer) {
  Peer& p = peers_[peer];
  const bool now = p.link && (!p.knows || !p.sending.empty() || (departed_ && !p.ended));
  if (now != p.unsettled) unsettled_peers_ = now ? unsettled_peers_ + 1 : unsettled_peers_ - 1;
  p.unsettled = now;
}

RecordKey PointChannels::key_of(std::int32_t from, std::int32_t to, Version version, std::uint64_t number) const {
  return {RecordKind::kMessage, {timeline_, pair_of(group_.value, from, to), version, Sequence(number)}};
}

void PointChannels::greet(std::int32_t peer) {
  Peer& p = peers_[peer];
  std::vector<Interval> intervals = p.numbers[version_].received.intervals();
  WireGreeting greeting{version_.value, 0, 0, 0};
  if (!intervals.empty() && intervals.front().begin == 0) {
    greeting.prefix = intervals.front().end;
    intervals.erase(intervals.begin());
  }
  // The rest would be sent again and dropped; so many messages out of order do not happen by design.
  if (intervals.size() > kMaxGreetingRanges) {
    return fail(peer, Status(Code::kExhausted, "over " + std::to_string(kMaxGreetingRanges) +
                                                   " gaps among the messages received: receive them in order"));
  }
  greeting.ranges = intervals.size();
  p.greeting.resize(sizeof greeting);
  std::memcpy(p.greeting.data(), &greeting, sizeof greeting);
  transport_.post_send(*p.link, header(kGreetingSequence, 0), {p.greeting}, token(Kind::kGreeting, peer, 0));
  if (!intervals.empty()) {
    p.greeting_ranges.resize(intervals.size() * sizeof(Interval));
    std::memcpy(p.greeting_ranges.data(), intervals.data(), p.greeting_ranges.size());
    transport_.post_send(*p.link, header(kGreetingSequence, 1), {p.greeting_ranges}, token(Kind::kGreeting, peer, 0));
  }
  p.their_greeting.resize(sizeof greeting);
  transport_.post_recv(*p.link, header(kGreetingSequence, 0), p.their_greeting, token(Kind::kGreeting, peer, 1));
}

void PointChannels::on_greeting(std::int32_t peer, bool ranges) {
  Peer& p = peers_[peer];
  WireGreeting greeting;
  std::memcpy(&greeting, p.their_greeting.data(), sizeof greeting);
  const auto bad = [&] {
    fail(peer, Status(Code::kCorrupt, "rank " + std::to_string(members_[static_cast<std::size_t>(peer)].value) +
                                          " greeted with what cannot be"));
  };
  if (!ranges) {
    if (greeting.ranges > kMaxGreetingRanges || greeting.reserved != 0) return bad();
    p.their_version = Version(greeting.version);
    p.theirs = Ranges(0, greeting.prefix);
    if (greeting.ranges == 0) return heard(peer);
    p.their_ranges.resize(greeting.ranges * sizeof(Interval));
    return transport_.post_recv(*p.link, header(kGreetingSequence, 1), p.their_ranges, token(Kind::kGreeting, peer, 2));
  }
  for (std::uint64_t i = 0; i < greeting.ranges; i++) {
    Interval interval;
    std::memcpy(&interval, p.their_ranges.data() + i * sizeof interval, sizeof interval);
    if (interval.begin >= interval.end) return bad();
    p.theirs.add(interval.begin, interval.end);
  }
  heard(peer);
}

// What arrived there is known: the rest is sent, the oldest first.
void PointChannels::heard(std::int32_t peer) {
  Peer& p = peers_[peer];
  p.knows = true;
  if (recall_ != nullptr) {
    for (const auto& [version, numbers] : p.numbers) {
      if (version < p.their_version) continue;
      auto at = p.sending.begin();
      for (std::uint64_t n = 0; n < numbers.sent; n++) {
        while (at != p.sending.end() && std::pair(at->version, at->number) < std::pair(version, n)) ++at;
        if (at != p.sending.end() && at->version == version && at->number == n) continue;
        Sending s;
        s.version = version;
        s.number = n;
        if (!arrived(p, s)) p.sending.insert(at, std::move(s));
      }
    }
  }
  for (auto s = p.sending.begin(); s != p.sending.end();) {
    if (!arrived(p, *s)) {
      ++s;
      continue;
    }
    if (s->call != nullptr) finished_.push_back({s->call, Status()});
    s = p.sending.erase(s);
  }
  post_sends(peer);
  listen(peer);
}

bool PointChannels::arrived(const Peer& peer, const Sending& message) {
  if (message.end) return false;
  return message.version < peer.their_version ||
         (message.version == peer.their_version && peer.theirs.covers(message.number, message.number + 1));
}

Token PointChannels::token(Kind kind, std::int32_t peer, std::uint32_t low) const {
  return (static_cast<Token>(slot_) << 32) | (static_cast<Token>(kind) << 30) | (static_cast<Token>(peer) << 16) |
         (low & 0xffff);
}

Token PointChannels::send_token(std::int32_t peer, const Sending& message) const {
  return token(Kind::kSend, peer, static_cast<std::uint32_t>(message.sequence & 0xffff));
}

void PointChannels::link_to(std::int32_t peer) {
  Peer& p = peers_[peer];
  if (p.link || !open_) return;
  p.link = transport_.link(link_group_, members_[static_cast<std::size_t>(peer)]);
  p.knows = !greets_;
  if (!greets_) return;
  greet(peer);
}

FrameHeader PointChannels::header(std::uint64_t sequence, std::uint32_t message) const {
  FrameHeader h;
  h.kind = FrameKind::kPoint;
  h.generation = generation_;
  h.round = {Timeline(0), group_, Version(0), Sequence(sequence)};
  h.message = message;
  h.fingerprint.collective = Collective::kPoint;
  h.fingerprint.type = DataType::kU8;  // what the message really is stands in its announcement
  return h;
}

std::uint32_t PointChannels::chunks_of(std::uint64_t bytes) const {
  if (bytes <= kInlineBytes) return 0;
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
  Peer& p = peers_[peer];
  Numbers& numbers = p.numbers[version_];
  bool held = false;
  if (recall_ != nullptr) {
    const RecordKey key = key_of(self_, peer, version_, numbers.sent);
    const RecordInfo info = record_of(call.spec, bytes);
    // In a log that this host has already, where an earlier life sent it. To look for each message would index the own
    // log, too: 64 bytes came back in 7.6 us then instead of 3.5, both under load.
    if (!numbers.first_unlogged) numbers.first_unlogged = first_unlogged(peer);
    if (numbers.sent < *numbers.first_unlogged) {
      const auto known = recall_->reader().info(key);
      held = known.ok() && known.value() && recall_->reader().held(key).covers(0, known.value()->total_bytes);
    }
    if (!held) {
      const Status status = recall_->publish(key, info, 0, {static_cast<const std::byte*>(call.spec.input), bytes});
      if (!status.ok()) return status.because_of_this("cannot log a message to rank " + std::to_string(peer));
    }
  }
  Sending& s = p.sending.emplace_back();
  s.call = &call;
  s.version = version_;
  s.number = numbers.sent++;
  link_to(peer);
  const bool over = p.knows && greets_ && arrived(p, s);
  if (held || over || (recall_ != nullptr && !p.knows)) {
    // Whether it has arrived there in an earlier life is not known yet; the log keeps it until it is. And what an
    // earlier life has logged it may have sent to others before: this one's input may be something else.
    s.call = nullptr;
    finished_.push_back({&call, Status()});
  }
  if (over) p.sending.pop_back();
  post_sends(peer);
  settle(peer);
  return {};
}

bool PointChannels::run_at_once(const CallSpec& spec, int looks) {
  const std::uint64_t bytes = spec.count * element_bytes(spec);
  if (bytes > kInlineBytes || !open_ || departed_ || !status_.ok()) return false;
  const auto at = peers_.find(spec.root);
  if (at == peers_.end() || !at->second.link || !at->second.knows) return false;
  Peer& p = at->second;
  const bool done = spec.sends ? send_at_once(spec, bytes, p) : recv_at_once(spec, bytes, p, looks);
  if (done) moves_++;
  return done;
}

bool PointChannels::send_at_once(const CallSpec& spec, std::uint64_t bytes, Peer& p) {
  const auto known = p.numbers.find(version_);
  if (!p.sending.empty() || known == p.numbers.end()) return false;
  Numbers& numbers = known->second;
  const std::uint64_t number = numbers.sent;
  // Where the peer may have the message from an earlier life, or this host's log may, send() finds out.
  if (greets_ && version_ <= p.their_version) return false;
  if (recall_ != nullptr) {
    if (!numbers.first_unlogged || number < *numbers.first_unlogged) return false;
    const std::span payload(static_cast<const std::byte*>(spec.input), bytes);
    if (!recall_->publish(key_of(self_, spec.root, version_, number), record_of(spec, bytes), 0, payload).ok()) {
      return false;  // send() tries again, and says why
    }
  }
  WireAnnouncement w = announcement_of(spec);
  w.bytes = bytes;
  w.version = version_.value;
  w.number = number;
  if (bytes != 0) std::memcpy(w.payload.data(), spec.input, bytes);
  FrameHeader h = header(p.sent, 0);
  const std::span frame = std::as_bytes(std::span(&w, 1));
  const Token token_of_frame = token(Kind::kSend, spec.root, static_cast<std::uint32_t>(p.sent & 0xffff));
  const FramesAtOnce::Now now = frames_.send_now(*p.link, h, frame, token_of_frame);
  if (now == FramesAtOnce::Now::kPost && recall_ == nullptr) return false;
  numbers.sent++;
  if (now == FramesAtOnce::Now::kDone) {
    p.sent++;
    board_.sent(members_[static_cast<std::size_t>(spec.root)], bytes);
    return true;
  }
  // A part of the frame has left, and the rest follows from the entry. Or nothing has, and the log has the message.
  Sending& s = p.sending.emplace_back();
  s.version = version_;
  s.number = number;
  if (now == FramesAtOnce::Now::kPosted) {
    s.announced = true;
    s.sequence = p.sent++;
    s.bytes = bytes;
    std::memcpy(s.announcement.data(), &w, sizeof w);
    transport_.move_payloads(*p.link, token_of_frame, frame, s.announcement.data());
  }
  post_sends(spec.root);
  settle(spec.root);
  return true;
}

bool PointChannels::recv_at_once(const CallSpec& spec, std::uint64_t bytes, Peer& p, int looks) {
  if (!p.wanted.empty() || !p.aside.empty() || p.arriving || p.announcement_posted || p.announcement_taken || p.ended) {
    return false;
  }
  FrameHeader h = header(p.received, 0);
  FramesAtOnce::Now now = FramesAtOnce::Now::kLater;
  for (int look = 0; look <= looks && now == FramesAtOnce::Now::kLater; look++) {
    now = frames_.recv_now(*p.link, h, p.announcement);
  }
  if (now != FramesAtOnce::Now::kDone) return false;
  WireAnnouncement w;
  std::memcpy(&w, p.announcement.data(), offsetof(WireAnnouncement, payload));
  const auto known = p.numbers.find(version_);
  const bool due = w.type == static_cast<std::uint32_t>(spec.type) && w.tag == static_cast<std::uint32_t>(spec.tag) &&
                   w.count == spec.count && w.bytes == bytes && w.version == version_.value && w.reserved == 0 &&
                   w.number != UINT64_MAX && known != p.numbers.end() &&
                   !known->second.received.covers(w.number, w.number + 1);
  if (!due) {
    p.announcement_taken = true;
    return false;
  }
  if (bytes != 0) std::memcpy(spec.output, p.announcement.data() + offsetof(WireAnnouncement, payload), bytes);
  p.received++;
  known->second.received.add(w.number, w.number + 1);
  board_.received(members_[static_cast<std::size_t>(spec.root)], bytes);
  return true;
}

// Of the messages to this peer in this version.
std::uint64_t PointChannels::first_unlogged(std::int32_t peer) const {
  constexpr std::size_t kSome = 4096;
  const GroupId pair = pair_of(group_.value, self_, peer);
  std::uint64_t next = 0;
  for (;;) {
    const std::vector<RecordKey> logged = recall_->reader().list(RecordKind::kMessage, timeline_, pair, version_,
                                                                 Sequence(next), Sequence(UINT64_MAX), kSome);
    if (!logged.empty()) next = logged.back().round.sequence.value + 1;
    if (logged.size() < kSome) return next;
  }
}

std::vector<Rank> PointChannels::end_waiting_sends() {
  std::vector<Rank> ranks;
  if (std::exchange(moves_looked_at_, moves_) != moves_ || recall_ == nullptr || !open_ || !status_.ok()) return ranks;
  for (auto& [peer, p] : peers_) {
    const std::size_t before = finished_.size();
    for (Sending& s : p.sending) {
      if (s.call == nullptr) continue;
      if (s.announced && s.chunks != 0) {
        const std::span input(static_cast<const std::byte*>(s.call->spec.input), s.bytes);
        s.logged.assign(input.begin(), input.end());
        transport_.move_payloads(*p.link, send_token(peer, s), input, s.logged.data());
      }
      finished_.push_back({std::exchange(s.call, nullptr), Status()});
    }
    if (finished_.size() != before) ranks.push_back(members_[static_cast<std::size_t>(peer)]);
  }
  return ranks;
}

bool PointChannels::owes(const RecordKey& record) const {
  return std::ranges::any_of(peers_, [&](const auto& entry) {
    const auto& [peer, p] = entry;
    const auto first = std::ranges::find_if(
        p.sending, [](const Sending& s) { return s.call == nullptr && !s.end && s.logged.empty(); });
    if (first == p.sending.end()) return false;
    // Those after it come from there too, or wait for it.
    const RoundId oldest = key_of(self_, peer, first->version, first->number).round;
    return record.round.timeline == oldest.timeline && record.round.group == oldest.group &&
           std::pair(record.round.version, record.round.sequence) >= std::pair(oldest.version, oldest.sequence);
  });
}

// Fills in what an announcement says, and the payload of a message whose call has returned. False: the log lacks it.
bool PointChannels::load(std::int32_t peer, Sending& s) {
  WireAnnouncement w{};
  if (s.end) {
    w.type = kEndOfMessages;
  } else if (s.call != nullptr) {
    s.bytes = s.call->spec.count * element_bytes(s.call->spec);
    w = announcement_of(s.call->spec);
  } else {
    const RecordKey key = key_of(self_, peer, s.version, s.number);
    const auto info = recall_->reader().info(key);
    if (info.ok() && info.value()) {
      w = announcement_of(info.value()->fingerprint);
      s.bytes = info.value()->total_bytes;
      s.logged.resize(s.bytes);
    }
    if (!info.ok() || !info.value() || !recall_->reader().read(key, 0, s.logged)) {
      gap_ = "message " + std::to_string(s.number) + " to rank " +
             std::to_string(members_[static_cast<std::size_t>(peer)].value) + " is not in the log of its host any more";
      return false;
    }
  }
  w.bytes = s.bytes;
  w.version = s.version.value;
  w.number = s.end ? 0 : s.number;
  s.chunks = chunks_of(s.bytes);
  if (s.chunks == 0 && s.bytes != 0) {
    std::memcpy(w.payload.data(), s.call != nullptr ? s.call->spec.input : s.logged.data(), s.bytes);
  }
  std::memcpy(s.announcement.data(), &w, sizeof w);
  return true;
}

// Keeps the window full; a message begins when all of the one before it has been posted.
void PointChannels::post_sends(std::int32_t peer) {
  Peer& p = peers_[peer];
  if (!open_ || !p.knows || !p.link || !status_.ok()) return;
  for (Sending& s : p.sending) {
    if (!s.announced) {
      if (!load(peer, s)) return;
      s.announced = true;
      s.sequence = p.sent++;
      transport_.post_send(*p.link, header(s.sequence, 0), {s.announcement}, send_token(peer, s));
    }
    const Token sent = send_token(peer, s);
    const auto* data = s.call != nullptr ? static_cast<const std::byte*>(s.call->spec.input) : s.logged.data();
    while (s.posted < s.chunks && s.posted + 1 < s.done + 2 * kWindow) {
      const std::uint32_t c = s.posted++;
      transport_.post_send(*p.link, header(s.sequence, c + 1),
                           {{data + std::uint64_t{c} * chunk_bytes_, chunk_size(s.bytes, c)}}, sent);
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
  settle(peer);
  Peer& p = peers_[peer];
  const auto tag = static_cast<std::uint32_t>(call.spec.tag);
  // Messages of one tag are taken in order: one that lies aside, or is on its way there, comes before later ones.
  const std::uint64_t order = orders_++;
  for (auto& message : p.aside) {
    if (message->call == nullptr && message->what.tag == tag) return deliver_aside(peer, *message, call);
  }
  if (p.arriving && p.arriving->admitted && p.arriving->call == nullptr && p.arriving->what.tag == tag) {
    const Status status = agree(peer, p.arriving->what, call);
    if (status.ok()) {
      p.arriving->call = &call;
      p.arriving->order = order;
      return;
    }
    p.wanted.emplace(order, &call);
    return fail(peer, status);
  }
  p.wanted.emplace(order, &call);
  if (std::exchange(p.announcement_taken, false)) {
    moves_++;
    on_announcement(peer);
    settle(peer);
  } else {
    listen(peer);
  }
}

void PointChannels::deliver_aside(std::int32_t peer, Arriving& message, Call& call) {
  const Status status = agree(peer, message.what, call);
  if (!status.ok()) {
    peers_[peer].wanted.emplace(orders_++, &call);
    return fail(peer, status);
  }
  if (message.what.bytes != 0) std::memcpy(call.spec.output, message.aside.data(), message.what.bytes);
  Peer& p = peers_[peer];
  p.aside_bytes -= message.what.bytes;
  p.numbers[message.what.version].received.add(message.what.number, message.what.number + 1);
  std::erase_if(p.aside, [&](const auto& m) { return m.get() == &message; });
  moves_++;
  finished_.push_back({&call, Status()});
}

void PointChannels::listen(std::int32_t peer) {
  Peer& p = peers_[peer];
  if (!open_ || !p.knows || p.announcement_posted || p.arriving || p.ended || !status_.ok()) return;
  if (p.wanted.empty() && !departed_) return;
  p.announcement_posted = true;
  transport_.post_recv(*p.link, header(p.received, 0), p.announcement, token(Kind::kAnnouncement, peer, 0));
}

void PointChannels::on_announcement(std::int32_t peer) {
  Peer& p = peers_[peer];
  p.announcement_posted = false;
  WireAnnouncement w;
  std::memcpy(&w, p.announcement.data(), sizeof w);
  auto message = std::make_unique<Arriving>();
  const std::string who = "rank " + std::to_string(members_[static_cast<std::size_t>(peer)].value);
  if (w.type == kEndOfMessages) {
    p.received++;
    p.ended = true;
    if (departed_) return;
    WARREN_CHECK(!p.wanted.empty(), "a link is read while something is wanted");
    const CallSpec& spec = p.wanted.begin()->second->spec;
    return fail(peer, Status(Code::kDesync, who + " has destroyed the communicator, and a message with tag " +
                                                std::to_string(spec.tag) + " from it is waited for here"));
  }
  message->what = {w.tag, static_cast<DataType>(w.type), w.count, w.bytes, w.site, Version(w.version), w.number};
  const std::size_t width = is_public(message->what.type) ? element_bytes(message->what.type) : 0;
  if (width == 0 || w.tag > limits::kMaxTag || w.reserved != 0 || w.count > limits::kMaxBufferBytes / width ||
      w.bytes != w.count * width || w.bytes / chunk_bytes_ >= kMaxChunks || w.number == UINT64_MAX) {
    return fail(peer, Status(Code::kCorrupt, who + " announced a message that cannot be"));
  }
  if (message->what.version < version_ && !departed_) {
    return fail(peer, Status(Code::kDesync, who + " sent a message with tag " + std::to_string(w.tag) +
                                                " before a checkpoint; it was not received before that"));
  }
  const Ranges& received = p.numbers[message->what.version].received;
  if (received.covers(w.number, w.number + 1)) {
    return fail(peer, Status(Code::kCorrupt, who + " sent message " + std::to_string(w.number) + " a second time"));
  }
  p.arriving = std::move(message);
  admit(peer);
}

// Takes the message that is announced, if its version has begun here: to whom has asked for it, or aside; nowhere if
// the group has departed.
void PointChannels::admit(std::int32_t peer) {
  Peer& p = peers_[peer];
  Arriving& message = *p.arriving;
  if (message.admitted || (message.what.version > version_ && !departed_)) return;
  message.admitted = true;
  if (departed_) return post_chunks(peer);
  const auto wanted = std::find_if(p.wanted.begin(), p.wanted.end(), [&](const auto& w) {
    return static_cast<std::uint32_t>(w.second->spec.tag) == message.what.tag;
  });
  if (wanted != p.wanted.end()) {
    const Status status = agree(peer, message.what, *wanted->second);
    if (!status.ok()) return fail(peer, status);
    message.order = wanted->first;
    message.call = wanted->second;
    p.wanted.erase(wanted);
  } else {
    if (p.aside_bytes + message.what.bytes > limits::kMaxUnexpectedBytes) {
      return fail(peer,
                  Status(Code::kExhausted, "rank " + std::to_string(members_[static_cast<std::size_t>(peer)].value) +
                                               " sent over " + std::to_string(limits::kMaxUnexpectedBytes) +
                                               " bytes with tags that nobody receives here: receive tag " +
                                               std::to_string(message.what.tag) + " before the tags sent after it"));
    }
    p.aside_bytes += message.what.bytes;
    const std::span payload = inline_payload(p, message.what);
    message.aside.assign(payload.begin(), payload.end());
    message.aside.resize(message.what.bytes);
  }
  post_chunks(peer);
}

void PointChannels::post_chunks(std::int32_t peer) {
  Peer& p = peers_[peer];
  Arriving& a = *p.arriving;
  const std::uint32_t chunks = chunks_of(a.what.bytes);
  std::byte* scratch = chunks == 0 ? nullptr : p.chunks.reserve(kWindow * chunk_bytes_);
  while (a.chunks_posted < chunks && a.chunks_posted < a.chunks_done + kWindow) {
    const std::uint32_t c = a.chunks_posted++;
    transport_.post_recv(*p.link, header(p.received, c + 1),
                         {scratch + c % kWindow * chunk_bytes_, chunk_size(a.what.bytes, c)},
                         token(Kind::kChunk, peer, c));
  }
  if (a.chunks_done < chunks) return;
  p.received++;
  auto message = std::move(p.arriving);
  if (chunks == 0) board_.received(members_[static_cast<std::size_t>(peer)], message->what.bytes);
  if (message->call != nullptr) {
    // Asked for after it had begun to go aside: what lies there goes to its place now.
    if (const std::span payload = inline_payload(p, message->what); !payload.empty()) {
      std::memcpy(message->call->spec.output, payload.data(), payload.size());
    } else if (!message->aside.empty()) {
      std::memcpy(message->call->spec.output, message->aside.data(), message->what.bytes);
      p.aside_bytes -= message->what.bytes;
    }
    p.numbers[message->what.version].received.add(message->what.number, message->what.number + 1);
    finished_.push_back({message->call, Status()});
  } else if (!departed_) {
    p.aside.push_back(std::move(message));
  } else if (message->what.version == version_) {
    // Greetings say so too: it is not sent again.
    p.numbers[version_].received.add(message->what.number, message->what.number + 1);
  }
  listen(peer);
}

// What came with the announcement, which stays where it is until the message has arrived; empty: it comes in chunks.
std::span<const std::byte> PointChannels::inline_payload(const Peer& peer, const Announcement& what) const {
  if (chunks_of(what.bytes) != 0) return {};
  return std::span(peer.announcement).subspan(offsetof(WireAnnouncement, payload), what.bytes);
}

void PointChannels::on_chunk(std::int32_t peer, std::uint32_t low) {
  Peer& p = peers_[peer];
  Arriving& a = *p.arriving;
  // The chunk of the window that has these low bits.
  const std::uint32_t c = a.chunks_done + ((low - a.chunks_done) & 0xffff);
  WARREN_CHECK(c < a.chunks_posted, "chunks finish after they were asked for");
  std::byte* to = a.aside.data();
  if (a.aside.empty()) to = a.call == nullptr ? nullptr : static_cast<std::byte*>(a.call->spec.output);
  const std::uint64_t bytes = chunk_size(a.what.bytes, c);
  if (to != nullptr) {
    std::memcpy(to + std::uint64_t{c} * chunk_bytes_, p.chunks.reserve(0) + c % kWindow * chunk_bytes_, bytes);
  }
  board_.received(members_[static_cast<std::size_t>(peer)], bytes);
  a.ahead[c % kWindow] = true;
  for (; a.ahead[a.chunks_done % kWindow]; a.chunks_done++) a.ahead[a.chunks_done % kWindow] = false;
  post_chunks(peer);
}

void PointChannels::on_completion(Token t, const Status& status) {
  const auto peer = static_cast<std::int32_t>(t >> 16 & 0x3fff);
  moves_++;
  take(peer, t, status);
  settle(peer);
}

void PointChannels::take(std::int32_t peer, Token t, const Status& status) {
  const auto kind = static_cast<Kind>(t >> 30 & 3);
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
      // One of the frames was the announcement: what is counted has left, and the last chunk may be missing.
      const bool whole = s->chunks == 0;
      const std::uint64_t left = whole ? s->bytes : std::min(s->bytes, s->done * chunk_bytes_);
      const std::uint64_t left_before = s->done == 0 ? 0 : std::min(s->bytes, (s->done - 1) * chunk_bytes_);
      board_.sent(members_[static_cast<std::size_t>(peer)], left - left_before);
      if (++s->done == s->chunks + 1) {
        if (s->call != nullptr) finished_.push_back({s->call, Status()});
        p.sending.erase(s);
      }
      post_sends(peer);
      break;
    }
    case Kind::kAnnouncement: on_announcement(peer); break;
    case Kind::kChunk: on_chunk(peer, low); break;
    case Kind::kGreeting:
      if (low != 0) on_greeting(peer, low == 2);
      break;
  }
}

void PointChannels::fail(std::int32_t peer, const Status& status) {
  if (!status_.ok()) return;
  failed_peer_ = members_[static_cast<std::size_t>(peer)];
  status_ =
      status.because_of_this("point-to-point with rank " + std::to_string(failed_peer_.value)).about(failed_peer_);
}

std::vector<Call*> PointChannels::abandon() {
  std::vector<Call*> calls;
  for (auto& [peer, p] : peers_) {
    for (const Sending& s : p.sending) {
      if (s.call != nullptr) calls.push_back(s.call);
    }
    for (const auto& [order, call] : p.wanted) calls.push_back(call);
    if (p.arriving && p.arriving->call != nullptr) calls.push_back(p.arriving->call);
  }
  peers_.clear();
  unsettled_peers_ = 0;
  return calls;
}

bool PointChannels::busy() const {
  for (const auto& [peer, p] : peers_) {
    const bool sends = std::any_of(p.sending.begin(), p.sending.end(), [](const auto& s) { return s.call != nullptr; });
    if (sends || !p.wanted.empty() || (p.arriving && p.arriving->call != nullptr)) return true;
  }
  return false;
}

bool PointChannels::describe_blocked(GroupId group, wire::Blocked& blocked) const {
  std::map<Rank, const Peer*> by_rank;
  for (const auto& [peer, p] : peers_) by_rank.emplace(members_[static_cast<std::size_t>(peer)], &p);
  for (const auto& [rank, p] : by_rank) {
    const bool sends =
        std::any_of(p->sending.begin(), p->sending.end(), [](const auto& s) { return s.call != nullptr; });
    if (sends || p->arriving || (!p->wanted.empty() && !p->link)) return false;
    if (!p->link) continue;
    if (static_cast<std::size_t>(blocked.sent_size()) == limits::kMaxBlockedLinks) return false;
    wire::SentMessages& sent = *blocked.add_sent();
    sent.set_group(group.value);
    sent.set_peer(static_cast<std::uint32_t>(rank.value));
    sent.set_messages(p->sent);
    sent.set_leaving(!p->knows || !p->sending.empty());
    if (p->wanted.empty()) continue;
    if (static_cast<std::size_t>(blocked.calls_size()) == limits::kMaxBlockedCalls) return false;
    const CallSpec& spec = p->wanted.begin()->second->spec;
    wire::CurrentRound& call = *blocked.add_calls();
    call.set_timeline(timeline_.value);
    call.set_group(group.value);
    call.set_version(version_.value);
    call.set_collective(static_cast<std::uint32_t>(Collective::kPoint));
    call.set_type(static_cast<std::uint32_t>(spec.type));
    call.set_root(spec.tag);
    call.set_count(p->received);
    call.set_site(spec.site);
    call.add_waiting_for(static_cast<std::uint32_t>(rank.value));
  }
  return true;
}

std::vector<Rank> PointChannels::receivers() const {
  std::vector<Rank> ranks;
  for (const auto& [peer, p] : peers_) {
    const bool waits = std::any_of(p.sending.begin(), p.sending.end(), [](const auto& s) { return s.call != nullptr; });
    if (waits) ranks.push_back(members_[static_cast<std::size_t>(peer)]);
  }
  return ranks;
}

std::vector<Rank> PointChannels::senders() const {
  std::vector<Rank> ranks;
  for (const auto& [peer, p] : peers_) {
    const bool arrives = p.arriving && p.arriving->call != nullptr;
    if (!p.wanted.empty() || arrives) ranks.push_back(members_[static_cast<std::size_t>(peer)]);
  }
  return ranks;
}

}  // namespace warren::worker
