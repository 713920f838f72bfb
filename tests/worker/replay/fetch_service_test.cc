// Services of several ranks in one process, over loopback.
#include "worker/replay/fetch_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zmq.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/fetch_codec.h"
#include "storage/secret.h"
#include "tests/flipping_proxy.h"
#include "tests/storage/record_info.h"
#include "tests/worker/no_threads.h"
#include "tests/worker/segments/fixture.h"
#include "worker/life/plans.h"
#include "worker/replay/done_reader.h"

namespace warren::worker {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kLong = std::chrono::seconds(60);

RecordKey round_key(std::uint64_t sequence) {
  return {RecordKind::kRound, {Timeline(0), kWorldGroup, Version(1), Sequence(sequence)}};
}
RecordInfo info_of(std::uint64_t total) {
  return record_info(total, total, DataType::kU8, ReduceOp::kMax);
}
std::vector<std::byte> bytes_of(std::uint64_t sequence, std::uint64_t size) {
  std::vector<std::byte> bytes(size);
  for (std::uint64_t at = 0; at < size; ++at) bytes[at] = static_cast<std::byte>((at * 7 + at / 251 + sequence) & 0xff);
  return bytes;
}

// One rank: log, service and replayer, each on a host and domain of its own.
class Node {
 public:
  Node(Rank rank, Incarnation life, const Settings& settings, std::size_t log_bytes)
      : rank_(rank), life_(life), memory_(heap_segment(log_bytes)) {
    auto log = HostLog::create(life, memory_);
    EXPECT_TRUE(log.ok());
    log_ = std::move(log).value();
    own_ = log_->reader();
    replayer_ = std::make_unique<Replayer>(*own_);
    auto service = FetchService::start(
        settings, life, log_->reader(),
        [this](Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
          const std::lock_guard lock(mutex_);
          ++replies_;
          std::vector<Replayer::Send> out;
          replayer_->on_reply(from, reply, payloads, now(), out);
          send(out);
          changed_.notify_all();
        },
        [this](const std::string& text) {
          const std::lock_guard lock(mutex_);
          warnings_.push_back(text);
          changed_.notify_all();
        });
    EXPECT_TRUE(service.ok()) << service.status().describe();
    if (service.ok()) service_ = std::move(service).value();
  }

  void publish(std::uint64_t sequence, std::uint64_t size) {
    ASSERT_TRUE(log_->publish(round_key(sequence), info_of(size), 0, bytes_of(sequence, size)).ok());
  }

  void install(const wire::Plan& plan, std::int64_t timeout_ms = 60'000) {
    Replayer::Plan p;
    p.generation = Generation(plan.generation());
    p.self = rank_;
    p.timeout_ms = timeout_ms;
    for (const wire::Member& m : plan.members()) {
      p.peers.push_back(
          {Rank(static_cast<std::int32_t>(m.rank())), Incarnation(m.incarnation()), m.host_id(), m.domain_id(), false});
    }
    for (int i = 0; i < plan.servers_size(); ++i) {
      const wire::Member& m = plan.servers(i);
      p.peers.push_back(
          {server_rank(plan, i), Incarnation(m.incarnation()), m.host_id(), m.domain_id(), false, Generation(), true});
    }
    const std::lock_guard lock(mutex_);
    service_->install(plan);
    std::vector<Replayer::Send> out;
    replayer_->install(p, now(), out);
    send(out);
  }
  void suspend() {
    const std::lock_guard lock(mutex_);
    replayer_->suspend();
  }

  // As a spare.
  void follow(const wire::Plan& plan) {
    const std::lock_guard lock(mutex_);
    service_->install(plan);
    std::vector<Replayer::Send> out;
    replayer_->install(follow_plan(plan, life_), now(), out);
    send(out);
  }

  std::uint64_t want(Replayer::Want w) {
    const std::lock_guard lock(mutex_);
    std::vector<Replayer::Send> out;
    const std::uint64_t id = replayer_->want(std::move(w), now(), out);
    send(out);
    return id;
  }
  std::uint64_t want(std::uint64_t sequence, std::vector<std::byte>& buffer) {
    Replayer::Want w;
    w.key = round_key(sequence);
    w.fingerprint = info_of(buffer.size()).fingerprint;
    w.total_bytes = buffer.size();
    w.bytes = Ranges(0, buffer.size());
    w.base = buffer.data();
    return want(std::move(w));
  }
  HostLog& log() { return *log_; }

