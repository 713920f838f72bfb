#include "recovery/wire/fetch_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"

namespace warren {
namespace {

using testing::HasSubstr;

template <class Message>
void set_head(Message& m) {
  m.set_protocol(kProtocolVersion);
  m.set_sender(11);
  m.set_receiver(12);
  m.set_generation(3);
  m.set_id(5);
}

wire::FetchRequest listing() {
  wire::FetchRequest r;
  set_head(r);
  r.set_kind(1);
  r.set_timeline(2);
  r.set_version(4);
  r.set_first_sequence(10);
  r.set_end_sequence(20);
  r.set_begin(7);
  r.set_most_ranges(100);
  return r;
}

void add_piece(wire::FetchRequest& r, std::uint64_t sequence, std::uint64_t begin, std::uint64_t end) {
  auto* p = r.add_pieces();
  p->set_sequence(sequence);
  p->set_begin(begin);
  p->set_end(end);
}

wire::FetchRequest pieces() {
  wire::FetchRequest r;
  set_head(r);
  r.set_kind(5);
  r.set_most_bytes(1000);
  add_piece(r, 3, 100, 200);
  add_piece(r, 3, 200, 300);
  add_piece(r, 4, 0, 50);
  return r;
}

wire::FetchRequest question() {
  wire::FetchRequest r;
  set_head(r);
  r.set_kind(1);
  r.set_timeline(2);
  r.set_version(4);
  r.set_first_sequence(10);
  r.set_asks(true);
  return r;
}

wire::FetchEntry& add_entry(wire::FetchReply& r, std::uint64_t sequence, std::uint64_t total) {
  wire::FetchEntry& e = *r.add_entries();
  e.set_sequence(sequence);
  Fingerprint f;
  f.collective = Collective::kReduce;
  f.type = DataType::kF64;
  f.op = ReduceOp::kMin;
  f.algorithm = 3;
  f.root = 2;
  f.count = 9;
  f.shape = 8;
  f.site = 7;
  set_fingerprint(f, e);
  e.set_total_bytes(total);
  return e;
}
void add_range(wire::FetchEntry& e, std::uint64_t begin, std::uint64_t end) {
  auto* r = e.add_held();
  r->set_begin(begin);
  r->set_end(end);
}

wire::FetchReply listed() {
  wire::FetchReply r;
  set_head(r);
  add_range(add_entry(r, 10, 50), 0, 30);
  add_range(*r.mutable_entries(0), 40, 50);
  add_entry(r, 12, 0);
  r.set_next_sequence(13);
  return r;
}

wire::FetchReply data() {
  wire::FetchReply r;
  set_head(r);
  r.set_data(true);
  add_range(add_entry(r, 10, 50), 0, 3);
  add_range(*r.mutable_entries(0), 3, 5);
  r.mutable_entries(0)->set_payload("abcde");
  r.mutable_entries(0)->set_checksum(99);
  r.set_next_sequence(10);
  r.set_next_begin(5);
  return r;
}
wire::FetchReply apart() {
  wire::FetchReply r = data();
  r.mutable_entries(0)->clear_payload();
  return r;
}

wire::FetchReply word(RoundWord w) {
  Fingerprint f;
  f.collective = Collective::kBroadcast;
  f.type = DataType::kU8;
  f.root = 1;
  f.count = 5;
  return answer_to(question(), w, w == RoundWord::kRound ? &f : nullptr);
}

std::span<const std::byte> view(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(FetchCodec, GoodMessagesComeBack) {
  for (const auto& request : {listing(), pieces(), question()}) {
    const std::string bytes = encode(request);
    const auto back = decode_fetch_request(view(bytes));
    ASSERT_TRUE(back.ok()) << back.status().describe();
    EXPECT_EQ(encode(back.value()), bytes);
  }
  for (const auto& reply : {listed(), data(), word(RoundWord::kLater), word(RoundWord::kRound), word(RoundWord::kOver),
                            word(RoundWord::kAsks), word(RoundWord::kGone), word(RoundWord::kOther)}) {
    const std::string bytes = encode(reply, Payloads::kInside);
    const auto back = decode_fetch_reply(view(bytes), Payloads::kInside);
    ASSERT_TRUE(back.ok()) << back.status().describe();
    EXPECT_EQ(encode(back.value(), Payloads::kInside), bytes);
  }
  const std::string bytes = encode(apart(), Payloads::kApart);
  EXPECT_TRUE(decode_fetch_reply(view(bytes), Payloads::kApart).ok());
  EXPECT_EQ(decode_fetch_reply(view(bytes), Payloads::kInside).status().code(), Code::kCorrupt);
  EXPECT_EQ(validate(data(), Payloads::kApart).code(), Code::kCorrupt);
  EXPECT_EQ(range_bytes(apart()), 5U);
}

TEST(FetchCodec, AnAnswerGoesToWhoAsked) {
  const wire::FetchReply reply = word(RoundWord::kRound);
  EXPECT_EQ(reply.sender(), question().receiver());
  EXPECT_EQ(reply.receiver(), question().sender());
  EXPECT_EQ(reply.generation(), question().generation());
  EXPECT_EQ(reply.id(), question().id());
  EXPECT_EQ(fingerprint_of(reply.entries(0)).collective, Collective::kBroadcast);
}

TEST(FetchCodec, FingerprintsComeBack) {
  const auto reply = listed();
  wire::FetchEntry again;
  set_fingerprint(fingerprint_of(reply.entries(0)), again);
  EXPECT_EQ(fingerprint_of(again), fingerprint_of(reply.entries(0)));
  EXPECT_EQ(fingerprint_of(again).root, 2);
  EXPECT_EQ(fingerprint_of(again).site, 7U);
  // Checkpoints have none.
  wire::FetchEntry none;
  set_fingerprint(Fingerprint{}, none);
  EXPECT_EQ(fingerprint_of(none), Fingerprint{});
}

template <class Message>
struct Bad {
  std::string what;  // part of the reason
  std::function<void(Message&)> change;
  Code code = Code::kCorrupt;
};

template <class Message>
std::vector<Bad<Message>> bad_heads() {
  return {
      {"this build speaks", [](Message& m) { m.set_protocol(kProtocolVersion + 1); }, Code::kRefused},
      {"no sender", [](Message& m) { m.set_sender(0); }},
      {"no receiver", [](Message& m) { m.set_receiver(0); }},
      {"generation 0", [](Message& m) { m.set_generation(0); }},
      {"generation", [](Message& m) { m.set_generation(kMaxGeneration + 1); }},
      {"no id", [](Message& m) { m.set_id(0); }},
  };
}

template <class Message>
void expect_bad(const Message& good, std::vector<Bad<Message>> cases,
                const std::function<Status(const Message&)>& judge) {
  for (auto& bad : bad_heads<Message>()) cases.push_back(bad);
  ASSERT_TRUE(judge(good).ok()) << judge(good).describe();
  for (const auto& bad : cases) {
    Message m = good;
    bad.change(m);
    const Status s = judge(m);
    EXPECT_EQ(s.code(), bad.code) << bad.what;
    EXPECT_THAT(s.describe(), HasSubstr(bad.what));
  }
}

TEST(FetchCodec, BadRequestsSayWhy) {
  const std::function<Status(const wire::FetchRequest&)> judge = [](const wire::FetchRequest& r) {
    return decode_fetch_request(view(r.SerializeAsString())).status();
  };
  using Request = wire::FetchRequest;
  expect_bad<Request>(listing(),
                      {
                          {"unknown kind of record 0", [](Request& r) { r.set_kind(0); }},
                          {"unknown kind of record 6", [](Request& r) { r.set_kind(kMaxRecordKind + 1); }},
                          {"empty range", [](Request& r) { r.set_end_sequence(10); }},
                          {"empty range", [](Request& r) { r.set_first_sequence(21); }},
                          {"over the limit", [](Request& r) { r.set_begin(limits::kMaxResultBytes + 1); }},
                          {"0 ranges", [](Request& r) { r.set_most_ranges(0); }},
                          {"ranges", [](Request& r) { r.set_most_ranges(limits::kMaxFetchRanges + 1); }},
                          {"no payload", [](Request& r) { r.set_most_bytes(1); }},
                          {"a spare asks for something else", [](Request& r) { r.set_follows(true); }},
                          {"call sites without a question", [](Request& r) { r.add_sites(1); }},
                      },
                      judge);
  expect_bad<Request>(pieces(),
                      {
                          {"pieces in a listing", [](Request& r) { r.set_first_sequence(1); }},
                          {"pieces in a listing", [](Request& r) { r.set_end_sequence(1); }},
                          {"pieces in a listing", [](Request& r) { r.set_begin(1); }},
                          {"pieces in a listing", [](Request& r) { r.set_most_ranges(1); }},
                          {"0 bytes", [](Request& r) { r.set_most_bytes(0); }},
                          {"bytes of payload", [](Request& r) { r.set_most_bytes(limits::kMaxFetchPayloadBytes + 1); }},
                          {"no piece", [](Request& r) { r.mutable_pieces(1)->set_end(200); }},
                          {"no piece", [](Request& r) { r.mutable_pieces(2)->set_end(limits::kMaxResultBytes + 1); }},
                          {"not in order", [](Request& r) { r.mutable_pieces(1)->set_begin(199); }},
                          {"not in order", [](Request& r) { r.mutable_pieces(2)->set_sequence(2); }},
                          {"sequence over", [](Request& r) { r.mutable_pieces(2)->set_sequence(UINT64_MAX); }},
                          {"4097 pieces",
                           [](Request& r) {
                             r.clear_pieces();
                             for (std::uint64_t s = 0; s <= limits::kMaxFetchPieces; ++s) add_piece(r, s, 0, 1);
                           }},
                      },
                      judge);
}

TEST(FetchCodec, BadRepliesSayWhy) {
  using Reply = wire::FetchReply;
  const auto judge = [](Payloads where) {
    return std::function<Status(const Reply&)>(
        [where](const Reply& r) { return decode_fetch_reply(view(r.SerializeAsString()), where).status(); });
  };
  const std::vector<Bad<Reply>> of_both = {
      {"collective 14", [](Reply& r) { r.mutable_entries(0)->set_collective(14); }},
      {"type 18", [](Reply& r) { r.mutable_entries(0)->set_type(18); }},
      {"operation 10", [](Reply& r) { r.mutable_entries(0)->set_op(10); }},
      {"algorithm 256", [](Reply& r) { r.mutable_entries(0)->set_algorithm(256); }},
      {"root -2", [](Reply& r) { r.mutable_entries(0)->set_root(-2); }},
      {"over the limit", [](Reply& r) { r.mutable_entries(0)->set_total_bytes(limits::kMaxResultBytes + 1); }},
      {"entry of sequence 10", [](Reply& r) { r.mutable_entries(0)->set_total_bytes(4); }},
      {"no range", [](Reply& r) { r.mutable_entries(0)->mutable_held(1)->set_begin(2); }},
      {"no range", [](Reply& r) { r.mutable_entries(0)->mutable_held(1)->set_end(r.entries(0).held(1).begin()); }},
      {"next byte", [](Reply& r) { r.set_next_begin(limits::kMaxResultBytes + 1); }},
      {"beyond what was looked at", [](Reply& r) { r.set_next_sequence(9); }},
      {"sequence over", [](Reply& r) { r.mutable_entries(r.entries_size() - 1)->set_sequence(UINT64_MAX); }},
      {"4097 entries",
       [](Reply& r) {
         r.clear_entries();
         for (std::uint64_t s = 0; s <= limits::kMaxFetchEntries; ++s) add_entry(r, s, 0);
       }},
      {"more ranges",
       [](Reply& r) {
         wire::FetchEntry& e = *r.mutable_entries(0);
         e.set_total_bytes(1'000'000);
         e.clear_held();
         for (std::uint64_t i = 0; i <= limits::kMaxFetchRanges; ++i) add_range(e, 2 * i, 2 * i + 1);
       }},
  };
  auto cases = of_both;
  cases.push_back({"not in order", [](Reply& r) { r.mutable_entries(1)->set_sequence(10); }});
  cases.push_back({"listing has a checksum", [](Reply& r) { r.mutable_entries(0)->set_checksum(1); }});
  cases.push_back({"a payload of 1 bytes", [](Reply& r) { r.mutable_entries(0)->set_payload("x"); }});
  expect_bad<Reply>(listed(), cases, judge(Payloads::kInside));
  cases = of_both;
  cases.push_back({"a payload of 4 bytes where 5", [](Reply& r) { r.mutable_entries(0)->set_payload("abcd"); }});
  cases.push_back({"beyond what was looked at", [](Reply& r) { r.set_next_begin(4); }});
  expect_bad<Reply>(data(), cases, judge(Payloads::kInside));
  cases = of_both;
  cases.push_back({"a payload of 5 bytes where 0", [](Reply& r) { r.mutable_entries(0)->set_payload("abcde"); }});
  cases.push_back({"over the limit", [](Reply& r) {
                     r.mutable_entries(0)->set_total_bytes(limits::kMaxFetchPayloadBytes + 10);
                     r.mutable_entries(0)->mutable_held(1)->set_end(limits::kMaxFetchPayloadBytes + 1);
                     r.set_next_sequence(11);
                   }});
  expect_bad<Reply>(apart(), cases, judge(Payloads::kApart));
}

TEST(FetchCodec, TheLargestMessagesFit) {
  wire::FetchRequest request = pieces();
  request.clear_pieces();
  for (std::size_t i = 0; i < limits::kMaxFetchPieces; ++i) {
    add_piece(request, UINT64_MAX - 1 - limits::kMaxFetchPieces + i, limits::kMaxResultBytes - 1,
              limits::kMaxResultBytes);
  }
  request.set_timeline(UINT32_MAX);
  request.set_group(UINT64_MAX);
  request.set_version(UINT64_MAX);
  request.set_id(UINT64_MAX);
  EXPECT_LE(encode(request).size(), limits::kMaxFetchRequestBytes);

  wire::FetchReply reply = apart();
  reply.clear_entries();
  for (std::size_t i = 0; i < limits::kMaxFetchEntries; ++i) {
    wire::FetchEntry& e = add_entry(reply, UINT64_MAX - 1 - limits::kMaxFetchEntries + i, limits::kMaxResultBytes);
    e.set_count(UINT64_MAX);
    e.set_root(INT32_MAX);
    e.set_algorithm(255);
    e.set_checksum(UINT64_MAX);
    for (std::size_t n = 0; n < limits::kMaxFetchRanges / limits::kMaxFetchEntries; ++n) {
      add_range(e, limits::kMaxResultBytes - 10 + 2 * n, limits::kMaxResultBytes - 9 + 2 * n);
    }
  }
  reply.set_next_sequence(UINT64_MAX);
  EXPECT_LE(encode(reply, Payloads::kApart).size(), limits::kMaxFetchHeadBytes);
}

TEST(FetchCodec, RubbishAndHugeInputIsRefused) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string text(random() % 200, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const auto request = decode_fetch_request(view(text));
    const auto reply = decode_fetch_reply(view(text), i % 2 == 0 ? Payloads::kInside : Payloads::kApart);
    EXPECT_FALSE(request.ok());
    EXPECT_FALSE(reply.ok());
  }
  const std::string huge(limits::kMaxFetchReplyBytes + 1, '\0');
  EXPECT_THAT(decode_fetch_request(view(huge)).status().describe(), HasSubstr("over the limit"));
  EXPECT_THAT(decode_fetch_reply(view(huge), Payloads::kInside).status().describe(), HasSubstr("over the limit"));
  EXPECT_THAT(decode_fetch_reply(view(huge), Payloads::kApart).status().describe(), HasSubstr("over the limit"));
}

TEST(FetchCodec, BadQuestionsAreRefusedWithTheReason) {
  const auto judge = [](const wire::FetchRequest& r) { return validate(r); };
  const char* both = "a listing too";
  expect_bad<wire::FetchRequest>(question(),
                                 {{"something else than a round", [](auto& r) { r.set_kind(2); }},
                                  {"sequence over the limit", [](auto& r) { r.set_first_sequence(UINT64_MAX); }},
                                  {both, [](auto& r) { r.set_end_sequence(20); }},
                                  {both, [](auto& r) { r.set_begin(1); }},
                                  {both, [](auto& r) { r.set_most_bytes(1); }},
                                  {both, [](auto& r) { r.set_most_ranges(1); }},
                                  {both, [](auto& r) { add_piece(r, 1, 0, 1); }},
                                  {"17 call sites are over the limit",
                                   [](auto& r) {
                                     for (std::uint64_t i = 0; i <= limits::kMaxQuestionSites; ++i) r.add_sites(i);
                                   }}},
                                 judge);
}

TEST(FetchCodec, BadAnswersToQuestionsAreRefusedWithTheReason) {
  const auto judge = [](const wire::FetchReply& r) { return validate(r, Payloads::kApart); };
  const char* entries = "entries that do not belong there";
  expect_bad<wire::FetchReply>(word(RoundWord::kRound),
                               {{"unknown word", [](auto& r) { r.set_word(kMaxRoundWord + 1); }},
                                {entries, [](auto& r) { r.set_word(static_cast<std::uint32_t>(RoundWord::kOver)); }},
                                {entries, [](auto& r) { r.clear_entries(); }},
                                {entries, [](auto& r) { r.set_data(true); }},
                                {entries, [](auto& r) { *r.add_entries() = r.entries(0); }},
                                {entries,
                                 [](auto& r) {
                                   r.mutable_entries(0)->set_total_bytes(9);
                                   add_range(*r.mutable_entries(0), 0, 4);
                                 }},
                                {"unknown collective", [](auto& r) { r.mutable_entries(0)->set_collective(99); }}},
                               judge);
}

}  // namespace
}  // namespace warren
