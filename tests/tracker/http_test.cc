#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/tracker/fixture.h"
#include "tracker/http_server.h"
#include "tracker/status.h"

namespace warren::tracker {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using wire::Envelope;

class HttpTest : public WithTracker {
 protected:
  void serve() {
    TrackerOptions o = options();
    o.http_port = 0;
    start(std::move(o));
  }
  httplib::Result get(const std::string& path) {
    httplib::Client client("127.0.0.1", tracker_->http_port());
    client.set_read_timeout(kPatienceMs / 1000);
    return client.Get(path.c_str());
  }
};

TEST_F(HttpTest, ShowsAJobInEveryForm) {
  serve();
  Client a(port(), credentials("train")), b(port(), credentials("train"));
  a.send(join_envelope("train", 1, "w0", 2));
  b.send(join_envelope("train", 2, "w1", 2));
  const std::uint64_t generation = a.receive(Envelope::kPlan).plan().generation();
  Envelope beat = heartbeat_envelope("train", 1, generation, 1);
  beat.mutable_heartbeat()->set_rounds_finished(41);
  beat.mutable_heartbeat()->set_bytes_moved(4096);
  beat.mutable_heartbeat()->mutable_gpu()->set_readers(1);
  beat.mutable_heartbeat()->mutable_gpu()->set_inputs_lent(56);
  beat.mutable_heartbeat()->mutable_gpu()->set_finals_from_gpus(78);
  beat.mutable_heartbeat()->mutable_gpu()->set_rounds_exchanged(90);
  wire::CurrentRound& round = *beat.mutable_heartbeat()->add_rounds();
  round.set_version(4);
  round.set_sequence(17);
  round.set_collective(1);
  round.set_type(9);
  round.set_op(1);
  round.set_root(-1);
  round.set_count(1024);
  round.add_waiting_for(1);
  round.set_waited_ms(1500);
  a.send(beat);
  a.receive(Envelope::kHeartbeatReply);

  const auto status = get("/status");
  ASSERT_TRUE(status);
  EXPECT_EQ(status->status, 200);
  EXPECT_EQ(status->get_header_value("Content-Type"), "application/json");
  const json all = json::parse(status->body);
  EXPECT_EQ(all.at("port"), port());
  EXPECT_EQ(all.at("authentication"), true);
  const json& job = all.at("jobs").at(0);
  EXPECT_EQ(job.at("job"), "train");
  EXPECT_EQ(job.at("state"), "running");
  EXPECT_EQ(job.at("generation"), generation);
  EXPECT_EQ(job.at("alive"), 2);
  const json& member = job.at("members").at(0);
  EXPECT_EQ(member.at("worker"), "w0");
  EXPECT_EQ(member.at("rounds_finished"), 41);
  for (const auto& [counter, count] :
       {std::pair{"gpu_readers", 1}, {"inputs_lent", 56}, {"finals_from_gpus", 78}, {"rounds_exchanged", 90}}) {
    EXPECT_EQ(member.at(counter), count) << counter;
    EXPECT_EQ(job.at("members").at(1).at(counter), 0) << counter;
    EXPECT_EQ(job.at(counter), count) << counter;
  }
  EXPECT_EQ(member.at("rounds").at(0).at("round"), "round 3.17");
  EXPECT_EQ(member.at("rounds").at(0).at("waiting_for"), json::array({1}));
  EXPECT_THAT(member.at("rounds").at(0).at("call").get<std::string>(), HasSubstr("allreduce"));

  const auto metrics = get("/metrics");
  ASSERT_TRUE(metrics);
  for (const char* line :
       {"warren_jobs{state=\"running\"} 1", "warren_job_members_alive{warren_job=\"train\"} 2",
        "warren_job_rounds_finished{warren_job=\"train\"} 41", "warren_job_joins_total{warren_job=\"train\"} 2",
        "warren_job_gpu_readers{warren_job=\"train\"} 1", "warren_job_inputs_lent_total{warren_job=\"train\"} 56",
        "warren_job_finals_from_gpus_total{warren_job=\"train\"} 78",
        "warren_job_rounds_exchanged_total{warren_job=\"train\"} 90", "warren_messages_received_total 3",
        "warren_message_handling_seconds_count 3", "warren_persist_seconds_count 1",
        "warren_build_info{version=", "warren_bad_messages_total 0"}) {
    EXPECT_THAT(metrics->body, HasSubstr(line));
  }

  const auto page = get("/");
  ASSERT_TRUE(page);
  EXPECT_THAT(page->body, HasSubstr("train"));
  EXPECT_THAT(page->body, HasSubstr("waits 1.5 s for rank 1"));
  EXPECT_THAT(page->body, HasSubstr("On GPUs, over all ranks: 56 inputs lent, 78 pieces of results from other ranks' "
                                    "GPUs, 90 rounds moved by NCCL"));
  EXPECT_THAT(page->get_header_value("Content-Security-Policy"), HasSubstr("default-src 'none'"));
  EXPECT_EQ(get("/healthz")->body, "ok\n");
  EXPECT_EQ(get("/etc/passwd")->status, 404);
  EXPECT_EQ(get("/../secret")->status, 404);
}

TEST_F(HttpTest, OnlyReads) {
  serve();
  httplib::Client client("127.0.0.1", tracker_->http_port());
  EXPECT_EQ(client.Post("/status", "x", "text/plain")->status, 404);
  EXPECT_EQ(client.Delete("/status")->status, 404);
}

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

TEST_F(HttpTest, SlowClientsHoldUpNeitherWorkersNorTheEnd) {
  serve();
  std::vector<int> slow;
  for (int i = 0; i < 10; ++i) {  // more than it has threads, fewer than make the kernel wait
    slow.push_back(connect_to(tracker_->http_port()));
    ASSERT_GT(::send(slow.back(), "GET /sta", 8, MSG_NOSIGNAL), 0);
  }
  Client a(port(), credentials("train")), b(port(), credentials("train"));
  a.send(join_envelope("train", 1, "0", 2));
  b.send(join_envelope("train", 2, "1", 2));
  a.receive(Envelope::kPlan);
  b.receive(Envelope::kPlan);
  EXPECT_EQ(tracker_->snapshot().value()->jobs.size(), 1u);
  tracker_.reset();  // returns although all threads of the HTTP server are taken
  for (const int fd : slow) ::close(fd);
}

// Their threads were taken for five seconds each, one after another.
TEST_F(HttpTest, SlowClientsKeepNobodyFromAnAnswer) {
  serve();
  std::vector<int> slow;
  for (int i = 0; i < 45; ++i) {
    slow.push_back(connect_to(tracker_->http_port()));
    ASSERT_GT(::send(slow.back(), "GET /he", 7, MSG_NOSIGNAL), 0);
  }
  const auto answer = get("/healthz");
  ASSERT_TRUE(answer) << "nobody has answered within " << kPatienceMs << " ms";
  EXPECT_EQ(answer->body, "ok\n");
  for (const int fd : slow) ::close(fd);
}

TEST_F(HttpTest, ARequestWithoutEndIsCutOff) {
  serve();
  const int fd = connect_to(tracker_->http_port());
  const std::string header = "GET / HTTP/1.1\r\n";
  ::send(fd, header.data(), header.size(), MSG_NOSIGNAL);
  const std::string line = "X-Y: " + std::string(1000, 'z') + "\r\n";
  constexpr std::size_t kFarMoreThanSocketsBuffer = std::size_t{32} << 20;
  std::size_t sent = 0;
  while (sent < kFarMoreThanSocketsBuffer) {
    const ssize_t n = ::send(fd, line.data(), line.size(), MSG_NOSIGNAL);
    if (n < 0) break;
    sent += static_cast<std::size_t>(n);
  }
  EXPECT_LT(sent, kFarMoreThanSocketsBuffer);
  char buffer[4096];
  while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
  }
  ::close(fd);
  EXPECT_EQ(get("/healthz")->body, "ok\n");
}