  // Drives the replayer's clock until a want has ended.
  Replayer::Done wait() {
    std::unique_lock lock(mutex_);
    const auto end = std::chrono::steady_clock::now() + kLong;
    while (std::chrono::steady_clock::now() < end) {
      for (Replayer::Done& d : replayer_->take_done()) done_.push_back(std::move(d));
      if (!done_.empty()) {
        Replayer::Done d = std::move(done_.front());
        done_.erase(done_.begin());
        return d;
      }
      const auto deadline = replayer_->next_deadline();
      if (deadline && *deadline <= now()) {
        std::vector<Replayer::Send> out;
        replayer_->on_tick(now(), out);
        send(out);
        continue;
      }
      changed_.wait_for(lock, std::chrono::milliseconds(deadline ? *deadline - now() : 1000));
    }
    ADD_FAILURE() << "rank " << rank_.value << " waits without end: " << replayer_->describe();
    return {0, {}, Status(Code::kTimeout, "waited too long"), {}, {}, {}, {}, {}};
  }
  bool wait_for(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, condition);
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }
  std::size_t replies() {
    const std::lock_guard lock(mutex_);
    return replies_;
  }

  void member(wire::Plan& plan, const std::string& address) const {
    wire::Member& m = *plan.add_members();
    m.set_rank(static_cast<std::uint32_t>(rank_.value));
    m.set_incarnation(life_.value);
    m.set_host_id("host-" + std::to_string(rank_.value));
    m.set_domain_id("domain-" + std::to_string(rank_.value));
    m.set_fetch_port(service_->port());
    wire::Endpoint& e = *m.add_endpoints();
    e.set_address(address);
    e.set_port(1);
  }
  FetchService& service() { return *service_; }
  std::vector<std::string> warnings_;  // under the lock of wait_for()

 private:
  static TimeMs now() {
    return {std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
                .count()};
  }
  void send(std::vector<Replayer::Send>& out) {
    for (Replayer::Send& s : out) service_->send(std::move(s));
  }

  Rank rank_;
  Incarnation life_;
  std::shared_ptr<SegmentMemory> memory_;
  std::unique_ptr<HostLog> log_;
  std::unique_ptr<HostLogReader> own_;
  std::unique_ptr<Replayer> replayer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Replayer::Done> done_;
  std::size_t replies_ = 0;
  std::unique_ptr<FetchService> service_;  // ends first
};

class FetchServices : public ::testing::Test {
 protected:
  FetchServices() {
    std::string folder = (std::filesystem::temp_directory_path() / "warren-fetch-XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    EXPECT_TRUE(storage::Secret::generate((folder_ / "secret").string()).ok());
    EXPECT_TRUE(storage::Secret::generate((folder_ / "other").string()).ok());
  }
  ~FetchServices() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] Settings settings(const std::string& secret = "secret") const {
    Settings s;
    s.job = "digits";
    s.tracker_host = address_;
    s.tracker_port = 1;
    s.bind_address = address_;
    s.no_auth = secret.empty();
    if (!secret.empty()) s.secret_file = (folder_ / secret).string();
    return s;
  }
  Node& add(const Settings& with, std::size_t log_bytes = std::size_t{8} << 20) {
    const auto rank = static_cast<std::int32_t>(nodes_.size());
    nodes_.push_back(std::make_unique<Node>(Rank(rank), Incarnation(++last_life_), with, log_bytes));
    return *nodes_.back();
  }
  Node& add() { return add(settings()); }
  wire::Plan plan() {
    wire::Plan p;
    p.set_generation(++generation_);
    for (const auto& node : nodes_) node->member(p, address_);
    return p;
  }
  void install() {
    const wire::Plan p = plan();
    for (const auto& node : nodes_) node->install(p);
  }

  std::string address_ = "127.0.0.1";
  std::filesystem::path folder_;
  std::uint64_t last_life_ = 100, generation_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
};

