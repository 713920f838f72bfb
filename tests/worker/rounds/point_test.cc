// Messages at once over a transport that the test holds in its hands.
#include "worker/rounds/point.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "tests/worker/light_transport.h"

namespace warren::worker {
namespace {

constexpr std::size_t kPayloadAt = 56;  // in an announcement

CallSpec send_of(std::vector<std::int32_t>& v) {
  CallSpec spec;
  spec.collective = Collective::kPoint;
  spec.type = DataType::kI32;
  spec.input = v.data();
  spec.count = v.size();
  spec.root = 1;
  spec.sends = true;
  return spec;
}

std::int32_t first_value(const testing::LightTransport::Frame& frame) {
  std::int32_t value = 0;
  std::memcpy(&value, frame.data() + kPayloadAt, sizeof value);
  return value;
}

// Without a log only the frame itself has the message.
TEST(Point, AMessageThatLeavesInPartOutlivesItsBuffer) {
  testing::LightTransport transport;
  RoundBoard board;
  board.open_links(2);
  PointChannels points(transport, transport, kWorldGroup, 0, {Rank(0), Rank(1)}, 0, 1, 4096, nullptr, Version(1),
                       board);
  points.open(Generation(1), Timeline(0), false);
  std::vector<std::int32_t> out = {1, 2};
  EXPECT_FALSE(points.run_at_once(send_of(out), 0)) << "no link is there";
  Call first;
  first.spec = send_of(out);
  ASSERT_TRUE(points.send(first).ok());
  const auto sent = transport.next();
  ASSERT_TRUE(sent);
  points.on_completion(sent->token, sent->status);
  ASSERT_EQ(std::exchange(points.finished(), {}).size(), 1u);

  transport.frames_now = 0;
  EXPECT_FALSE(points.run_at_once(send_of(out), 0)) << "the link takes nothing";
  EXPECT_FALSE(points.unsettled());
  transport.posts_next_send = true;
  out = {3, 4};
  ASSERT_TRUE(points.run_at_once(send_of(out), 0));
  EXPECT_TRUE(points.unsettled());
  out = {9, 9};
  EXPECT_FALSE(points.run_at_once(send_of(out), 0)) << "it would overtake the one before";
  const auto rest = transport.next();
  ASSERT_TRUE(rest);
  points.on_completion(rest->token, rest->status);
  EXPECT_FALSE(points.unsettled());
  EXPECT_TRUE(points.finished().empty());
  const auto& frames = transport.sent.at(1);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(first_value(frames[0]), 1);
  EXPECT_EQ(first_value(frames[1]), 3);
}

}  // namespace
}  // namespace warren::worker
