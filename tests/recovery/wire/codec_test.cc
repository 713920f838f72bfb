#include "recovery/wire/codec.h"

#include <gtest/gtest.h>

#include <random>

#include "recovery/base/limits.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

wire::Heartbeat heartbeat() {
  wire::Heartbeat h;
  h.set_generation(3);
  h.set_beat(7);
  h.set_rounds_finished(40);
  h.set_bytes_moved(1 << 20);
  h.mutable_gpu()->set_readers(3);
  h.mutable_gpu()->set_inputs_lent(5);
  h.mutable_gpu()->set_finals_from_gpus(6);
  h.mutable_gpu()->set_rounds_exchanged(limits::kMaxGpuCount);
  h.mutable_log()->set_held_bytes(limits::kMaxLogBytes);
  h.mutable_log()->set_budget_bytes(limits::kMaxLogBytes);
  h.set_disk_trouble("the disk mounted at / is full");
  *h.add_rounds() = round(4, 1024, {0, 2}, 17);
  h.mutable_rounds(0)->set_site(0x5f3a210000001234);
  h.mutable_rounds(0)->set_group(0xdeadbeef);
  wire::Activity& a = *h.mutable_activity();
  a.set_window_ms(10'000);
  a.set_outside_ms(2000);
  a.set_idle_ms(7000);
  a.set_held_ms(500);
  a.set_moved_bytes(1 << 20);
  a.set_replayed_rounds(3);
  a.set_replaying(true);
  wire::LinkActivity& l = *a.add_links();
  l.set_peer(2);
  l.set_sent_bytes(1 << 21);
  l.set_received_bytes(1 << 20);
  l.set_window_sent_bytes(1 << 20);
  l.set_window_received_bytes(1 << 10);
  l.set_awaited_ms(6000);
  l.set_blocked_ms(7000);
  l.set_quiet_ms(40);
  l.set_usual_bytes_per_s(1 << 20);
  wire::Blocked& b = *h.mutable_blocked();
  b.set_blocked_ms(6000);
  *b.add_calls() = h.rounds(0);
  for (const std::uint64_t group : {0u, 7u}) {
    wire::BegunRounds& begun = *b.add_begun();
    begun.set_group(group);
    begun.set_version(2);
    begun.set_rounds(5);
    wire::SentMessages& sent = *b.add_sent();
    sent.set_group(group);
    sent.set_peer(2);
    sent.set_messages(9);
    sent.set_leaving(group == 7);
  }
  return h;
}

wire::Plan plan() {
  wire::Plan p = plan_of(2, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  p.set_timeline(1);
  return p;
}

template <class Message>
Message of_generation(std::uint64_t generation) {
  Message m;
  m.set_generation(generation);
  return m;
}
// A message that says a failure's code and reason.
template <class Message>
Message because(std::uint32_t code, const std::string& reason) {
  Message m;
  m.set_code(code);
  m.set_reason(reason);
  return m;
}

wire::LinkBroken link_broken() {
  auto b = of_generation<wire::LinkBroken>(1);
  b.set_peer(1);
  b.set_peer_incarnation(11);
  b.set_evidence("connection reset");
  return b;
}
wire::RoundFailed round_failed() {
  auto f = because<wire::RoundFailed>(6, "here allreduce, there broadcast");
  f.set_generation(1);
  f.mutable_about()->set_peer(2);
  f.mutable_about()->set_round("3.17");
  return f;
}
wire::Leave leave() {
  auto l = of_generation<wire::Leave>(1);
  l.set_finalize(true);
  return l;
}
wire::Stopped stopped() {
  return of_generation<wire::Stopped>(2);
}
wire::Welcome welcome() {
  wire::Welcome w;
  w.set_joined(2);
  w.set_world_size(4);
  w.add_missing("w3");
  return w;
}
wire::Refused refused() {
  return because<wire::Refused>(3, "world size 4 is not the job's 8");
}
wire::Interrupt interrupt() {
  auto i = because<wire::Interrupt>(5, "rank 1 is gone");
  i.set_generation(2);
  i.add_lost(1);
  i.add_lost(3);
  return i;
}
wire::Finished finished() {
  return of_generation<wire::Finished>(2);
}

wire::Report report() {
  auto r = of_generation<wire::Report>(2);
  r.set_version(2);
  *r.add_positions() = position(1, 9, true);
  *r.add_positions() = position(2, 4, false, {{0, 8}, {16, 32}});
  *r.add_positions() = position(2, 1, false, {}, 0xdeadbeef);
  return r;
}
wire::Vote vote() {
  auto v = of_generation<wire::Vote>(2);
  v.set_timeline(1);
  v.set_version(3);
  *v.add_positions() = position(2, 9, true);
  *v.add_positions() = position(2, 4, true, {}, 77);
  v.mutable_state()->set_global_bytes(limits::kStatePieceBytes + 1);
  v.mutable_state()->set_piece_bytes(limits::kStatePieceBytes);
  v.mutable_state()->add_hashes(1);
  v.mutable_state()->add_hashes(0);
  return v;
}
wire::LogGap log_gap() {
  auto g = of_generation<wire::LogGap>(2);
  g.set_reason("round 1.4 is held by nobody");
  return g;
}
wire::Loaded loaded() {
  wire::Loaded l;
  l.set_committed(true);
  l.set_version(2);
  l.set_timeline(1);
  return l;
}
wire::Committed committed() {
  wire::Committed c;
  c.set_version(2);
  c.set_timeline(1);
  return c;
}
wire::Plan logged_plan() {
  wire::Plan p = plan();
  p.mutable_settings()->set_replicas(2);
  for (wire::Member& m : *p.mutable_members()) {
    m.set_fetch_port(6000);
    m.set_segment_socket("warren-17");
    m.set_fresh(true);
    m.set_since(p.generation());
  }
  *p.add_frontier() = position(0, 3, true);
  *p.add_frontier() = position(2, 4, false, {{0, 8}});
  *p.add_setups() = setup(0, 1, true);
  *p.add_setups() = setup(0, 2, false, {{0, 8}}, 1);
  p.set_committed(true);
  p.set_committed_version(2);
  p.set_committed_timeline(1);
  return p;
}

wire::Known known() {
  wire::Known k;
  *k.mutable_plan() = logged_plan();
  k.set_generation(3);
  k.set_plan_generation(k.plan().generation());
  k.set_committed(true);
  k.set_committed_version(2);
  return k;
}

std::vector<wire::Envelope> one_of_each(Side side) {
  std::vector<wire::Envelope> all;
  const auto add = [&]() -> wire::Envelope& {
    all.push_back(side == Side::kWorker ? from_worker(10) : from_tracker(10));
    return all.back();
  };
  if (side == Side::kWorker) {
    *add().mutable_join() = join("w0", "h", 4);
    *add().mutable_heartbeat() = heartbeat();
    *add().mutable_link_broken() = link_broken();
    *add().mutable_round_failed() = round_failed();
    *add().mutable_stopped() = stopped();
    *add().mutable_leave() = leave();
    *add().mutable_report() = report();
    add().mutable_load();
    *add().mutable_vote() = vote();
    *add().mutable_log_gap() = log_gap();
    *add().mutable_known() = known();
    add().mutable_forget()->set_force(true);
    *add().mutable_join() = join("w0", "h", 4, 2);
    *add().mutable_log_gap() = log_gap();
    *all.back().mutable_log_gap()->mutable_checkpoint() = committed();
  } else {
    *add().mutable_welcome() = welcome();
    *add().mutable_refused() = refused();
    *add().mutable_plan() = plan();
    *add().mutable_interrupt() = interrupt();
    *add().mutable_finished() = finished();
    add().mutable_heartbeat_reply()->set_beat(7);
    auto* leave = add().mutable_heartbeat_reply()->mutable_leave();
    leave->set_generation(5);
    leave->set_within_ms(86'400'000);
    leave->set_reason("slow");
    *add().mutable_loaded() = loaded();
    *add().mutable_committed() = committed();
    add().mutable_tell()->set_generation(3);
    *add().mutable_plan() = logged_plan();
    add().mutable_called()->set_generation(3);
    add().mutable_forgotten();
    all.back().set_term(0);
  }
  return all;
}

TEST(Codec, EveryMessageComesBackAsItWas) {
  for (const Side side : {Side::kWorker, Side::kTracker}) {
    for (const wire::Envelope& e : one_of_each(side)) {
      const std::string bytes = encode(e, side);
      const auto decoded = decode_envelope(bytes_of(bytes), side);
      ASSERT_TRUE(decoded.ok()) << decoded.status().describe();
      EXPECT_EQ(decoded.value().SerializeAsString(), e.SerializeAsString());
      EXPECT_EQ(encode(decoded.value(), side), bytes);
    }
  }
}

std::string refusal(const wire::Envelope& e, Side side) {
  const std::string bytes = e.SerializeAsString();
  const auto decoded = decode_envelope(bytes_of(bytes), side);
  return decoded.ok() ? "accepted"
                      : std::string(to_string(decoded.status().code())) + ": " + decoded.status().describe();
}

TEST(Codec, EnvelopesAreRefusedWithAReason) {
  const wire::Envelope good = one_of_each(Side::kWorker).front();
  EXPECT_EQ(refusal(good, Side::kWorker), "accepted");
  EXPECT_EQ(refusal(good, Side::kTracker), "corrupt: message refused: a tracker never sends Join");
  EXPECT_EQ(refusal(one_of_each(Side::kTracker)[2], Side::kWorker),
            "corrupt: message refused: a worker never sends Plan");
  wire::Envelope e = good;
  e.set_protocol(1);
  EXPECT_EQ(refusal(e, Side::kWorker), "refused: protocol version 1, this build speaks " +
                                           std::to_string(kProtocolVersion) +
                                           ": use one version of Warren for the whole job");
  e = good;
  e.set_sender(0);
  EXPECT_EQ(refusal(e, Side::kWorker), "corrupt: message refused: no sender");
  e = good;
  e.clear_body();
  EXPECT_EQ(refusal(e, Side::kWorker), "corrupt: message refused: no body");
  e = good;
  e.set_job("");
  EXPECT_EQ(refusal(e, Side::kWorker), "corrupt: message refused: job is empty");
  e.set_job("../etc");
  EXPECT_EQ(refusal(e, Side::kWorker), "corrupt: message refused: job '../etc' starts with '-' or '.'");
  e = one_of_each(Side::kTracker).front();
  e.set_receiver(0);
  EXPECT_EQ(refusal(e, Side::kTracker), "corrupt: message refused: no receiver");
  e = one_of_each(Side::kTracker).front();
  e.set_term(0);
  EXPECT_EQ(refusal(e, Side::kTracker), "corrupt: message refused: no term");
  e.set_term(kMaxGeneration);
  EXPECT_EQ(refusal(e, Side::kTracker), "corrupt: message refused: term 4611686018427387904 is too large");
  e = good;
  e.set_term(1);
  EXPECT_EQ(refusal(e, Side::kWorker), "corrupt: message refused: a term of no tracker's");
  e = good;
  e.mutable_join()->set_worker_id("a b");
  EXPECT_EQ(refusal(e, Side::kWorker),
            "corrupt: message refused: bad Join: worker id 'a b' has a character other than A-Z a-z 0-9 . _ : / @ -");
}

TEST(Codec, BytesThatAreNoMessageAreRefused) {
  EXPECT_EQ(decode_envelope(bytes_of("rubbish"), Side::kWorker).status().describe(), "not one of Warren's messages");
  EXPECT_FALSE(decode_envelope({}, Side::kWorker).ok());
  const std::string large(kMaxWorkerMessageBytes + 1, 'x');
  EXPECT_EQ(decode_envelope(bytes_of(large), Side::kWorker).status().describe(),
            "message of 1048577 bytes is over the limit of 1048576");
  std::string half = encode(one_of_each(Side::kWorker).front(), Side::kWorker);
  half.resize(half.size() / 2);
  EXPECT_FALSE(decode_envelope(bytes_of(half), Side::kWorker).ok());
}

TEST(Codec, NamesArePlain) {
  const auto check = [](std::string_view name) { return validate_name("name", name, 8).describe(); };
  EXPECT_EQ(check("aZ9._:/"), "");
  EXPECT_EQ(check("a@b-c"), "");
  EXPECT_EQ(check(""), "name is empty");
  EXPECT_EQ(check("123456789"), "name is longer than 8 bytes");
  EXPECT_EQ(check("-a"), "name '-a' starts with '-' or '.'");
  EXPECT_EQ(check("a\nb"), "name 'a b' has a character other than A-Z a-z 0-9 . _ : / @ -");
}

TEST(Codec, TextsAreMadePrintable) {
  EXPECT_EQ(wire_text("plain"), "plain");
  EXPECT_EQ(wire_text("a\xc2\x9b"
                      "2Jb\xc2\xa0"),
            "a??2Jb\xc2\xa0");
  EXPECT_EQ(wire_text("a\nb\tc\x01"
                      "d\x7f"),
            "a b c?d?");
  EXPECT_EQ(wire_text("caf\xc3\xa9 \xe2\x80\x94 \xf0\x9f\x90\xb0"), "caf\xc3\xa9 \xe2\x80\x94 \xf0\x9f\x90\xb0");
  EXPECT_EQ(wire_text("\xc3(\xff\xed\xa0\x80\xc0\xaf"),
            "?(??"
            "????");
  EXPECT_EQ(wire_text(std::string(5000, 'x')).size(), limits::kMaxReasonBytes);
  // Never half a character.
  EXPECT_EQ(wire_text(std::string(limits::kMaxReasonBytes - 1, 'x') + "\xc3\xa9").size(), limits::kMaxReasonBytes - 1);
}

// What a change makes of a valid message.
template <class Message>
std::string after(Message message, auto change) {
  EXPECT_TRUE(validate(message).ok()) << validate(message).describe();
  change(message);
  return validate(message).describe();
}

TEST(Codec, Settings) {
  const auto check = [](auto change) { return after(settings(4), change); };
  EXPECT_EQ(check([](auto& s) { s.set_world_size(0); }), "world_size 0 is outside 1 to 16384");
  EXPECT_EQ(check([](auto& s) { s.set_world_size(16385); }), "world_size 16385 is outside 1 to 16384");
  EXPECT_EQ(check([](auto& s) { s.set_round_timeout_ms(99); }), "round_timeout_ms 99 is outside 100 to 86400000");
  EXPECT_EQ(check([](auto& s) { s.set_algorithm("fast"); }),
            "unknown algorithm 'fast', known are auto, star, tree, butterfly, ring and direct");
  EXPECT_EQ(check([](auto& s) { s.set_chunk_bytes(1023); }), "chunk_bytes 1023 is outside 1024 to 4194304");
  EXPECT_EQ(check([](auto& s) { s.set_streams(0); }), "streams 0 is outside 1 to 16");
  EXPECT_EQ(check([](auto& s) { s.set_streams(17); }), "streams 17 is outside 1 to 16");
  EXPECT_EQ(check([](auto& s) { s.set_costs(std::string(8193, 'x')); }),
            "costs of 8193 bytes is over the limit of 8192");
  EXPECT_EQ(check([](auto& s) { s.set_costs("a\nb"); }), "costs has an unprintable byte at 1");
  EXPECT_EQ(check([](auto& s) { s.set_replicas(16); }), "");
  EXPECT_EQ(check([](auto& s) { s.set_replicas(17); }), "replicas 17 is outside 0 to 16");
  EXPECT_EQ(check([](auto& s) { s.set_replace_after_ms(1); }), "ranks are to be replaced, and nothing is logged");
  const auto replaced_after = [&](std::uint64_t ms) {
    return check([ms](auto& s) {
      s.set_replicas(1);
      s.set_replace_after_ms(ms);
    });
  };
  EXPECT_EQ(check([](auto& s) { s.set_grace_ms(1); }), "grace_ms 1 is outside 0 to 0");
  EXPECT_EQ(check([](auto& s) { s.set_min_workers(5); }), "min_workers 5 is outside 0 to 4");
  EXPECT_EQ(check([](auto& s) { s.set_min_workers(4); }), "the job may shrink, and nothing is logged");
  EXPECT_EQ(check([](auto& s) { s.set_elastic_start(true); }), "the job may begin with fewer, and waits for all");
  EXPECT_EQ(replaced_after(86'400'000), "");
  EXPECT_EQ(replaced_after(86'400'001), "replace_after_ms 86400001 is outside 0 to 86400000");
}

TEST(Codec, Joins) {
  const auto check = [](auto change) { return after(join("w", "h", 2), change); };
  EXPECT_EQ(check([](auto& j) { j.clear_worker_id(); }), "worker id is empty");
  EXPECT_EQ(check([](auto& j) { j.clear_host_id(); }), "host id is empty");
  EXPECT_EQ(check([](auto& j) { j.clear_domain_id(); }), "domain id is empty");
  EXPECT_EQ(check([](auto& j) { j.clear_settings(); }), "no settings");
  EXPECT_EQ(check([](auto& j) { j.mutable_settings()->set_streams(99); }), "streams 99 is outside 1 to 16");
  EXPECT_EQ(check([](auto& j) { j.set_software("\x01"); }), "software has an unprintable byte at 0");
  EXPECT_EQ(check([](auto& j) { j.set_software(std::string(129, 'x')); }),
            "software of 129 bytes is over the limit of 128");
  EXPECT_EQ(check([](auto& j) { j.clear_endpoints(); }), "no endpoint: peers could not connect");
  EXPECT_EQ(check([](auto& j) {
              for (int i = 0; i < 8; ++i) *j.add_endpoints() = j.endpoints(0);
            }),
            "9 endpoints are over the limit of 8");
  EXPECT_EQ(check([](auto& j) { *j.add_endpoints() = j.endpoints(0); }), "endpoint 10.0.0.1 port 5000 stands twice");
  EXPECT_EQ(check([](auto& j) { j.mutable_endpoints(0)->set_port(0); }), "port 0 is outside 1 to 65535");
  EXPECT_EQ(check([](auto& j) { j.mutable_endpoints(0)->set_port(65536); }), "port 65536 is outside 1 to 65535");
  EXPECT_EQ(check([](auto& j) { j.mutable_endpoints(0)->set_address(std::string(129, '1')); }),
            "an address is too long");
}

TEST(Codec, JoinsOfSpares) {
  wire::Join base = join("w", "h", 2, 2);
  base.set_waits(true);
  const auto check = [&](auto change) { return after(base, change); };
  EXPECT_EQ(check([](auto& j) { j.set_spare(true); }), "");
  EXPECT_EQ(check([](auto& j) { j.set_called(7); }), "");
  EXPECT_EQ(check([](auto& j) { j.set_called(kMaxGeneration + 1); }),
            "generation of the call " + std::to_string(kMaxGeneration + 1) + " is outside 0 to " +
                std::to_string(kMaxGeneration));
  EXPECT_EQ(check([](auto& j) {
              j.set_waits(false);
              j.set_spare(true);
            }),
            "it does not wait, and is a spare");
  EXPECT_EQ(check([](auto& j) {
              j.set_waits(false);
              j.set_called(1);
            }),
            "it does not wait, and is a spare");
  EXPECT_EQ(check([](auto& j) {
              j.set_spare(true);
              j.mutable_logged()->set_run(7);
              j.mutable_logged()->add_lives(1);
            }),
            "it waits as a spare, and says what its host holds");
  EXPECT_EQ(check([](auto& j) {
              j.set_spare(true);
              j.set_called(1);
            }),
            "it waits as a spare, and says what its host holds");
  EXPECT_EQ(check([](auto& j) { *j.mutable_followed() = {}; }), "it follows checkpoints, and is no spare");
  base.set_spare(true);
  EXPECT_EQ(check([](auto& j) { *j.mutable_followed() = {}; }), "");
  EXPECT_NE(check([](auto& j) { j.mutable_followed()->set_version(kFirstCommit.value); }), "") << "of no run";
  EXPECT_NE(check([](auto& j) { j.mutable_followed()->set_run(7); }), "") << "of no plan";
  EXPECT_EQ(check([](auto& j) {
              j.mutable_followed()->set_version(kFirstCommit.value);
              j.mutable_followed()->set_generation(3);
              j.mutable_followed()->set_run(7);
            }),
            "");
  EXPECT_NE(check([](auto& j) { j.mutable_followed()->set_timeline(1); }), "") << "of no version";
  EXPECT_NE(check([](auto& j) { j.mutable_followed()->set_version(kMaxVersion + 1); }), "");
  EXPECT_NE(check([](auto& j) { j.mutable_followed()->set_generation(kMaxGeneration + 1); }), "");
}

TEST(Codec, JoinsOfJobsThatLog) {
  const auto check = [](auto change) { return after(join("w", "h", 2, 2), change); };
  EXPECT_EQ(check([](auto& j) { j.set_fetch_port(0); }), "fetch port 0 is outside 1 to 65535");
  EXPECT_EQ(check([](auto& j) { j.set_fetch_port(65536); }), "fetch port 65536 is outside 1 to 65535");
  EXPECT_EQ(check([](auto& j) { j.set_segment_socket(std::string(107, 's')); }), "");
  EXPECT_EQ(check([](auto& j) { j.set_segment_socket(std::string(108, 's')); }),
            "segment socket of 108 bytes is over the limit of 107");
  EXPECT_EQ(check([](auto& j) { j.set_segment_socket(std::string("a\0b", 3)); }),
            "segment socket has an unprintable byte at 1");
}

TEST(Codec, WhatARankSharesWithItsHost) {
  const auto joins = [](auto change) { return after(join("w", "h", 2, 2), change); };
  EXPECT_EQ(joins([](auto& j) { j.mutable_traits()->set_cores(65536); }), "");
  EXPECT_EQ(joins([](auto& j) { j.mutable_traits()->set_cores(65537); }), "cores 65537 is outside 0 to 65536");
  EXPECT_EQ(joins([](auto& j) { j.mutable_traits()->set_first_core(65536); }),
            "first core 65536 is outside 0 to 65535");
  const auto plans = [](auto change) { return after(logged_plan(), change); };
  EXPECT_EQ(plans([](auto& p) { p.mutable_members(1)->mutable_traits()->set_cores(2); }), "");
  EXPECT_EQ(plans([](auto& p) { p.mutable_members(1)->mutable_traits()->set_cores(1 << 20); }),
            "member 1: cores 1048576 is outside 0 to 65536");
}

TEST(Codec, JoinsThatSayWhatMemoryHolds) {
  wire::Join base = join("w", "h", 3, 2);
  wire::Logged& logged = *base.mutable_logged();
  logged.set_run(7);
  logged.set_timeline(2);
  *logged.add_positions() = position(1, 4, false, {{0, 8}});
  *logged.add_setups() = setup(0, 7, false, {{0, 8}}, 2);
  logged.add_lives(10);
  const auto check = [&](auto change) {
    wire::Join j = base;
    change(j);
    return validate(j).describe();
  };
  EXPECT_EQ(validate(base).code(), Code::kOk);
  EXPECT_NE(check([](auto& j) { j.mutable_logged()->set_run(0); }).find("is of no run"), std::string::npos);
  EXPECT_EQ(check([](auto& j) {
              j.mutable_logged()->set_run(0);
              j.mutable_logged()->clear_positions();
              j.mutable_logged()->clear_setups();
            }),
            "")
      << "lives that were in no plan";
  EXPECT_NE(check([](auto& j) { j.mutable_logged()->set_timeline(UINT32_MAX); }).find("is over the limit"),
            std::string::npos);
  EXPECT_NE(check([](auto& j) {
              j.mutable_logged()->mutable_positions(0)->set_closed(true);
            }).find("what is logged closes nothing"),
            std::string::npos);
  EXPECT_NE(check([](auto& j) {
              *j.mutable_logged()->mutable_setups(0) = setup(0, 7, true, {}, 2);
            }).find("memory does not know what is done"),
            std::string::npos);
  EXPECT_NE(check([](auto& j) { j.mutable_logged()->set_timeline(1); }).find("is of another timeline"),
            std::string::npos);
  EXPECT_NE(check([](auto& j) { *j.mutable_logged()->add_setups() = j.logged().setups(0); }).find("stands twice"),
            std::string::npos);
  EXPECT_NE(check([](auto& j) {
              j.mutable_logged()->mutable_lives()->Resize(2049, 1);
            }).find("2049 lives are over the limit of 2048"),
            std::string::npos);
  EXPECT_NE(check([](auto& j) {
              j.mutable_settings()->set_replicas(0);
            }).find("nothing is logged, and memory holds something"),
            std::string::npos);
}

TEST(Codec, JoinsThatSayWhatADiskHolds) {
  wire::Join base = join("w", "h", 3, 2);
  wire::Held& held = *base.mutable_held();
  held.set_run(10);
  held.mutable_known()->set_generation(2);
  held.mutable_known()->set_plan_generation(2);
  *held.mutable_known()->mutable_plan() = logged_plan();
  for (const std::uint64_t version : {1, 2}) {
    wire::HeldRounds& r = *held.add_rounds();
    r.set_version(version);
    for (const std::uint64_t first : {0, 5}) {
      wire::HeldRun& run = *r.add_runs();
      run.set_first(first);
      run.set_count(5);
      run.set_total_bytes(16);
      run.add_held()->set_end(8);
    }
  }
  const auto check = [&](auto change) { return after(base, change); };
  const auto run = [&](auto change) {
    return check([&](auto& j) { change(*j.mutable_held()->mutable_rounds(1)->mutable_runs(1)); });
  };
  EXPECT_EQ(check([](auto&) {}), "");
  EXPECT_EQ(check([](auto& j) { j.mutable_held()->set_run(0); }), "what the disk holds: of no run");
  EXPECT_EQ(check([](auto& j) { j.mutable_held()->set_run(9); }), "what the disk holds: the plan is of another run");
  EXPECT_EQ(check([](auto& j) { j.mutable_held()->clear_known(); }),
            "what the disk holds: nothing is known of the job");
  EXPECT_EQ(check([](auto& j) { j.mutable_held()->mutable_known()->mutable_plan()->set_generation(0); }),
            "what the disk holds: bad plan: generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([](auto& j) { j.mutable_held()->mutable_rounds()->SwapElements(0, 1); }),
            "what the disk holds: rounds are not in rising order, or stand twice");
  EXPECT_EQ(run([](auto& r) { r.set_first(4); }), "what the disk holds: runs are not in rising order, or overlap");
  EXPECT_EQ(run([](auto& r) { r.set_count(0); }), "what the disk holds: a run of 0 rounds from 5");
  EXPECT_EQ(run([](auto& r) { r.set_count(~0ULL); }),
            "what the disk holds: a run of 18446744073709551615 rounds from 5");
  EXPECT_EQ(run([](auto& r) { r.set_total_bytes(7); }), "what the disk holds: a range ends behind its result");
  EXPECT_EQ(run([](auto& r) { r.set_total_bytes(~0ULL); }),
            "what the disk holds: no result is of 18446744073709551615 bytes");
  EXPECT_EQ(run([](auto& r) { r.mutable_held(0)->set_begin(8); }), "what the disk holds: the range 8 is empty");
  EXPECT_EQ(check([](auto& j) {
              for (int i = 0; i < 8200; ++i) {
                wire::HeldRun& r = *j.mutable_held()->mutable_rounds(1)->add_runs();
                r.set_first(static_cast<std::uint64_t>(10 + i));
                r.set_count(1);
              }
            }),
            "what the disk holds: 8204 runs are over the limit of 8192");
  EXPECT_EQ(check([](auto& j) { j.mutable_settings()->set_replicas(0); }),
            "nothing is logged, and a disk holds something");
  EXPECT_EQ(check([](auto& j) { j.mutable_held()->set_mirrored(true); }),
            "what the disk holds: a mirror holds checkpoints, and only these");
}

TEST(Codec, RoundsThatKeepOlderNames) {
  wire::Plan base = logged_plan();
  base.set_timeline(3);
  for (const std::uint32_t timeline : {1, 2}) {
    wire::Kept& k = *base.add_kept();
    k.set_version(2);
    k.set_timeline(timeline);
    k.set_rounds(4 * timeline);
  }
  const auto check = [&](auto change) { return after(base, change); };
  EXPECT_EQ(check([](auto&) {}), "");
  EXPECT_EQ(check([](auto& p) { p.set_run(0); }), "it is of no run");
  const std::string what = "rounds that were kept: ";
  EXPECT_EQ(check([](auto& p) { p.mutable_kept()->SwapElements(0, 1); }),
            what + "not in rising order, or they stand twice");
  EXPECT_EQ(check([](auto& p) { p.mutable_kept(1)->set_timeline(1); }), what + "timelines do not rise");
  EXPECT_EQ(check([](auto& p) { p.mutable_kept(1)->set_timeline(3); }), what + "of timeline 3, which is not over");
  EXPECT_EQ(check([](auto& p) { p.mutable_kept(0)->set_rounds(0); }), what + "numbers out of range");
}

TEST(Codec, PlacesThatNobodyHasHad) {
  wire::Plan base = plan_of(2, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  base.mutable_settings()->set_replicas(2);
  base.mutable_settings()->set_min_workers(2);
  base.mutable_settings()->set_elastic_start(true);
  for (wire::Member& m : *base.mutable_members()) {
    m.set_fetch_port(6000);
    m.set_local_size(2);
  }
  wire::Member& nobody = *base.mutable_members(2);
  nobody.Clear();
  nobody.set_rank(2);
  nobody.set_absent(true);
  base.add_absences()->add_ranks(2);
  const auto check = [&](auto change) { return after(base, change); };
  EXPECT_EQ(check([](auto&) {}), "");
  EXPECT_EQ(check([](auto& p) { p.mutable_settings()->set_elastic_start(false); }),
            "member 2: nobody has had the place, and the job begins with all");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_absent(false); }), "member 2: no incarnation");
  EXPECT_EQ(check([](auto& p) { p.mutable_settings()->set_min_workers(3); }), "2 members are there, the least is 3");
  EXPECT_EQ(check([](auto& p) { p.clear_absences(); }), "absences: other ranks than the plan's in its own timeline");
  const std::string somebody = "member 2: nobody has had the place, and somebody is told of";
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_incarnation(12); }), somebody);
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_host_id("h"); }), somebody);
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_local_size(1); }), somebody);
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_fresh(true); }), somebody);
}

