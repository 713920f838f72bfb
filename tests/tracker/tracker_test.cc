#include "tracker/tracker.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "recovery/base/limits.h"
#include "tests/flipping_proxy.h"
#include "tests/tracker/fixture.h"
#include "tracker/control_socket.h"
#include "tracker/handshake_watch.h"

namespace warren::tracker {
namespace {

using storage::Secret;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using TrackerTest = WithTracker;
using wire::Envelope;

constexpr auto kHandshakeEnds = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                                ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                ZMQ_EVENT_DISCONNECTED;

constexpr TimeMs kNever{std::numeric_limits<std::int64_t>::min()};

TEST(HandshakeWatch, TellsAFailedHandshakeFromAKnockAndFromAWorkerThatLeaves) {
  HandshakeWatch watch;
  for (int fd = 1; fd <= 4; ++fd) watch.accepted(fd, "peer " + std::to_string(fd), TimeMs{0});
  watch.given_up();  // ZeroMQ tells it right before the end of the connection
  EXPECT_EQ(watch.closed(1), std::nullopt);
  EXPECT_EQ(watch.closed(2), "peer 2");
  watch.spoke(3);  // a message may be read before the success of its handshake is
  watch.succeeded();
  EXPECT_EQ(watch.closed(3), std::nullopt);
  watch.succeeded();
  EXPECT_EQ(watch.closed(4), std::nullopt) << "it has left without a word";
  EXPECT_EQ(watch.closed(5), std::nullopt) << "it was never accepted";
  watch.accepted(1, "another", TimeMs{0});
  EXPECT_EQ(watch.closed(1), "another") << "nothing is left of what had the descriptor before";
}

TEST(HandshakeWatch, CutsOffTheOldestStrangersAndNobodyWhoHasSpoken) {
  HandshakeWatch watch;
  constexpr std::size_t kDescriptors = 200;
  for (int fd = 0; fd < 150; ++fd) watch.accepted(fd, "", TimeMs{fd});
  for (int fd = 0; fd < 40; ++fd) watch.spoke(fd);
  // 110 strangers, and room for 160 connections besides those that spoke: half of it.
  for (int fd = 40; fd < 70; ++fd) {
    const auto cut = watch.overdue(kDescriptors, kNever);
    ASSERT_TRUE(cut);
    EXPECT_EQ(cut->descriptor, fd);
  }
  EXPECT_FALSE(watch.overdue(kDescriptors, kNever)) << "none is told twice, also before it has closed";
  EXPECT_EQ(watch.overdue(kDescriptors, TimeMs{71})->descriptor, 70) << "one that has been a stranger for too long";
  EXPECT_FALSE(watch.overdue(kDescriptors, TimeMs{71}));
  EXPECT_TRUE(watch.overdue(0, kNever)) << "however few are left";
}

// Two workers join `job`; each has its plan when this returns.
struct Pair {
  Pair(std::uint16_t port, const std::string& job, const std::optional<storage::JobCredentials>& credentials,
       std::uint64_t first_life)
      : a(port, credentials), b(port, credentials), life(first_life) {
    a.send(join_envelope(job, life, "0", 2));
    b.send(join_envelope(job, life + 1, "1", 2));
    plan = a.receive(Envelope::kPlan).plan();
    EXPECT_EQ(b.receive(Envelope::kPlan).plan().SerializeAsString(), plan.SerializeAsString());
  }
  Client a, b;
  std::uint64_t life;
  wire::Plan plan;
};

TEST_F(TrackerTest, TwoWorkersJoinAndGetOnePlan) {
  start(options());
  Client a(port(), credentials("train")), b(port(), credentials("train"));
  a.send(join_envelope("train", 101, "9", 2));
  const Envelope welcome = a.receive();
  ASSERT_TRUE(welcome.has_welcome());
  EXPECT_EQ(welcome.receiver(), 101u);
  EXPECT_EQ(welcome.welcome().joined(), 1u);
  b.send(join_envelope("train", 102, "10", 2));
  const wire::Plan plan = a.receive(Envelope::kPlan).plan();
  EXPECT_EQ(plan.SerializeAsString(), b.receive(Envelope::kPlan).plan().SerializeAsString());
  ASSERT_EQ(plan.members_size(), 2);
  EXPECT_EQ(plan.members(0).worker_id(), "9");
  EXPECT_EQ(plan.members(1).worker_id(), "10");
  EXPECT_EQ(plan.members(1).local_rank(), 1u);
  a.send(heartbeat_envelope("train", 101, plan.generation(), 7));
  EXPECT_EQ(a.receive(Envelope::kHeartbeatReply).heartbeat_reply().beat(), 7u);
  tracker_->stop();  // the disk is the loop thread's until then
  EXPECT_TRUE(disk_->durable.contains("train"));
}

TEST_F(TrackerTest, AllInterfacesAndIpv6) {
  TrackerOptions o = options();
  o.bind_address = "::";
  start(std::move(o));
  Client v6(port(), credentials("six"), "[::1]"), v4(port(), credentials("six"), "127.0.0.1");
  v6.send(join_envelope("six", 1, "0", 2));
  v4.send(join_envelope("six", 2, "1", 2));
  v6.receive(Envelope::kPlan);
  v4.receive(Envelope::kPlan);
}

TEST_F(TrackerTest, WithoutAuthenticationOnRequest) {
  TrackerOptions o = options();
  o.secret = nullptr;
  o.insecure = true;
  start(std::move(o));
  Pair(port(), "train", std::nullopt, 1);
  EXPECT_THAT(log_.await("tracker_started").text, HasSubstr("authentication is off"));
}

TEST_F(TrackerTest, ASecretOfAnotherRootNeverGetsIn) {
  start(options());
  ASSERT_TRUE(Secret::generate(dir_ / "other").ok());
  Client stranger(port(), load("other").for_job("train").value());
  stranger.send(join_envelope("train", 1, "0", 1));
  EXPECT_NE(stranger.await_event(kHandshakeEnds), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
  EXPECT_TRUE(tracker_->snapshot().value()->jobs.empty());
  const LogEvent told = log_.await("stranger_refused");
  // Whence is asked of the connection, which may be gone by then.
  EXPECT_THAT(told.text, HasSubstr("its secret file was made for another tracker"));
  EXPECT_THAT(told.text, AnyOf(HasSubstr("; it came from 127.0.0.1"), Not(HasSubstr("came from"))));
  EXPECT_EQ(told.severity, Severity::kWarning);
}

TEST_F(TrackerTest, AuthenticationOnOneSideOnlyNeverGetsIn) {
  start(options());
  Client open(port(), std::nullopt);
  open.send(join_envelope("train", 1, "0", 1));
  EXPECT_NE(open.await_event(kHandshakeEnds), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
  EXPECT_TRUE(tracker_->snapshot().value()->jobs.empty());

  TrackerOptions o = options();
  o.secret = nullptr;
  o.insecure = true;
  start(std::move(o));
  Client strict(port(), credentials("train"));
  strict.send(join_envelope("train", 1, "0", 1));
  EXPECT_NE(strict.await_event(kHandshakeEnds), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
}

TEST_F(TrackerTest, AnotherJobsSecretIsRefusedByName) {
  start(options());
  Client other(port(), credentials("serve"));
  other.send(join_envelope("train", 5, "0", 1));
  const Envelope refused = other.receive();
  ASSERT_TRUE(refused.has_refused());
  EXPECT_EQ(refused.receiver(), 5u);
  EXPECT_EQ(refused.refused().code(), static_cast<std::uint32_t>(Code::kRefused));
  EXPECT_THAT(refused.refused().reason(), HasSubstr("not that of job train"));
  EXPECT_THAT(log_.await("wrong_secret").text, HasSubstr("127.0.0.1"));
  EXPECT_TRUE(tracker_->snapshot().value()->jobs.empty()) << "it created nothing";
}

TEST_F(TrackerTest, AnotherJobsSecretCannotTouchARunningJob) {
  start(options());
  Pair pair(port(), "train", credentials("train"), 11);
  Client other(port(), credentials("serve"));
  Envelope leave = envelope_of("train", 11);
  leave.mutable_leave()->set_generation(pair.plan.generation());
  other.send(leave);
  EXPECT_TRUE(other.receive().has_refused());
  pair.a.send(heartbeat_envelope("train", 11, pair.plan.generation(), 1));
  EXPECT_TRUE(pair.a.receive().has_heartbeat_reply()) << "answers still go to the worker's own connection";
}

TEST_F(TrackerTest, AnotherProtocolVersionIsAnsweredByName) {
  start(options());
  Client client(port(), credentials("train"));
  Envelope future = join_envelope("train", 5, "0", 1);
  future.set_protocol(99);
  client.send_bytes(future.SerializeAsString());
  const Envelope refused = client.receive();
  ASSERT_TRUE(refused.has_refused());
  EXPECT_EQ(refused.receiver(), 5u);
  EXPECT_EQ(refused.refused().code(), static_cast<std::uint32_t>(Code::kRefused));
  EXPECT_THAT(refused.refused().reason(), HasSubstr("protocol version 99"));
}

TEST_F(TrackerTest, AMessageThatOnlyATrackerSendsIsRefused) {
  start(options());
  Client client(port(), credentials("train"));
  Envelope wrong = envelope_of("train", 5);
  wrong.mutable_finished()->set_generation(1);
  client.send_bytes(wrong.SerializeAsString());
  EXPECT_THAT(client.receive().refused().reason(), HasSubstr("never sends Finished"));
}

TEST_F(TrackerTest, AMessageOfSeveralFramesIsDroppedWhole) {
  start(options());
  Client client(port(), credentials("train"));
  client.send_bytes(encode(join_envelope("train", 5, "0", 2), Side::kWorker), true);
  client.send_bytes("more", true);
  client.send_bytes("and more");
  EXPECT_THAT(log_.await("bad_message").text, HasSubstr("3 frames"));
  EXPECT_TRUE(tracker_->snapshot().value()->jobs.empty());
  client.send(join_envelope("train", 6, "0", 2));
  EXPECT_EQ(client.receive().receiver(), 6u) << "the next message is whole again";
}

TEST_F(TrackerTest, EndingAnUnknownJobIsRefused) {
  start(options());
  Client client(port(), credentials("train"));
  Envelope stopped = heartbeat_envelope("train", 5, 3, 1);
  stopped.mutable_stopped()->set_generation(4);
  client.send(stopped);
  const Envelope refused = client.receive();
  EXPECT_EQ(refused.refused().code(), static_cast<std::uint32_t>(Code::kClosed));
  EXPECT_THAT(refused.refused().reason(), HasSubstr("does not know job train"));
  EXPECT_TRUE(tracker_->snapshot().value()->jobs.empty());
}

// Sends a heartbeat and waits for its answer: everything that was sent before on any connection of this client has been
// judged by then.
void expect_alive(Pair& pair, const std::string& job, std::uint64_t beat) {
  pair.a.send(heartbeat_envelope(job, pair.life, pair.plan.generation(), beat));
  const Envelope answer = pair.a.receive();
  ASSERT_TRUE(answer.has_heartbeat_reply()) << answer.body_case();
  ASSERT_EQ(answer.heartbeat_reply().beat(), beat);
}

TEST_F(TrackerTest, OneJobsTortureNeverTouchesAnother) {
  start(options());
  Pair calm(port(), "calm", credentials("calm"), 1001);
  Client torturer(port(), credentials("wild"));
  std::mt19937_64 random(3);
  const std::string good = encode(join_envelope("wild", 9, "0", 1), Side::kWorker);
  const auto noise = [&](std::size_t size) {
    std::string bytes(size, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    return bytes;
  };
  std::uint64_t beat = 0;
  for (int i = 0; i < 10'000; ++i) {
    torturer.send_bytes(noise(random() % 200));
    if (i % 500 == 0) expect_alive(calm, "calm", ++beat);
  }
  for (std::size_t cut = 0; cut < good.size(); ++cut) torturer.send_bytes(good.substr(0, cut));
  for (int i = 0; i < 2000; ++i) {
    std::string flipped = good;
    flipped[random() % flipped.size()] ^= static_cast<char>(1 << random() % 8);
    torturer.send_bytes(flipped);
  }
  torturer.send_bytes("", true);
  torturer.send_bytes(good);
  for (int i = 0; i < 50; ++i) torturer.send_bytes("x", i < 49);
  // Lives without end from one connection.
  for (std::uint64_t life = 1; life < 3000; ++life) torturer.send(heartbeat_envelope("wild", life, 1, 1));
  expect_alive(calm, "calm", ++beat);

  // All of it has been judged once something sent after it is answered. Answers that found the queue full were dropped,
  // so the question is repeated.
  bool answered = false;
  for (int i = 0; i < 100 && !answered; ++i) {
    torturer.send(join_envelope("mark", 5, "0", 1));
    answered = torturer.comes(Envelope::kRefused, "mark", kPatienceMs / 100);
  }
  ASSERT_TRUE(answered);
  const auto seen = tracker_->snapshot().value();
  const auto& jobs = seen->jobs;
  const auto job = std::find_if(jobs.begin(), jobs.end(), [](const JobStatus& j) { return j.name == "calm"; });
  ASSERT_NE(job, jobs.end());
  EXPECT_EQ(job->view.state, TrackerMachine::State::kRunning);
  EXPECT_EQ(job->view.generation.value, calm.plan.generation());
  EXPECT_EQ(job->view.interrupts, 0u);
  EXPECT_LE(log_.count("bad_message"), 100u) << "the log is not flooded";
  expect_alive(calm, "calm", ++beat);
}

// Plain TCP to the port.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const timeval patience{kPatienceMs / 1000, 0};
    EXPECT_EQ(::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  }
  ~RawClient() {
    if (fd_ >= 0) ::close(fd_);
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  // A worker without authentication, as ZeroMQ's protocol wants it.
  void greet(const std::string& identity = "") {
    using namespace std::string_literals;
    const std::string ready = "\x05READY\x0BSocket-Type\0\0\0\x06"s + "DEALER" + "\x08Identity\0\0\0"s +
                              static_cast<char>(identity.size()) + identity;
    send("\xFF\0\0\0\0\0\0\0\0\x7F\x03\0NULL"s + std::string(48, '\0') + "\x04" + static_cast<char>(ready.size()) +
         ready);
    EXPECT_EQ(read(64).size(), 64u);
    const std::string header = read(2);  // of ZeroMQ's own READY
    ASSERT_EQ(header.size(), 2u);
    EXPECT_EQ(read(static_cast<unsigned char>(header[1])).substr(1, 5), "READY");
  }
  // Ends the connection by a reset.
  void reset() {
    const linger at_once{1, 0};
    EXPECT_EQ(::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    ::close(std::exchange(fd_, -1));
  }
  void send(const std::string& bytes) { (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // So many bytes, or fewer where the other side closes.
  std::string read(std::size_t bytes) {
    std::string all(bytes, '\0');
    const ssize_t n = ::recv(fd_, all.data(), bytes, MSG_WAITALL);
    all.resize(static_cast<std::size_t>(std::max(n, ssize_t{0})));
    return all;
  }
  // Until the other side's kernel has all that was sent.
  void await_taken() {
    for (int left = 1; left > 0;) ASSERT_EQ(::ioctl(fd_, SIOCOUTQ, &left), 0);
  }
  // Waits for the end of the connection.
  bool is_cut_off() {
    char byte = 0;
    const ssize_t n = ::recv(fd_, &byte, 1, 0);
    return n == 0 || (n < 0 && errno == ECONNRESET);
  }
  // Until the other side closes.
  std::string read_all() {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd_, buffer, sizeof buffer, 0)) > 0;) all.append(buffer, static_cast<std::size_t>(n));
    return all;
  }

 private:
  int fd_;
};

// ZeroMQ 4.3.4 asserted, in a thread of its own, and the tracker was gone for all jobs.
TEST(ControlSocket, AnyNumberOfMessagesAPingAndAResetEndTheirConnectionAlone) {
  using namespace std::string_literals;
  auto socket = ControlSocket::bind("127.0.0.1", 0, std::nullopt);
  ASSERT_TRUE(socket.ok()) << socket.status().describe();
  constexpr std::size_t kMessages = 1000;  // more than a queue of ZeroMQ's takes that has a limit
  std::string flood;
  for (std::size_t i = 0; i < kMessages; ++i) flood += "\0\x01x"s;
  flood += "\x04\x07\x04PING\0\0"s;
  for (int attack = 0; attack < 20; ++attack) {
    RawClient worker(socket.value()->port());
    worker.greet();
    worker.send(flood);
    std::size_t got = 0;
    const auto await_messages = [&](std::size_t most) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
      for (const std::size_t before = got; got == before && std::chrono::steady_clock::now() < end;) {
        socket.value()->wait(-1, 100);
        socket.value()->receive(
            most, [&](const Sender&, std::span<const std::byte>) { ++got; },
            [](const Sender&, std::string_view why) { FAIL() << why; });
        socket.value()->look_after_strangers(TimeMs{attack}, [](std::string_view) {});
      }
    };
    await_messages(1);  // ZeroMQ has read all of them at once
    worker.reset();
    RawClient after(socket.value()->port());
    after.greet();  // meanwhile it notices the reset
    for (int look = 0; got < kMessages && look < 50; ++look) await_messages(kMessages);
    EXPECT_EQ(got, kMessages);
  }
}

// ZeroMQ reads on for ever what comes from the second of two connections of one name, and never gives it to anyone.
TEST(ControlSocket, AConnectionOfWhichTooMuchWaitsIsCutOff) {
  auto socket = ControlSocket::bind("127.0.0.1", 0, std::nullopt);
  ASSERT_TRUE(socket.ok()) << socket.status().describe();
  RawClient first(socket.value()->port()), second(socket.value()->port());
  first.greet("one name");
  second.greet("one name");
  const auto look = [&](std::int64_t at_ms) {
    socket.value()->receive(
        1000, [](const Sender&, std::span<const std::byte>) {}, [](const Sender&, std::string_view) {});
    socket.value()->look_after_strangers(TimeMs{at_ms}, [](std::string_view) {});
  };
  look(0);
  using namespace std::string_literals;
  const std::string frame = "\x02\0\0\0\0\0\x10\0\0"s + std::string(std::size_t{1} << 20, 'x');
  for (std::uint64_t sent = 0; sent <= ControlSocket::kMostUnreadBytes; sent += frame.size()) second.send(frame);
  second.await_taken();
  look(1000);  // long before a stranger is cut off
  EXPECT_TRUE(second.is_cut_off());
  first.send("\0\x01x"s);
  std::size_t got = 0;
  for (int turn = 0; got == 0 && turn < 200; ++turn) {
    socket.value()->wait(-1, 100);
    socket.value()->receive(
        1, [&](const Sender&, std::span<const std::byte>) { ++got; }, [](const Sender&, std::string_view) {});
    socket.value()->look_after_strangers(TimeMs{1001}, [](std::string_view) {});
  }
  EXPECT_EQ(got, 1u);
}

TEST_F(TrackerTest, AMessageThatIsTooLongEndsItsConnectionAlone) {
  start(options());
  Pair calm(port(), "calm", credentials("calm"), 1);
  Client big(port(), credentials("wild"));
  ASSERT_EQ(big.await_event(ZMQ_EVENT_HANDSHAKE_SUCCEEDED), ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
  big.send_bytes(std::string(kMaxWorkerMessageBytes + 1, 'x'));
  EXPECT_EQ(big.await_event(ZMQ_EVENT_DISCONNECTED), ZMQ_EVENT_DISCONNECTED);
  expect_alive(calm, "calm", 1);
}

// ZeroMQ 4.3.4 asserted seconds later, in a thread of its own, and the tracker was gone for all jobs.
TEST_F(TrackerTest, AFlippedBitEndsItsConnectionAlone) {
  start(options());
  Pair calm(port(), "calm", credentials("calm"), 1);
  FlippingProxy wire(port());
  Client worker(wire.port(), credentials("train"));
  worker.send(join_envelope("train", 9, "0", 2));
  EXPECT_EQ(worker.receive().receiver(), 9u);
  for (int flips = 1; flips <= 3; ++flips) {
    wire.flip_next_to_target();
    worker.send(join_envelope("train", 9, "0", 2));
    ASSERT_TRUE(wire.await_closed_by_target(flips, std::chrono::milliseconds(kPatienceMs)))
        << "the tracker still has a connection that it no longer reads";
    EXPECT_EQ(worker.await_event(ZMQ_EVENT_DISCONNECTED), ZMQ_EVENT_DISCONNECTED);
    // ZeroMQ makes the connection again.
    worker.send(join_envelope("train", 9, "0", 2));
    EXPECT_EQ(worker.receive().receiver(), 9u);
  }
  expect_alive(calm, "calm", 1);
}

TEST_F(TrackerTest, RubbishAtThePortIsCutOff) {
  start(options());
  Pair calm(port(), "calm", credentials("calm"), 1);
  std::mt19937_64 random(5);
  const std::string greeting("\xff\0\0\0\0\0\0\0\x01\x7f\x03", 11);
  for (int i = 0; i < 30; ++i) {
    RawClient raw(port());
    std::string bytes(1 + random() % 5000, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    if (i % 3 == 0) bytes = greeting + bytes;
    if (i % 3 == 1) bytes = "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes;
    // A length of 2^62 after a greeting that is cut short, and everything else that ends in nothing.
    if (i == 2) bytes = greeting + std::string("\x02\x40\0\0\0\0\0\0\0", 9);
    raw.send(bytes);
    if (i % 2 == 0) continue;  // closes in the middle
    raw.send(bytes);
  }
  expect_alive(calm, "calm", 1);
}

TEST_F(TrackerTest, APortInUseIsNamed) {
  start(options());
  TrackerOptions second = options();
  second.port = port();
  const auto failed = Tracker::start(std::move(second));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), Code::kUnavailable);
  EXPECT_THAT(failed.status().describe(), HasSubstr("127.0.0.1 port " + std::to_string(port()) + " is in use"));
}

TEST_F(TrackerTest, BadOptionsAreNamed) {
  const auto refused = [&](auto&& change) {
    TrackerOptions o = options();
    change(o);
    const auto failed = Tracker::start(std::move(o));
    EXPECT_FALSE(failed.ok());
    return failed.ok() ? std::string() : failed.status().describe();
  };
  EXPECT_THAT(refused([](auto& o) { o.secret = nullptr; }), HasSubstr("keygen"));
  EXPECT_THAT(refused([](auto& o) { o.insecure = true; }), HasSubstr("contradict"));
  EXPECT_THAT(refused([](auto& o) { o.journal = nullptr; }), HasSubstr("journal"));
  EXPECT_THAT(refused([](auto& o) { o.bind_address = "localhost"; }), HasSubstr("not a numeric"));
  EXPECT_THAT(refused([](auto& o) { o.bind_address = "203.0.113.7"; }), HasSubstr("not an address of this machine"));
  EXPECT_THAT(refused([](auto& o) { o.http_port = 70000; }), HasSubstr("HTTP port"));
  ASSERT_TRUE(secret_->write_job_secret("train", dir_ / "job").ok());
  EXPECT_THAT(refused([&](auto& o) { o.secret = std::make_shared<const Secret>(load("job")); }),
              HasSubstr("root secret"));
}

TEST_F(TrackerTest, ARestartOnTheSameJournalKeepsRanksAndRaisesGenerations) {
  const auto with_journal = [&] {
    TrackerOptions o = options();
    auto journal = storage::RocksJournal::open(dir_ / "journal");
    EXPECT_TRUE(journal.ok()) << journal.status().describe();
    o.journal = std::move(journal).value();
    return o;
  };
  start(with_journal());
  EXPECT_THAT(storage::RocksJournal::open(dir_ / "journal").status().describe(), HasSubstr("another tracker"));
  wire::Plan before;
  {
    Client a(port(), credentials("train")), b(port(), credentials("train")), c(port(), credentials("train"));
    // Host x gets ranks 0 and 2 → the ids put b between; what matters is that they stay.
    a.send(join_envelope("train", 1, "0", 3, "x"));
    b.send(join_envelope("train", 2, "1", 3, "y"));
    c.send(join_envelope("train", 3, "2", 3, "x"));
    before = a.receive(Envelope::kPlan).plan();
    b.receive(Envelope::kPlan);
    c.receive(Envelope::kPlan);
  }
  tracker_.reset();

  start(with_journal());
  EXPECT_THAT(log_.await("job_restored").text, HasSubstr("train"));
  // A member that lived on is told the same plan; a life that the tracker never knew ends the generation.
  Client a(port(), credentials("train")), b(port(), credentials("train")), c(port(), credentials("train"));
  a.send(heartbeat_envelope("train", 1, before.generation(), 4));
  const Envelope asks = a.receive(Envelope::kHeartbeatReply);
  a.send(heartbeat_envelope("train", 1, before.generation(), 4), asks);
  b.send(heartbeat_envelope("train", 2, before.generation(), 4));
  b.send(heartbeat_envelope("train", 2, before.generation(), 5), b.receive(Envelope::kHeartbeatReply));
  // Once both have promised to obey it it answers with the heartbeat's own number; before, with 0 and 1.
  do {
    b.send(heartbeat_envelope("train", 2, before.generation(), 6), asks);
  } while (b.receive(Envelope::kHeartbeatReply).heartbeat_reply().beat() < 4);
  c.send(join_envelope("train", 33, "2", 3, "elsewhere"));
  const wire::Interrupt interrupt = a.receive(Envelope::kInterrupt).interrupt();
  EXPECT_GT(interrupt.generation(), before.generation());
  b.receive(Envelope::kInterrupt);
  for (auto [client, life] : {std::pair(&a, 1), std::pair(&b, 2)}) {
    Envelope stopped = envelope_of("train", static_cast<std::uint64_t>(life));
    stopped.mutable_stopped()->set_generation(interrupt.generation());
    client->send(stopped);
  }
  a.send(join_envelope("train", 11, "0", 3, "x"));
  b.send(join_envelope("train", 22, "1", 3, "y"));
  const wire::Plan after = c.receive(Envelope::kPlan).plan();
  EXPECT_GT(after.generation(), before.generation());
  ASSERT_EQ(after.members_size(), 3);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(after.members(r).worker_id(), before.members(r).worker_id());
}

TEST_F(TrackerTest, OnlyWhoHasItsSecretHasAJobForgotten) {
  start(options());
  Client worker(port(), credentials("train")), owner(port(), credentials("train")), other(port(), credentials("other"));
  worker.send(join_envelope("train", 1, "0", 1));
  const std::uint64_t generation = worker.receive(Envelope::kPlan).plan().generation();
  Envelope forget = envelope_of("train", 50);
  forget.mutable_forget()->set_force(true);
  other.send(forget);
  EXPECT_THAT(other.receive(Envelope::kRefused).refused().reason(), HasSubstr("this secret is not that of job train"));
  worker.send(heartbeat_envelope("train", 1, generation, 1));
  worker.receive(Envelope::kHeartbeatReply);
  owner.send(forget);
  owner.receive(Envelope::kForgotten);
  EXPECT_THAT(worker.receive(Envelope::kRefused).refused().reason(), HasSubstr("was ended by `warren forget`"));
  EXPECT_EQ(log_.count("job_forgotten"), 1u);
}

TEST_F(TrackerTest, StopIsPromptAndLeavesThePortFree) {
  start(options());
  const std::uint16_t before = port();
  Pair pair(port(), "train", credentials("train"), 1);
  tracker_->stop();
  tracker_->stop();
  EXPECT_EQ(tracker_->snapshot().status().code(), Code::kClosed);
  TrackerOptions again = options();
  again.port = before;
  start(std::move(again));
  EXPECT_EQ(port(), before);
}

}  // namespace
}  // namespace warren::tracker
