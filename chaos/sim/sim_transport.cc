#include "chaos/sim/sim_transport.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "chaos/sim/sim_gpu.h"
#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "storage/segment.h"
#include "worker/transport/frame_checksum.h"

namespace warren::chaos {
namespace {

using worker::LinkId;
using worker::Token;

constexpr Micros kRetryUs = 50'000;
constexpr Micros kKnockUs = 100'000;
constexpr std::size_t kLeastNamed = std::size_t{2} << 10;  // as worker/transport/link_transport.cc tells places

std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t seed = 0) {
  return bytes.empty() ? seed : XXH3_64bits_withSeed(SimGpu::readable(bytes.data()), bytes.size(), seed);
}

void flip_one_bit(Frame& frame, Random& random) {
  const std::size_t bit = random.below((frame.header.size() + frame.payload.size()) * 8);
  std::byte& byte =
      bit / 8 < frame.header.size() ? frame.header[bit / 8] : frame.payload[bit / 8 - frame.header.size()];
  byte ^= static_cast<std::byte>(1u << (bit % 8));
  frame.flipped = true;
}

}  // namespace

SimTransport::SimTransport(DataNetwork& network, Owner& owner, Incarnation self)
    : network_(network), world_(network.world()), owner_(owner), self_(self) {
  network_.attach(self_, this);
}

SimTransport::~SimTransport() {
  network_.detach(self_, false);
}

template <class What>
void SimTransport::later(Micros delay_us, What what) {
  world_.after(delay_us, [this, use = use_, what = std::move(what)] {
    if (use == use_) what();
  });
}

void SimTransport::reset_later(LinkId link) {
  later(network_.latency_us(), [this, link] { on_reset(link); });
}

void SimTransport::open(Membership membership) {
  WARREN_CHECK(links_.empty(), "a generation begins after the one before was closed (I6)");
  members_ = std::move(membership);
}

LinkId SimTransport::find_or_make(GroupId group, Rank peer) {
  const auto [it, fresh] = by_name_.try_emplace({group, peer}, static_cast<LinkId>(links_.size()));
  if (fresh) {
    auto link = std::make_unique<Link>();
    link->group = group;
    link->peer = peer;
    const auto* relays = relays_to(peer);
    link->streams.resize(relays != nullptr ? relays->size() : members_->streams);
    links_.push_back(std::move(link));
  }
  return it->second;
}

const std::vector<Rank>* SimTransport::relays_to(Rank peer) const {
  const auto found = members_->relays.find(std::minmax(members_->self, peer));
  return found == members_->relays.end() ? nullptr : &found->second;
}

bool SimTransport::ready_in(Generation generation) const {
  return members_ && members_->generation == generation && owner_.stands_still_until_us() <= world_.now_us();
}

Micros SimTransport::drag_us(const Link& link, std::size_t stream) const {
  const auto* relays = relays_to(link.peer);
  if (relays == nullptr) return world_.drag_us(members_->self, link.peer);
  const Rank by = (*relays)[stream];
  return world_.drag_us(members_->self, by) + world_.drag_us(by, link.peer);
}

LinkId SimTransport::link(GroupId group, Rank peer) {
  const LinkId id = find_or_make(group, peer);
  Link& l = at(id);
  if (l.wanted) return id;
  l.wanted = true;
  if (!l.wire) {
    later(kKnockUs, [this, id, until_us = world_.now_us() + members_->timeout_ms * 1000] { knock(id, until_us); });
  }
  // The lower rank connects; the higher one waits until it does, however long that takes.
  if (!l.wire && members_->self < peer) {
    Micros delay = network_.latency_us();
    if (world_.strikes(Fault::link_late)) delay += world_.random.between(1000, members_->timeout_ms * 1200);
    const Micros deadline = world_.now_us() + members_->timeout_ms * 1000;
    later(delay, [this, id, deadline] { try_connect(id, deadline); });
  }
  return id;
}

void SimTransport::knock(LinkId id, Micros until_us) {
  const Link& l = at(id);
  if (l.wire || !l.broken.ok()) return;
  if (network_.refuses(members_->lives[static_cast<std::size_t>(l.peer.value)])) return owner_.process_gone(l.peer);
  if (world_.now_us() < until_us) later(kKnockUs, [this, id, until_us] { knock(id, until_us); });
}

