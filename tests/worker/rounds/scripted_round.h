// A transport, a log and a program's buffers that do what a test of one executor says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "worker/rounds/executor.h"
#include "worker/transport/round_transport.h"

namespace warren::worker {

inline constexpr std::uint64_t kCount = 64;

// Takes everything, and completes what the test says.
class Scripted final : public RoundTransport {
 public:
  struct Receive {
    std::span<std::byte> payload;
    bool in_place = false;
    Token token = 0;
  };
  LinkId link(GroupId, Rank) override { return 0; }
  void post_send(LinkId, const FrameHeader&, const Payload& payload, Token token) override {
    sends.push_back(token);
    places.push_back(payload.logged);
    if (payload.logged.known()) {
      logged.push_back(payload.bytes);
    } else if (payload.lent) {
      lent.push_back(payload.bytes);
    } else {
      plain[token] = payload.bytes;
    }
    if (payload.made.at != nullptr) numbers.push_back(payload.made.number);
  }
  void post_recv(LinkId, const FrameHeader&, std::span<std::byte> payload, Token token) override {
    receives.push_back({payload, false, token});
  }
  void post_recv_in_place(LinkId, const FrameHeader&, std::span<std::byte> payload, Token token) override {
    receives.push_back({payload, true, token});
  }
  void release(LinkId, const View& view) override { released.push_back(view.held); }
  [[nodiscard]] bool lends(GroupId, Rank, const std::byte*) const override { return false; }
  Now send_now(LinkId, FrameHeader&, std::span<const std::byte>, Token) override { return Now::kPost; }
  Now recv_now(LinkId, FrameHeader&, std::span<std::byte>) override { return Now::kPost; }
  void move_payloads(LinkId, Token, std::span<const std::byte>, const std::byte*) override {}
  std::size_t poll(std::span<Completion>) override { return 0; }
  void collect_pollfds(std::vector<pollfd>&) override {}
  void close_all() override {}

  std::vector<Token> sends;
  std::vector<std::uint64_t> numbers;  // of what is on the GPU, too
  std::vector<LogPlace> places;        // of the sends
  std::vector<std::span<const std::byte>> lent, logged;
  std::map<Token, std::span<const std::byte>> plain;
  std::vector<Receive> receives;
  std::vector<const std::byte* const*> released;
};

class ScriptedLog final : public Publisher {
 public:
  Status publish(std::uint64_t first, std::uint64_t count, const std::byte*, LogPlace& place) override {
    place = {1, 2, 1000 + first};
    pieces.emplace_back(first, count);
    return {};
  }
  [[nodiscard]] std::uint64_t newest() const override { return slow ? pieces.size() : 0; }
  [[nodiscard]] bool may_be_seen(std::uint64_t number) const override { return number <= seen; }
  std::span<std::byte> room(std::uint64_t count) override {
    return std::as_writable_bytes(std::span(here).first(has_room ? count : 0));
  }
  void publish_room(std::uint64_t first, std::uint64_t count, LogPlace& place) override {
    place = {1, 2, 2000 + first};
    pieces.emplace_back(first, count);
    published.assign(here.begin(), here.begin() + static_cast<std::ptrdiff_t>(count));
  }
  bool has_room = false;
  std::vector<std::int64_t> here = std::vector<std::int64_t>(kCount), published;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;
  bool slow = false;       // what is published may be seen later
  std::uint64_t seen = 0;  // so much of it
};

// Hears what stands in the output, and brings finals past it where the test says so.
class Bringer final : public Landing {
 public:
  struct Piece {
    std::uint64_t at = 0, count = 0, number = 0;
  };
  void landed(std::uint64_t at, std::uint64_t count) override { landed_pieces.push_back({at, count, 0}); }
  bool bring(std::uint64_t at, std::uint64_t count, const std::shared_ptr<const FinalOnGpu>&,
             std::uint64_t number) override {
    if (brings) begun.push_back({at, count, number});
    return brings;
  }
  bool brings = false;
  std::vector<Piece> landed_pieces, begun;
};

}  // namespace warren::worker