TEST(Codec, RanksThatAreAbsent) {
  wire::Plan base = logged_plan();
  base.set_timeline(3);
  base.mutable_settings()->set_min_workers(1);
  base.mutable_members(1)->set_absent(true);
  base.mutable_members(1)->set_fresh(false);
  if (base.members(1).since() == base.generation()) base.mutable_members(1)->set_since(base.generation() - 1);
  for (const std::uint32_t timeline : {1, 3}) {
    wire::Absence& a = *base.add_absences();
    a.set_timeline(timeline);
    a.add_ranks(1);
  }
  const auto check = [&](auto change) { return after(base, change); };
  EXPECT_EQ(check([](auto&) {}), "");
  EXPECT_EQ(check([](auto& p) { p.mutable_settings()->set_min_workers(3); }), "2 members are there, the least is 3");
  EXPECT_EQ(check([](auto& p) { p.mutable_settings()->clear_min_workers(); }), "2 members are there, the least is 3");
  EXPECT_EQ(check([](auto& p) {
              p.mutable_members(1)->set_fresh(true);
              p.mutable_members(1)->set_since(p.generation());
            }),
            "member 1 is absent, and fresh");
  const std::string what = "absences: ";
  EXPECT_EQ(check([](auto& p) { p.mutable_absences()->SwapElements(0, 1); }),
            what + "timeline 1 is not in rising order, or has not begun");
  EXPECT_EQ(check([](auto& p) { p.mutable_absences(1)->set_timeline(4); }),
            what + "timeline 4 is not in rising order, or has not begun");
  EXPECT_EQ(check([](auto& p) { p.mutable_absences(0)->clear_ranks(); }), what + "no rank in timeline 1");
  EXPECT_EQ(check([](auto& p) { p.mutable_absences(0)->set_ranks(0, 9); }),
            what + "ranks of timeline 1 are not in rising order, or not of this world");
  EXPECT_EQ(check([](auto& p) { p.mutable_absences(1)->set_ranks(0, 0); }),
            what + "other ranks than the plan's in its own timeline");
  EXPECT_EQ(check([](auto& p) { p.mutable_absences()->RemoveLast(); }),
            what + "other ranks than the plan's in its own timeline");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_absent(false); }), what + "ranks, and all are there");
}

