// Hosts with logs, their services, and a network between them and one replayer: virtual time, and losses, copies,
// delays and damage from one seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "storage/host_log.h"
#include "worker/replay/replayer.h"

namespace warren::worker::replaytest {

inline RecordKey round_key(std::uint64_t sequence, std::uint64_t version = 4, std::uint64_t group = 0) {
  return {RecordKind::kRound, {Timeline(1), GroupId(group), Version(version), Sequence(sequence)}};
}
RecordInfo info_of(std::uint64_t total, std::uint64_t count = 7);

// What byte `at` of a key's result is.
std::byte byte_of(const RecordKey& key, std::uint64_t at);
std::vector<std::byte> bytes_of(const RecordKey& key, std::uint64_t begin, std::uint64_t end);

// One rank's life: its log segment, and a service that answers from all segments of its host.
struct Life {
  Rank rank;
  Incarnation self;
  std::string host, domain;
  bool fresh = false;
  Generation since;
  bool server = false;
  bool alive = true;
  std::shared_ptr<SegmentMemory> memory;
  std::unique_ptr<HostLog> log;
  std::unique_ptr<HostLogReader> reader;

  void publish(const RecordKey& key, std::uint64_t total, std::uint64_t begin, std::uint64_t end) const;
  void publish(const RecordKey& key, std::uint64_t total) const { publish(key, total, 0, total); }
};

struct Faults {
  double lose = 0, copy = 0, damage = 0;
  std::int64_t least_delay_ms = 1, most_delay_ms = 1;  // one way
};

class Net {
 public:
  // Rank 0, whose replayer is tested, is on "host-0". `hosts` are those of ranks 1, 2, …; each is a domain of its own.
  explicit Net(const std::vector<std::string>& hosts, std::uint64_t seed = 1,
               std::size_t segment_bytes = std::size_t{4} << 20);

  // A new life of the same rank, with a log of its own; the old one stays attached at its mates.
  void replace(std::int32_t rank);
  void attach(std::int32_t reader, std::int32_t of);

  void install();  // of the next generation
  void suspend();
  std::uint64_t want(Replayer::Want want);
  // A want for [begin, end) of `key`, to `buffer`, which is as long as the whole result.
  std::uint64_t want(const RecordKey& key, std::vector<std::byte>& buffer, std::uint64_t begin, std::uint64_t end);
  std::uint64_t want(const RecordKey& key, std::vector<std::byte>& buffer);

  // Runs until a want has ended, or `for_ms` have passed.
  std::optional<Replayer::Done> run(std::int64_t for_ms = 1'000'000);
  void run_for(std::int64_t ms);

  Life& life(std::int32_t rank) { return lives.at(static_cast<std::size_t>(rank)); }

  TimeMs now{1000};
  Replayer::Plan plan;
  std::vector<Life> lives;  // by rank; the last of each
  std::vector<Life> dead;
  std::unique_ptr<Replayer> replayer;
  Faults faults;
  std::map<std::int32_t, std::int64_t> service_ms;  // by rank: for each request, one after the other
  std::mt19937_64 random;
  std::function<bool(const Replayer::Send&)> on_request;  // false: it is lost
  std::function<bool(Rank, wire::FetchReply&)> on_reply;  // false: it is lost

  // What was seen.
  std::size_t listings = 0, data_requests = 0;
  std::map<std::int32_t, std::uint64_t> payload_of;  // by rank
  std::uint64_t most_asked_at_once = 0;              // bytes
  std::vector<std::string> warnings;

 private:
  struct Event {
    TimeMs at;
    std::uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const { return std::pair(other.at, other.number) < std::pair(at, number); }
  };
  void send(std::vector<Replayer::Send>& out);
  void serve(const Replayer::Send& send);
  void after(std::int64_t ms, std::function<void()> what) { events_.push({now + ms, ++events_made_, std::move(what)}); }
  [[nodiscard]] bool happens(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random) < probability;
  }
  [[nodiscard]] std::int64_t delay_ms() {
    return std::uniform_int_distribution<std::int64_t>(faults.least_delay_ms, faults.most_delay_ms)(random);
  }
  Life make(Rank rank, const std::string& host, const std::string& domain);
  bool step(TimeMs end);

  std::size_t segment_bytes_;
  std::map<std::int32_t, TimeMs> busy_until_;
  std::uint64_t last_life_ = 100;
  std::priority_queue<Event> events_;
  std::uint64_t events_made_ = 0;
  std::map<std::uint64_t, std::uint64_t> asked_;  // bytes by request
  std::vector<Replayer::Done> done_;
};

}  // namespace warren::worker::replaytest
