// Workers of one job, each on a host of its own, before a tracker that the test plays: the link between two of them
// goes by way of the third, and results are what they are without.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "recovery/wire/codec.h"
#include "tests/worker/played_tracker.h"
#include "worker/session/session.h"
#include "worker/settings/settings.h"

namespace warren::worker {
namespace {

constexpr int kRanks = 3;

class PlayedTracker : public PlayedTrackerSocket {
 public:
  // The first message of this kind of each worker, by life; other messages are passed over.
  std::map<std::uint64_t, wire::Envelope> hear_all(wire::Envelope::BodyCase kind) {
    std::map<std::uint64_t, wire::Envelope> heard;
    for (int i = 0; i < 200 && heard.size() < kRanks; i++) {
      const auto message = next_message();
      if (!message) break;
      auto decoded = decode_envelope(std::as_bytes(std::span(message->bytes)), Side::kWorker);
      EXPECT_TRUE(decoded.ok()) << decoded.status().describe();
      if (!decoded.ok()) continue;
      const std::uint64_t life = decoded.value().sender();
      from_[life] = message->from;
      if (decoded.value().body_case() == kind) heard.try_emplace(life, std::move(decoded).value());
    }
    EXPECT_EQ(heard.size(), static_cast<std::size_t>(kRanks)) << "not all have sent message " << kind;
    return heard;
  }
  // To each of them.
  void say(wire::Envelope e) {
    for (const auto& [life, from] : from_) {
      address_to(life, e);
      send_to(from, e);
    }
  }

 private:
  std::map<std::uint64_t, std::string> from_;  // by life
};

class DetourTest : public ::testing::Test {
 protected:
  struct Worker {
    std::mutex mutex;
    std::vector<std::string> log;
    std::promise<std::shared_ptr<Session>> joined;
    std::shared_ptr<Session> session;
    std::thread joins;
  };

  void start() {
    for (int r = 0; r < kRanks; r++) {
      Worker& w = workers_[static_cast<std::size_t>(r)];
      warren_options o{};
      o.struct_size = sizeof o;
      const std::string id = "w" + std::to_string(r);
      const std::string tracker = tracker_.address();
      o.tracker = tracker.c_str();
      o.job = "j";
      o.worker_id = o.host_id = o.domain_id = id.c_str();
      o.world_size = kRanks;
      o.insecure_no_auth = 1;
      o.replicas = 2;
      o.grace_ms = -1;
      o.algorithm = "ring";
      o.chunk_bytes = 16'384;
      o.round_timeout_ms = kRoundTimeoutMs;
      o.log_memory_bytes = 16 << 20;
      auto settings = resolve(&o, [](const std::string&) { return std::nullopt; });
      ASSERT_TRUE(settings.ok()) << settings.status().describe();
      w.joins = std::thread([&w, s = std::move(settings).value()] {
        const auto sink = [](warren_log_level, const char* text, void* context) {
          Worker& worker = *static_cast<Worker*>(context);
          const std::lock_guard lock(worker.mutex);
          worker.log.emplace_back(text);
        };
        auto session = Session::create(s, Log{sink, &w, WARREN_LOG_INFO});
        EXPECT_TRUE(session.ok()) << session.status().describe();
        w.joined.set_value(session.ok() ? session.value() : nullptr);
      });
    }
    for (auto& [life, e] : tracker_.hear_all(wire::Envelope::kJoin)) {
      joins_[static_cast<std::size_t>(e.join().worker_id()[1] - '0')] = std::move(e);
    }
    EXPECT_TRUE(joins_[0].join().settings().rewire()) << "so it is by default";
    EXPECT_FALSE(joins_[0].join().settings().reorders());
  }
  // A plan, with the link between ranks 0 and 2 led by way of rank 1.
  [[nodiscard]] wire::Envelope plan(std::uint64_t generation, bool with_detour) const {
    wire::Envelope e;
    wire::Plan& p = *e.mutable_plan();
    p.set_generation(generation);
    p.set_run(joins_[0].sender());
    *p.mutable_settings() = joins_[0].join().settings();
    for (int r = 0; r < kRanks; r++) {
      const wire::Join& join = joins_[static_cast<std::size_t>(r)].join();
      wire::Member& m = *p.add_members();
      m.set_rank(static_cast<std::uint32_t>(r));
      m.set_incarnation(joins_[static_cast<std::size_t>(r)].sender());
      m.set_worker_id(join.worker_id());
      m.set_host_id(join.host_id());
      m.set_domain_id(join.domain_id());
      *m.mutable_endpoints() = join.endpoints();
      m.set_fetch_port(join.fetch_port());
      m.set_segment_socket(join.segment_socket());
      m.set_local_size(1);
      m.set_fresh(generation == 1);
      m.set_since(1);
    }
    if (with_detour) {
      wire::Detour& d = *p.add_detours();
      d.set_a(0);
      d.set_b(2);
      d.add_relays(1);
    }
    return e;
  }
  void wait_until_all_have_joined() {
    for (Worker& w : workers_) {
      w.session = w.joined.get_future().get();
      w.joins.join();
      ASSERT_NE(w.session, nullptr);
    }
  }
  // The ring's sum of floats whose rounding depends on the order, at each rank.
  std::array<std::vector<float>, kRanks> sum() {
    std::array<std::vector<float>, kRanks> out;
    std::array<std::thread, kRanks> programs;
    for (std::size_t r = 0; r < kRanks; r++) {
      programs[r] = std::thread([this, r, &out] {
        std::vector<float> in(kCount);
        for (std::size_t i = 0; i < kCount; i++) in[i] = 1.0f / static_cast<float>(i * kRanks + r + 1);
        out[r].resize(kCount);
        Call call;
        call.spec.collective = Collective::kAllreduce;
        call.spec.type = DataType::kF32;
        call.spec.op = ReduceOp::kSum;
        call.spec.input = in.data();
        call.spec.output = out[r].data();
        call.spec.count = kCount;
        const Status status = workers_[r].session->calls().run(kWorldGroup, call);
        EXPECT_TRUE(status.ok()) << status.describe();
      });
    }
    for (std::thread& program : programs) program.join();
    return out;
  }
  void finish(std::uint64_t generation) {
    std::array<std::thread, kRanks> programs;
    for (std::size_t r = 0; r < kRanks; r++) {
      programs[r] = std::thread([this, r] {
        const Status end = workers_[r].session->finalize();
        EXPECT_TRUE(end.ok()) << end.describe();
      });
    }
    (void)tracker_.hear_all(wire::Envelope::kLeave);
    wire::Envelope e;
    e.mutable_finished()->set_generation(generation);
    tracker_.say(e);
    for (std::thread& program : programs) program.join();
  }
  // What a worker has said that it passed on, in so many generations.
  std::vector<std::string> passed_on(std::size_t rank) {
    Worker& w = workers_[rank];
    const std::lock_guard lock(w.mutex);
    std::vector<std::string> out;
    for (const std::string& line : w.log) {
      if (line.find("passed on") != std::string::npos) out.push_back(line);
    }
    return out;
  }