TEST(Codec, Positions) {
  const auto check = [](auto change) { return after(report(), change); };
  EXPECT_EQ(check([](auto& r) { r.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([](auto& r) { r.clear_positions(); }), "");
  EXPECT_EQ(check([](auto& r) { *r.add_positions() = position(2, 1, false, {}, 0xdeadbeef); }),
            "position in version 1 of group deadbeef: not in rising order, or it stands twice");
  EXPECT_EQ(check([](auto& r) { r.mutable_positions()->SwapElements(0, 1); }),
            "position in version 0: not in rising order, or it stands twice");
  EXPECT_EQ(check([](auto& r) { r.mutable_positions(1)->set_version(3); }),
            "position in version 2: the report says that it was not begun");
  EXPECT_EQ(check([](auto& r) { r.mutable_positions(2)->set_version(~0ULL); }),
            "position in version 18446744073709551614 of group deadbeef: version is over the limit");
  EXPECT_EQ(check([](auto& r) { r.mutable_positions(0)->set_rounds(~0ULL); }),
            "position in version 0: number of rounds is over the limit");
  EXPECT_EQ(check([](auto& r) { r.mutable_positions(1)->set_closed(true); }),
            "position in version 1: it is closed, and a round is in flight");
  EXPECT_EQ(check([](auto& r) { r.set_version(3); }),
            "position in version 1: a later version was begun, and a round is in flight");
  EXPECT_EQ(check([](auto& r) { r.mutable_positions(1)->set_empty(true); }),
            "position in version 1: a result without bytes");
  const auto check_range = [&](std::uint64_t begin, std::uint64_t end) {
    return check([&](auto& r) {
      r.mutable_positions(1)->mutable_final(1)->set_begin(begin);
      r.mutable_positions(1)->mutable_final(1)->set_end(end);
    });
  };
  EXPECT_EQ(check_range(8, 16), "");
  EXPECT_EQ(check_range(16, 16), "position in version 1: the range 16 is empty");
  EXPECT_EQ(check_range(7, 16), "position in version 1: ranges are not in rising order, or overlap");
  EXPECT_EQ(check_range(16, (std::uint64_t{1} << 60) + 1),
            "position in version 1: a range ends at 1152921504606846977, no result is as large");
  EXPECT_EQ(check([](auto& r) {
              for (std::uint64_t i = 0; i <= limits::kMaxPositions; ++i) {
                *r.add_positions() = position(2, 1, false, {}, (std::uint64_t{1} << 40) + i);
              }
            }),
            "16388 positions are over the limit of 16384");
  EXPECT_EQ(check([](auto& r) {
              for (std::uint64_t i = 0; i < limits::kMaxRangesPerReport; ++i) {
                wire::ByteRange& range = *r.mutable_positions(1)->add_final();
                range.set_begin(100 + i * 2);
                range.set_end(101 + i * 2);
              }
            }),
            "16386 ranges are over the limit of 16384");
}

TEST(Codec, TheLongestReportFits) {
  wire::Envelope e = from_worker(10);
  wire::Report& r = *e.mutable_report();
  r.set_generation(kMaxGeneration);
  r.set_version(kMaxVersion / 2);
  for (std::uint64_t i = 0; i < limits::kMaxPositions; ++i) {
    *r.add_positions() = position(kMaxVersion / 2, kMaxVersion / 2, false, {}, (i + 1) << 40);
  }
  for (std::uint64_t i = 0; i < limits::kMaxRangesPerReport; ++i) {
    wire::ByteRange& range = *r.mutable_positions(3)->add_final();
    range.set_begin((std::uint64_t{1} << 59) + i * 2);
    range.set_end((std::uint64_t{1} << 59) + i * 2 + 1);
  }
  EXPECT_EQ(refusal(e, Side::kWorker), "accepted");
}

TEST(Codec, Votes) {
  const auto check = [](auto change) { return after(vote(), change); };
  EXPECT_EQ(check([](auto& v) { v.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([](auto& v) { v.set_version(1); }), "version 1 is outside 2 to 2305843009213693952");
  EXPECT_EQ(check([](auto& v) { v.set_version(2); }), "position in version 1: it is not over where the vote stands");
  EXPECT_EQ(check([](auto& v) { v.mutable_positions(0)->set_closed(false); }),
            "position in version 1: it is not over where the vote stands");
  EXPECT_EQ(check([](auto& v) { *v.add_positions() = v.positions(0); }),
            "position in version 1: not in rising order, or it stands twice");
  const std::string state = "what the vote says of the state: ";
  EXPECT_EQ(check([](auto& v) { v.mutable_state()->set_global_bytes(limits::kMaxStateBytes + 1); }),
            state + "global state's bytes 274877906945 is outside 0 to 274877906944");
  EXPECT_EQ(check([](auto& v) { v.mutable_state()->set_global_bytes(0); }),
            state + "hashes of a global state without bytes");
  EXPECT_EQ(check([](auto& v) { v.mutable_state()->set_piece_bytes(0); }),
            state + "a hash for 0 bytes of a global state");
  EXPECT_EQ(check([](auto& v) { v.mutable_state()->set_piece_bytes(limits::kStatePieceBytes * 3); }),
            state + "a hash for 3145728 bytes of a global state");
  EXPECT_EQ(check([](auto& v) { v.mutable_state()->add_hashes(1); }), state + "3 hashes of 2 pieces of a global state");
  EXPECT_EQ(check([](auto& v) { v.mutable_state()->set_global_bytes(limits::kMaxStateBytes); }),
            state + "2 hashes of 262144 pieces of a global state");
  EXPECT_EQ(check([](auto& v) { v.clear_state(); }), "");
  EXPECT_EQ(check([](auto& v) { v.clear_state(), v.set_lacks(true); }), "it is no vote, and tells of no state");
}

TEST(Codec, LoadsCommitsAndGaps) {
  EXPECT_EQ(after(log_gap(), [](auto& g) { g.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(after(log_gap(), [](auto& g) { g.clear_reason(); }), "no reason");
  EXPECT_NE(after(log_gap(), [](auto& g) { g.mutable_setup()->set_name(7); }).find("not the hash of a name"),
            std::string::npos);
  EXPECT_NE(after(log_gap(), [](auto& g) { g.mutable_setup()->set_name(kSetupBit | 7); }).find("it is not done"),
            std::string::npos);
  EXPECT_EQ(after(log_gap(), [](auto& g) { g.set_reason("a\rb"); }), "reason has an unprintable byte at 1");
  EXPECT_EQ(after(log_gap(), [](auto& g) { g.mutable_checkpoint()->set_version(1); }),
            "committed version 1 is outside 2 to 4611686018427387904");
  EXPECT_EQ(after(log_gap(),
                  [](auto& g) {
                    *g.mutable_checkpoint() = committed();
                    *g.mutable_setup() = setup(0, 1, true);
                  }),
            "a set-up round is missing, and a checkpoint");
  EXPECT_EQ(after(loaded(), [](auto& l) { l.set_version(1); }),
            "committed version 1 is outside 2 to 4611686018427387904");
  EXPECT_EQ(after(loaded(), [](auto& l) { l.set_committed(false); }), "a version, and it is not committed");
  EXPECT_EQ(after(loaded(), [](auto& l) { l.Clear(); }), "");
  EXPECT_EQ(after(committed(), [](auto& c) { c.set_version(0); }),
            "committed version 0 is outside 2 to 4611686018427387904");
}

TEST(Codec, WhatMembersTellATrackerThatHasLostItsJournal) {
  const auto check = [](auto change) { return after(known(), change); };
  EXPECT_EQ(check([](auto& k) { k.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([](auto& k) { k.set_generation(1); }), "plan's generation 2 is outside 0 to 1");
  EXPECT_EQ(check([](auto& k) { k.clear_plan(); }), "");
  EXPECT_EQ(check([](auto& k) { k.set_plan_generation(3); }),
            "the plan is of another generation than it is said to be");
  EXPECT_EQ(check([](auto& k) { k.mutable_plan()->set_run(0); }), "bad plan: it is of no run");
  EXPECT_EQ(check([](auto& k) { k.set_committed(false); }), "a version, and it is not committed");
  wire::Tell tell;
  EXPECT_EQ(after(tell, [](auto& t) { t.set_generation(~0ULL); }),
            "generation 18446744073709551615 is outside 0 to 4611686018427387904");
}

// The tracker counts on from what workers say: a timeline that wrapped, or a number of rounds above the limit, once
// ended it with a record that nobody can read, and all jobs with it.
TEST(Codec, WhatWorkersClaimLeavesRoomToCountOn) {
  const auto claims = [](auto change) { return after(known(), [&](auto& k) { change(*k.mutable_plan()); }); };
  const auto decides = [](auto change) { return after(logged_plan(), change); };
  EXPECT_EQ(claims([](auto& p) { p.set_timeline(UINT32_MAX); }), "bad plan: timeline 4294967295 is over the limit");
  EXPECT_EQ(claims([](auto& p) { p.set_timeline(UINT32_MAX / 2 + 1); }),
            "bad plan: timeline 2147483648 is over the limit");
  EXPECT_EQ(claims([](auto& p) { p.set_timeline(UINT32_MAX / 2); }), "");
  EXPECT_EQ(decides([](auto& p) { p.set_timeline(UINT32_MAX / 2 + 1); }), "");
  EXPECT_EQ(decides([](auto& p) { p.set_timeline(UINT32_MAX); }), "timeline 4294967295 is over the limit");
  EXPECT_EQ(after(known(), [](auto& k) { k.set_committed_timeline(UINT32_MAX); }),
            "timeline 4294967295 is over the limit");
  wire::Report report;
  report.set_generation(2);
  report.set_version(1);
  *report.add_positions() = position(1, kMaxVersion / 2, false, {});
  EXPECT_EQ(after(report, [](auto&) {}), "");
  EXPECT_EQ(after(report, [](auto& r) { r.mutable_positions(0)->set_rounds(kMaxVersion / 2 + 1); }),
            "position in version 0: number of rounds is over the limit");
  EXPECT_EQ(decides([](auto& p) { p.mutable_frontier(1)->set_rounds(kMaxVersion / 2 + 1); }), "");
}

TEST(Codec, PlansOfJobsThatLog) {
  const auto check = [](auto change) { return after(logged_plan(), change); };
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_fetch_port(0); }),
            "member 1: fetch port 0 is outside 1 to 65535");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_segment_socket("\n"); }),
            "member 1: segment socket has an unprintable byte at 0");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_since(3); }),
            "member 1 is fresh in generation 2, and in plans since generation 3");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_since(1); }),
            "member 1 is fresh in generation 2, and in plans since generation 1");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_fresh(false); }),
            "member 1 is not fresh in generation 2, and in plans since generation 2");
  EXPECT_EQ(check([](auto& p) { p.set_committed_version(1); }),
            "committed version 1 is outside 2 to 4611686018427387904");
  EXPECT_EQ(check([](auto& p) { p.set_committed(false); }), "a version, and it is not committed");
  EXPECT_EQ(check([](auto& p) { p.set_committed_timeline(2); }), "a version was committed in a later timeline");
  EXPECT_EQ(check([](auto& p) { p.mutable_frontier()->SwapElements(0, 1); }),
            "frontier: position in the preamble: not in rising order, or it stands twice");
  EXPECT_EQ(check([](auto& p) { p.mutable_frontier(1)->set_closed(true); }),
            "frontier: position in version 1: it is closed, and a round is in flight");
  EXPECT_EQ(check([](auto& p) { p.mutable_settings()->set_replicas(0); }),
            "nothing is logged, and there is a frontier or a committed version");
}

