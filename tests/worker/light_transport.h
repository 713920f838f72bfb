// A transport whose frames the test holds in its hands: taken at once as far as it allows, posted otherwise.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "worker/transport/round_transport.h"

namespace warren::worker::testing {

// The link to a rank has its number.
class LightTransport final : public RoundTransport {
 public:
  using Frame = std::vector<std::byte>;

  LinkId link(GroupId, Rank peer) override { return static_cast<LinkId>(peer.value); }
  Now send_now(LinkId link, FrameHeader&, std::span<const std::byte> payload, Token token) override {
    if (moved_ == frames_now) {
      if (!posts_next_send) return Now::kPost;
      sends_.push_back({link, payload, token});
      return Now::kPosted;
    }
    moved_++;
    sent[link].emplace_back(payload.begin(), payload.end());
    return Now::kDone;
  }
  Now recv_now(LinkId link, FrameHeader&, std::span<std::byte> payload) override {
    if (moved_ == frames_now) return broken.ok() ? Now::kLater : Now::kPost;
    if (inbox[link].empty()) return Now::kLater;
    moved_++;
    take(link, payload);
    return Now::kDone;
  }
  void post_send(LinkId link, const FrameHeader&, const Payload& payload, Token token) override {
    posts++;
    sends_.push_back({link, payload.bytes, token});
  }
  void post_recv(LinkId link, const FrameHeader&, std::span<std::byte> payload, Token token) override {
    posts++;
    recvs_.push_back({link, payload, token});
  }
  void post_recv_in_place(LinkId link, const FrameHeader& h, std::span<std::byte> payload, Token token) override {
    post_recv(link, h, payload, token);
  }
  void release(LinkId, const View&) override { FAIL() << "nothing is read in place"; }
  [[nodiscard]] bool lends(GroupId, Rank, const std::byte*) const override { return false; }
  // The next completion of what is posted.
  std::optional<Completion> next() {
    for (auto r = recvs_.begin(); r != recvs_.end(); ++r) {
      if (broken.ok() && inbox[r->link].empty()) continue;
      if (broken.ok()) take(r->link, r->payload);
      const Completion c{r->token, broken};
      recvs_.erase(r);
      return c;
    }
    if (sends_.empty()) return std::nullopt;
    const Sending s = sends_.front();
    sends_.pop_front();
    if (broken.ok()) sent[s.link].emplace_back(s.payload.begin(), s.payload.end());
    return Completion{s.token, broken};
  }
  void move_payloads(LinkId link, Token token, std::span<const std::byte> from, const std::byte* to) override {
    for (Sending& s : sends_) {
      if (s.link != link || s.token != token || s.payload.data() < from.data()) continue;
      s.payload = {to + (s.payload.data() - from.data()), s.payload.size()};
    }
  }
  std::size_t poll(std::span<Completion>) override { return 0; }
  void collect_pollfds(std::vector<pollfd>&) override {}
  void close_all() override {}

  std::size_t frames_now = SIZE_MAX;  // that move at once
  bool posts_next_send = false;       // the one after those leaves in part
  Status broken;
  std::size_t posts = 0;
  std::map<LinkId, std::deque<Frame>> inbox;
  std::map<LinkId, std::vector<Frame>> sent;

 private:
  struct Sending {
    LinkId link;
    std::span<const std::byte> payload;
    Token token;
  };
  struct Receiving {
    LinkId link;
    std::span<std::byte> payload;
    Token token;
  };
  void take(LinkId link, std::span<std::byte> payload) {
    const Frame frame = inbox[link].front();
    inbox[link].pop_front();
    ASSERT_EQ(frame.size(), payload.size());
    std::memcpy(payload.data(), frame.data(), frame.size());
  }
  std::size_t moved_ = 0;
  std::deque<Sending> sends_;
  std::deque<Receiving> recvs_;
};

}  // namespace warren::worker::testing
