// Writes the inputs that the fuzzers start from: seeds DIRECTORY makes DIRECTORY/<fuzzer>/<name> for every format.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <string_view>

#include "recovery/base/check.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/fetch_codec.h"
#include "recovery/wire/frame.h"
#include "recovery/wire/packed_members.h"
#include "worker/transport/handshake.h"

namespace {

using warren::wire::Envelope;

std::filesystem::path root;

void write(const std::string& fuzzer, const std::string& name, std::string_view bytes) {
  const auto folder = root / fuzzer;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name, std::ios::binary) << bytes;
}

std::string_view view(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void frames() {
  warren::FrameHeader header;
  header.generation = warren::Generation(3);
  header.round.sequence = warren::Sequence(17);
  header.payload_bytes = 4096;
  header.fingerprint = {
      warren::Collective::kAllreduce, warren::DataType::kF32, warren::ReduceOp::kSum, 4, -1, 1024, 0, 1};
  warren::FrameBytes bytes{};
  warren::encode(header, bytes);
  write("frame", "allreduce", view(bytes));
  header.kind = warren::FrameKind::kPoint;
  header.fingerprint = {warren::Collective::kPoint, warren::DataType::kU8, warren::ReduceOp::kNone, 0, 7, 1, 0, 0};
  warren::encode(header, bytes);
  write("frame", "point", view(bytes));
}

Envelope envelope() {
  Envelope e;
  e.set_protocol(warren::kProtocolVersion);
  e.set_job("digits");
  e.set_sender(11);
  e.set_receiver(12);
  e.set_term(5);
  return e;
}

void fill(warren::wire::JobSettings* settings) {
  settings->set_world_size(2);
  settings->set_round_timeout_ms(10'000);
  settings->set_algorithm("auto");
  settings->set_chunk_bytes(262'144);
  settings->set_streams(1);
  settings->set_checksums(true);
  settings->set_check_call_sites(true);
}

void add_endpoint(auto* message) {
  auto* endpoint = message->add_endpoints();
  endpoint->set_address("127.0.0.1");
  endpoint->set_port(40'000);
}

void add_position(auto* message, std::uint64_t version, std::uint64_t rounds, bool closed) {
  auto* position = message->Add();
  position->set_version(version);
  position->set_rounds(rounds);
  position->set_closed(closed);
  if (closed) return;
  auto* range = position->add_final();
  range->set_begin(0);
  range->set_end(4096);
}

void envelopes() {
  const auto put = [](const std::string& name, auto&& change) {
    Envelope e = envelope();
    change(e);
    const warren::Side from = e.body_case() <= Envelope::kForget ? warren::Side::kWorker : warren::Side::kTracker;
    const std::string bytes = warren::encode(e, from);
    WARREN_CHECK(warren::decode_envelope(std::as_bytes(std::span(bytes)), from).ok(),
                 "a seed reaches all of a decoder");
    write("envelope", name, bytes);
  };
  put("join", [](Envelope& e) {
    auto* join = e.mutable_join();
    join->set_worker_id("digits-0");
    join->set_host_id("host");
    join->set_domain_id("machine");
    join->set_software("0.1.0");
    add_endpoint(join);
    fill(join->mutable_settings());
  });
  put("heartbeat", [](Envelope& e) {
    auto* heartbeat = e.mutable_heartbeat();
    heartbeat->set_generation(3);
    heartbeat->set_beat(5);
    auto* round = heartbeat->add_rounds();
    round->set_sequence(17);
    round->set_collective(1);
    round->set_type(9);
    round->set_op(1);
    round->set_root(-1);
    round->set_count(1024);
    round->set_algorithm(4);
    round->add_waiting_for(1);
    heartbeat->mutable_gpu()->set_readers(3);
    heartbeat->mutable_gpu()->set_inputs_lent(56);
    heartbeat->mutable_gpu()->set_finals_from_gpus(78);
    heartbeat->mutable_gpu()->set_rounds_exchanged(90);
    auto* blocked = heartbeat->mutable_blocked();
    blocked->set_blocked_ms(6000);
    *blocked->add_calls() = *round;
    blocked->add_begun()->set_rounds(18);
    blocked->add_sent()->set_messages(4);
    auto* activity = heartbeat->mutable_activity();
    activity->set_window_ms(10'000);
    activity->set_idle_ms(9000);
    auto* link = activity->add_links();
    link->set_peer(1);
    link->set_received_bytes(1 << 20);
    link->set_awaited_ms(8000);
  });
  put("link_broken", [](Envelope& e) {
    e.mutable_link_broken()->set_generation(3);
    e.mutable_link_broken()->set_peer(1);
    e.mutable_link_broken()->set_peer_incarnation(13);
    e.mutable_link_broken()->set_evidence("closed by peer");
  });
  put("round_failed", [](Envelope& e) {
    e.mutable_round_failed()->set_generation(3);
    e.mutable_round_failed()->set_code(6);
    e.mutable_round_failed()->set_reason("ranks disagree");
  });
  put("stopped", [](Envelope& e) { e.mutable_stopped()->set_generation(4); });
  put("leave", [](Envelope& e) {
    e.mutable_leave()->set_generation(3);
    e.mutable_leave()->set_finalize(true);
  });
  put("report", [](Envelope& e) {
    e.mutable_report()->set_generation(4);
    e.mutable_report()->set_version(2);
    add_position(e.mutable_report()->mutable_positions(), 1, 17, true);
    add_position(e.mutable_report()->mutable_positions(), 2, 3, false);
  });
  put("load", [](Envelope& e) { e.mutable_load(); });
  put("vote", [](Envelope& e) {
    e.mutable_vote()->set_generation(3);
    e.mutable_vote()->set_version(2);
    add_position(e.mutable_vote()->mutable_positions(), 1, 17, true);
  });
  put("log_gap", [](Envelope& e) {
    e.mutable_log_gap()->set_generation(3);
    e.mutable_log_gap()->set_reason("nobody holds it");
  });
  put("checkpoint_lost", [](Envelope& e) {
    e.mutable_log_gap()->set_generation(3);
    e.mutable_log_gap()->set_reason("its copies are lost");
    e.mutable_log_gap()->mutable_checkpoint()->set_version(2);
  });
  put("forget", [](Envelope& e) { e.mutable_forget()->set_force(true); });
  put("forgotten", [](Envelope& e) { e.mutable_forgotten(); });
  put("known", [](Envelope& e) {
    e.mutable_known()->set_generation(4);
    e.mutable_known()->set_plan_generation(3);
    e.mutable_known()->set_committed(true);
    e.mutable_known()->set_committed_version(2);
  });
  put("tell", [](Envelope& e) { e.mutable_tell()->set_generation(3); });
  put("loaded", [](Envelope& e) {
    e.mutable_loaded()->set_committed(true);
    e.mutable_loaded()->set_version(2);
  });
  put("committed", [](Envelope& e) { e.mutable_committed()->set_version(2); });
  put("welcome", [](Envelope& e) {
    e.mutable_welcome()->set_joined(1);
    e.mutable_welcome()->set_world_size(2);
    e.mutable_welcome()->add_missing("digits-1");
  });
  put("refused", [](Envelope& e) {
    e.mutable_refused()->set_code(3);
    e.mutable_refused()->set_reason("world size");
  });
  put("plan", [](Envelope& e) {
    auto* plan = e.mutable_plan();
    plan->set_generation(3);
    fill(plan->mutable_settings());
    plan->mutable_settings()->set_replicas(2);
    plan->mutable_settings()->set_replace_after_ms(3000);
    add_position(plan->mutable_frontier(), 0, 2, true);
    add_position(plan->mutable_frontier(), 2, 5, false);
    plan->set_committed(true);
    plan->set_committed_version(2);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      auto* member = plan->add_members();
      member->set_rank(rank);
      member->set_incarnation(11 + rank);
      member->set_worker_id("digits-" + std::to_string(rank));
      member->set_host_id("host");
      member->set_domain_id("machine");
      member->set_local_rank(rank);
      member->set_local_size(2);
      member->set_fetch_port(41'000);
      member->set_segment_socket("warren-11");
      member->set_fresh(rank == 0);
      member->set_since(rank == 0 ? 3 : 1);
      add_endpoint(member);
      plan->set_run(11);
    }
  });
  put("plan_with_a_detour", [](Envelope& e) {
    auto* plan = e.mutable_plan();
    plan->set_generation(3);
    plan->set_run(11);
    fill(plan->mutable_settings());
    plan->mutable_settings()->set_world_size(3);
    plan->mutable_settings()->set_rewire(true);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      auto* member = plan->add_members();
      member->set_rank(rank);
      member->set_incarnation(11 + rank);
      member->set_worker_id("digits-" + std::to_string(rank));
      member->set_host_id("host-" + std::to_string(rank));
      member->set_domain_id("machine-" + std::to_string(rank));
      member->set_local_size(1);
      member->set_fetch_port(41'000);
      member->set_since(1);
      add_endpoint(member);
    }
    auto* detour = plan->add_detours();
    detour->set_a(0);
    detour->set_b(2);
    detour->add_relays(1);
    plan->mutable_settings()->set_reorders(true);
    auto* order = plan->add_orders();
    order->set_from_version(3);
    for (const std::uint32_t rank : {1u, 0u, 2u}) order->add_ranks(rank);
  });
  put("follow", [](Envelope& e) {
    auto* welcome = e.mutable_welcome();
    welcome->set_world_size(2);
    welcome->set_spare(true);
    auto* follow = welcome->mutable_follow();
    follow->set_version(2);
    follow->set_generation(3);
    follow->set_run(11);
    auto* plan = follow->mutable_plan();
    plan->set_generation(3);
    plan->set_run(11);
    fill(plan->mutable_settings());
    plan->mutable_settings()->set_replicas(2);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      auto* member = plan->add_members();
      member->set_rank(rank);
      member->set_incarnation(11 + rank);
      member->set_worker_id("digits-" + std::to_string(rank));
      member->set_host_id("host" + std::to_string(rank));
      member->set_domain_id("machine");
      member->set_local_size(1);
      member->set_fetch_port(41'000);
      member->set_segment_socket(warren::segment_socket_of(warren::Incarnation(11 + rank)));
      member->mutable_traits()->set_cores(8);
      member->set_since(1);
      add_endpoint(member);
    }
  });
  put("interrupt", [](Envelope& e) {
    e.mutable_interrupt()->set_generation(4);
    e.mutable_interrupt()->set_code(5);
    e.mutable_interrupt()->set_reason("rank 1 is gone");
    e.mutable_interrupt()->add_lost(1);
    e.mutable_interrupt()->set_resume(true);
  });
  put("interrupt_that_ends_the_job", [](Envelope& e) {
    e.mutable_interrupt()->set_generation(4);
    e.mutable_interrupt()->set_code(2);
    e.mutable_interrupt()->set_reason("what it would go on from is lost");
    e.mutable_interrupt()->set_ends_job(true);
  });
  put("finished", [](Envelope& e) { e.mutable_finished()->set_generation(3); });
  put("heartbeat_reply", [](Envelope& e) { e.mutable_heartbeat_reply()->set_beat(5); });
  put("leave_request", [](Envelope& e) {
    auto* leave = e.mutable_heartbeat_reply()->mutable_leave();
    leave->set_generation(3);
    leave->set_within_ms(10'000);
    leave->set_reason("slow_rank");
  });
}

template <class Message>
void set_fetch_head(Message& m) {
  m.set_protocol(warren::kProtocolVersion);
  m.set_sender(11);
  m.set_receiver(12);
  m.set_generation(3);
  m.set_id(5);
}

void fetches() {
  warren::wire::FetchRequest listing;
  set_fetch_head(listing);
  listing.set_kind(1);
  listing.set_version(1);
  listing.set_end_sequence(100);
  listing.set_most_ranges(10);
  write("fetch", "listing", warren::encode(listing));
  warren::wire::FetchRequest pieces;
  set_fetch_head(pieces);
  pieces.set_kind(1);
  pieces.set_version(1);
  pieces.set_most_bytes(500);
  for (std::uint64_t i = 0; i < 3; ++i) {
    auto* piece = pieces.add_pieces();
    piece->set_sequence(2 * i);
    piece->set_begin(100 * i);
    piece->set_end(100 * i + 300);
  }
  write("fetch", "pieces", warren::encode(pieces));
  warren::wire::FetchRequest question;
  set_fetch_head(question);
  question.set_kind(1);
  question.set_version(1);
  question.set_first_sequence(5);
  question.set_asks(true);
  write("fetch", "question", warren::encode(question));
  warren::Fingerprint round;
  round.collective = warren::Collective::kBroadcast;
  write("fetch", "word",
        warren::encode(warren::answer_to(question, warren::RoundWord::kRound, &round), warren::Payloads::kApart));
  warren::wire::FetchReply reply;
  set_fetch_head(reply);
  auto* entry = reply.add_entries();
  entry->set_sequence(17);
  entry->set_collective(1);
  entry->set_type(9);
  entry->set_op(1);
  entry->set_root(-1);
  entry->set_count(1024);
  entry->set_total_bytes(4096);
  auto* held = entry->add_held();
  held->set_begin(8);
  held->set_end(16);
  reply.set_next_sequence(18);
  write("fetch", "listed", warren::encode(reply, warren::Payloads::kInside));
  reply.set_data(true);
  entry->set_checksum(7);
  write("fetch", "apart", warren::encode(reply, warren::Payloads::kApart));
  entry->set_payload("12345678");
  write("fetch", "data", warren::encode(reply, warren::Payloads::kInside));
}

void handshakes() {
  warren::worker::handshake::Hello hello;
  hello.job_hash = warren::worker::handshake::job_hash("digits");
  hello.generation = warren::Generation(3);
  hello.from = warren::Rank(0);
  hello.to = warren::Rank(1);
  hello.from_incarnation = warren::Incarnation(11);
  hello.to_incarnation = warren::Incarnation(12);
  const auto bytes = warren::worker::handshake::encode(hello);
  const auto verdict = warren::worker::handshake::make_verdict(warren::worker::handshake::Verdict::kBusy);
  write("handshake", "hello", view(bytes));
  std::string whole(view(bytes));
  whole.resize(warren::worker::handshake::kHelloBytes + warren::worker::handshake::kChallengeBytes + 32 +
               warren::worker::handshake::kProofBytes);
  whole += view(verdict);
  write("handshake", "whole", whole);
  hello.relay_to = warren::Rank(2);
  const auto onward = warren::worker::handshake::encode(hello);
  write("handshake", "onward", view(onward));
}

void texts() {
  const std::string hex(64, 'a');
  write("secret", "root", "warren-secret-1\nkey " + hex + "\n");
  write("secret", "job", "warren-secret-1\njob digits\ntracker " + hex + "\nkey " + hex + "\n");
  using std::string_literals::operator""s;
  write("settings", "nodes", "\0gpu[01-03,7],login"s);
  write("settings", "nodes_nested", "\0rack[1-2]node[001-016]"s);
  write("settings", "file", "\1# a comment\ntracker = 10.0.0.1:9370\njob = digits\nworld_size = 4\nstreams = 2\n"s);
  write("settings", "warren",
        "\2WARREN_TRACKER=[::1]:9370\nWARREN_JOB=digits\nWARREN_WORLD_SIZE=2\nWARREN_WORKER_ID=w0\n"
        "WARREN_INSECURE_NO_AUTH=1\n"s);
  write("settings", "slurm",
        "\2SLURM_JOB_ID=7\nSLURM_PROCID=1\nSLURM_NTASKS=4\nSLURM_JOB_NODELIST=gpu[01-02]\nWARREN_SECRET_FILE=/s\n"s);
  write("settings", "torchrun",
        "\2RANK=1\nWORLD_SIZE=4\nMASTER_ADDR=node0\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID=x\n"s);
}

// Patches: where / 8 in two bytes, how many bytes, the bytes; 0x1000 is the first header.
void segments() {
  using std::string_literals::operator""s;
  write("segment", "none", "\0"s);
  write("segment", "superblock", "\0\1\0\2\7\7"s);
  write("segment", "stamp", "\0\20\0\1\3"s);
  write("segment", "header", "\1\0\2\x60"s + std::string(96, 'x'));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_seeds DIRECTORY\n";
    return 2;
  }
  root = argv[1];
  frames();
  envelopes();
  fetches();
  handshakes();
  segments();
  texts();
  return 0;
}