TEST(Codec, SetupRounds) {
  const auto check = [](std::vector<wire::Setup> setups) {
    wire::Report r;
    r.set_generation(2);
    r.mutable_setups()->Add(setups.begin(), setups.end());
    const Status status = validate(r);
    return status.ok() ? "" : status.describe();
  };
  EXPECT_EQ(check({setup(0, 1, true), setup(0, 2, false, {{0, 8}}), setup(1, 1, false)}), "");
  EXPECT_EQ(check({setup(0, 2, true), setup(0, 1, true)}),
            "set-up round 8000000000000001: not in rising order, or it stands twice");
  wire::Setup whole = setup(0, 1, false, {{0, 8}});
  whole.set_total_bytes(16);
  EXPECT_EQ(check({whole}), "");
  whole.clear_final();
  EXPECT_EQ(check({whole}), "set-up round 8000000000000001: a whole result of 16 bytes");
  EXPECT_EQ(check({setup(0, 1, true, {{0, 8}})}), "set-up round 8000000000000001: it is done, and in flight");
  EXPECT_EQ(check({setup(0, 1, false, {{8, 8}})}), "set-up round 8000000000000001: the range 8 is empty");
  EXPECT_EQ(check({setup(0, UINT64_MAX, true)}), "set-up round ffffffffffffffff: not the hash of a name");
  wire::Setup ordinary = setup(0, 1, true);
  ordinary.set_name(5);
  EXPECT_EQ(check({ordinary}), "set-up round 5: not the hash of a name");
  std::vector<wire::Setup> many;
  for (std::uint64_t n = 0; n <= limits::kMaxSetups; ++n) many.push_back(setup(0, n, true));
  EXPECT_EQ(check(many), "1025 set-up rounds are over the limit of 1024");
  many.assign(1, setup(0, 1, false));
  for (std::uint64_t n = 0; n <= limits::kMaxSetupRangesPerReport; ++n) {
    many[0].add_final()->set_begin(2 * n);
    many[0].mutable_final(static_cast<int>(n))->set_end(2 * n + 1);
  }
  EXPECT_EQ(check(many), "1025 ranges of set-up rounds are over the limit");

  wire::Vote v;
  v.set_generation(1);
  v.set_version(2);
  *v.add_setups() = setup(0, 1, false);
  EXPECT_EQ(validate(v).describe(), "set-up round 8000000000000001: it is not done");
  wire::Plan p = logged_plan();
  EXPECT_TRUE(validate(p).ok()) << validate(p).describe();
  p.mutable_setups(1)->set_timeline(p.timeline() + 1);
  EXPECT_EQ(validate(p).describe(), "set-up round 8000000000000002 was begun in a later timeline");
}