  static constexpr std::size_t kCount = 300'000;
  PlayedTracker tracker_;
  std::array<wire::Envelope, kRanks> joins_;  // by rank
  std::array<Worker, kRanks> workers_;
};

TEST_F(DetourTest, ALinkGoesByWayOfAnotherRankAndBackAndBitsStay) {
  start();
  tracker_.say(plan(1, true));
  wait_until_all_have_joined();
  const auto around = sum();
  wire::Envelope interrupt;
  interrupt.mutable_interrupt()->set_generation(2);
  interrupt.mutable_interrupt()->set_code(static_cast<std::uint32_t>(Code::kPeerLost));
  interrupt.mutable_interrupt()->set_reason("there is a better way");
  interrupt.mutable_interrupt()->set_resume(true);
  tracker_.say(interrupt);
  const auto reports = tracker_.hear_all(wire::Envelope::kReport);
  // The relay has stopped when it reports.
  ASSERT_EQ(passed_on(1).size(), 1u);
  wire::Envelope next = plan(2, false);
  *next.mutable_plan()->mutable_frontier() = reports.begin()->second.report().positions();
  tracker_.say(next);
  const auto directly = sum();
  for (std::size_t r = 0; r < kRanks; r++) {
    ASSERT_EQ(around[r].size(), kCount);
    EXPECT_EQ(std::memcmp(around[r].data(), directly[r].data(), kCount * sizeof(float)), 0) << "rank " << r;
    EXPECT_EQ(std::memcmp(around[r].data(), around[0].data(), kCount * sizeof(float)), 0) << "rank " << r;
  }
  finish(2);
  // A ring's link carries four thirds of the buffer, less what its rank keeps.
  const std::string line = passed_on(1).at(0);
  EXPECT_GE(std::stoull(line.substr(line.find("passed on ") + 10)), kCount * sizeof(float)) << line;
  EXPECT_TRUE(passed_on(0).empty() && passed_on(2).empty());
  EXPECT_EQ(passed_on(1).size(), 1u) << "in the first generation alone";
}

}  // namespace
}  // namespace warren::worker