std::set<Rank> SimTransport::linked() const {
  std::set<Rank> peers;
  for (const auto& [name, link] : by_name_) peers.insert(name.second);
  return peers;
}

void SimTransport::try_connect(LinkId id, Micros deadline_us) {
  Link& l = at(id);
  if (l.wire || !l.broken.ok()) return;
  SimTransport* peer = network_.find(members_->lives[static_cast<std::size_t>(l.peer.value)]);
  bool ready = peer != nullptr && peer->ready_in(members_->generation);
  if (relays_to(l.peer) == nullptr) {
    ready = ready && !world_.is_bad(BadLink::What::kNoWay, members_->self, l.peer);
  }
  std::vector<SimTransport*> by;
  if (const auto* relays = relays_to(l.peer)) {
    for (const Rank relay : *relays) {
      by.push_back(network_.find(members_->lives[static_cast<std::size_t>(relay.value)]));
      ready = ready && by.back() != nullptr && by.back()->ready_in(members_->generation);
    }
  }
  if (!ready) {
    if (world_.now_us() < deadline_us) {
      later(kRetryUs, [this, id, deadline_us] { try_connect(id, deadline_us); });
      return;
    }
    const Status why(Code::kPeerLost, "cannot connect to rank " + std::to_string(l.peer.value) + " within " +
                                          std::to_string(members_->timeout_ms) + " ms");
    break_link(l, why);
    owner_.link_closed(l.peer, why.describe());
    owner_.data_moved();
    return;
  }
  auto wire = std::make_shared<Wire>();
  wire->relays = std::move(by);
  for (auto& lanes : wire->lanes) lanes.resize(l.streams.size());
  network_.add(wire);
  if (world_.keeps_transcript()) {
    world_.tell("link " + std::to_string(members_->self.value) + "-" + std::to_string(l.peer.value) +
                " of generation " + std::to_string(members_->generation.value) + " is up");
  }
  peer->come_up(peer->find_or_make(l.group, members_->self), wire, 1);
  come_up(id, wire, 0);
}

void SimTransport::come_up(LinkId id, const std::shared_ptr<Wire>& wire, int side) {
  Link& l = at(id);
  l.wire = wire;
  l.side = side;
  wire->ends[side] = {this, id};
  for (std::size_t s = 0; s < l.streams.size(); ++s) {
    if (world_.is(Mutant::accept_old_generation)) {
      const auto old = network_.stale.find({l.group, l.peer, members_->self, static_cast<std::uint16_t>(s)});
      if (old != network_.stale.end()) {
        Wire::Lane& lane = wire->lanes[1 - side][s];
        for (Frame& frame : old->second) {
          lane.bytes += frame.header.size() + frame.payload.size();
          lane.inbox.push_back(std::move(frame));
        }
        network_.stale.erase(old);
      }
    }
    try_send(id, s);
    deliver(id, s);
  }
}

void SimTransport::complete(Token token, Status status, const worker::View& view) {
  completed_.push_back({token, std::move(status), view});
  owner_.data_moved();
}

void SimTransport::break_link(Link& link, const Status& why) {
  if (!link.broken.ok()) return;
  link.broken = why;
  if (world_.keeps_transcript()) {
    world_.tell("rank " + std::to_string(members_->self.value) + " link to rank " + std::to_string(link.peer.value) +
                " broke: " + why.describe());
  }
  for (Stream& s : link.streams) {
    for (const Incoming& in : s.recvs) complete(in.token, why);
    for (const Outgoing& out : s.sends) {
      if (!out.completed) complete(out.token, why);
    }
    s.recvs.clear();
    s.sends.clear();
  }
}

void SimTransport::post_send(LinkId id, const FrameHeader& header, const worker::Payload& payload, Token token) {
  if (payload.lent && SimGpu::is_there(payload.bytes.data()) && !reads_on_gpu(at(id))) {
    return world_.violated("Input", "rank " + std::to_string(members_->self.value) + " lends on its GPU to rank " +
                                        std::to_string(at(id).peer.value) + ", which cannot read it");
  }
  const bool told = payload.made.at != nullptr && payload.bytes.size() >= kLeastNamed && reads_on_gpu(at(id));
  // A final that is shown too late cannot be read there at all.
  const LogPlace place = world_.is(Mutant::publishes_late) ? LogPlace{} : payload.logged;
  post(id, header, payload.bytes, place, payload.lent, token, told ? owner_.shares()->find(payload.made) : nullptr);
}