TEST(Codec, AddressesAreNumeric) {
  const auto ok = [](const std::string& address) {
    wire::Join j = join("w", "h", 2);
    j.mutable_endpoints(0)->set_address(address);
    return validate(j).ok();
  };
  for (const char* good :
       {"0.0.0.0", "255.255.255.255", "::", "::1", "1::", "fe80::1%eth0", "2001:db8::8:800:200c:417a",
        "1:2:3:4:5:6:7:8", "::ffff:10.0.0.1", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::"}) {
    EXPECT_TRUE(ok(good)) << good;
  }
  for (const char* wrong : {"",
                            "host",
                            "1.2.3",
                            "1.2.3.4.5",
                            "256.1.1.1",
                            "1.2.3.4 ",
                            "1..2.3",
                            "0001.2.3.4",
                            ":",
                            ":::",
                            "1:2",
                            "1::2::3",
                            "1:2:3:4:5:6:7:8:9",
                            "12345::",
                            "g::",
                            "1:2:3:4:5:6:7:",
                            "::1%",
                            "::1%a b",
                            "::1.2.3",
                            "1:2:3:4:5:6:7:1.2.3.4",
                            "1:2:3:4:5:6:7:8::"}) {
    EXPECT_FALSE(ok(wrong)) << wrong;
  }
}

TEST(Codec, WhatABlockedLifeSays) {
  const auto check = [](auto change) { return after(heartbeat(), [&](auto& h) { change(*h.mutable_blocked()); }); };
  EXPECT_EQ(check([](auto&) {}), "");
  EXPECT_EQ(check([](auto& b) { b.set_blocked_ms(~0ULL); }), "blocked: 18446744073709551615 ms are over the limit");
  EXPECT_EQ(check([](auto& b) {
              for (int i = 0; i < 16; ++i) *b.add_calls() = b.calls(0);
            }),
            "blocked: 17 calls are over the limit of 16");
  EXPECT_EQ(check([](auto& b) {
              for (int i = 0; i < 31; ++i) b.add_begun();
            }),
            "blocked: 33 groups are over the limit of 32");
  EXPECT_EQ(check([](auto& b) {
              for (int i = 0; i < 31; ++i) b.add_sent();
            }),
            "blocked: 33 links are over the limit of 32");
  EXPECT_EQ(check([](auto& b) { b.mutable_calls(0)->set_type(18); }), "round p.4 of group deadbeef: unknown type 18");
  EXPECT_EQ(check([](auto& b) { *b.add_begun() = b.begun(0); }), "blocked: groups are not in rising order");
  EXPECT_EQ(check([](auto& b) { b.mutable_begun(0)->set_version(~0ULL); }),
            "blocked: version 18446744073709551615 is over the limit");
  EXPECT_EQ(check([](auto& b) { *b.add_sent() = b.sent(1); }), "blocked: links for messages are not in rising order");
  EXPECT_EQ(check([](auto& b) { b.mutable_sent(0)->set_peer(16384); }),
            "peer of a link for messages 16384 is outside 0 to 16383");
}

TEST(Codec, Heartbeats) {
  const auto check = [](auto change) { return after(heartbeat(), change); };
  const std::string name = "round p.4 of group deadbeef: ";
  EXPECT_EQ(check([](auto& h) { h.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([](auto& h) { h.set_generation(~0ULL); }),
            "generation 18446744073709551615 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([](auto& h) {
              for (std::uint64_t i = 0; i < 16; ++i) *h.add_rounds() = round(i, 1, {}, 0);
            }),
            "17 rounds are over the limit of 16");
  EXPECT_EQ(check([](auto& h) { *h.add_rounds() = h.rounds(0); }), "a round stands twice");
  const auto check_round = [&](auto change) { return check([&](auto& h) { change(*h.mutable_rounds(0)); }); };
  EXPECT_EQ(check_round([](auto& r) { r.set_collective(0); }), name + "unknown collective 0");
  EXPECT_EQ(check_round([](auto& r) { r.set_collective(14); }), name + "unknown collective 14");
  EXPECT_EQ(check_round([](auto& r) { r.set_type(18); }), name + "unknown type 18");
  EXPECT_EQ(check_round([](auto& r) { r.set_op(10); }), name + "unknown operation 10");
  EXPECT_EQ(check_round([](auto& r) { r.set_algorithm(256); }), name + "unknown algorithm 256");
  EXPECT_EQ(check_round([](auto& r) { r.set_root(-2); }), name + "root -2 is negative");
  EXPECT_EQ(check_round([](auto& r) { r.set_root(16384); }), name + "root 16384 is over the limit");
  EXPECT_EQ(check_round([](auto& r) {
              r.set_collective(11);  // its root is a tag
              r.set_root(16384);
            }),
            "");
  EXPECT_EQ(check_round([](auto& r) { r.add_waiting_for(16384); }),
            name + "rank waited for 16384 is outside 0 to 16383");
  EXPECT_EQ(check_round([](auto& r) { r.add_waiting_for(2); }), name + "ranks waited for are not in rising order");
  EXPECT_EQ(check_round([](auto& r) {
              for (int i = 0; i < 16384; ++i) r.add_waiting_for(0);
            }),
            name + "waits for more ranks than a world has");
  EXPECT_EQ(check_round([](auto& r) { r.set_waited_ms(kMaxWaitedMs + 1); }),
            name + "has waited 1099511627777 ms, over the limit");
  EXPECT_NE(check_round([](auto& r) { r.set_version(kMaxVersion + 1); }).find("over the limit"), std::string::npos);
  EXPECT_EQ(check([](auto& h) { h.mutable_draining()->set_left_ms(86'400'001); }),
            "time until it leaves 86400001 is outside 0 to 86400000");
  EXPECT_EQ(check([](auto& h) { h.mutable_draining()->set_reason("\x7f"); }),
            "reason to leave has an unprintable byte at 0");
  const auto check_gpu = [&](auto change) { return check([&](auto& h) { change(*h.mutable_gpu()); }); };
  EXPECT_EQ(check_gpu([](auto& g) { g.set_readers(16384); }), "readers of a GPU 16384 is outside 0 to 16383");
  EXPECT_EQ(check_gpu([](auto& g) { g.set_inputs_lent((1ULL << 48) + 1); }),
            "inputs lent 281474976710657 is outside 0 to 281474976710656");
  EXPECT_EQ(check_gpu([](auto& g) { g.set_finals_from_gpus(~0ULL); }),
            "finals from GPUs 18446744073709551615 is outside 0 to 281474976710656");
  EXPECT_EQ(check_gpu([](auto& g) { g.set_rounds_exchanged(~0ULL); }),
            "rounds exchanged 18446744073709551615 is outside 0 to 281474976710656");
  EXPECT_EQ(check([](auto& h) { h.clear_gpu(); }), "") << "old senders do not tell of it";
  EXPECT_EQ(check([](auto& h) { h.mutable_log()->set_budget_bytes(~0ULL); }),
            "budget of the log 18446744073709551615 is outside 0 to 281474976710656");
  EXPECT_EQ(check([](auto& h) { h.mutable_log()->set_budget_bytes(7); }),
            "bytes of the log in use 281474976710656 is outside 0 to 7");
  EXPECT_EQ(check([](auto& h) { h.clear_log(); }), "") << "nothing is logged";
  EXPECT_EQ(check([](auto& h) { h.set_disk_trouble(std::string(4097, 'x')); }),
            "trouble of its disk of 4097 bytes is over the limit of 4096");
  EXPECT_EQ(check([](auto& h) { h.set_disk_trouble("\x7f"); }), "trouble of its disk has an unprintable byte at 0");
  const auto check_activity = [&](auto change) { return check([&](auto& h) { change(*h.mutable_activity()); }); };
  EXPECT_EQ(check_activity([](auto& a) { a.set_held_ms(1001); }),
            "activity: 10001 ms are told of a window of 10000 ms");
  EXPECT_EQ(check_activity([](auto& a) { a.set_idle_ms(~0U); }),
            "activity: 4294969795 ms are told of a window of 10000 ms");
  EXPECT_EQ(check_activity([](auto& a) { *a.add_links() = a.links(0); }), "activity: links are not in rising order");
  EXPECT_EQ(check_activity([](auto& a) {
              for (std::uint32_t i = 3; i < 19; ++i) a.add_links()->set_peer(i);
            }),
            "activity: 17 links are over the limit of 16");
  const auto check_link = [&](auto change) { return check_activity([&](auto& a) { change(*a.mutable_links(0)); }); };
  EXPECT_EQ(check_link([](auto& l) { l.set_peer(16384); }), "peer of a link 16384 is outside 0 to 16383");
  EXPECT_EQ(check_link([](auto& l) { l.set_awaited_ms(7001); }),
            "activity: the link to rank 2 was waited for longer than its rank waited");
  EXPECT_EQ(check_link([](auto& l) { l.set_blocked_ms(7001); }),
            "activity: the link to rank 2 was waited for longer than its rank waited");
  EXPECT_EQ(check_link([](auto& l) { l.set_window_sent_bytes(1 << 22); }),
            "activity: the link to rank 2 moved more in a part of the generation than in all of it");
  EXPECT_EQ(check_link([](auto& l) { l.set_window_received_bytes(1 << 22); }),
            "activity: the link to rank 2 moved more in a part of the generation than in all of it");
}

TEST(Codec, ReportsAndAnswers) {
  EXPECT_EQ(after(report(),
                  [](auto& r) {
                    r.clear_positions();
                    r.set_version(UINT64_MAX);
                  }),
            "version 18446744073709551615 is outside 0 to 2305843009213693952");
  EXPECT_EQ(after(link_broken(), [](auto& b) { b.set_generation(0); }),
            "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(after(link_broken(), [](auto& b) { b.set_peer(16384); }), "peer 16384 is outside 0 to 16383");
  EXPECT_EQ(after(link_broken(), [](auto& b) { b.set_peer_incarnation(0); }), "no peer incarnation");
  EXPECT_EQ(after(link_broken(), [](auto& b) { b.set_evidence(std::string(4097, 'x')); }),
            "evidence of 4097 bytes is over the limit of 4096");
  EXPECT_EQ(after(round_failed(), [](auto& f) { f.set_generation(0); }),
            "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(after(round_failed(), [](auto& f) { f.set_code(0); }), "unknown failure code 0");
  EXPECT_EQ(after(round_failed(), [](auto& f) { f.set_code(13); }), "unknown failure code 13");
  EXPECT_EQ(after(round_failed(), [](auto& f) { f.clear_reason(); }), "no reason");
  EXPECT_EQ(after(round_failed(), [](auto& f) { f.set_reason("a\nb"); }), "reason has an unprintable byte at 1");
  EXPECT_NE(after(round_failed(), [](auto& f) { f.mutable_about()->set_peer(1u << 20); }), "");
  EXPECT_NE(after(round_failed(), [](auto& f) { f.mutable_about()->set_rank(1u << 20); }), "");
  EXPECT_EQ(after(round_failed(), [](auto& f) { f.mutable_about()->set_round("3\n"); }),
            "round has an unprintable byte at 1");
  EXPECT_NE(after(round_failed(), [](auto& f) { f.mutable_about()->set_round(std::string(97, '3')); }), "");
  EXPECT_EQ(after(stopped(), [](auto& s) { s.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(after(leave(), [](auto& l) { l.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(after(leave(),
                  [](auto& l) {
                    l.set_generation(0);
                    l.set_finalize(false);
                  }),
            "");
  EXPECT_EQ(after(leave(), [](auto& l) { l.set_reason("\x7f"); }), "reason has an unprintable byte at 0");
  // U+009B, which a terminal obeys; U+00A0 is text.
  EXPECT_EQ(after(leave(),
                  [](auto& l) {
                    l.set_reason(
                        "a\xc2\x9b"
                        "2J");
                  }),
            "reason has an unprintable byte at 1");
  EXPECT_EQ(after(leave(), [](auto& l) { l.set_reason("a\xc2\xa0"); }), "");
  EXPECT_EQ(after(leave(),
                  [](auto& l) {
                    l.set_preempted(true);
                    l.set_finalize(true);
                  }),
            "it finalizes, and is preempted");
}

TEST(Codec, WhoLeavesAndServes) {
  wire::Leave serves;
  serves.set_generation(3);
  serves.set_preempted(true);
  serves.set_serves_ms(8000);
  serves.mutable_logged()->set_run(7);
  *serves.mutable_logged()->add_positions() = position(2, 17);
  *serves.add_setups() = setup(0, 7, true);
  EXPECT_EQ(after(serves, [](auto&) {}), "");
  EXPECT_EQ(after(serves, [](auto& l) { l.set_serves_ms(86'400'001); }),
            "time for which it serves 86400001 is outside 0 to 86400000");
  EXPECT_EQ(after(serves, [](auto& l) { l.set_preempted(false); }), "it serves, and is not preempted");
  EXPECT_EQ(after(serves, [](auto& l) { l.set_serves_ms(0); }), "it does not serve, and says how far it has come");
  EXPECT_EQ(after(serves,
                  [](auto& l) {
                    l.set_serves_ms(0);
                    l.clear_logged();
                  }),
            "it does not serve, and says how far it has come");
  EXPECT_EQ(after(serves, [](auto& l) { l.mutable_logged()->set_run(0); }),
            "how far it has come: what is logged is of no run");
  EXPECT_EQ(after(serves,
                  [](auto& l) {
                    *l.mutable_logged()->mutable_positions(0) = in_flight(2, 17, 0, 8, 16);
                    *l.add_setups() = setup(0, 8, false, {{0, 8}});
                  }),
            "");
  EXPECT_EQ(after(serves,
                  [](auto& l) {
                    *l.mutable_logged()->add_setups() = setup(0, 8, false, {{0, 8}});
                  }),
            "it has left, and speaks of more than rounds");
  EXPECT_EQ(after(serves, [](auto& l) { l.mutable_logged()->add_lives(5); }),
            "it has left, and speaks of more than rounds");
  EXPECT_NE(after(serves,
                  [](auto& l) {
                    for (std::uint64_t i = 0; i <= limits::kMaxSetups; ++i) *l.add_setups() = setup(1, i, true);
                  }),
            "");
}

TEST(Codec, WhatTheTrackerSays) {
  EXPECT_EQ(after(welcome(), [](auto& w) { w.set_world_size(0); }), "world size 0 is outside 1 to 16384");
  EXPECT_EQ(after(welcome(), [](auto& w) { w.set_joined(5); }), "joined 5 is outside 1 to 4");
  EXPECT_EQ(after(welcome(), [](auto& w) { w.add_missing("w3"); }), "missing worker w3 stands twice");
  EXPECT_EQ(after(welcome(), [](auto& w) { w.add_missing(" "); }),
            "missing worker id ' ' has a character other than A-Z a-z 0-9 . _ : / @ -");
  EXPECT_EQ(after(welcome(),
                  [](auto& w) {
                    for (int i = 0; i < 16; ++i) w.add_missing("x" + std::to_string(i));
                  }),
            "too many missing workers are named");
  EXPECT_EQ(after(welcome(),
                  [](auto& w) {
                    w.set_spare(true);
                    w.set_joined(0);
                  }),
            "");
  EXPECT_EQ(after(welcome(), [](auto& w) { w.set_joined(0); }), "joined 0 is outside 1 to 4");
  const auto follow = [](auto change) {
    wire::Welcome w = welcome();
    w.set_spare(true);
    w.mutable_follow()->set_version(kFirstCommit.value);
    w.mutable_follow()->set_generation(2);
    w.mutable_follow()->set_run(7);
    return after(w, change);
  };
  EXPECT_EQ(follow([](auto&) {}), "");
  EXPECT_NE(follow([](auto& w) { w.mutable_follow()->set_run(0); }), "");
  EXPECT_EQ(follow([](auto& w) { w.set_spare(false); }), "who is no spare is to follow checkpoints");
  EXPECT_NE(follow([](auto& w) { w.mutable_follow()->set_generation(0); }).find("generation 0"), std::string::npos);
  EXPECT_NE(follow([](auto& w) { w.mutable_follow()->set_version(0); }).find("the checkpoint to be followed"),
            std::string::npos);
  EXPECT_NE(follow([](auto& w) {
              w.mutable_follow()->mutable_plan()->set_generation(3);
            }).find("a plan of another generation, or run"),
            std::string::npos);
  EXPECT_NE(follow([](auto& w) {
              w.mutable_follow()->mutable_plan()->set_generation(2);
              w.mutable_follow()->mutable_plan()->set_run(7);
            }).find("the plan logs nothing"),
            std::string::npos);
  wire::Called called;
  called.set_generation(1);
  EXPECT_EQ(after(called, [](auto& c) { c.set_generation(0); }).empty(), false);
  wire::HeartbeatReply reply;
  reply.mutable_leave()->set_generation(1);
  reply.mutable_leave()->set_reason("slow");
  EXPECT_EQ(after(reply, [](auto&) {}), "");
  EXPECT_EQ(after(reply, [](auto& r) { r.mutable_leave()->set_generation(0); }),
            "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(after(reply, [](auto& r) { r.mutable_leave()->set_within_ms(86'400'001); }),
            "time until it leaves 86400001 is outside 0 to 86400000");
  EXPECT_EQ(after(reply, [](auto& r) { r.mutable_leave()->clear_reason(); }), "it is to leave for no reason");
  EXPECT_EQ(after(reply, [](auto& r) { r.mutable_leave()->set_reason("\r"); }),
            "reason to leave has an unprintable byte at 0");
  EXPECT_EQ(after(refused(), [](auto& r) { r.set_code(0); }), "unknown failure code 0");
  EXPECT_EQ(after(refused(), [](auto& r) { r.clear_reason(); }), "no reason");
  EXPECT_EQ(after(refused(), [](auto& r) { r.set_reason("\r"); }), "reason has an unprintable byte at 0");
  EXPECT_EQ(after(interrupt(), [](auto& i) { i.set_generation(0); }),
            "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(after(interrupt(), [](auto& i) { i.set_code(0); }), "unknown failure code 0");
  EXPECT_EQ(after(interrupt(), [](auto& i) { i.clear_reason(); }), "no reason");
  EXPECT_EQ(after(interrupt(), [](auto& i) { i.set_reason("\r"); }), "reason has an unprintable byte at 0");
  EXPECT_EQ(after(interrupt(), [](auto& i) { i.add_lost(3); }), "lost ranks are not in rising order");
  EXPECT_EQ(after(interrupt(),
                  [](auto& i) {
                    i.set_resume(true);
                    i.set_ends_job(true);
                  }),
            "it ends the job, and resumes");
  EXPECT_EQ(after(interrupt(), [](auto& i) { i.add_lost(99999); }), "lost rank 99999 is outside 0 to 16383");
  EXPECT_EQ(after(finished(), [](auto& f) { f.set_generation(0); }),
            "generation 0 is outside 1 to 4611686018427387904");
}

// The plan of six workers on four hosts, of whom each of the first two hosts has two; between ranks 0 and 2 bytes go by
// way of 4 and 5.
wire::Plan plan_with_a_detour() {
  wire::Plan p = plan_of(2, {{"w0", 10}, {"w1", 11}, {"w2", 12}, {"w3", 13}, {"w4", 14}, {"w5", 15}});
  p.set_timeline(1);
  p.mutable_settings()->set_rewire(true);
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    wire::Member& m = *p.mutable_members(static_cast<int>(rank));
    m.set_host_id(rank < 4 ? "h" + std::to_string(rank / 2) : "h" + std::to_string(rank - 2));
    m.set_local_rank(rank < 4 ? rank % 2 : 0);
    m.set_local_size(rank < 4 ? 2 : 1);
  }
  wire::Detour& d = *p.add_detours();
  d.set_a(0);
  d.set_b(2);
  d.add_relays(4);
  d.add_relays(5);
  return p;
}

// Generation 2 of three ranks; life 9 has left, and serves.
wire::Plan plan_with_a_server() {
  wire::Plan p = plan();
  p.mutable_settings()->set_replicas(2);
  for (wire::Member& m : *p.mutable_members()) m.set_fetch_port(6000);
  *p.add_servers() = p.members(0);
  p.mutable_servers(0)->set_incarnation(9);
  p.mutable_servers(0)->set_since(1);
  return p;
}

TEST(Codec, ServersOfAPlan) {
  const auto check = [](auto change) {
    return after(plan_with_a_server(), [&](auto& p) { change(p, *p.mutable_servers(0)); });
  };
  EXPECT_EQ(check([](auto&, auto&) {}), "");
  EXPECT_EQ(check([](auto& p, auto& m) {
              *p.add_servers() = m;
              p.mutable_servers(1)->set_incarnation(8);
            }),
            "servers: 2 of them, with 2 copies of what is logged");
  EXPECT_EQ(check([](auto& p, auto& m) {
              p.mutable_settings()->set_replicas(3);
              *p.add_servers() = m;
            }),
            "servers: not in rising order");
  EXPECT_EQ(check([](auto&, auto& m) { m.set_incarnation(0); }), "servers: no incarnation");
  EXPECT_EQ(check([](auto&, auto& m) { m.set_incarnation(11); }), "servers: one of them has a rank");
  EXPECT_EQ(check([](auto&, auto& m) { m.set_fresh(true); }), "servers: one of them is a member");
  EXPECT_EQ(check([](auto&, auto& m) { m.set_absent(true); }), "servers: one of them is a member");
  EXPECT_EQ(check([](auto&, auto& m) { m.set_since(0); }), "servers: named since generation 0");
  EXPECT_EQ(check([](auto&, auto& m) { m.set_since(3); }), "servers: named since generation 3");
  EXPECT_EQ(check([](auto&, auto& m) { m.set_fetch_port(0); }), "servers: fetch port 0 is outside 1 to 65535");
  EXPECT_EQ(check([](auto& p, auto&) { p.mutable_settings()->set_min_workers(1); }),
            "servers: the job goes on without lost ranks");
}

TEST(Codec, DetoursOfAPlan) {
  const auto check = [](auto change) {
    return after(plan_with_a_detour(), [&](auto& p) { change(p, *p.mutable_detours(0)); });
  };
  const std::string between = "detours: between ranks ";
  EXPECT_EQ(check([](auto&, auto&) {}), "");
  EXPECT_EQ(check([](auto& p, auto&) { p.mutable_settings()->set_rewire(false); }), "detours: the job has none");
  EXPECT_EQ(check([](auto&, auto& d) { d.set_a(2); }), between + "2 and 2 of 6");
  EXPECT_EQ(check([](auto&, auto& d) { d.set_a(3); }), between + "3 and 2 of 6");
  EXPECT_EQ(check([](auto&, auto& d) { d.set_b(6); }), between + "0 and 6 of 6");
  EXPECT_EQ(check([](auto&, auto& d) { d.set_b(1); }), between + "0 and 1, which are on one host");
  EXPECT_EQ(check([](auto&, auto& d) { d.clear_relays(); }), between + "0 and 2: 0 relays");
  EXPECT_EQ(check([](auto&, auto& d) {
              for (std::uint32_t k = 6; k < 6 + limits::kMaxRelays; ++k) d.add_relays(k);
            }),
            between + "0 and 2: 18 relays");
  EXPECT_EQ(check([](auto&, auto& d) { d.add_relays(5); }),
            between + "0 and 2: relays are not in rising order, or not of this world");
  EXPECT_EQ(check([](auto&, auto& d) { d.add_relays(6); }),
            between + "0 and 2: relays are not in rising order, or not of this world");
  EXPECT_EQ(check([](auto&, auto& d) { d.set_relays(0, 1); }), between + "0 and 2: relay 1 is on a host of theirs");
  EXPECT_EQ(check([](auto&, auto& d) { d.set_relays(0, 3); }), between + "0 and 2: relay 3 is on a host of theirs");
  const auto more = [](auto& p, std::uint32_t a, std::uint32_t b) {
    wire::Detour& d = *p.add_detours();
    d.set_a(a);
    d.set_b(b);
    d.add_relays(5);
  };
  EXPECT_EQ(check([&](auto& p, auto&) { more(p, 0, 3); }), "");
  EXPECT_EQ(check([&](auto& p, auto&) { more(p, 0, 2); }), between + "0 and 2: not in rising order");
  EXPECT_EQ(check([&](auto& p, auto&) {
              for (std::size_t k = 0; k < limits::kMaxDetours; ++k) more(p, 0, 3);
            }),
            "detours: 65 of them are over the limit of 64");
}

TEST(Codec, RingOrdersOfAPlan) {
  const auto good = [] {
    wire::Plan p = plan_of(2, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
    p.set_timeline(1);
    p.mutable_settings()->set_rewire(true);
    p.mutable_settings()->set_reorders(true);
    wire::RingOrder& o = *p.add_orders();
    o.set_from_version(3);
    for (const std::uint32_t rank : {0u, 2u, 1u}) o.add_ranks(rank);
    return p;
  };
  const auto check = [&](auto change) { return after(good(), [&](auto& p) { change(p, *p.mutable_orders(0)); }); };
  const auto more = [](auto& p, std::uint64_t from) {
    wire::RingOrder o = p.orders(0);
    o.set_from_version(from);
    *p.add_orders() = o;
  };
  const std::string from = "ring orders: from version 3 on: ";
  EXPECT_EQ(check([](auto&, auto&) {}), "");
  EXPECT_EQ(check([&](auto& p, auto&) { more(p, 4); }), "");
  EXPECT_EQ(check([](auto& p, auto&) { p.mutable_settings()->set_reorders(false); }), "ring orders: the job has none");
  EXPECT_EQ(check([](auto& p, auto&) { p.mutable_settings()->set_rewire(false); }),
            "rings may be ordered anew, and no link is gone around");
  EXPECT_EQ(check([](auto&, auto& o) { o.set_from_version(0); }),
            "ring orders: version 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([&](auto& p, auto&) { more(p, 3); }), "ring orders: version 3 is outside 4 to 4611686018427387904");
  EXPECT_EQ(check([&](auto& p, auto&) {
              more(p, 4);
              more(p, 5);
            }),
            "ring orders: 3 of them are over the limit of 2");
  EXPECT_EQ(check([](auto&, auto& o) { o.add_ranks(3); }), from + "4 ranks of 3");
  EXPECT_EQ(check([](auto&, auto& o) { o.set_ranks(1, 3); }), from + "rank 3 of 3");
  EXPECT_EQ(check([](auto&, auto& o) { o.set_ranks(1, 0); }), from + "rank 0 twice");
}

TEST(Codec, Plans) {
  const auto check = [](auto change) { return after(plan(), change); };
  EXPECT_EQ(check([](auto& p) { p.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([](auto& p) { p.clear_settings(); }), "no settings");
  EXPECT_EQ(check([](auto& p) { p.mutable_settings()->set_streams(0); }), "streams 0 is outside 1 to 16");
  EXPECT_EQ(check([](auto& p) { p.mutable_settings()->set_world_size(4); }), "3 members in a world of 4");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_rank(2); }), "member 1 has rank 2");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_incarnation(0); }), "member 1: no incarnation");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_incarnation(10); }), "member 1's incarnation stands twice");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(1)->set_worker_id("w0"); }), "worker id w0 stands twice");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->clear_endpoints(); }),
            "member 2: no endpoint: peers could not connect");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_local_size(2); }),
            "member 2 has local size 2, its host has 3 ranks");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_host_id("g"); }),
            "member 0 has local size 3, its host has 2 ranks");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_local_rank(1); }),
            "member 2's local rank 1 is taken or over its host's size");
  EXPECT_EQ(check([](auto& p) { p.mutable_members(2)->set_local_rank(3); }),
            "member 2's local rank 3 is taken or over its host's size");
}