// A request from one member of the plan to another, as it is on the wire.
std::string listing(const wire::Plan& p, int from, int to, std::uint64_t id) {
  wire::FetchRequest r;
  r.set_protocol(kProtocolVersion);
  r.set_sender(p.members(from).incarnation());
  r.set_receiver(p.members(to).incarnation());
  r.set_generation(p.generation());
  r.set_id(id);
  r.set_kind(1);
  r.set_version(1);
  r.set_end_sequence(10);
  r.set_most_ranges(10);
  std::string frame = encode(r);
  const std::uint64_t sum = XXH3_64bits(frame.data(), frame.size());
  frame.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  return frame;
}

// A stranger's socket, with or without keys.
class Stranger {
 public:
  explicit Stranger(const std::string& at, const storage::CurveKeys* server = nullptr,
                    const storage::CurveKeys* own = nullptr)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_DEALER)) {
    const int zero = 0, one = 1;
    zmq_setsockopt(socket_, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(socket_, ZMQ_IPV6, &one, sizeof one);
    if (server != nullptr) {
      zmq_setsockopt(socket_, ZMQ_CURVE_SERVERKEY, server->public_z85.data(), 40);
      zmq_setsockopt(socket_, ZMQ_CURVE_PUBLICKEY, own->public_z85.data(), 40);
      zmq_setsockopt(socket_, ZMQ_CURVE_SECRETKEY, own->secret_z85.data(), 40);
    }
    EXPECT_EQ(zmq_connect(socket_, at.c_str()), 0);
  }
  ~Stranger() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  void send(const std::vector<std::string>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      // Who was refused already has nowhere to send to.
      zmq_send(socket_, frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0));
    }
  }
  // Frames of the next message; none if none comes in time.
  std::vector<std::string> receive(int timeout_ms) {
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    std::vector<std::string> frames;
    for (bool more = true; more;) {
      zmq_msg_t m;
      zmq_msg_init(&m);
      if (zmq_msg_recv(&m, socket_, 0) < 0) break;
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&m)), zmq_msg_size(&m));
      more = zmq_msg_more(&m) != 0;
      zmq_msg_close(&m);
    }
    return frames;
  }

 private:
  void* context_;
  void* socket_;
};

TEST_F(FetchServices, FetchesFromSeveralRanks) {
  for (const std::string secret : {"secret", ""}) {
    SCOPED_TRACE(secret.empty() ? "no auth" : "curve");
    nodes_.clear();
    for (int i = 0; i < 3; ++i) add(settings(secret));
    constexpr std::uint64_t kRounds = 300;
    for (std::uint64_t s = 0; s < kRounds; ++s) {
      nodes_[1 + s % 2]->publish(s, 1000 + s);
    }
    nodes_[1]->publish(kRounds, 5'000'000);
    nodes_[2]->publish(kRounds, 5'000'000);
    install();
    for (std::uint64_t s = 0; s <= kRounds; ++s) {
      std::vector<std::byte> buffer(s == kRounds ? 5'000'000 : 1000 + s);
      nodes_[0]->want(s, buffer);
      const auto done = nodes_[0]->wait();
      ASSERT_TRUE(done.status.ok()) << done.status.describe();
      ASSERT_TRUE(buffer == bytes_of(s, buffer.size())) << s;
    }
    EXPECT_LE(nodes_[0]->replies(), 40U);
    for (const auto& node : nodes_) EXPECT_THAT(node->warnings(), IsEmpty());
  }
}