bool SimTransport::reads_on_gpu(const Link& link) const {
  SimShares* const shares = owner_.shares();
  const Incarnation life = members_->lives[static_cast<std::size_t>(link.peer.value)];
  if (shares == nullptr || shares->at() == nullptr || owner_.log_of(link.peer) == nullptr || relays_to(link.peer)) {
    return false;
  }
  SimTransport* const peer = network_.find(life);
  // One that has gone is sent what was lent to it while it was there.
  const bool maps = peer == nullptr || (peer->owner_.shares() != nullptr && peer->owner_.shares()->at() != nullptr);
  return maps && shares->mapped_by(life);
}

bool SimTransport::lends(GroupId group, Rank peer, const std::byte* at) const {
  const auto it = by_name_.find({group, peer});
  if (it == by_name_.end() || owner_.shares() == nullptr || owner_.shares()->at() != at) return false;
  const Link& link = *links_[it->second];
  return link.wire != nullptr && link.broken.ok() && reads_on_gpu(link);
}

void SimTransport::post_recv(LinkId id, const FrameHeader& expected, std::span<std::byte> payload, Token token) {
  expect(id, expected, payload, false, token);
}

void SimTransport::post_recv_in_place(LinkId id, const FrameHeader& expected, std::span<std::byte> payload,
                                      Token token) {
  expect(id, expected, payload, true, token);
}

void SimTransport::move_payloads(LinkId id, Token token, std::span<const std::byte> from, const std::byte* to) {
  for (Stream& stream : at(id).streams) {
    for (Outgoing& out : stream.sends) {
      const std::byte* const begin = out.payload.data();
      if (out.token != token || begin < from.data() || begin >= from.data() + from.size()) continue;
      out.payload = {to + (begin - from.data()), out.payload.size()};
    }
  }
}

void SimTransport::release(LinkId, const worker::View& view) {
  if (view.lent != nullptr) return;
  // Mostly one of the newest.
  const auto held = std::find_if(held_.rbegin(), held_.rend(), [&](const Held& h) { return &h.payload == view.held; });
  WARREN_CHECK(held != held_.rend() && held->payload != nullptr, "what is released was given");
  held->payload = nullptr;
  held->bytes = {};
}

std::optional<worker::View> SimTransport::view_of(const Link& link, const Incoming& in, Frame frame) {
  const auto log = frame.place.known() ? owner_.log_of(link.peer) : nullptr;
  if (log != nullptr) {
    const auto window = log->window(frame.place, in.expected.round, in.payload.size());
    if (!window) return std::nullopt;
    if (!in.payload.empty() && std::memcmp(window->payload, frame.payload.data(), in.payload.size()) != 0) {
      world_.violated("I1", "rank " + std::to_string(link.peer.value) + " has published other bytes than it sent in " +
                                to_string(in.expected.round));
    }
    if (in.in_place) {
      return worker::View{nullptr, window->payload, window->stamp,          frame.place.stamp,
                          nullptr, false,           std::move(frame.beside)};
    }
  }
  if (frame.loan != nullptr && frame.loan->on_gpu != nullptr) {
    // The CPU cannot read it.
    if (!in.in_place) return std::nullopt;
    const Loan& loan = *frame.loan;
    const bool whole = loan.holds(frame.payload);
    if (loan.taken_back == 0 && !world_.is(Mutant::loans_without_end) && !frame.flipped && !whole) {
      world_.violated("Input", "rank " + std::to_string(link.peer.value) + " changed what it lends on its GPU, in " +
                                   to_string(in.expected.round));
    }
    return worker::View{nullptr, loan.at, &loan.taken_back, 0, frame.loan, true};
  }
  // Two of three, without a draw: a rank's buffers may be of either kind.
  if (frame.loan != nullptr && in.in_place && in.expected.message % 3 != 0 && owner_.log_of(link.peer) != nullptr) {
    const Loan& loan = *frame.loan;
    if (loan.taken_back == 0 && !world_.is(Mutant::loans_without_end) && !frame.flipped && !loan.holds(frame.payload)) {
      world_.violated("Input", "rank " + std::to_string(link.peer.value) + " changed what it lends, in " +
                                   to_string(in.expected.round));
    }
    worker::View view;
    view.held = &loan.at;
    view.stamp = &loan.taken_back;
    view.lent = frame.loan;
    return view;
  }
  // Every other one, without a draw: who has no log runs as before.
  if (in.in_place && !in.payload.empty() && in.expected.message % 2 == 0) {
    Held& held = held_.emplace_back();
    held.bytes = std::move(frame.payload);
    held.payload = held.bytes.data();
    held.buffer = in.payload;
    return worker::View{&held.payload};
  }
  if (!in.payload.empty()) std::memcpy(in.payload.data(), frame.payload.data(), in.payload.size());
  return worker::View{};
}