TEST(Codec, Records) {
  wire::JobRecord good;
  good.set_format(kJobRecordFormat);
  good.set_job("j");
  good.set_generation(2);
  good.set_term(1);
  *good.mutable_settings() = settings(3);
  good.set_settings_from("worker w0 on host h");
  good.set_timeline(1);
  *good.mutable_plan() = plan();
  const auto check = [&](auto change) { return after(good, change); };
  EXPECT_EQ(check([](auto& r) { r.set_format(0); }), "format 0, this build reads format 4");
  EXPECT_EQ(check([](auto& r) { r.clear_job(); }), "job is empty");
  EXPECT_EQ(check([](auto& r) { r.set_term(0); }), "term 0");
  EXPECT_EQ(check([](auto& r) { r.set_term(kMaxGeneration - 1); }), "term 4611686018427387903");
  EXPECT_EQ(check([](auto& r) { r.set_generation(0); }), "generation 0 is outside 1 to 4611686018427387904");
  EXPECT_EQ(check([](auto& r) { r.clear_settings(); }), "no settings");
  EXPECT_EQ(check([](auto& r) { r.mutable_settings()->set_streams(0); }), "streams 0 is outside 1 to 16");
  EXPECT_EQ(check([](auto& r) { r.mutable_settings()->set_streams(2); }), "the plan's settings are not the job's");
  EXPECT_EQ(check([](auto& r) { r.set_settings_from("\n"); }), "origin of the settings has an unprintable byte at 0");
  EXPECT_EQ(check([](auto& r) { r.clear_plan(); }), "no plan");
  EXPECT_EQ(check([](auto& r) { r.mutable_plan()->set_run(0); }), "bad plan: it is of no run");
  EXPECT_EQ(check([](auto& r) { r.set_generation(3); }), "the plan is not the newest generation's");
  EXPECT_EQ(check([](auto& r) { *r.mutable_interrupt() = interrupt(); }), "the interrupt ends no plan");
  EXPECT_EQ(check([](auto& r) {
              *r.mutable_interrupt() = interrupt();
              r.mutable_interrupt()->set_generation(3);
              r.set_generation(3);
            }),
            "");
  EXPECT_EQ(check([](auto& r) { r.mutable_interrupt()->set_generation(3); }), "bad interrupt: unknown failure code 0");
  EXPECT_EQ(check([](auto& r) { r.add_finalized(3); }), "the finalized ranks are wrong");
  EXPECT_EQ(check([](auto& r) { r.set_finished(true); }), "a finished job has a plan");
  EXPECT_EQ(check([](auto& r) { r.set_timeline(2); }), "the plan's timeline is not the job's");
  EXPECT_EQ(check([](auto& r) { r.set_committed_version(3); }), "a version, and it is not committed");
  good.mutable_settings()->set_replicas(2);
  *good.mutable_plan() = logged_plan();
  good.set_committed(true);
  good.set_committed_version(3);
  good.set_committed_timeline(1);
  EXPECT_EQ(check([](auto& r) { r.set_committed_version(2); }), "");
  EXPECT_EQ(check([](auto& r) { r.mutable_plan()->set_committed_version(4); }), "the plan knows of a later commit");
  EXPECT_EQ(check([](auto& r) { r.set_committed_timeline(2); }), "a version was committed in a later timeline");
}

