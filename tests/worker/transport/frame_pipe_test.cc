#include "worker/transport/frame_pipe.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace warren::worker {
namespace {

using Put = FramePipe::Put;
using Taken = FramePipe::Taken;
using Now = FramesAtOnce::Now;

class FramePipes : public ::testing::Test {
 protected:
  void SetUp() override {
    const OwnedFd memory = std::move(HostPipe::create(HostPipe::kLeastRingBytes)).value();
    to_ = std::make_unique<FramePipe>(std::move(HostPipe::map(memory.get(), true)).value());
    from_ = std::make_unique<FramePipe>(std::move(HostPipe::map(memory.get(), false)).value());
  }
  static std::vector<std::byte> bytes(std::size_t size) {
    std::vector<std::byte> values(size);
    for (std::size_t i = 0; i < size; i++) values[i] = static_cast<std::byte>(i * 31 + 7);
    return values;
  }
  static FrameHeader header(std::uint64_t sequence, std::size_t size) {
    FrameHeader h;
    h.kind = FrameKind::kCollective;
    h.generation = Generation(1);
    h.round = {Timeline(0), kWorldGroup, Version(2), Sequence(sequence)};
    h.fingerprint.collective = Collective::kAllreduce;
    h.fingerprint.type = DataType::kU8;
    h.fingerprint.op = ReduceOp::kSum;
    h.payload_bytes = static_cast<std::uint32_t>(size);
    return h;
  }
  // Moves a frame that is posted at both ends; how its receiver ended.
  Taken move(Outgoing out, const Incoming& in, View& view) {
    bool gone = false;
    for (int step = 0; step < 1000; step++) {
      if (!gone) gone = to_->put(out) == Put::kFrame;
      const Taken taken = from_->take(in, view);
      if (taken != Taken::kNothing && taken != Taken::kPiece) return taken;
    }
    return Taken::kNothing;
  }
  std::unique_ptr<FramePipe> to_, from_;
};

TEST_F(FramePipes, AFrameThatIsLargerThanTheRingGoesInPieces) {
  const auto sent = bytes(3 * HostPipe::kLeastRingBytes + 5);
  std::vector<std::byte> came(sent.size());
  View view;
  ASSERT_EQ(move({header(1, sent.size()), sent, {}, {}, 1}, {header(1, sent.size()), came, true, 2}, view),
            Taken::kFrame);
  EXPECT_FALSE(view.in_place()) << "so long a one cannot be held";
  EXPECT_EQ(came, sent);
}

TEST_F(FramePipes, AFrameThatFitsIsReadWhereItLies) {
  const auto sent = bytes(8192);
  std::vector<std::byte> buffer(sent.size());
  View view;
  ASSERT_EQ(move({header(1, sent.size()), sent, {}, {}, 1}, {header(1, sent.size()), buffer, true, 2}, view),
            Taken::kFrame);
  ASSERT_NE(view.held, nullptr);
  EXPECT_EQ(std::memcmp(view.bytes(), sent.data(), sent.size()), 0);
  EXPECT_TRUE(from_->release(view));
  EXPECT_FALSE(from_->release(view)) << "it is released already";
}

TEST_F(FramePipes, FramesThatAreReadWhereTheyLieMoveToTheirBuffersWhenNothingElseFits) {
  const auto sent = bytes(16384);
  std::vector<std::vector<std::byte>> buffers(4, std::vector<std::byte>(sent.size()));
  std::vector<View> views(3);
  for (std::uint64_t i = 0; i < 3; i++) {
    ASSERT_EQ(move({header(i, sent.size()), sent, {}, {}, i}, {header(i, sent.size()), buffers[i], true, i}, views[i]),
              Taken::kFrame);
    ASSERT_NE(views[i].held, nullptr) << i;
  }
  // The writer fills the rest of the ring, and sleeps until there is room.
  Outgoing out{header(3, sent.size()), sent, {}, {}, 3};
  while (to_->put(out) == Put::kPiece) {
  }
  to_->pipe().will_wait_to_write();
  const Incoming in{header(3, sent.size()), buffers[3], false, 3};
  View view;
  Taken taken = Taken::kPiece;
  while (taken == Taken::kPiece) taken = from_->take(in, view);
  ASSERT_EQ(taken, Taken::kNothing);
  EXPECT_TRUE(from_->must_wake_writer()) << "payloads have moved out of its way";
  EXPECT_FALSE(from_->must_wake_writer()) << "it is told once";
  ASSERT_EQ(move(out, in, view), Taken::kFrame);
  EXPECT_EQ(buffers[3], sent);
  for (std::size_t i = 0; i < 3; i++) {
    EXPECT_EQ(std::memcmp(views[i].bytes(), sent.data(), sent.size()), 0) << i;
    EXPECT_TRUE(from_->release(views[i]));
  }
}

TEST_F(FramePipes, AFrameThatIsNotDueIsRefusedAndStays) {
  const auto sent = bytes(100);
  std::vector<std::byte> came(sent.size());
  Outgoing out{header(5, sent.size()), sent, {}, {}, 1};
  from_->pipe().will_wait_to_read();
  ASSERT_EQ(to_->put(out), Put::kFrame);
  EXPECT_TRUE(to_->must_wake_reader());
  View view;
  EXPECT_EQ(from_->take({header(6, sent.size()), came, false, 2}, view), Taken::kRefused);
  EXPECT_FALSE(from_->refusal().ok());
  EXPECT_EQ(from_->recv_now(header(6, sent.size()), came), Now::kPost);
  EXPECT_EQ(from_->take({header(5, sent.size()), came, false, 2}, view), Taken::kFrame);
  EXPECT_EQ(came, sent);
}

// The second frame of a kind is a note, and a note of another round is refused like any frame.
TEST_F(FramePipes, ANoteIsCheckedLikeAnyFrame) {
  const auto sent = bytes(64);
  std::vector<std::byte> came(sent.size());
  ASSERT_EQ(to_->send_now(header(1, sent.size()), sent), Now::kDone);
  ASSERT_EQ(from_->recv_now(header(1, sent.size()), came), Now::kDone);
  ASSERT_EQ(to_->send_now(header(2, sent.size()), sent), Now::kDone);
  ASSERT_FALSE(from_->pipe().note().empty());
  EXPECT_EQ(from_->recv_now(header(3, sent.size()), came), Now::kPost);
  View view;
  EXPECT_EQ(from_->take({header(3, sent.size()), came, false, 2}, view), Taken::kRefused);
  came.assign(sent.size(), std::byte{});
  EXPECT_EQ(from_->recv_now(header(2, sent.size()), came), Now::kDone);
  EXPECT_EQ(came, sent);
}

TEST_F(FramePipes, APayloadThatIsToldStaysWithItsSenderUntilItsHeadIsTaken) {
  const auto sent = bytes(8192), next = bytes(10);
  std::vector<std::byte> came(sent.size());
  Outgoing told{header(1, sent.size()), sent, {}, {3, 4096}, 1};
  Outgoing after{header(2, next.size()), next, {}, {}, 2};
  ASSERT_EQ(to_->put(told), Put::kFrame);
  ASSERT_EQ(to_->put(after), Put::kFrame);
  View view;
  const Incoming in{header(1, sent.size()), came, true, 1};
  ASSERT_EQ(from_->take(in, view), Taken::kTold);
  EXPECT_FALSE(from_->told().logged.known());
  EXPECT_EQ(from_->told().memory.memory, 3u);
  EXPECT_EQ(from_->told().memory.at, 4096u);
  ASSERT_EQ(from_->take(in, view), Taken::kTold) << "until the head is taken";
  from_->take_head();
  came.resize(next.size());
  ASSERT_EQ(from_->take({header(2, next.size()), came, true, 2}, view), Taken::kFrame);
  EXPECT_EQ(came, next);
}

}  // namespace
}  // namespace warren::worker
