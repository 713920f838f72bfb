#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/fetch_codec.h"
#include "tests/worker/replay/net.h"
#include "worker/replay/replayer.h"

namespace warren::worker::replaytest {
namespace {

wire::FetchRequest request_of(const RecordKey& key) {
  wire::FetchRequest r;
  r.set_protocol(kProtocolVersion);
  r.set_sender(11);
  r.set_receiver(12);
  r.set_generation(3);
  r.set_id(5);
  r.set_kind(static_cast<std::uint32_t>(key.kind));
  r.set_timeline(key.round.timeline.value);
  r.set_group(key.round.group.value);
  r.set_version(key.round.version.value);
  return r;
}

wire::FetchRequest listing_of(const RecordKey& first, std::uint64_t end, std::uint64_t ranges) {
  wire::FetchRequest r = request_of(first);
  r.set_first_sequence(first.round.sequence.value);
  r.set_end_sequence(end);
  r.set_most_ranges(ranges);
  return r;
}

void add_piece(std::uint64_t sequence, std::uint64_t begin, std::uint64_t end, wire::FetchRequest& r) {
  auto* p = r.add_pieces();
  p->set_sequence(sequence);
  p->set_begin(begin);
  p->set_end(end);
}

// What is answered is always what the other side accepts, and within its limits.
wire::FetchReply answer(const wire::FetchRequest& request, HostLogReader& reader) {
  EXPECT_TRUE(validate(request).ok()) << validate(request).describe();
  const wire::FetchReply reply = Replayer::answer(request, reader);
  const Status valid = validate(reply, Payloads::kInside);
  EXPECT_TRUE(valid.ok()) << valid.describe();
  EXPECT_LE(reply.ByteSizeLong(), limits::kMaxFetchReplyBytes);
  EXPECT_EQ(reply.sender(), 12U);
  EXPECT_EQ(reply.receiver(), 11U);
  EXPECT_EQ(reply.generation(), 3U);
  EXPECT_EQ(reply.id(), 5U);
  return reply;
}

TEST(Answer, ListsByPages) {
  Net net({}, 1, std::size_t{16} << 20);
  const RecordKey first = round_key(0);
  constexpr std::uint64_t kRounds = 5000;
  for (std::uint64_t s = 0; s < kRounds; ++s) {
    net.life(0).publish(round_key(s * 2), 100, 0, 10);
    net.life(0).publish(round_key(s * 2), 100, 20, 30);
  }
  wire::FetchRequest request = listing_of(first, 2 * kRounds, 1001);
  std::map<std::uint64_t, Ranges> seen;
  int pages = 0;
  while (request.first_sequence() < request.end_sequence()) {
    const auto reply = answer(request, *net.life(0).reader);
    for (const auto& e : reply.entries()) {
      EXPECT_EQ(e.total_bytes(), 100U);
      EXPECT_EQ(fingerprint_of(e), info_of(100).fingerprint);
      for (const auto& r : e.held()) seen[e.sequence()].add(r.begin(), r.end());
    }
    ASSERT_GT(std::pair(reply.next_sequence(), reply.next_begin()),
              std::pair(request.first_sequence(), request.begin()));
    request.set_first_sequence(reply.next_sequence());
    request.set_begin(reply.next_begin());
    ++pages;
  }
  EXPECT_EQ(pages, 10);
  ASSERT_EQ(seen.size(), kRounds);
  Ranges expected(0, 10);
  expected.add(20, 30);
  for (const auto& [sequence, held] : seen) EXPECT_EQ(held, expected) << sequence;
}

TEST(Answer, NeverMoreEntriesThanTheLimit) {
  Net net({}, 1, std::size_t{4} << 20);
  for (std::uint64_t s = 0; s < limits::kMaxFetchEntries + 10; ++s) net.life(0).publish(round_key(s), 0);
  const auto reply = answer(listing_of(round_key(0), 1'000'000, 1), *net.life(0).reader);
  EXPECT_EQ(static_cast<std::size_t>(reply.entries_size()), limits::kMaxFetchEntries);
  EXPECT_EQ(reply.next_sequence(), limits::kMaxFetchEntries);
  const auto rest = answer(listing_of(round_key(limits::kMaxFetchEntries), 1'000'000, 1), *net.life(0).reader);
  EXPECT_EQ(rest.entries_size(), 10);
  EXPECT_EQ(rest.next_sequence(), 1'000'000U);
}

TEST(Answer, SendsThePiecesThatItHolds) {
  Net net({});
  net.life(0).publish(round_key(1), 1000, 0, 400);
  net.life(0).publish(round_key(1), 1000, 600, 1000);
  net.life(0).publish(round_key(3), 50);
  wire::FetchRequest request = request_of(round_key(0));
  request.set_most_bytes(10'000);
  add_piece(1, 100, 300, request);
  add_piece(1, 350, 700, request);
  add_piece(2, 0, 10, request);
  add_piece(3, 40, 90, request);
  const auto reply = answer(request, *net.life(0).reader);
  EXPECT_TRUE(reply.data());
  ASSERT_EQ(reply.entries_size(), 2);
  ASSERT_EQ(reply.entries(0).held_size(), 3);
  EXPECT_EQ(reply.entries(0).held(1).begin(), 350U);
  EXPECT_EQ(reply.entries(0).held(1).end(), 400U);
  std::string expected;
  for (const auto& [begin, end] : {std::pair{100, 300}, {350, 400}, {600, 700}}) {
    for (int at = begin; at < end; ++at) expected += static_cast<char>(byte_of(round_key(1), at));
  }
  EXPECT_EQ(reply.entries(0).payload(), expected);
  EXPECT_EQ(reply.entries(1).payload().size(), 10U);
  EXPECT_EQ(std::pair(reply.next_sequence(), reply.next_begin()), std::pair(std::uint64_t{4}, std::uint64_t{0}));

  const auto apart = Replayer::answer_apart(request, *net.life(0).reader);
  EXPECT_TRUE(validate(apart.reply, Payloads::kApart).ok());
  EXPECT_EQ(apart.payload_bytes, range_bytes(apart.reply));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(apart.payloads.get()), apart.payload_bytes),
            reply.entries(0).payload() + reply.entries(1).payload());
}

TEST(Answer, StopsWhereTheBytesEnd) {
  Net net({});
  net.life(0).publish(round_key(1), 1000);
  net.life(0).publish(round_key(2), 1000);
  wire::FetchRequest request = request_of(round_key(0));
  add_piece(1, 0, 1000, request);
  add_piece(2, 100, 1000, request);
  for (const std::uint64_t most : {1, 999, 1000, 1001, 1899, 1900}) {
    request.set_most_bytes(most);
    const auto reply = answer(request, *net.life(0).reader);
    EXPECT_EQ(range_bytes(reply), most);
    const std::pair next(reply.next_sequence(), reply.next_begin());
    std::pair<std::uint64_t, std::uint64_t> expected{1, most};
    if (most >= 1000) expected = {2, most - 900};
    if (most == 1900) expected = {3, 0};
    EXPECT_EQ(next, expected);
  }
}

TEST(Answer, IsWithinItsLimitWhateverIsAsked) {
  Net net({}, 1, std::size_t{32} << 20);
  constexpr std::uint64_t kBytes = std::uint64_t{20} << 20;
  net.life(0).publish(round_key(1), kBytes);
  wire::FetchRequest request = request_of(round_key(0));
  request.set_most_bytes(limits::kMaxFetchPayloadBytes);
  add_piece(1, 0, kBytes, request);
  const auto reply = answer(request, *net.life(0).reader);
  EXPECT_EQ(range_bytes(reply), limits::kMaxFetchPayloadBytes);
  EXPECT_EQ(reply.next_begin(), limits::kMaxFetchPayloadBytes);
}

}  // namespace
}  // namespace warren::worker::replaytest