TEST_F(HttpTest, APortInUseIsNamed) {
  serve();
  TrackerOptions o = options();
  o.http_port = tracker_->http_port();
  const auto failed = Tracker::start(std::move(o));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), Code::kUnavailable);
  EXPECT_THAT(failed.status().describe(), HasSubstr("port " + std::to_string(tracker_->http_port())));
}

Snapshot hostile() {
  Snapshot s;
  s.version = "1";
  JobStatus job;
  job.name = "<script>alert('job')</script>";
  job.trouble = "a & b \"c\"";
  job.view.state = TrackerMachine::State::kInterrupted;
  job.view.last_interrupt = "<img src=x onerror=1> \xff\xfe";
  TrackerMachine::MemberView m;
  m.rank = kNoRank;
  m.worker_id = "<b>w</b>";
  m.host_id = "h'\"<>";
  job.view.members.push_back(m);
  s.jobs.push_back(job);
  return s;
}

TEST(StatusTest, ThePageEscapesWhatItShows) {
  const std::string html = to_html(hostile());
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, Not(HasSubstr("<b>")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;job&#39;)"));
  EXPECT_THAT(html, HasSubstr("a &amp; b &quot;c&quot;"));
}

TEST(StatusTest, ShowsWhereAJobStandsAndWhomItWaitsFor) {
  Snapshot s = hostile();
  TrackerMachine::View& v = s.jobs[0].view;
  EXPECT_TRUE(json::parse(to_json(s)).at("jobs").at(0).at("committed_version").is_null());
  EXPECT_THAT(to_html(s), HasSubstr(", results are not logged"));
  v.replicas = 2;
  v.world_size = 4;
  EXPECT_THAT(to_html(s), HasSubstr(", 2 copies of results, timeline 0, nothing committed yet</p>"));
  v.timeline = Timeline(3);
  v.committed = Version(8);
  v.votes = 1;
  v.waiting_for = {"<b>w</b>", "w2"};
  wire::Position& p = v.frontier.emplace_back();
  p.set_version(9);
  p.set_rounds(17);
  p.add_final()->set_end(4096);
  const json job = json::parse(to_json(s)).at("jobs").at(0);
  EXPECT_EQ(job.at("replicas"), 2);
  EXPECT_EQ(job.at("timeline"), 3);
  EXPECT_EQ(job.at("committed_version"), 7);
  EXPECT_EQ(job.at("votes"), 1);
  EXPECT_EQ(job.at("waiting_for"), json({"<b>w</b>", "w2"}));
  EXPECT_EQ(job.at("frontier"), json::parse(R"([{"group": "0000000000000000", "version": 9, "rounds": 17,
                                                "closed": false, "final_bytes": 4096}])"));
  EXPECT_THAT(to_html(s), HasSubstr(", 2 copies of results, timeline 3, version 7 committed, the next stored by 1 of 4 "
                                    "ranks; waiting for &lt;b&gt;w&lt;/b&gt;, w2</p>"));
}

TEST(StatusTest, JsonIsJsonWhateverWorkersSaid) {
  const json all = json::parse(to_json(hostile()));
  EXPECT_EQ(all.at("jobs").at(0).at("job"), "<script>alert('job')</script>");
  EXPECT_TRUE(all.at("jobs").at(0).at("members").at(0).at("rank").is_null());
}

}  // namespace
}  // namespace warren::tracker
