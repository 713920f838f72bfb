// How fast a rank replays what others have logged: services in one process, over loopback, one fetching from the rest.
//
//   fetch_bench [--rounds=10000] [--megabytes=1024]
//
// For 1 and 3 holders: so many rounds of 1 KiB, one after the other as a program replays them, and so many MiB in
// rounds of 16 MiB, with CURVE and without. Prints one JSON object a line. `cores` is processor time by wall time, of
// both sides together.
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "storage/host_log.h"
#include "storage/secret.h"
#include "worker/replay/fetch_service.h"
#include "worker/replay/replayer.h"

namespace {

using namespace warren;          // NOLINT(google-build-using-namespace): one program
using namespace warren::worker;  // NOLINT(google-build-using-namespace)

RecordKey key_of(std::uint64_t sequence) {
  return {RecordKind::kRound, {Timeline(0), kWorldGroup, Version(1), Sequence(sequence)}};
}
RecordInfo info_of(std::uint64_t total) {
  RecordInfo info;
  info.fingerprint.collective = Collective::kAllreduce;
  info.fingerprint.type = DataType::kU8;
  info.fingerprint.op = ReduceOp::kMax;
  info.fingerprint.count = total;
  info.total_bytes = total;
  return info;
}

std::unique_ptr<HostLog> make_log(Incarnation life, std::size_t bytes) {
  auto log = HostLog::create(life, heap_segment(bytes));
  if (!log.ok()) bench::fail(log.status().describe());
  return std::move(log).value();
}

// The rank that fetches.
class Fetcher {
 public:
  explicit Fetcher(const Settings& settings) : log_(make_log(Incarnation(1), std::size_t{8} << 20)) {
    own_ = log_->reader();
    replayer_ = std::make_unique<Replayer>(*own_);
    auto service =
        FetchService::start(settings, Incarnation(1), log_->reader(),
                            [this](Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
                              const std::lock_guard lock(mutex_);
                              ++replies_;
                              std::vector<Replayer::Send> out;
                              replayer_->on_reply(from, reply, payloads, now(), out);
                              send(out);
                              changed_.notify_one();
                            });
    if (!service.ok()) bench::fail(service.status().describe());
    service_ = std::move(service).value();
  }

  void install(const wire::Plan& plan) {
    Replayer::Plan p;
    p.generation = Generation(plan.generation());
    p.self = Rank(0);
    p.timeout_ms = 60'000;
    for (const wire::Member& m : plan.members()) {
      p.peers.push_back(
          {Rank(static_cast<std::int32_t>(m.rank())), Incarnation(m.incarnation()), m.host_id(), m.domain_id(), false});
    }
    const std::lock_guard lock(mutex_);
    service_->install(plan);
    std::vector<Replayer::Send> out;
    replayer_->install(p, now(), out);
    send(out);
  }

  void fetch(std::uint64_t sequence, std::vector<std::byte>& buffer) {
    Replayer::Want w;
    w.key = key_of(sequence);
    w.fingerprint = info_of(buffer.size()).fingerprint;
    w.total_bytes = buffer.size();
    w.bytes = Ranges(0, buffer.size());
    w.base = buffer.data();
    std::unique_lock lock(mutex_);
    std::vector<Replayer::Send> out;
    replayer_->want(std::move(w), now(), out);
    send(out);
    while (true) {
      const auto done = replayer_->take_done();
      if (done.size() == 1 && done[0].status.ok()) return;
      if (!done.empty()) bench::fail(done[0].status.describe());
      changed_.wait(lock);
    }
  }
  std::size_t replies() {
    const std::lock_guard lock(mutex_);
    return replies_;
  }

 private:
  static TimeMs now() { return {static_cast<std::int64_t>(bench::now_us() / 1000)}; }
  void send(std::vector<Replayer::Send>& out) {
    for (Replayer::Send& s : out) service_->send(std::move(s));
  }