// Whatever bytes come, the decoder answers, and what it accepts it can send on.
TEST(Codec, RandomDamageIsRefusedOrHarmless) {
  std::mt19937_64 random(20261121);
  std::size_t accepted = 0, refused_count = 0;
  for (const Side side : {Side::kWorker, Side::kTracker}) {
    for (const wire::Envelope& e : one_of_each(side)) {
      const std::string good = encode(e, side);
      for (int i = 0; i < 4000; ++i) {
        std::string bytes = good;
        for (std::uint64_t n = 1 + random() % 4; n > 0; --n) {
          const std::size_t at = random() % (bytes.size() + 1);
          switch (random() % 4) {
            case 0: bytes.insert(at, 1, static_cast<char>(random())); break;
            case 1: bytes.erase(at, 1 + random() % 3); break;
            case 2: bytes.insert(at, bytes.substr(random() % (bytes.size() + 1), random() % 16)); break;
            default:
              if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          }
        }
        const auto decoded = decode_envelope(bytes_of(bytes), side);
        if (!decoded.ok()) {
          ++refused_count;
          ASSERT_FALSE(decoded.status().describe().empty());
          continue;
        }
        ++accepted;
        const std::string once = encode(decoded.value(), side);
        const auto again = decode_envelope(bytes_of(once), side);
        ASSERT_TRUE(again.ok()) << again.status().describe();
        ASSERT_EQ(encode(again.value(), side), once);
      }
    }
  }
  EXPECT_GT(accepted, 1000U);
  EXPECT_GT(refused_count, 1000U);
}

}  // namespace
}  // namespace warren::test
