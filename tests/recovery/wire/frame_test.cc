#include "recovery/wire/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "recovery/base/limits.h"

namespace warren {
namespace {

FrameHeader header() {
  FrameHeader h;
  h.kind = FrameKind::kCollective;
  h.stream = 3;
  h.generation = Generation(0x0102030405060708);
  h.round = {Timeline(2), GroupId(0xabc), Version(5), Sequence(17)};
  h.message = 9;
  h.fingerprint = {Collective::kReduce, DataType::kF32, ReduceOp::kMax, 4, 7, 1024, 11, 0x5f3a210000001234};
  h.payload_bytes = 4096;
  h.header_checksum = 0xa1b2c3d4;
  h.checksum = 0x1122334455667788;
  return h;
}

FrameBytes bytes_of(const FrameHeader& h) {
  FrameBytes bytes;
  encode(h, bytes);
  return bytes;
}

TEST(Frame, TheWireIsTheOneThatIsDocumented) {
  const unsigned char expected[96] = {
      'W',  'R',  'R',  'N',  1,    1,    3,    0,     // magic, version, kind, stream
      8,    7,    6,    5,    4,    3,    2,    1,     // generation
      0xbc, 0x0a, 0,    0,    0,    0,    0,    0,     // group
      5,    0,    0,    0,    0,    0,    0,    0,     // version
      17,   0,    0,    0,    0,    0,    0,    0,     // sequence
      2,    0,    0,    0,    9,    0,    0,    0,     // timeline, message
      2,    9,    4,    4,    7,    0,    0,    0,     // collective, type, op, algorithm, root
      0,    4,    0,    0,    0,    0,    0,    0,     // count
      11,   0,    0,    0,    0,    0,    0,    0,     // shape
      0x34, 0x12, 0,    0,    0,    0x21, 0x3a, 0x5f,  // site
      0,    0x10, 0,    0,    0xd4, 0xc3, 0xb2, 0xa1,  // payload bytes, header's checksum
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // checksum
  };
  const FrameBytes bytes = bytes_of(header());
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(Frame, AHeaderComesBackAsItWas) {
  const auto decoded = decode(bytes_of(header()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().describe();
  const FrameHeader& h = decoded.value();
  EXPECT_TRUE(match(header(), h).ok());
  EXPECT_EQ(h.checksum, header().checksum);
  EXPECT_EQ(h.fingerprint, header().fingerprint);
  EXPECT_EQ(bytes_of(h), bytes_of(header()));
}

TEST(Frame, WrongFieldsAreRefusedWithAReason) {
  const auto refusal = [](std::size_t at, int value) {
    FrameBytes bytes = bytes_of(header());
    bytes[at] = static_cast<std::byte>(value);
    const auto decoded = decode(bytes);
    return decoded.ok() ? "accepted"
                        : std::string(to_string(decoded.status().code())) + ": " + decoded.status().describe();
  };
  EXPECT_EQ(refusal(0, 'X'), "corrupt: frame does not start with Warren's magic number");
  EXPECT_EQ(refusal(4, 2), "refused: frame format 2, this build speaks 1");
  EXPECT_EQ(refusal(5, 0), "corrupt: unknown frame kind 0");
  EXPECT_EQ(refusal(5, 3), "corrupt: unknown frame kind 3");
  EXPECT_EQ(refusal(6, 16), "corrupt: stream 16 is over the limit");
  EXPECT_EQ(refusal(48, 0), "corrupt: unknown collective 0");
  EXPECT_EQ(refusal(48, 14), "corrupt: unknown collective 14");
  EXPECT_EQ(refusal(49, 0), "corrupt: unknown type 0");
  EXPECT_EQ(refusal(49, 18), "corrupt: unknown type 18");
  EXPECT_EQ(refusal(50, 10), "corrupt: unknown operation 10");
  EXPECT_EQ(refusal(83, 1), "corrupt: payload of 16781312 bytes is over the limit of 4194304");
}

TEST(Frame, RandomBytesAreRefusedOrEncodeToThemselves) {
  std::mt19937_64 random(7);
  std::size_t accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    FrameBytes bytes = bytes_of(header());
    for (std::uint64_t n = random() % 6; n > 0; --n) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto decoded = decode(bytes);
    if (!decoded.ok()) continue;
    ++accepted;
    ASSERT_EQ(bytes_of(decoded.value()), bytes);
  }
  EXPECT_GT(accepted, 1000U);
}

TEST(Frame, WhatIsNotWaitedForIsNamed) {
  const auto mismatch = [](auto change) {
    FrameHeader got = header();
    change(got);
    const Status s = match(header(), got);
    return s.ok() ? "matches" : std::string(to_string(s.code())) + ": " + s.describe();
  };
  EXPECT_EQ(mismatch([](auto&) {}), "matches");
  EXPECT_EQ(mismatch([](auto& h) { h.checksum = 0; }), "matches");
  EXPECT_EQ(mismatch([](auto& h) { h.generation = Generation(4); }),
            "corrupt: frame of generation 4 on a link of generation 72623859790382856");
  EXPECT_EQ(mismatch([](auto& h) { h.stream = 1; }), "corrupt: frame belongs to another link");
  EXPECT_EQ(mismatch([](auto& h) { h.kind = FrameKind::kPoint; }), "corrupt: frame belongs to another link");
  EXPECT_EQ(mismatch([](auto& h) { h.message = 8; }),
            "corrupt: message 8 came where 9 was due in round 4.17 of group abc on timeline 2");
  EXPECT_EQ(mismatch([](auto& h) { h.payload_bytes = 1; }),
            "corrupt: chunk of 1 bytes where 4096 were due in round 4.17 of group abc on timeline 2");
  const std::string round = "round 4.17 of group abc on timeline 2";
  const std::string call = "reduce(f32, max, count 1024, root 7, hash of parts b) at 5f3a21+0x1234";
  const std::string why = ": one of the two ranks has made other calls, or other checkpoints, before it";
  // Each thing once: what differs.
  EXPECT_EQ(
      mismatch([](auto& h) { h.round.sequence = Sequence(18); }),
      "desync: here " + call + " is " + round + ", there the same call is round 4.18 of group abc on timeline 2" + why);
  EXPECT_EQ(
      mismatch([](auto& h) { h.round.group = GroupId(1); }),
      "desync: here " + call + " is " + round + ", there the same call is round 4.17 of group 1 on timeline 2" + why);
  EXPECT_EQ(mismatch([](auto& h) { h.fingerprint.count = 1000; }),
            "desync: here " + call + ", there reduce(f32, max, count 1000, root 7, hash of parts b) at 5f3a21+0x1234");
  EXPECT_EQ(
      mismatch([](auto& h) {
        h.fingerprint.collective = Collective::kBroadcast;
        h.fingerprint.op = ReduceOp::kNone;
        h.fingerprint.algorithm = 2;
        h.round.sequence = Sequence(18);
      }),
      "desync: here " + call + " as " + round +
          ", there broadcast(f32, count 1024, root 7, hash of parts b) at 5f3a21+0x1234 as round 4.18 of group abc on "
          "timeline 2");
  EXPECT_EQ(mismatch([](auto& h) { h.fingerprint.algorithm = 2; }),
            "desync: here reduce(f32, max, count 1024, root 7, hash of parts b, ring) at 5f3a21+0x1234, there "
            "reduce(f32, max, "
            "count 1024, root 7, hash of parts b, tree) at 5f3a21+0x1234");
  EXPECT_THAT(mismatch([](auto& h) { h.fingerprint.algorithm = 200; }), ::testing::HasSubstr(", algorithm 200)"));
  EXPECT_EQ(mismatch([](auto& h) { h.fingerprint.site = 0; }), "matches");
  EXPECT_EQ(mismatch([](auto& h) { h.fingerprint.site = 0x77; }), "matches");  // not compared
}

TEST(Frame, FingerprintsAgreeOnEverythingButSitesThatAreNotCompared) {
  Fingerprint f = header().fingerprint;
  f.site |= kSiteCompared;
  const auto agrees = [&](auto change) {
    Fingerprint g = f;
    change(g);
    EXPECT_EQ(agree(f, g), agree(g, f));
    return agree(f, g);
  };
  EXPECT_TRUE(agrees([](auto&) {}));
  EXPECT_TRUE(agrees([](auto& g) { g.site = 0; }));
  EXPECT_TRUE(agrees([](auto& g) { g.site = 1; }));
  EXPECT_FALSE(agrees([](auto& g) { g.site = 1 | kSiteCompared; }));
  EXPECT_FALSE(agrees([](auto& g) { g.collective = Collective::kAllreduce; }));
  EXPECT_FALSE(agrees([](auto& g) { g.type = DataType::kF64; }));
  EXPECT_FALSE(agrees([](auto& g) { g.op = ReduceOp::kMin; }));
  EXPECT_FALSE(agrees([](auto& g) { g.algorithm = 1; }));
  EXPECT_FALSE(agrees([](auto& g) { g.root = 0; }));
  EXPECT_FALSE(agrees([](auto& g) { g.count = 0; }));
  EXPECT_FALSE(agrees([](auto& g) { g.shape = 0; }));
}

TEST(Frame, CallsReadAsPeopleWriteThem) {
  EXPECT_EQ(to_string(Fingerprint{Collective::kBarrier, DataType::kU8, ReduceOp::kNone, 0, -1, 0, 0, 0}),
            "barrier(u8, count 0)");
  EXPECT_EQ(to_string(Fingerprint{Collective::kAllgatherv, DataType::kF32, ReduceOp::kNone, 0, -1, 5, 0x2b, 0}),
            "allgatherv(f32, count 5, hash of counts 2b)");
  EXPECT_EQ(to_string(Fingerprint{Collective::kAllreduce, DataType::kCustom, ReduceOp::kCustom, 0, -1, 5, 16, 0}),
            "allreduce(custom, custom, count 5, elements of 16 bytes)");
  EXPECT_EQ(to_string(Fingerprint{Collective::kPoint, DataType::kI64, ReduceOp::kNone, 0, 5, 2, 0, 0}),
            "send/recv(i64, count 2, tag 5)");
  EXPECT_EQ(to_string(Fingerprint{Collective::kAllToAllv, DataType::kI64, ReduceOp::kNone, 0, -1, 0, 0, 0}),
            "all_to_allv(i64, its counts)");
}

TEST(Frame, EveryEnumeratorHasANameAndEveryTypeItsSize) {
  for (int i = 1; i <= static_cast<int>(kLastDataType); ++i) {
    EXPECT_STRNE(to_string(static_cast<DataType>(i)), "unknown");
  }
  for (int i = 1; i <= static_cast<int>(kLastCollective); ++i) {
    EXPECT_STRNE(to_string(static_cast<Collective>(i)), "unknown");
    if (i <= 10) {
      EXPECT_STRNE(to_string(static_cast<ReduceOp>(i - 1)), "unknown");
    }
  }
  const std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 0, 2, 2, 260, 2, 2, 1};
  for (int i = 1; i <= static_cast<int>(kLastDataType); ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(element_bytes(type), sizes[i - 1]);
    EXPECT_EQ(element_values(type), type == DataType::kF32AsI8 ? 256u : 1u);
  }
  EXPECT_STREQ(to_string(static_cast<Collective>(99)), "unknown");
}

}  // namespace
}  // namespace warren