  std::unique_ptr<HostLog> log_;
  std::unique_ptr<HostLogReader> own_;
  std::unique_ptr<Replayer> replayer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t replies_ = 0;
  std::unique_ptr<FetchService> service_;
};

void measure(const Settings& settings, HostLog& log, int holders, std::uint64_t rounds, std::size_t round_bytes) {
  Fetcher fetcher(settings);
  std::vector<std::unique_ptr<FetchService>> services;
  wire::Plan plan;
  plan.set_generation(1);
  for (int rank = 0; rank <= holders; ++rank) {
    wire::Member& m = *plan.add_members();
    m.set_rank(static_cast<std::uint32_t>(rank));
    m.set_incarnation(static_cast<std::uint64_t>(rank) + 1);
    m.set_host_id("host-" + std::to_string(rank));
    m.set_domain_id(m.host_id());
    m.add_endpoints()->set_address("127.0.0.1");
    if (rank == 0) continue;
    auto service = FetchService::start(settings, Incarnation(m.incarnation()), log.reader(), {});
    if (!service.ok()) bench::fail(service.status().describe());
    m.set_fetch_port(service.value()->port());
    services.push_back(std::move(service).value());
  }
  for (const auto& service : services) service->install(plan);
  fetcher.install(plan);
  std::vector<std::byte> buffer(round_bytes);
  const double cpu_began = bench::cpu_us(), began = bench::now_us();
  for (std::uint64_t s = 0; s < rounds; ++s) fetcher.fetch(s, buffer);
  const double us = bench::now_us() - began, cpu = bench::cpu_us() - cpu_began;
  const double bytes = static_cast<double>(rounds) * static_cast<double>(round_bytes);
  std::printf(
      "{\"holders\": %d, \"authenticated\": %s, \"rounds\": %llu, \"round_bytes\": %zu, \"seconds\": %.3f, "
      "\"rounds_per_s\": %.0f, \"gb_per_s\": %.3f, \"replies\": %zu, \"cores\": %.2f}\n",
      holders, settings.no_auth ? "false" : "true", static_cast<unsigned long long>(rounds), round_bytes, us * 1e-6,
      static_cast<double>(rounds) / us * 1e6, bytes / us * 1e-3, fetcher.replies(), cpu / us);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv);
  const auto rounds = static_cast<std::uint64_t>(arguments.number("rounds", 10'000));
  const auto megabytes = static_cast<std::uint64_t>(arguments.number("megabytes", 1024));
  std::string folder = (std::filesystem::temp_directory_path() / "warren-fetch-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) bench::fail("cannot make a folder");
  const std::string secret = folder + "/secret";
  if (const Status s = storage::Secret::generate(secret); !s.ok()) bench::fail(s.describe());

  constexpr std::size_t kSmall = 1024, kLarge = std::size_t{16} << 20, kPiece = std::size_t{1} << 20;
  const std::uint64_t large_rounds = megabytes / 16;
  const auto small = make_log(Incarnation(2), std::size_t{64} << 20);
  const auto large = make_log(Incarnation(2), (megabytes << 20) + (megabytes << 12) + (std::size_t{64} << 20));
  const std::vector<std::byte> bytes(kPiece, std::byte{0x5a});
  const auto publish = [&](HostLog& log, std::uint64_t s, std::size_t total, std::size_t piece) {
    for (std::size_t at = 0; at < total; at += piece) {
      const Status status = log.publish(key_of(s), info_of(total), at, std::span(bytes).first(piece));
      if (!status.ok()) bench::fail(status.describe());
    }
  };
  for (std::uint64_t s = 0; s < rounds; ++s) publish(*small, s, kSmall, kSmall);
  for (std::uint64_t s = 0; s < large_rounds; ++s) publish(*large, s, kLarge, kPiece);
  for (const bool insecure : {false, true}) {
    Settings settings;
    settings.job = "bench";
    settings.tracker_host = settings.bind_address = "127.0.0.1";
    settings.tracker_port = 1;
    settings.no_auth = insecure;
    if (!insecure) settings.secret_file = secret;
    for (const int holders : {1, 3}) {
      measure(settings, *small, holders, rounds, kSmall);
      measure(settings, *large, holders, large_rounds, kLarge);
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
}