void SimTransport::post(LinkId id, const FrameHeader& header, std::span<const std::byte> payload, const LogPlace& place,
                        bool lent, Token token, std::shared_ptr<const worker::FinalOnGpu> beside) {
  WARREN_CHECK(payload.size() <= limits::kMaxChunkBytes, "a frame carries at most one chunk");
  if (owner_.dies_at_send()) return;
  if (SimGpu::is_there(payload.data()) && !lent) {
    return world_.violated("Input", "rank " + std::to_string(members_->self.value) +
                                        " sends what only its GPU can read, in " + to_string(header.round));
  }
  Link& l = at(id);
  if (!l.broken.ok()) return complete(token, l.broken);
  const std::size_t index = l.frames_sent++ % l.streams.size();
  Outgoing out{header, payload, token, hash_of(payload), false, place, lent, std::move(beside)};
  out.header.stream = static_cast<std::uint16_t>(index);
  out.header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  if (world_.is(Mutant::send_completes_early)) {
    out.completed = true;
    complete(token, Status());
  }
  l.streams[index].sends.push_back(out);
  try_send(id, index);
}

void SimTransport::expect(LinkId id, const FrameHeader& expected, std::span<std::byte> payload, bool in_place,
                          Token token) {
  WARREN_CHECK(payload.size() <= limits::kMaxChunkBytes, "a frame carries at most one chunk");
  Link& l = at(id);
  if (!l.broken.ok()) return complete(token, l.broken);
  const std::size_t index = l.frames_received++ % l.streams.size();
  Incoming in{expected, payload, token, in_place};
  in.expected.stream = static_cast<std::uint16_t>(index);
  in.expected.payload_bytes = static_cast<std::uint32_t>(payload.size());
  l.streams[index].recvs.push_back(in);
  deliver(id, index);
}

worker::FramesAtOnce::Now SimTransport::send_now(LinkId id, FrameHeader& header, std::span<const std::byte> payload,
                                                 Token token) {
  if (owner_.dies_at_send()) return Now::kPost;
  Link& l = at(id);
  const std::size_t index = l.frames_sent % l.streams.size();
  const Stream& s = l.streams[index];
  if (!l.wire || !l.broken.ok() || l.closed_by_peer || s.sending || !s.sends.empty()) return Now::kPost;
  const std::size_t bytes = FrameHeader::kWireBytes + payload.size();
  if (!has_room(l, index, bytes)) return Now::kPost;
  // Some leave in pieces, without a draw.
  if (header.round.sequence.value % 3 == 0) {
    post(id, header, payload, {}, false, token);
    return Now::kPosted;
  }
  l.frames_sent++;
  Outgoing out{header, payload, token, 0, false, {}, false, {}};
  out.header.stream = static_cast<std::uint16_t>(index);
  out.header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  l.wire->lanes[l.side][index].bytes += bytes;
  fly(l, index, out);
  return Now::kDone;
}

worker::FramesAtOnce::Now SimTransport::recv_now(LinkId id, FrameHeader& expected, std::span<std::byte> payload) {
  Link& l = at(id);
  const std::size_t index = l.frames_received % l.streams.size();
  Stream& s = l.streams[index];
  if (!l.wire || !l.broken.ok() || s.receiving || !s.recvs.empty()) return Now::kPost;
  const Wire::Lane& lane = l.wire->lanes[1 - l.side][index];
  if (lane.inbox.empty()) {
    if (l.closed_by_peer && lane.flying.empty()) return Now::kPost;
    s.looked = true;
    return Now::kLater;
  }
  // A process may die between any two.
  if (owner_.dies_at_completion()) return Now::kLater;
  // Posted for as long as this takes.
  Incoming in{expected, payload, 0, false};
  in.expected.stream = static_cast<std::uint16_t>(index);
  in.expected.payload_bytes = static_cast<std::uint32_t>(payload.size());
  s.recvs.push_back(in);
  const std::size_t completed = completed_.size();
  take_front(id, index);
  const bool came = l.broken.ok() && s.recvs.empty();
  s.recvs.clear();
  completed_.resize(completed);
  if (!came) return Now::kPost;
  l.frames_received++;
  return Now::kDone;
}

