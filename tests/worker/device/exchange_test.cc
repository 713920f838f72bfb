// Turns of messages between two GPUs by the fake NCCL, the process that makes its ids, and what is left of both when an
// generation, a peer or a process ends in the middle.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/device/gpu_tests.h"
#include "worker/device/device_exchange.h"
#include "worker/device/nccl_root.h"
#include "worker/device/staging.h"

namespace warren::worker {
namespace {

constexpr std::int64_t kShortMs = 400;
// Where something has to come before nothing does.
constexpr std::int64_t kAfterWorkMs = 2000;

// Gone, or ended and not collected by whoever has inherited it.
bool is_gone(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string number, name, state;
  return !(stat >> number >> name >> state) || state == "Z";
}

bool comes(const std::function<bool()>& what) {
  for (int i = 0; i < 2000; i++) {
    if (what()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// As the fake one says.
const NcclLibrary kFakeNccl{22809, ""};

Result<std::unique_ptr<NcclRoot>> start_root(const NcclLibrary& nccl = kFakeNccl) {
  return NcclRoot::start(WARREN_NCCL_ROOT_PROGRAM, WARREN_FAKE_DEVICE, nccl, kPatienceMs);
}

GpuExchange::Word::Id id_of(NcclRoot& root) {
  for (;;) {
    const auto id = root.id();
    EXPECT_TRUE(id.ok()) << id.status().describe();
    if (!id.ok() || id.value()) return id.ok() ? *id.value() : GpuExchange::Word::Id{};
    std::this_thread::yield();
  }
}

// ---- the process that makes ids

TEST(Root, MakesAnotherIdEachTimeAndEndsWithItsObject) {
  auto first = start_root(), second = start_root();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(id_of(*first.value()), id_of(*second.value()));
  const pid_t process = first.value()->process();
  EXPECT_FALSE(is_gone(process));
  first.value().reset();
  EXPECT_TRUE(comes([&] { return kill(process, 0) != 0; })) << "ended, and collected";
  EXPECT_FALSE(is_gone(second.value()->process()));
}

// Also where a child of that process has what it was to see the end of.
TEST(Root, DoesNotOutliveAProcessThatIsKilled) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    auto root = start_root();
    if (!root.ok()) _exit(1);
    (void)id_of(*root.value());
    const pid_t child = fork();
    if (child == 0) {
      (void)sleep(20);
      _exit(0);
    }
    const pid_t told[] = {root.value()->process(), child};
    (void)!write(ends[1], told, sizeof told);
    (void)sleep(60);
    _exit(0);
  }
  pid_t told[2] = {};
  ASSERT_EQ(read(ends[0], told, sizeof told), static_cast<ssize_t>(sizeof told));
  EXPECT_FALSE(is_gone(told[0]));
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(comes([&] { return is_gone(told[0]); }));
  EXPECT_FALSE(is_gone(told[1])) << "it had the pipe all the while";
  (void)kill(told[1], SIGKILL);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Root, ThatMakesNoIdSaysSo) {
  const auto nowhere = NcclRoot::start("/nowhere/root", "x", kFakeNccl, kPatienceMs);
  EXPECT_EQ(nowhere.status().code(), Code::kUnavailable);
  EXPECT_THAT(nowhere.status().describe(), HasSubstr("cannot start /nowhere/root"));
  const auto verdict = [](const std::string& program, const std::string& library, const NcclLibrary& nccl,
                          std::int64_t timeout_ms) {
    auto root = NcclRoot::start(program, library, nccl, timeout_ms);
    EXPECT_TRUE(root.ok());
    Status status;
    EXPECT_TRUE(comes([&] {
      status = root.value()->id().status();
      return !status.ok();
    }));
    return status;
  };
  EXPECT_THAT(verdict(WARREN_NCCL_ROOT_PROGRAM, "/nowhere/library.so", kFakeNccl, kPatienceMs).describe(),
              HasSubstr("has ended without an id of NCCL"));
  const Status late = verdict("/bin/sleep", "60", {22809, "1"}, 100);
  EXPECT_EQ(late.code(), Code::kTimeout);
}

// A framework may have its own beside it, which no other process finds by name.
TEST(Root, HasTheNcclOfItsParentOrNone) {
  const auto verdict = [](const NcclLibrary& nccl) {
    auto root = start_root(nccl);
    EXPECT_TRUE(root.ok());
    Result<std::optional<GpuExchange::Word::Id>> id = std::optional<GpuExchange::Word::Id>();
    EXPECT_TRUE(comes([&] {
      id = root.value()->id();
      return !id.ok() || id.value();
    }));
    return id.status();
  };
  EXPECT_TRUE(verdict({22809, WARREN_FAKE_DEVICE}).ok()) << "it takes what it is given";
  EXPECT_THAT(verdict({22809, "/nowhere/libnccl.so.2"}).describe(), HasSubstr("has ended without an id of NCCL"));
  EXPECT_THAT(verdict({23002, ""}).describe(), HasSubstr("has ended without an id of NCCL"));
}

TEST(Root, HasNothingThatTheProgramLetsItsChildrenHave) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  auto root = start_root();
  ASSERT_TRUE(root.ok());
  (void)id_of(*root.value());
  ::close(ends[1]);
  ASSERT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "nobody has the other end";
  ::close(ends[0]);
}

// A program that waits for any child of its own, and another process that has its number by then.
TEST(Root, IsNoOtherProcessThatHasItsNumber) {
  auto root = start_root();
  ASSERT_TRUE(root.ok());
  (void)id_of(*root.value());
  const pid_t process = root.value()->process();
  ASSERT_EQ(kill(process, SIGKILL), 0);
  ASSERT_EQ(waitpid(process, nullptr, 0), process);
  clone_args as{};
  as.exit_signal = SIGCHLD;
  as.set_tid = reinterpret_cast<std::uint64_t>(&process);
  as.set_tid_size = 1;
  const auto other = static_cast<pid_t>(syscall(SYS_clone3, &as, sizeof as));
  if (other == 0) {
    (void)sleep(60);
    _exit(0);
  }
  if (other < 0) {
    // Not everybody may choose the number of a process.
    ASSERT_EQ(errno, EPERM);
    return;
  }
  ASSERT_EQ(other, process);
  root.value().reset();
  // It would have been killed, and collected, by now or soon.
  auto second = start_root();
  ASSERT_TRUE(second.ok());
  (void)id_of(*second.value());
  EXPECT_FALSE(is_gone(other));
  ASSERT_EQ(kill(other, SIGTERM), 0);
  int how = 0;
  ASSERT_EQ(waitpid(other, &how, 0), other);
  EXPECT_TRUE(WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
}

#ifdef WARREN_CUDA_MODULE
// NCCL itself, which needs no GPU for that.
TEST(Root, OfTheModuleMakesAnId) {
  void* const module = dlopen(WARREN_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(module, nullptr) << dlerror();
  const auto table = reinterpret_cast<warren_device_table_function>(dlsym(module, WARREN_DEVICE_TABLE_SYMBOL));
  ASSERT_NE(table, nullptr);
  const auto nccl = find_nccl(*table());
  if (!nccl.ok()) {
    EXPECT_THAT(nccl.status().describe(), HasSubstr("NCCL")) << "there is none here";
    return;
  }
  EXPECT_THAT(nccl.value().file, HasSubstr("libnccl"));
  auto root = NcclRoot::start(WARREN_NCCL_ROOT_PROGRAM, WARREN_CUDA_MODULE, nccl.value(), kPatienceMs);
  ASSERT_TRUE(root.ok());
  Result<std::optional<GpuExchange::Word::Id>> id = std::optional<GpuExchange::Word::Id>();
  ASSERT_TRUE(comes([&] {
    id = root.value()->id();
    return !id.ok() || id.value();
  }));
  ASSERT_TRUE(id.ok()) << id.status().describe();
  EXPECT_NE(*id.value(), GpuExchange::Word::Id{});
}
#endif

// ---- turns

struct OneRank {
  OneRank(std::int32_t number, std::int64_t timeout_ms, std::uint64_t pinned_bytes, bool checksums)
      : rank(number),
        staging(fake_gpu().table, pinned_bytes, 0, 64 * kMiB, timeout_ms),
        exchange(staging.exchange_by(
            checksums,
            [this] {
              roots++;
              return start_root();
            },
            [this](bool warns, const std::string& text) {
              if (warns) warnings.push_back(text);
            })) {
    staging.shares().prepare(number);
    exchange.prepare();
  }
  ~OneRank() { exchange.close(); }
  std::shared_ptr<std::byte> filled(std::size_t bytes, std::byte with) {
    auto block = exchange.take_scratch(bytes, 1);
    EXPECT_NE(block, nullptr);
    const std::vector<std::byte> values(bytes, with);
    fake_gpu().controls.write(block.get(), values.data(), bytes);
    return block;
  }
  Status move() {
    const auto moved = exchange.move();
    return moved.ok() ? Status() : moved.status();
  }

  const std::int32_t rank;
  std::vector<std::string> warnings;
  int roots = 0;  // that were started
  Staging staging;
  DeviceExchange& exchange;
};

class Exchanges : public ::testing::Test {
 protected:
  ~Exchanges() override { end(); }
  // What is under way ends with its communicator.
  void end() {
    for (auto& one : ranks_) {
      if (one) one->exchange.close();
    }
    for (auto& one : ranks_) one.reset();
    fake_gpu().controls.release();
  }
  void make(std::int64_t timeout_ms, std::uint64_t pinned_bytes = 64 * kMiB, bool checksums = true) {
    for (std::int32_t rank = 0; rank < 2; rank++) {
      ranks_[rank] = std::make_unique<OneRank>(rank, timeout_ms, pinned_bytes, checksums);
    }
  }
  OneRank& rank(int number) { return *ranks_[number]; }
  void open(std::uint64_t generation) {
    for (const auto& one : ranks_) one->exchange.open(Generation(generation), one->rank, 2);
  }
  void close() {
    for (const auto& one : ranks_) one->exchange.close();
  }
  // As before each round: true if both are ready for it.
  bool agree(bool could = true) {
    for (const auto& one : ranks_) one->exchange.prepare();
    const std::vector<GpuExchange::Word> words = {rank(0).exchange.word(could), rank(1).exchange.word(true)};
    for (const auto& one : ranks_) one->exchange.heard(words);
    return words[0].ready && words[1].ready;
  }
  // Rank 0 gets so much from rank 1.
  struct Moved {
    GpuExchange::Done received;
    std::optional<GpuExchange::Done> sent;
  };
  Moved move_one(std::size_t bytes) {
    auto in = rank(0).filled(bytes, std::byte{0}), out = rank(1).filled(bytes, std::byte{3});
    (void)rank(0).exchange.begin({{1, false, false, in.get(), bytes, in}});
    (void)rank(1).exchange.begin({{0, true, false, out.get(), bytes, out}});
    Moved moved;
    std::optional<GpuExchange::Done> done;
    EXPECT_TRUE(move_until([&] {
      if (!moved.sent) moved.sent = rank(1).exchange.take_done();
      return moved.sent && (done = rank(0).exchange.take_done()).has_value();
    }));
    if (done) moved.received = std::move(*done);
    return moved;
  }
  bool move_until(const std::function<bool()>& done) {
    return comes([&] {
      EXPECT_TRUE(rank(0).move().ok() && rank(1).move().ok());
      return done();
    });
  }

  std::unique_ptr<OneRank> ranks_[2];
};

TEST_F(Exchanges, MoveTurnsInTheirOrder) {
  make(kPatienceMs);
  open(7);
  EXPECT_FALSE(agree());
  ASSERT_TRUE(comes([&] { return agree(); }));
  EXPECT_FALSE(agree(false)) << "one could not this time";
  constexpr std::size_t kBytes = 300'001;
  struct Begun {
    std::uint64_t id = 0;
    std::shared_ptr<std::byte> in, out;
  };
  std::vector<Begun> begun[2];
  for (std::size_t turn = 0; turn < 3; turn++) {
    for (int me = 0; me < 2; me++) {
      Begun& b = begun[me].emplace_back();
      b.out = rank(me).filled(kBytes + turn, static_cast<std::byte>(10 * turn + static_cast<std::size_t>(me) + 1));
      b.in = rank(me).filled(kBytes + turn, std::byte{0});
      GpuExchange::Turn messages(2);
      messages[0] = {1 - me, true, false, b.out.get(), kBytes + turn, b.out};
      messages[1] = {1 - me, false, turn == 1, b.in.get(), kBytes + turn, b.in};
      b.id = rank(me).exchange.begin(std::move(messages));
    }
  }
  for (int me = 0; me < 2; me++) {
    SCOPED_TRACE(me);
    for (std::size_t turn = 0; turn < 3; turn++) {
      std::optional<GpuExchange::Done> done;
      ASSERT_TRUE(move_until([&] { return (done = rank(me).exchange.take_done()).has_value(); }));
      EXPECT_TRUE(done->status.ok());
      const auto which = std::ranges::find(begun[me], done->id, &Begun::id);
      ASSERT_NE(which, begun[me].end());
      const auto number = static_cast<std::size_t>(which - begun[me].begin());
      const std::vector<std::byte> expected(kBytes + number,
                                            static_cast<std::byte>(10 * number + 2 - static_cast<std::size_t>(me)));
      std::vector<std::byte> came(kBytes + number);
      fake_gpu().controls.read(came.data(), which->in.get(), came.size());
      EXPECT_EQ(came, expected);
      ASSERT_EQ(done->on_cpu.size(), 2u);
      EXPECT_EQ(done->on_cpu[0], nullptr);
      ASSERT_EQ(done->on_cpu[1] != nullptr, number == 1) << "where it was wanted there";
      if (number == 1) {
        EXPECT_EQ(std::memcmp(done->on_cpu[1], expected.data(), expected.size()), 0);
      }
      EXPECT_EQ(which->in.use_count(), 1) << "nothing is kept";
    }
    EXPECT_FALSE(rank(me).exchange.busy());
  }
}

// A process takes a while to be started, and words are asked for under the engine's lock.
TEST_F(Exchanges, StartNoProcessWhereTheEngineWaits) {
  make(kPatienceMs);
  rank(0).exchange.open(Generation(1), 0, 2);
  rank(0).exchange.prepare();
  EXPECT_EQ(rank(0).roots, 0) << "a call that nobody has a word about, as a subgroup's";
  for (int i = 0; i < 3; i++) {
    const GpuExchange::Word word = rank(0).exchange.word(true);
    EXPECT_TRUE(word.takes_part);
    EXPECT_FALSE(word.id);
  }
  EXPECT_EQ(rank(0).roots, 0);
  for (int i = 0; i < 3; i++) rank(0).exchange.prepare();
  EXPECT_EQ(rank(0).roots, 1) << "one a generation";
  EXPECT_TRUE(comes([&] { return rank(0).exchange.word(true).id.has_value(); }));
  rank(1).exchange.open(Generation(1), 1, 2);
  rank(1).exchange.prepare();
  EXPECT_EQ(rank(1).roots, 0) << "that is rank 0's";
}

// Of several blocks, and of what ends within a word.
TEST_F(Exchanges, HaveChecksumsOfWhatWasSentAndOfWhatHasCome) {
  constexpr std::size_t kBytes = 5 * kMiB + 3;
  make(kPatienceMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  const Moved well = move_one(kBytes);
  EXPECT_NE(well.sent->checksums[0], 0u);
  EXPECT_EQ(well.sent->checksums, well.received.checksums);
  EXPECT_NE(move_one(kBytes - 1).sent->checksums, well.sent->checksums);
  fake_gpu().controls.arm("stream.nccl_exchange.0", 0, FakeFault::kFlip);
  const Moved flipped = move_one(kBytes);
  EXPECT_TRUE(flipped.received.status.ok()) << "NCCL says so";
  EXPECT_EQ(flipped.sent->checksums, well.sent->checksums);
  EXPECT_NE(flipped.received.checksums, well.sent->checksums);
  end();
  make(kPatienceMs, 64 * kMiB, false);
  open(2);
  ASSERT_TRUE(comes([&] { return agree(); }));
  const std::uint64_t before = fake_gpu().controls.calls("checksum");
  const Moved without = move_one(kBytes);
  EXPECT_EQ(without.sent->checksums, std::vector<std::uint64_t>{0});
  EXPECT_EQ(without.received.checksums, std::vector<std::uint64_t>{0});
  EXPECT_EQ(fake_gpu().controls.calls("checksum"), before);
}

// More than are given to NCCL at once.
TEST_F(Exchanges, KeepTheChecksumsOfManyTurnsApart) {
  make(kPatienceMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  constexpr std::size_t kBytes = 4096, kTurns = 20;
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (std::size_t i = 0; i < kTurns; i++) {
    auto out = rank(1).filled(kBytes, static_cast<std::byte>(i + 1)), in = rank(0).filled(kBytes, std::byte{0});
    (void)rank(1).exchange.begin({{0, true, false, out.get(), kBytes, out}});
    (void)rank(0).exchange.begin({{1, false, i % 2 == 0, in.get(), kBytes, in}});
    blocks.insert(blocks.end(), {out, in});
  }
  std::map<std::uint64_t, std::uint64_t> sums[2];
  ASSERT_TRUE(move_until([&] {
    for (int me = 0; me < 2; me++) {
      while (const auto done = rank(me).exchange.take_done()) sums[me][done->id] = done->checksums[0];
    }
    return sums[0].size() == kTurns && sums[1].size() == kTurns;
  }));
  EXPECT_EQ(sums[0], sums[1]);
  std::set<std::uint64_t> apart;
  for (const auto& [id, sum] : sums[0]) apart.insert(sum);
  EXPECT_EQ(apart.size(), kTurns);
}

// An event that has been reached says nothing where the kernel before it has left because of an error.
TEST_F(Exchanges, AnErrorThatWasNoticedBeforeTheEndIsNoSuccess) {
  make(kPatienceMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  auto in = rank(0).filled(kMiB, std::byte{0}), out = rank(1).filled(kMiB, std::byte{3});
  (void)rank(0).exchange.begin({{1, false, false, in.get(), kMiB, in}});
  ASSERT_TRUE(rank(0).move().ok());
  (void)rank(1).exchange.begin({{0, true, false, out.get(), kMiB, out}});
  ASSERT_TRUE(comes([&] {
    EXPECT_TRUE(rank(1).move().ok());
    return rank(1).exchange.take_done().has_value();
  }));
  fake_gpu().controls.arm("query.reached", 0, FakeFault::kNoticed);
  std::optional<GpuExchange::Done> done;
  ASSERT_TRUE(comes([&] {
    EXPECT_TRUE(rank(0).move().ok());
    return (done = rank(0).exchange.take_done()).has_value();
  }));
  EXPECT_EQ(done->status.code(), Code::kPeerLost);
  EXPECT_THAT(done->status.describe(), HasSubstr("an error that NCCL has noticed"));
}

// Calls have all pinned memory, and may wait for this.
TEST_F(Exchanges, ComeToTheCpuWithoutPinnedMemoryToo) {
  make(kPatienceMs, kMiB);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  // More than what it lands on, and three at once.
  constexpr std::size_t kBytes = 6 * kMiB + 5;
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (int i = 0; i < 3; i++) {
    auto out = rank(1).exchange.take_scratch(kBytes, kMiB), in = rank(0).exchange.take_scratch(kBytes, kMiB);
    ASSERT_TRUE(out && in);
    std::vector<std::byte> values(kBytes);
    for (std::size_t k = 0; k < kBytes; k++)
      values[k] = static_cast<std::byte>(k / 4096 + k + static_cast<std::size_t>(i));
    fake_gpu().controls.write(out.get(), values.data(), kBytes);
    (void)rank(1).exchange.begin({{0, true, false, out.get(), kBytes, out}});
    (void)rank(0).exchange.begin({{1, false, true, in.get(), kBytes, in}});
    blocks.insert(blocks.end(), {out, in});
  }
  std::vector<GpuExchange::Done> all;
  ASSERT_TRUE(move_until([&] {
    while (auto done = rank(0).exchange.take_done()) all.push_back(std::move(*done));
    return all.size() == 3;
  }));
  for (std::size_t i = 0; i < 3; i++) {
    ASSERT_TRUE(all[i].status.ok());
    std::vector<std::byte> expected(kBytes);
    fake_gpu().controls.read(expected.data(), blocks[2 * (all[i].id - 1)].get(), kBytes);
    EXPECT_EQ(std::memcmp(all[i].on_cpu[0], expected.data(), kBytes), 0);
  }
}

// The peer does not come. The generation ends: nobody hears of it, and the memory is kept until NCCL is done with it.
TEST_F(Exchanges, AGenerationThatEndsLeavesNothing) {
  make(kPatienceMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  auto block = rank(0).filled(kMiB, std::byte{1});
  const std::uint64_t exchanged = fake_gpu().controls.calls("stream.nccl_exchange");
  (void)rank(0).exchange.begin({{1, false, false, block.get(), kMiB, block}});
  ASSERT_TRUE(move_until([&] { return fake_gpu().controls.calls("stream.nccl_exchange") > exchanged; }));
  fake_gpu().controls.arm("nccl_abort.0", 0, FakeFault::kHang);
  const std::uint64_t aborts = fake_gpu().controls.calls("nccl_abort.0");
  close();
  ASSERT_TRUE(move_until([&] { return fake_gpu().controls.calls("nccl_abort.0") > aborts; }));
  EXPECT_TRUE(move_until([&] { return !rank(0).exchange.busy(); }));
  EXPECT_FALSE(rank(0).exchange.take_done());
  EXPECT_GT(block.use_count(), 1) << "it is being aborted";
  open(2);
  EXPECT_FALSE(rank(0).exchange.word(true).takes_part) << "not before";
  fake_gpu().controls.release();
  EXPECT_TRUE(comes([&] { return block.use_count() == 1; }));
  EXPECT_TRUE(comes([&] { return agree(); })) << "with another communicator";
  EXPECT_TRUE(rank(0).warnings.empty());
}

TEST_F(Exchanges, AGenerationThatDoesNotEndIsTheEndOfALife) {
  make(kShortMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  fake_gpu().controls.arm("nccl_abort.0", 0, FakeFault::kHang);
  close();
  EXPECT_FALSE(rank(0).exchange.busy());
  ASSERT_TRUE(comes([&] { return rank(0).exchange.busy(); }));
  const auto moved = rank(0).exchange.move();
  EXPECT_EQ(moved.status().code(), Code::kTimeout);
  EXPECT_THAT(moved.status().describe(), HasSubstr("has not ended in 400 ms"));
  EXPECT_FALSE(rank(0).exchange.busy());
  EXPECT_TRUE(rank(1).move().ok());
  ranks_[0].reset();
}

// A kernel that is loaded when NCCL's waits for a peer would wait for it, too, and nobody could end that.
TEST_F(Exchanges, NoKernelIsLoadedBehindNccls) {
  fake_gpu().controls.unload();
  make(kPatienceMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  auto in = rank(0).filled(kMiB, std::byte{0}), out = rank(1).filled(kMiB, std::byte{1});
  const std::uint64_t sums = fake_gpu().controls.calls("checksum"), aborts = fake_gpu().controls.calls("nccl_abort.0");
  (void)rank(0).exchange.begin({{1, false, false, in.get(), kMiB, in}});
  std::thread mover([&] {
    EXPECT_TRUE(comes([&] {
      EXPECT_TRUE(rank(0).move().ok());
      return !rank(0).exchange.busy();
    }));
  });
  EXPECT_TRUE(comes([&] { return fake_gpu().controls.calls("checksum") > sums; }));
  rank(0).exchange.close();
  EXPECT_TRUE(comes([&] { return fake_gpu().controls.calls("nccl_abort.0") > aborts; }));
  // What is stuck all the same goes on.
  (void)rank(1).exchange.begin({{0, true, false, out.get(), kMiB, out}});
  EXPECT_TRUE(comes([&] {
    EXPECT_TRUE(rank(1).move().ok());
    return rank(1).exchange.take_done().has_value();
  }));
  mover.join();
}

TEST_F(Exchanges, AreNotGivenUpWhereMemoryIsRefusedForAWhile) {
  for (const char* where : {"allocate_pinned", "allocate", "load"}) {
    SCOPED_TRACE(where);
    const int of_shares = std::string(where) == "allocate_pinned" ? 1 : 0;  // which come first
    fake_gpu().controls.arm(where, of_shares, FakeFault::kNoMemory);
    OneRank other(0, kPatienceMs, 64 * kMiB, true);
    EXPECT_EQ(other.exchange.take_scratch(kMiB, 1), nullptr);
    ASSERT_EQ(other.warnings.size(), 1u);
    EXPECT_THAT(other.warnings[0], HasSubstr(std::string("injected into ") + where));
    fake_gpu().controls.arm(where, 0, FakeFault::kNoMemory);
    other.exchange.prepare();
    EXPECT_EQ(other.warnings.size(), 1u) << "once";
    other.exchange.prepare();
    EXPECT_NE(other.exchange.take_scratch(kMiB, 1), nullptr);
  }
}

// Messages of the same memory have the same checksum.
TEST_F(Exchanges, SumWhatGoesToSeveralOnce) {
  make(kPatienceMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  constexpr std::size_t kBytes = 5 * kMiB + 3;
  auto one = rank(1).filled(kBytes, std::byte{7}), in = rank(0).filled(3 * kBytes, std::byte{0});
  const std::uint64_t before = fake_gpu().controls.calls("checksum");
  (void)rank(1).exchange.begin({{0, true, false, one.get(), kBytes, one},
                                {0, true, false, one.get(), kBytes, one},
                                {0, true, false, one.get(), kBytes - 1, one}});
  (void)rank(0).exchange.begin({{1, false, false, in.get(), kBytes, in},
                                {1, false, false, in.get() + kBytes, kBytes, in},
                                {1, false, false, in.get() + 2 * kBytes, kBytes - 1, in}});
  std::optional<GpuExchange::Done> sent, received;
  ASSERT_TRUE(move_until([&] {
    if (!sent) sent = rank(1).exchange.take_done();
    if (!received) received = rank(0).exchange.take_done();
    return sent && received;
  }));
  EXPECT_EQ(sent->checksums, received->checksums);
  EXPECT_EQ(sent->checksums[0], sent->checksums[1]);
  EXPECT_NE(sent->checksums[0], sent->checksums[2]);
  EXPECT_EQ(fake_gpu().controls.calls("checksum"), before + 5);
}

// As often as it can be bad luck.
TEST_F(Exchanges, ThatFailAgainAndAgainAreGivenUp) {
  make(kShortMs);
  for (std::uint64_t generation = 1; generation <= 3; generation++) {
    open(generation);
    ASSERT_TRUE(comes([&] { return agree(); })) << generation;
    auto block = rank(0).filled(kMiB, std::byte{1});
    const std::uint64_t id = rank(0).exchange.begin({{1, false, false, block.get(), kMiB, block}});
    std::optional<GpuExchange::Done> done;
    ASSERT_TRUE(move_until([&] { return (done = rank(0).exchange.take_done()).has_value(); }));
    EXPECT_EQ(done->id, id);
    EXPECT_EQ(done->status.code(), Code::kPeerLost) << "which costs a generation and no more";
    EXPECT_THAT(done->status.describe(), HasSubstr("nothing has come of a turn for 400 ms"));
    close();
    ASSERT_EQ(rank(0).warnings.size(), generation);
    EXPECT_THAT(rank(0).warnings.back(),
                HasSubstr(generation < 3 ? "until the next generation" : "for the rest of this life"));
  }
  open(4);
  for (int i = 0; i < 50; i++) {
    EXPECT_FALSE(agree());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(rank(0).exchange.word(true).takes_part);
  EXPECT_TRUE(rank(1).exchange.word(true).takes_part);
}

// Up to eight of them stand on one stream: what is behind another one has not stood still.
TEST_F(Exchanges, ATurnIsLateFromWhenTheOneBeforeItHasEnded) {
  make(kAfterWorkMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  auto first = rank(0).filled(kMiB, std::byte{0}), second = rank(0).filled(kMiB, std::byte{0});
  const std::uint64_t given = fake_gpu().controls.calls("nccl_exchange.0");
  const std::uint64_t begun = fake_gpu().controls.calls("stream.nccl_exchange.0");
  const std::uint64_t id = rank(0).exchange.begin({{1, false, false, first.get(), kMiB, first}});
  (void)rank(0).exchange.begin({{1, false, false, second.get(), kMiB, second}});
  ASSERT_TRUE(comes([&] {
    EXPECT_TRUE(rank(0).move().ok());
    return fake_gpu().controls.calls("nccl_exchange.0") == given + 2;
  }));
  std::this_thread::sleep_for(std::chrono::milliseconds(kAfterWorkMs));
  auto sent = rank(1).filled(kMiB, std::byte{3});
  (void)rank(1).exchange.begin({{0, true, false, sent.get(), kMiB, sent}});
  ASSERT_TRUE(comes([&] {
    EXPECT_TRUE(rank(1).move().ok());
    return fake_gpu().controls.calls("stream.nccl_exchange.0") == begun + 2;
  }));
  EXPECT_TRUE(rank(0).move().ok());
  const auto done = rank(0).exchange.take_done();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->id, id);
  EXPECT_TRUE(done->status.ok()) << "it is there when it is looked at";
  EXPECT_FALSE(rank(0).exchange.take_done()) << "the second has just begun";
  EXPECT_TRUE(rank(0).exchange.ready());
}

// Most failures are others' deaths.
TEST_F(Exchanges, ThatFailNowAndThenGoOn) {
  make(kAfterWorkMs);
  for (std::uint64_t generation = 1; generation <= 5; generation++) {
    open(generation);
    ASSERT_TRUE(comes([&] { return agree(); })) << generation;
    EXPECT_TRUE(move_one(kMiB).received.status.ok()) << "which proves nothing";
    if (generation == 3) rank(0).exchange.proved();
    auto block = rank(0).filled(kMiB, std::byte{1});
    (void)rank(0).exchange.begin({{1, false, false, block.get(), kMiB, block}});
    ASSERT_TRUE(move_until([&] { return rank(0).exchange.take_done().has_value(); }));
    close();
    ASSERT_EQ(rank(0).warnings.size(), generation);
    EXPECT_THAT(rank(0).warnings.back(),
                HasSubstr(generation < 5 ? "until the next generation" : "for the rest of this life"));
  }
}

// NCCL, or the way that it takes, is of no use where it brings something else each time.
TEST_F(Exchanges, WhatIsDistrustedAgainAndAgainIsGivenUp) {
  make(kPatienceMs);
  for (std::uint64_t generation = 1; generation <= 3; generation++) {
    open(generation);
    ASSERT_TRUE(comes([&] { return agree(); })) << generation;
    EXPECT_TRUE(move_one(kMiB).received.status.ok());
    rank(0).exchange.distrust("it was something else");
    EXPECT_FALSE(rank(0).exchange.ready());
    close();
    ASSERT_EQ(rank(0).warnings.size(), generation);
    EXPECT_THAT(rank(0).warnings.back(), HasSubstr("NCCL has failed: it was something else"));
    EXPECT_THAT(rank(0).warnings.back(),
                HasSubstr(generation < 3 ? "until the next generation" : "for the rest of this life"));
  }
  open(4);
  EXPECT_FALSE(rank(0).exchange.word(true).takes_part);
}

// A rank that dies while others join it: these have heard of nothing but that.
TEST_F(Exchanges, ThatOthersDeathsHaveNotJoinedGoOn) {
  make(kPatienceMs);
  for (std::uint64_t generation = 1; generation <= 4; generation++) {
    open(generation);
    std::vector<GpuExchange::Word> words(2);
    ASSERT_TRUE(comes([&] {
      for (int me = 0; me < 2; me++) {
        rank(me).exchange.prepare();
        words[static_cast<std::size_t>(me)] = rank(me).exchange.word(true);
      }
      return words[0].id && words[0].takes_part && words[1].takes_part;
    })) << generation;
    // Rank 1 does not come.
    const std::uint64_t revoked = fake_gpu().controls.calls("nccl_revoke");
    fake_gpu().controls.arm("nccl_state", 0, FakeFault::kError);
    rank(0).exchange.heard(words);
    ASSERT_TRUE(comes([&] { return fake_gpu().controls.calls("nccl_revoke") > revoked; }));
    close();
  }
  EXPECT_TRUE(rank(0).warnings.empty());
}

// Whoever has given NCCL a turn does not come back: nobody else waits for that.
TEST_F(Exchanges, WhatHangsInsideOfNcclIsOverdueToo) {
  make(kShortMs);
  open(1);
  ASSERT_TRUE(comes([&] { return agree(); }));
  auto block = rank(0).filled(kMiB, std::byte{1});
  (void)rank(0).exchange.begin({{1, false, false, block.get(), kMiB, block}});
  fake_gpu().controls.arm("nccl_exchange.0", 0, FakeFault::kHang);
  const std::uint64_t before = fake_gpu().controls.calls("nccl_exchange.0");
  std::thread stuck([&] { (void)rank(0).exchange.move(); });
  EXPECT_TRUE(comes([&] { return fake_gpu().controls.calls("nccl_exchange.0") > before; }));
  EXPECT_TRUE(rank(0).exchange.overdue().ok());
  close();
  Status overdue;
  EXPECT_TRUE(comes([&] { return !(overdue = rank(0).exchange.overdue()).ok(); }));
  EXPECT_EQ(overdue.code(), Code::kTimeout);
  EXPECT_TRUE(rank(1).exchange.overdue().ok());
  fake_gpu().controls.release();
  stuck.join();
}

TEST_F(Exchanges, AGpuThatFailsIsTheEndOfALife) {
  for (const char* where : {"record", "query", "stream.nccl_exchange", "checksum", "to_host", "stream.to_host"}) {
    SCOPED_TRACE(where);
    end();
    // Where nothing but rank 0's copy of what has come goes to the CPU, it is rank 0's that fails.
    make(kPatienceMs, 64 * kMiB, std::string(where) == "checksum");
    open(1);
    ASSERT_TRUE(comes([&] { return agree(); }));
    auto mine = rank(0).filled(kMiB, std::byte{1}), theirs = rank(1).filled(kMiB, std::byte{2});
    fake_gpu().controls.arm(where, 0, FakeFault::kError);
    const std::uint64_t before = fake_gpu().controls.calls("stream.nccl_exchange");
    (void)rank(0).exchange.begin({{1, false, true, mine.get(), kMiB, mine}});
    Status status;
    bool sends = false;
    ASSERT_TRUE(comes([&] {
      status = rank(0).move();
      // Once rank 0's is under way.
      const bool under_way = fake_gpu().controls.calls("stream.nccl_exchange") > before;
      if (status.ok() && under_way && !std::exchange(sends, true)) {
        (void)rank(1).exchange.begin({{0, true, false, theirs.get(), kMiB, theirs}});
      }
      if (status.ok()) {
        EXPECT_TRUE(rank(1).move().ok());
      }
      return !status.ok();
    }));
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
    EXPECT_FALSE(rank(0).exchange.busy());
  }
}

}  // namespace
}  // namespace warren::worker
