// Timelines of whole jobs: every rank's calls and rounds, recoveries, and processes that are killed.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/e2e/cluster.h"
#include "tests/e2e/process.h"

namespace warren {
namespace {

using nlohmann::json;
using testing::Cluster;
using testing::Process;

// The events that a viewer reads.
std::vector<json> read(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file).get<std::vector<json>>();
}

// The events that the next writer leaves of a file whose writer was killed: its whole lines.
std::vector<json> read_after_a_kill(const std::string& path) {
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!json::accept(text)) text = text.substr(0, text.rfind("},\n") + 1) + "\n]";
  return json::parse(text).get<std::vector<json>>();
}

int rank_of(const json& event) {
  return event["pid"].get<int>() >> 16;
}

// In each row, what begins ends, in order.
void expect_nested(const std::vector<json>& events) {
  std::map<std::pair<int, int>, int> depth;
  std::map<std::pair<int, std::string>, int> calls;
  for (const json& e : events) {
    int& d = depth[{e["pid"].get<int>(), e["tid"].get<int>()}];
    if (e["ph"] == "B") d++;
    if (e["ph"] == "E") {
      d--;
    }
    EXPECT_GE(d, 0) << e.dump();
    if (e["ph"] == "b") calls[{e["pid"].get<int>(), e["id"].get<std::string>()}]++;
    if (e["ph"] == "e") calls[{e["pid"].get<int>(), e["id"].get<std::string>()}]--;
  }
  for (const auto& [row, d] : depth) EXPECT_EQ(d, 0) << "rank " << (row.first >> 16) << ", row " << row.second;
  for (const auto& [call, n] : calls) EXPECT_EQ(n, 0) << "rank " << (call.first >> 16);
}

std::map<int, int> count(const std::vector<json>& events, const std::string& phase, const std::string& name) {
  std::map<int, int> of_rank;
  for (const json& e : events) {
    if (e["ph"] == phase && e["name"] == name) of_rank[rank_of(e)]++;
  }
  return of_rank;
}

TEST(Timeline, HasTheCallsAndRoundsOfAllRanks) {
  Cluster cluster;
  const std::string path = cluster.file("trace.json");
  cluster.run_well(
      3,
      [](Communicator& comm) {
        (void)comm.load_checkpoint();
        auto group = comm.split(comm.rank() % 2);
        std::vector<float> a(1000, 1.0f), b(50'000, 1.0f);
        auto one = comm.allreduce_async(std::span(a));
        auto two = comm.allreduce_async(std::span(b));
        one.wait();
        two.wait();
        comm.wire(Wire::bf16).allreduce(std::span(a));
        (void)group->allreduce(1);
        {
          const auto span = comm.span("compute");
          comm.allreduce(std::span(a), Op::max, [] {});
        }
        if (comm.rank() == 0) comm.send(a, 1);
        if (comm.rank() == 1) comm.recv(a, 0);
        comm.checkpoint(b);
        comm.barrier();
      },
      [&](int, Options& o) { o.timeline = path; });
  const std::vector<json> events = read(path);
  expect_nested(events);
  const std::map<int, int> one_each{{0, 1}, {1, 1}, {2, 1}};
  for (const char* call : {"allreduce sum 1000 x f32", "allreduce sum 50000 x f32", "allreduce sum 1000 x f32 as bf16",
                           "allreduce max 1000 x f32", "barrier"}) {
    EXPECT_EQ(count(events, "b", call), one_each) << call;
    EXPECT_EQ(count(events, "B", call), one_each) << call;
  }
  EXPECT_EQ(count(events, "B", "prepare"), (std::map<int, int>{{0, 2}, {1, 2}, {2, 2}}));
  EXPECT_EQ(count(events, "X", "deliver"), one_each);
  for (const char* name : {"load_checkpoint", "checkpoint", "finalize"}) {
    EXPECT_EQ(count(events, "X", name), one_each) << name;
  }
  EXPECT_EQ(count(events, "B", "compute"), one_each);
  EXPECT_EQ(count(events, "b", "send/recv 1000 x f32"), (std::map<int, int>{{0, 1}, {1, 1}}));
  // Groups have rows of their own.
  std::set<int> rows;
  for (const json& e : events) {
    if (rank_of(e) == 0 && e["ph"] == "B" && e["name"].get<std::string>().starts_with("allreduce")) {
      rows.insert(e["tid"].get<int>());
    }
  }
  EXPECT_EQ(rows.size(), 2u);
}

TEST(Timeline, ShowsRecoveriesAndReplays) {
  Cluster cluster;
  const std::string path = cluster.file("trace.json");
  const auto options = [&](int r) {
    Options o = cluster.options(r, 2);
    o.host_id = o.domain_id = "host-" + std::to_string(r);
    o.replicas = 2;
    o.timeline = path;
    return o;
  };
  std::thread other([&] {
    Communicator comm = Communicator::create(options(0));
    for (int i = 0; i < 3; i++) (void)comm.allreduce(1);
    comm.finalize();
  });
  {
    Communicator first = Communicator::create(options(1));
    (void)first.allreduce(1);
    (void)first.allreduce(1);
  }
  {
    Communicator second = Communicator::create(options(1));
    for (int i = 0; i < 3; i++) (void)second.allreduce(1);
    second.finalize();
  }
  other.join();
  const std::vector<json> events = read(path);
  EXPECT_GE(count(events, "B", "recovery")[0], 1);
  // The second round is finished instead where rank 0 had not come to its end.
  EXPECT_GE(count(events, "B", "replay")[1], 1);
  EXPECT_EQ(count(events, "B", "allreduce sum 1 x i32")[1], 5);
}

TEST(Timeline, IsReadableAfterAKill) {
  Cluster cluster;
  const std::string path = cluster.file("trace.json");
  std::vector<std::unique_ptr<Process>> workers;
  for (const char* r : {"0", "1"}) {
    workers.push_back(std::make_unique<Process>(
        std::vector<std::string>{WARREN_LOOPER, cluster.address(), cluster.root_file(), r, "2", "100"},
        std::vector<std::string>{"WARREN_TIMELINE=" + path}));
  }
  for (auto& w : workers) (void)w->line();
  // Until there are rounds, which both make together.
  while (std::filesystem::file_size(path) < 500'000) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  workers[0]->kill(SIGKILL);
  workers[1]->kill(SIGKILL);
  workers.clear();
  auto of_rank = count(read_after_a_kill(path), "B", "allreduce sum 100 x f32");
  EXPECT_GE(of_rank[0] + of_rank[1], 100);
}

}  // namespace
}  // namespace warren