bool SimTransport::has_room(const Link& link, std::size_t stream, std::size_t bytes) const {
  const Wire::Lane& lane = link.wire->lanes[link.side][stream];
  if (lane.bytes + bytes <= network_.window_bytes()) return true;
  // A frame that is larger than the window goes through while it is being taken.
  const Wire::End& peer = link.wire->ends[1 - link.side];
  return lane.bytes == 0 && peer.transport != nullptr && !peer.transport->at(peer.link).streams[stream].recvs.empty();
}

void SimTransport::try_send(LinkId id, std::size_t stream) {
  Link& l = at(id);
  Stream& s = l.streams[stream];
  if (!l.wire || !l.broken.ok() || s.sending || s.sends.empty()) return;
  if (l.closed_by_peer) {
    return break_link(l, Status(Code::kPeerLost, "the link to rank " + std::to_string(l.peer.value) +
                                                     " broke while sending: Broken pipe"));
  }
  const std::size_t bytes = FrameHeader::kWireBytes + s.sends.front().payload.size();
  if (!has_room(l, stream, bytes)) return;
  s.sending = true;
  l.wire->lanes[l.side][stream].bytes += bytes;
  later(network_.transfer_us(bytes) + drag_us(l, stream), [this, id, stream] { finish_send(id, stream); });
}

void SimTransport::arrive(World& world, const std::shared_ptr<Wire>& wire, int side, std::size_t stream) {
  Wire::Lane& from = wire->lanes[side][stream];
  if (from.flying.empty()) return;
  if (const Micros until_us = wire->silent_until_us[side]; until_us > world.now_us()) {
    return world.at(until_us, [&world, wire, side, stream] { arrive(world, wire, side, stream); });
  }
  Frame arrived = std::move(from.flying.front());
  from.flying.pop_front();
  if (wire->dead) return;
  from.inbox.push_back(std::move(arrived));
  const Wire::End& end = wire->ends[1 - side];
  if (end.transport != nullptr) end.transport->deliver(end.link, stream);
}

void SimTransport::finish_send(LinkId id, std::size_t stream) {
  Link& l = at(id);
  Stream& s = l.streams[stream];
  s.sending = false;
  if (!l.broken.ok() || s.sends.empty()) return;
  const Outgoing out = s.sends.front();
  s.sends.pop_front();
  if (!out.completed && hash_of(out.payload) != out.fingerprint) {
    return world_.violated("Input", "rank " + std::to_string(members_->self.value) +
                                        " changed a buffer before its send to rank " + std::to_string(l.peer.value) +
                                        " had completed, in " + to_string(out.header.round));
  }
  fly(l, stream, out);
  if (!out.completed) complete(out.token, Status());
  try_send(id, stream);
}

void SimTransport::fly(Link& l, std::size_t stream, const Outgoing& out) {
  Frame frame;
  frame.generation = members_->generation;
  frame.sender = self_;
  frame.place = out.place;
  if (out.lent && !out.payload.empty()) {
    frame.loan = std::make_shared<Loan>();
    frame.loan->at = out.payload.data();
    frame.loan->bytes = out.payload.size();
    if (owner_.shares() != nullptr) frame.loan->on_gpu = owner_.shares()->memory_of(out.payload.data());
    std::erase_if(loans_, [](const auto& loan) { return loan.expired(); });
    loans_.push_back(frame.loan);
  }
  frame.beside = out.beside;
  FrameHeader header = out.header;
  const std::byte* const bytes = SimGpu::readable(out.payload.data());
  frame.payload.assign(bytes, bytes + out.payload.size());
  worker::seal(header, frame.payload, members_->checksums, frame.header);
  if (members_->checksums) {
    if (world_.strikes(Fault::bit_flip)) flip_one_bit(frame, world_.random);
  }
  world_.note(hash_of(frame.payload, header.message));
  Wire::Lane& lane = l.wire->lanes[l.side][stream];
  lane.flying.push_back(std::move(frame));
  lane.last_arrival_us = std::max(lane.last_arrival_us + 1, world_.now_us() + network_.latency_us());
  world_.at(lane.last_arrival_us,
            [&world = world_, wire = l.wire, side = l.side, stream] { arrive(world, wire, side, stream); });
}