TEST_F(FetchServices, OverIpv6) {
  address_ = "::1";
  add();
  add();
  nodes_[1]->publish(0, 100'000);
  install();
  std::vector<std::byte> buffer(100'000);
  nodes_[0]->want(0, buffer);
  ASSERT_TRUE(nodes_[0]->wait().status.ok());
  EXPECT_TRUE(buffer == bytes_of(0, 100'000));
}

TEST_F(FetchServices, ServesWhileItFetches) {
  add();
  add();
  constexpr std::uint64_t kBytes = 3'000'000;
  nodes_[0]->publish(0, kBytes);
  nodes_[1]->publish(1, kBytes);
  install();
  std::vector<std::byte> first(kBytes), second(kBytes);
  nodes_[1]->want(0, first);
  nodes_[0]->want(1, second);
  ASSERT_TRUE(nodes_[0]->wait().status.ok());
  ASSERT_TRUE(nodes_[1]->wait().status.ok());
  EXPECT_TRUE(first == bytes_of(0, kBytes));
  EXPECT_TRUE(second == bytes_of(1, kBytes));
}

TEST_F(FetchServices, ARequestWaitsForThePlanOfItsGeneration) {
  add(settings(""));
  add(settings(""));
  const wire::Plan first = plan(), second = plan();
  nodes_[0]->install(first);
  Stranger member("tcp://127.0.0.1:" + std::to_string(nodes_[0]->service().port()));
  const auto answered = [&] {
    const auto frames = member.receive(60'000);
    EXPECT_EQ(frames.size(), 1U);
    wire::FetchReply reply;
    EXPECT_TRUE(!frames.empty() && reply.ParseFromString(frames[0].substr(0, frames[0].size() - 8)));
    return reply.id();
  };
  member.send({listing(second, 1, 0, 5)});
  member.send({listing(first, 1, 0, 6)});
  EXPECT_EQ(answered(), 6U) << "the plan of the other one has not come";
  nodes_[0]->install(second);
  EXPECT_EQ(answered(), 5U);
  // Of an older generation, from a rank that is not in the plan, to another life.
  member.send({listing(first, 1, 0, 7)});
  wire::Plan strange = second;
  strange.mutable_members(1)->set_incarnation(77);
  member.send({listing(strange, 1, 0, 8)});
  strange = second;
  strange.mutable_members(0)->set_incarnation(77);
  member.send({listing(strange, 1, 0, 9)});
  member.send({listing(second, 1, 0, 10)});
  EXPECT_EQ(answered(), 10U);
}

// Rank 2 leaves: of its rounds the first is done, and the second is made again by others.
TEST_F(FetchServices, WhoHasLeftServesWhatIsDone) {
  for (int i = 0; i < 3; ++i) add();
  for (const std::uint64_t sequence : {0u, 1u}) nodes_[2]->publish(sequence, 1000);
  install();
  wire::Plan p = plan();
  *p.add_servers() = p.members(2);
  p.mutable_members()->RemoveLast();
  wire::Position& done = *p.add_frontier();
  done.set_version(round_key(0).round.version.value);
  done.set_rounds(1);
  nodes_[2]->service().install(p);
  for (int i = 0; i < 2; ++i) nodes_[static_cast<std::size_t>(i)]->install(p, 300);
  std::vector<std::byte> buffer(1000);
  nodes_[0]->want(0, buffer);
  EXPECT_TRUE(nodes_[0]->wait().status.ok());
  EXPECT_EQ(buffer, bytes_of(0, 1000));
  nodes_[1]->want(1, buffer);
  EXPECT_EQ(nodes_[1]->wait().status.code(), Code::kUnavailable);
  // What the first plan that named it called done is what it serves, whatever becomes of the job.
  p.set_generation(++generation_);
  p.mutable_frontier(0)->set_rounds(2);
  nodes_[2]->service().install(p);
  for (int i = 0; i < 2; ++i) nodes_[static_cast<std::size_t>(i)]->install(p, 300);
  nodes_[1]->want(1, buffer);
  EXPECT_EQ(nodes_[1]->wait().status.code(), Code::kUnavailable);
  nodes_[1]->want(0, buffer);
  EXPECT_TRUE(nodes_[1]->wait().status.ok());
}

// A spare is in no plan; the ranks go on to other generations while it asks.
TEST_F(FetchServices, ASpareFetchesACheckpointFromTheMembersOfAnOlderPlan) {
  for (int i = 0; i < 3; ++i) add();
  const RecordKey key{RecordKind::kGlobal, {Timeline(0), kWorldGroup, Version(2), Sequence(0)}};
  RecordInfo info;
  info.fingerprint.collective = Collective::kBroadcast;
  info.fingerprint.type = DataType::kU8;
  info.total_bytes = info.fingerprint.count = 5'000'000;
  const auto state = bytes_of(7, info.total_bytes);
  const std::span<const std::byte> bytes = state;
  ASSERT_TRUE(nodes_[0]->log().publish(key, info, 0, bytes.first(2'000'000)).ok());
  ASSERT_TRUE(nodes_[1]->log().publish(key, info, 2'000'000, bytes.subspan(2'000'000)).ok());
  nodes_[0]->publish(0, 1000);
  auto spare = std::move(nodes_[2]);
  nodes_.pop_back();
  wire::Plan first = plan();
  first.mutable_settings()->set_round_timeout_ms(60'000);
  for (const auto& node : nodes_) node->install(first);
  spare->follow(first);
  for (const auto& node : nodes_) node->install(plan());
  Replayer::Want want;
  want.key = key;
  spare->want(std::move(want));
  const auto done = spare->wait();
  ASSERT_TRUE(done.status.ok()) << done.status.describe();
  EXPECT_TRUE(done.bytes == state);
  for (const auto& node : nodes_) EXPECT_THAT(node->warnings(), IsEmpty());
}

TEST_F(FetchServices, AnotherLifeIsNotServedAndNotHeard) {
  add();
  add();
  nodes_[1]->publish(0, 1000);
  install();
  std::vector<std::byte> buffer(1000);
  nodes_[0]->want(0, buffer);
  ASSERT_TRUE(nodes_[0]->wait().status.ok());
  // Rank 1 is replaced; the old life is still there, with the newest plan that it knows.
  auto old = std::move(nodes_[1]);
  nodes_.pop_back();
  add();
  const wire::Plan next = plan();
  nodes_[0]->install(next, 200);
  nodes_[1]->install(next);
  nodes_[0]->want(0, buffer);
  const auto done = nodes_[0]->wait();
  EXPECT_EQ(done.status.code(), Code::kUnavailable) << "only the old life has it";

  // And the old life gets nothing from the others.
  nodes_[0]->publish(5, 1000);
  const std::size_t before = old->replies();
  old->want(5, buffer);
  nodes_[1]->want(5, buffer);
  ASSERT_TRUE(nodes_[1]->wait().status.ok());
  EXPECT_EQ(old->replies(), before);
}

TEST_F(FetchServices, WhoHasNoKeyGetsNothing) {
  add();
  Node& served = *nodes_[0];
  served.publish(0, 1000);
  Node& other = add(settings("other"));
  wire::Plan p = plan();
  served.install(p);
  other.install(p, 300);
  std::vector<std::byte> buffer(1000, std::byte{0xee});
  other.want(0, buffer);

  // A valid request as such, from one that has no key at all, or the service's public key and a key of its own.
  const std::string at = "tcp://127.0.0.1:" + std::to_string(served.service().port());
  auto secret = storage::Secret::load((folder_ / "secret").string());
  auto theirs = storage::Secret::load((folder_ / "other").string());
  const auto keys = secret.value().for_job("digits").value().fetch;
  const auto wrong = theirs.value().for_job("digits").value().fetch;
  const auto job = secret.value().for_job("letters").value().fetch;
  EXPECT_NE(keys.public_z85, job.public_z85);
  Stranger plain(at), keyed(at, &keys, &wrong), neighbour(at, &keys, &job), member(at, &keys, &keys);
  const std::string sealed = listing(p, 1, 0, 1);
  for (Stranger* s : {&plain, &keyed, &neighbour, &member}) s->send({sealed});
  EXPECT_EQ(member.receive(60'000).size(), 1U);
  EXPECT_THAT(plain.receive(100), IsEmpty());
  EXPECT_THAT(keyed.receive(100), IsEmpty());
  EXPECT_THAT(neighbour.receive(100), IsEmpty());
  ASSERT_TRUE(served.wait_for([&] { return !served.warnings_.empty(); })) << "who knows the service's key and has none";
  EXPECT_THAT(served.warnings(), Contains(HasSubstr("without the job's key")));
  EXPECT_EQ(other.replies(), 0U);
  EXPECT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](std::byte b) { return b == std::byte{0xee}; }));
}

TEST_F(FetchServices, AFlippedBitIsNoRequest) {
  add(settings(""));
  add(settings(""));
  const wire::Plan p = plan();
  nodes_[0]->install(p);
  Stranger member("tcp://127.0.0.1:" + std::to_string(nodes_[0]->service().port()));
  std::string damaged = listing(p, 1, 0, 6);
  damaged[damaged.size() - 9] ^= 1;  // what it ends with is still a valid request, of other ranges
  member.send({damaged});
  member.send({listing(p, 1, 0, 7)});
  const auto frames = member.receive(60'000);
  ASSERT_EQ(frames.size(), 1U);
  wire::FetchReply reply;
  ASSERT_TRUE(reply.ParseFromString(frames[0].substr(0, frames[0].size() - 8)));
  EXPECT_EQ(reply.id(), 7U);
}

// ZeroMQ makes no connection again that ended with bytes that do not decrypt: the rank was asked for ever, and silent.
TEST_F(FetchServices, AFlippedBitOnTheWayCostsAConnectionAndNoAnswer) {
  constexpr std::size_t kBytes = 1'000'000;
  add();
  add();
  wire::Plan p = plan();
  FlippingProxy wire(nodes_[1]->service().port());
  p.mutable_members(1)->set_fetch_port(wire.port());
  for (const auto& node : nodes_) node->install(p);
  const auto fetch = [&](std::uint64_t sequence) {
    nodes_[1]->publish(sequence, kBytes);  // only now: else it comes along with the one before
    std::vector<std::byte> buffer(kBytes);
    nodes_[0]->want(sequence, buffer);
    const Replayer::Done done = nodes_[0]->wait();
    EXPECT_TRUE(done.status.ok()) << done.status.describe();
    EXPECT_TRUE(buffer == bytes_of(sequence, kBytes));
  };
  fetch(0);
  wire.flip_next_from_target();
  fetch(1);
  EXPECT_TRUE(wire.has_flipped());
  wire.flip_next_to_target();
  fetch(2);
  EXPECT_TRUE(wire.has_flipped());
}

TEST_F(FetchServices, BadRepliesAreNotHanded) {
  // Somebody else's service in place of rank 1's.
  void* context = zmq_ctx_new();
  void* router = zmq_socket(context, ZMQ_ROUTER);
  const int zero = 0;
  zmq_setsockopt(router, ZMQ_LINGER, &zero, sizeof zero);
  ASSERT_EQ(zmq_bind(router, "tcp://127.0.0.1:*"), 0);
  std::array<char, 128> bound{};
  std::size_t size = bound.size();
  zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, bound.data(), &size);
  const std::string at(bound.data());

  auto memory = heap_segment(std::size_t{8} << 20);
  auto log = HostLog::create(Incarnation(101), memory).value();
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::uint64_t> ids;
  std::string bytes;
  auto service =
      FetchService::start(settings(""), Incarnation(101), log->reader(),
                          [&](Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
                            const std::lock_guard lock(mutex);
                            EXPECT_EQ(from, Rank(1));
                            ids.push_back(reply.id());
                            bytes.assign(reinterpret_cast<const char*>(payloads.data()), payloads.size());
                            changed.notify_all();
                          });
  ASSERT_TRUE(service.ok());
  wire::Plan p;
  p.set_generation(1);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    wire::Member& m = *p.add_members();
    m.set_rank(rank);
    m.set_incarnation(101 + rank);
    m.add_endpoints()->set_address("127.0.0.1");
    m.set_fetch_port(static_cast<std::uint32_t>(std::stoul(at.substr(at.rfind(':') + 1))));
  }
  service.value()->install(p);
  Replayer::Send ask;
  ask.to = Rank(1);
  wire::FetchRequest& r = ask.request;
  const std::string text = listing(p, 0, 1, 1);
  ASSERT_TRUE(r.ParseFromString(text.substr(0, text.size() - 8)));
  service.value()->send(ask);
  std::array<char, 64> connection{};
  const int connection_size = zmq_recv(router, connection.data(), connection.size(), 0);
  ASSERT_GT(connection_size, 0);
  ASSERT_GT(zmq_recv(router, nullptr, 0, 0), 0);

  const auto answer = [&](std::uint64_t id, const std::string& payload,
                          const std::function<void(wire::FetchReply&)>& change, bool damage = false,
                          int more_frames = 0) {
    wire::FetchReply reply;
    reply.set_protocol(kProtocolVersion);
    reply.set_sender(102);
    reply.set_receiver(101);
    reply.set_generation(1);
    reply.set_id(id);
    reply.set_data(true);
    wire::FetchEntry& e = *reply.add_entries();
    e.set_total_bytes(10);
    wire::ByteRange& range = *e.add_held();
    range.set_begin(2);
    range.set_end(7);
    reply.set_next_sequence(1);
    change(reply);
    std::string head = reply.SerializeAsString();
    const std::uint64_t sum = XXH3_64bits(head.data(), head.size()) + (damage ? 1 : 0);
    head.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    zmq_send(router, connection.data(), static_cast<std::size_t>(connection_size), ZMQ_SNDMORE);
    zmq_send(router, head.data(), head.size(), ZMQ_SNDMORE);
    for (int i = 0; i < more_frames; ++i) zmq_send(router, "x", 1, ZMQ_SNDMORE);
    zmq_send(router, payload.data(), payload.size(), 0);
  };
  const auto same = [](wire::FetchReply&) {};
  answer(1, "12345", same, true);
  answer(2, "12345", [](wire::FetchReply& reply) { reply.set_sender(103); });
  answer(3, "12345", [](wire::FetchReply& reply) { reply.set_receiver(103); });
  answer(4, "1234", same);
  answer(5, "", same);
  answer(6, "12345", same, false, 1);
  answer(7, "12345", [](wire::FetchReply& reply) { reply.mutable_entries(0)->set_total_bytes(6); });
  answer(8, "12345", same);
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, kLong, [&] { return !ids.empty(); }));
    EXPECT_EQ(ids, std::vector<std::uint64_t>{8});
    EXPECT_EQ(bytes, "12345");
  }
  service = Status(Code::kClosed, "the end");
  zmq_close(router);
  zmq_ctx_term(context);
}

TEST_F(FetchServices, RubbishIsDroppedWithAWord) {
  add(settings(""));
  add(settings(""));
  nodes_[1]->publish(0, 1000);
  install();
  Node& served = *nodes_[1];
  Stranger s("tcp://127.0.0.1:" + std::to_string(served.service().port()));
  s.send({"rubbish"});
  s.send({"two", "frames", "and a third"});
  s.send({""});
  s.send({std::string(limits::kMaxFetchRequestBytes + 100, 'x')});
  ASSERT_TRUE(served.wait_for([&] { return served.warnings_.size() >= 2; }));
  EXPECT_THAT(served.warnings(), Contains(HasSubstr("was dropped")));
  std::vector<std::byte> buffer(1000);
  nodes_[0]->want(0, buffer);
  ASSERT_TRUE(nodes_[0]->wait().status.ok());
  EXPECT_TRUE(buffer == bytes_of(0, 1000));
}

TEST_F(FetchServices, AnUnreachableRankIsAskedNoMoreAndTheBytesComeFromAnother) {
  add();
  add();
  add();
  nodes_[1]->publish(0, 1000);
  nodes_[2]->publish(0, 1000);
  const wire::Plan p = plan();
  nodes_[1].reset();
  nodes_[0]->install(p, 300);
  nodes_[2]->install(p);
  std::vector<std::byte> buffer(1000);
  nodes_[0]->want(0, buffer);
  ASSERT_TRUE(nodes_[0]->wait().status.ok());
  EXPECT_TRUE(buffer == bytes_of(0, 1000));
}

TEST_F(FetchServices, EndsWhileRequestsAreUnderWay) {
  for (int i = 0; i < 10; ++i) {
    nodes_.clear();
    add();
    add();
    nodes_[1]->publish(0, 3'000'000);
    install();
    std::vector<std::byte> buffer(3'000'000);
    nodes_[0]->want(0, buffer);
    nodes_.erase(nodes_.begin() + i % 2);
  }
}

// ZeroMQ aborts where its threads cannot be started.
TEST_F(FetchServices, ASystemThatAllowsNoMoreThreadsIsAnError) {
  const LogLife life(9);
  Result<std::unique_ptr<FetchService>> service = Status(Code::kInternal, "not started");
  {
    const testing::NoThreads none;
    service = FetchService::start(settings(), life.self, life.log->reader(), {}, {});
  }
  EXPECT_EQ(service.status().code(), Code::kUnavailable);
  EXPECT_THAT(service.status().describe(), HasSubstr("ulimit -u"));
}

TEST_F(FetchServices, StartSaysWhatIsWrong) {
  auto memory = heap_segment(std::size_t{8} << 20);
  auto log = HostLog::create(Incarnation(7), memory).value();
  const auto start = [&](const Settings& s) {
    return FetchService::start(s, Incarnation(7), log->reader(), {}).status();
  };
  Settings s = settings();
  s.secret_file = (folder_ / "none").string();
  EXPECT_EQ(start(s).code(), Code::kUnavailable);
  EXPECT_THAT(start(s).describe(), HasSubstr("cannot use the secret"));
  s = settings();
  s.bind_address = "203.0.113.7";
  EXPECT_EQ(start(s).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace warren::worker