void SimTransport::deliver(LinkId id, std::size_t stream) {
  Link& l = at(id);
  Stream& s = l.streams[stream];
  if (!l.wire || !l.broken.ok() || s.receiving) return;
  if (s.recvs.empty()) {
    if (std::exchange(s.looked, false)) owner_.data_moved();
    return;
  }
  Wire::Lane& lane = l.wire->lanes[1 - l.side][stream];
  if (lane.inbox.empty()) {
    if (l.closed_by_peer && lane.flying.empty()) {
      return break_link(l, Status(Code::kPeerLost, "the link to rank " + std::to_string(l.peer.value) +
                                                       " broke while receiving: closed by the other end"));
    }
    // The sender of a frame that is larger than the window waits for this receive.
    const Wire::End& peer = l.wire->ends[1 - l.side];
    if (peer.transport != nullptr) peer.transport->try_send(peer.link, stream);
    return;
  }
  const Frame& frame = lane.inbox.front();
  const std::size_t size = s.recvs.front().payload.size();
  if (size > 1 && frame.payload.size() >= size && world_.random.chance(0.3)) {
    // In two pieces, with anything between them.
    std::memcpy(s.recvs.front().payload.data(), frame.payload.data(), 1 + world_.random.below(size - 1));
    s.receiving = true;
    later(network_.transfer_us(size), [this, id, stream] {
      Link& link = at(id);
      link.streams[stream].receiving = false;
      if (link.broken.ok()) take_front(id, stream);
    });
    return;
  }
  take_front(id, stream);
}

void SimTransport::take_front(LinkId id, std::size_t stream) {
  Link& l = at(id);
  Stream& s = l.streams[stream];
  Wire::Lane& lane = l.wire->lanes[1 - l.side][stream];
  if (s.recvs.empty() || lane.inbox.empty()) return;
  const Incoming in = s.recvs.front();
  Frame frame = std::move(lane.inbox.front());
  lane.inbox.pop_front();
  const std::size_t bytes = FrameHeader::kWireBytes + frame.payload.size();
  lane.bytes -= std::min(bytes, lane.bytes);
  const bool judges = members_->checksums && !world_.is(Mutant::skip_checksum);
  if (judges && !worker::header_holds(frame.header)) {
    return break_link(l, Status(Code::kCorrupt, "a chunk's header from rank " + std::to_string(l.peer.value) +
                                                    " does not match its checksum (I10)"));
  }
  auto header = decode(frame.header);
  if (header.ok() && world_.is(Mutant::accept_old_generation)) header.value().generation = in.expected.generation;
  const Status verdict = header.ok() ? match(in.expected, header.value()) : header.status();
  if (!verdict.ok()) {
    return break_link(l, verdict.because_of_this("rank " + std::to_string(l.peer.value) + " sent what is not due"));
  }
  if (judges && !worker::payload_holds(frame.header, frame.payload)) {
    return break_link(l, Status(Code::kCorrupt, "a chunk from rank " + std::to_string(l.peer.value) +
                                                    " does not match its checksum (I10)"));
  }
  if (frame.generation != members_->generation ||
      frame.sender != members_->lives[static_cast<std::size_t>(l.peer.value)]) {
    return world_.violated("I6", "rank " + std::to_string(members_->self.value) + " in generation " +
                                     std::to_string(members_->generation.value) + " took a frame of generation " +
                                     std::to_string(frame.generation.value) + " in " + to_string(header.value().round));
  }
  // A mutant must be found by what it does to results.
  if (frame.flipped && !world_.is(Mutant::skip_checksum)) {
    return world_.violated("I10", "a flipped bit was not detected in " + to_string(header.value().round));
  }
  const auto view = view_of(l, in, std::move(frame));
  if (!view) {
    return break_link(l, Status(Code::kPeerLost, "rank " + std::to_string(l.peer.value) +
                                                     " named a place where nothing lies that can be read"));
  }
  s.recvs.pop_front();
  complete(in.token, Status(), *view);
  const Wire::End& peer = l.wire->ends[1 - l.side];
  if (peer.transport != nullptr) peer.transport->try_send(peer.link, stream);
  if (l.broken.ok()) deliver(id, stream);
}

std::size_t SimTransport::poll(std::span<worker::Completion> out) {
  // One at a time: a process may die between any two.
  if (completed_.empty() || owner_.dies_at_completion()) return 0;
  // Some of what is held goes to its buffer, as where others need the room.
  for (; held_looked_at_ < held_.size(); ++held_looked_at_) {
    Held& held = held_[held_looked_at_];
    if (held.bytes.empty() || held.bytes.size() % 3 != 0) continue;
    std::memcpy(held.buffer.data(), held.bytes.data(), held.bytes.size());
    held.payload = held.buffer.data();
    held.bytes = {};
  }
  out[0] = std::move(completed_.front());
  completed_.pop_front();
  return 1;
}

void SimTransport::on_closed_by_peer(LinkId id) {
  Link& l = at(id);
  if (l.closed_by_peer) return;
  l.closed_by_peer = true;
  for (std::size_t s = 0; s < l.streams.size(); ++s) {
    deliver(id, s);
    try_send(id, s);
  }
  owner_.link_closed(l.peer, "its end of a data link was closed");
}

void SimTransport::on_reset(LinkId id) {
  Link& l = at(id);
  if (!l.broken.ok()) return;
  break_link(l, Status(Code::kPeerLost,
                       "the link to rank " + std::to_string(l.peer.value) + " broke: Connection reset by peer"));
  owner_.link_closed(l.peer, "Connection reset by peer");
}

void SimTransport::end_loans(bool alive) {
  for (const auto& weak : std::exchange(loans_, {})) {
    const auto loan = weak.lock();
    if (loan == nullptr) continue;
    if (loan->on_gpu != nullptr) {
      if (alive && !world_.is(Mutant::loans_without_end)) loan->taken_back = 1;
      continue;
    }
    loan->left.assign(loan->at, loan->at + loan->bytes);
    if (alive) {
      loan->taken_back = world_.is(Mutant::loans_without_end) ? 0 : 1;
      for (std::byte& b : loan->left) b ^= std::byte{0x5a};
    }
    loan->at = loan->left.data();
  }
}

void SimTransport::close_all() {
  end_loans(true);
  network_.end_relays(this, false);
  for (auto& l : links_) {
    if (!l->wire) continue;
    Wire& wire = *l->wire;
    for (std::size_t s = 0; s < l->streams.size() && world_.is(Mutant::accept_old_generation); ++s) {
      Wire::Lane& lane = wire.lanes[1 - l->side][s];
      auto& kept = network_.stale[{l->group, l->peer, members_->self, static_cast<std::uint16_t>(s)}];
      for (auto* frames : {&lane.inbox, &lane.flying}) {
        for (Frame& frame : *frames) {
          if (kept.size() < 4) kept.push_back(std::move(frame));
        }
        frames->clear();
      }
    }
    wire.ends[l->side].transport = nullptr;
    const Wire::End peer = wire.ends[1 - l->side];
    if (peer.transport == nullptr) {
      wire.dead = true;
    } else if (!wire.dead) {
      Micros when = world_.now_us() + network_.latency_us();
      for (const Wire::Lane& lane : wire.lanes[l->side]) when = std::max(when, lane.last_arrival_us + 1);
      // Closed with bytes unread: the kernel resets the connection, and what is on its way is lost.
      if (world_.random.chance(0.3)) wire.dead = true;
      peer.transport->later(when - world_.now_us(),
                            [transport = peer.transport, link = peer.link] { transport->on_closed_by_peer(link); });
    }
  }
  ++use_;
  links_.clear();
  by_name_.clear();
  completed_.clear();
  held_.clear();
  held_looked_at_ = 0;
  members_.reset();
}

void SimTransport::vanish(bool silently) {
  end_loans(false);
  if (silently) {
    network_.end_relays(this, true);
    for (auto& l : links_) {
      if (!l->wire) continue;
      l->wire->dead = true;
      l->wire->ends[l->side].transport = nullptr;
    }
  }
  close_all();
  network_.detach(self_, silently);
}

}  // namespace warren::chaos
