// Engines, their logs and disks, and what a tracker would do for them: real links, real logs in plain memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "recovery/base/overloaded.h"
#include "recovery/decide/frontier.h"
#include "recovery/wire/fetch_codec.h"
#include "tests/sanitized.h"
#include "tests/worker/input_made_by.h"
#include "tests/worker/sum_call.h"
#include "worker/life/life.h"
#include "worker/transport/host_memory.h"
#include "worker/transport/link_transport.h"

namespace warren::worker::recovering {

// The disk of mode sync, which takes what it was asked for when the test says so.
struct SlowDisk final : Durable {
  std::uint64_t ask() override { return ++asked; }
  std::uint64_t reached() override { return taken; }
  [[nodiscard]] std::optional<TimeMs> next_deadline() const override { return std::nullopt; }
  std::uint64_t asked = 0, taken = 0;
};

// Counts what is told by its place in a log, and what was sent at once.
class Told : public RoundTransport {
 public:
  explicit Told(RoundTransport& to) : to_(to) {}
  [[nodiscard]] std::size_t places() const { return places_; }

  LinkId link(GroupId group, Rank peer) override { return to_.link(group, peer); }
  void post_send(LinkId l, const FrameHeader& h, const Payload& p, Token t) override {
    places_ += p.logged.known() ? 1 : 0;
    to_.post_send(l, h, p, t);
  }
  void post_recv(LinkId l, const FrameHeader& h, std::span<std::byte> p, Token t) override {
    to_.post_recv(l, h, p, t);
  }
  [[nodiscard]] bool lends(GroupId group, Rank peer, const std::byte* at) const override {
    return to_.lends(group, peer, at);
  }
  void post_recv_in_place(LinkId l, const FrameHeader& h, std::span<std::byte> p, Token t) override {
    to_.post_recv_in_place(l, h, p, t);
  }
  void release(LinkId l, const View& view) override { to_.release(l, view); }
  Now send_now(LinkId l, FrameHeader& h, std::span<const std::byte> p, Token t) override {
    const Now now = to_.send_now(l, h, p, t);
    nows_ += now == Now::kDone ? 1 : 0;
    return now;
  }
  Now recv_now(LinkId l, FrameHeader& h, std::span<std::byte> p) override { return to_.recv_now(l, h, p); }
  [[nodiscard]] std::size_t nows() const { return nows_; }
  void move_payloads(LinkId l, Token t, std::span<const std::byte> from, const std::byte* to) override {
    to_.move_payloads(l, t, from, to);
  }
  std::size_t poll(std::span<Completion> out) override { return to_.poll(out); }
  void collect_pollfds(std::vector<pollfd>& out) override { to_.collect_pollfds(out); }
  void close_all() override { to_.close_all(); }

 private:
  RoundTransport& to_;
  std::size_t places_ = 0, nows_ = 0;
};

// Memory of a GPU: at addresses that the CPU cannot follow, and all GPUs of the test can.
class GpuMemory {
 public:
  explicit GpuMemory(std::size_t bytes) : bytes_(bytes) {
    void* const at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    at_ = static_cast<std::byte*>(at);
    all()[at_] = this;
  }
  ~GpuMemory() {
    all().erase(at_);
    munmap(at_, bytes_.size());
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  [[nodiscard]] std::span<const std::byte> addresses() const { return {at_, bytes_.size()}; }
  static std::byte* behind(const std::byte* address, std::size_t bytes) {
    const auto it = all().upper_bound(address);
    EXPECT_NE(it, all().begin());
    GpuMemory& memory = *std::prev(it)->second;
    const auto at = static_cast<std::size_t>(address - memory.at_);
    EXPECT_LE(at + bytes, memory.bytes_.size());
    return memory.bytes_.data() + at;
  }

 private:
  static std::map<const std::byte*, GpuMemory*>& all() {
    static std::map<const std::byte*, GpuMemory*> every;
    return every;
  }
  std::vector<std::byte> bytes_;
  std::byte* at_ = nullptr;
};

// One life's GPU: what it combines is done some time later, and reads what is there by then.
class Gpu final : public GpuWork {
 public:
  static constexpr std::size_t kBlocks = 8, kBlockBytes = std::size_t{256} << 10;

  // Some of this life's memory. What was in it is no more as soon as nobody needs it.
  std::shared_ptr<const std::byte> take() {
    const std::byte* const at = memory->addresses().data() + turn_++ % kBlocks * kBlockBytes;
    return {at,
            [keep = memory](const std::byte* p) { std::memset(GpuMemory::behind(p, kBlockBytes), 0xee, kBlockBytes); }};
  }
  std::uint64_t begin(Work work) override {
    begun++;
    works_.emplace_back(++newest_, std::move(work));
    return newest_;
  }
  [[nodiscard]] bool busy() const override { return !works_.empty(); }
  std::optional<Done> take_done() override {
    if (done_.empty()) return std::nullopt;
    Done done = std::move(done_.front());
    done_.pop_front();
    return done;
  }
  // True: something is done.
  bool move() {
    if (works_.empty() || random_() % 3 != 0) return false;
    const auto [id, work] = std::move(works_.front());
    works_.pop_front();
    auto bytes = std::make_shared<std::vector<std::uint64_t>>();
    Done done;
    done.id = id;
    bool all = true;
    for (const Operand& operand : work.operands) all = all && operand.on_gpu;
    bytes->resize(work.count * (all ? 1 : work.operands.size()));
    for (std::size_t k = 0; k < work.operands.size(); k++) {
      const Operand& operand = work.operands[k];
      if (!all) done.operands.push_back(nullptr);
      if (!operand.on_gpu) continue;
      const auto* from = reinterpret_cast<const std::uint64_t*>(GpuMemory::behind(operand.at, work.bytes));
      std::uint64_t* const to = bytes->data() + (all ? 0 : k * work.count);
      for (std::uint64_t i = 0; i < work.count; i++) to[i] += from[i];
      if (!all) done.operands.back() = reinterpret_cast<const std::byte*>(to);
    }
    if (all) done.made = reinterpret_cast<const std::byte*>(bytes->data());
    (all ? made : brought)++;
    done.memory = std::move(bytes);
    done_.push_back(std::move(done));
    return true;
  }

  const std::shared_ptr<GpuMemory> memory = std::make_shared<GpuMemory>(kBlocks * kBlockBytes);
  std::uint32_t number = 0;  // of that, among what this life lends
  static inline std::size_t begun = 0, made = 0, brought = 0;

 private:
  std::deque<std::pair<std::uint64_t, Work>> works_;
  std::deque<Done> done_;
  std::uint64_t newest_ = 0;
  std::size_t turn_ = 0;
  std::minstd_rand random_{5};
};

class World {
 public:
  struct Options {
    int size = 3;
    std::uint32_t replicas = 2;
    std::vector<int> hosts;  // by rank; empty: one host
    schedule::Algorithm algorithm = schedule::Algorithm::kAuto;
    std::uint64_t chunk_bytes = 4096;
    bool pipes = true;  // between ranks of a host, who then read finals in each other's log
    std::size_t segment_bytes = std::size_t{16} << 20;
    bool sync = false;  // finals may be seen once they are on disk
    bool gpus = false;  // each rank has one, and reads those of its host
  };
  explicit World(const Options& options) : options_(options) {
    if (options_.hosts.empty()) options_.hosts.assign(static_cast<std::size_t>(options.size), 0);
    for (int r = 0; r < options.size; r++) nodes_.push_back(nullptr);
    for (int r = 0; r < options.size; r++) start(r);
    plan({}, {});
  }

  Life& life(int rank) { return nodes_[index(rank)]->life; }
  Engine& engine(int rank) { return life(rank).engine(); }
  // Null: it has none.
  Gpu* gpu(int rank) { return nodes_[index(rank)]->gpu.get(); }
  Checkpoints& checkpoints(int rank) { return life(rank).checkpoints(); }
  HostLog& log(int rank) { return life(rank).log(); }
  std::size_t places_told() const {
    std::size_t n = 0;
    for (const auto& node : nodes_) n += node == nullptr ? 0 : node->told.places();
    return n;
  }

  std::size_t sent_at_once() const {
    std::size_t n = 0;
    for (const auto& node : nodes_) n += node == nullptr ? 0 : node->told.nows();
    return n;
  }

  // The process is gone; what it wrote stays with its host.
  void kill(int rank) {
    life(rank).engine().stop(Status(Code::kClosed, "killed"));
    nodes_[index(rank)].reset();
  }
  // With everything that it held.
  void kill_host(int host) {
    for (int r = 0; r < options_.size; r++) {
      if (options_.hosts[index(r)] == host && nodes_[index(r)] != nullptr) kill(r);
    }
    segments_.erase(host);
  }

  // Of the next plan.
  void order(std::vector<Engine::RingOrder> orders) { orders_ = std::move(orders); }
  // Where its next life runs.
  void move(int rank, int host) { options_.hosts[index(rank)] = host; }
  // In how many hosts living ranks hold each byte of what is logged under this key, at least; 0: nobody has a record.
  std::size_t copies(const RecordKey& key) {
    std::map<int, Ranges> by_host;
    std::optional<std::uint64_t> total;
    for (int r = 0; r < options_.size; r++) {
      const auto reader = log(r).reader();
      const auto info = reader->info(key);
      EXPECT_TRUE(info.ok());
      if (!info.ok() || !info.value()) continue;
      total = info.value()->total_bytes;
      const Incarnation life[] = {nodes_[index(r)]->self};
      by_host[options_.hosts[index(r)]].add(reader->held_by(key, life));
    }
    if (!total) return 0;
    std::size_t least = by_host.size();
    for (std::uint64_t byte = 0; byte < *total; byte++) {
      least = std::min(
          least, static_cast<std::size_t>(std::count_if(
                     by_host.begin(), by_host.end(), [&](const auto& h) { return h.second.covers(byte, byte + 1); })));
    }
    return least;
  }

  // Of each of those that are lost: what it does before there is a plan with it.
  std::function<void(int rank)> before_plan;
  // As a spare, whose place this rank will be, it fetches the newest checkpoint; `rounds_of_requests`: for so long.
  void follow(int rank, std::uint64_t run, int rounds_of_requests = 1000) {
    Node& n = *nodes_[index(rank)];
    Replayer::Plan p;
    p.generation = generation_;
    p.self = Rank(options_.size);
    p.replicas = options_.replicas;
    p.timeout_ms = 1000;
    p.follows = true;
    for (int peer = 0; peer < options_.size; peer++) {
      if (peer == rank || nodes_[index(peer)] == nullptr) continue;
      const std::string host = "h" + std::to_string(options_.hosts[index(peer)]);
      p.peers.push_back({Rank(peer), nodes_[index(peer)]->self, host, host, false, nodes_[index(peer)]->since});
    }
    p.peers.push_back({p.self, n.self, "", "", false, Generation(), true});
    wire::Plan plan;
    plan.set_run(run);
    n.life.follow({*committed_, Timeline(0), plan}, p);
    for (int i = 0; i < rounds_of_requests && serve(); i++) n.life.look_at_checkpoints();
    carry_out(rank);
  }
  // Requests for global states that this rank has made.
  std::size_t asked_for_states(int rank) const {
    const auto found = state_requests_.find(rank);
    return found == state_requests_.end() ? 0 : found->second;
  }

  // Interrupt, reports, replacements, plan: `lost` are started again. `inherited`: what plans before call completed.
  void next_generation(const std::vector<int>& lost, const std::vector<wire::Position>& inherited = {}) {
    std::vector<wire::Report> reports(index(options_.size));
    std::vector<RankPositions> survivors;
    std::set<int> fresh(lost.begin(), lost.end());
    for (int r = 0; r < options_.size; r++) {
      if (nodes_[index(r)] == nullptr) continue;
      auto standing = life(r).stop({generation_, Status(Code::kPeerLost, "a rank was lost"), true, false});
      reports[index(r)].set_version(standing.version.value);
      for (auto& p : standing.positions) *reports[index(r)].add_positions() = p;
      for (auto& s : standing.setups) *reports[index(r)].add_setups() = s;
      survivors.push_back({Rank(r), &reports[index(r)]});
    }
    for (const int r : lost) {
      start(r);
      if (before_plan) before_plan(r);
    }
    connected_.clear();
    wanted_.clear();
    requests_.clear();
    std::vector<const wire::Position*> before;
    for (const wire::Position& p : inherited) before.push_back(&p);
    auto frontier =
        merge_frontier(survivors, before, {}, {}, committed_, [](Rank r) { return "rank " + std::to_string(r.value); });
    ASSERT_TRUE(frontier.ok()) << frontier.status().describe();
    std::vector<const google::protobuf::RepeatedPtrField<wire::Setup>*> told{&setups_};
    for (const RankPositions& s : survivors) told.push_back(&s.report->setups());
    auto setups = merge_setups(told, {}, Timeline(UINT32_MAX));
    ASSERT_TRUE(setups.ok()) << setups.status().describe();
    setups_.Assign(setups.value().begin(), setups.value().end());
    plan(frontier.value(), fresh);
    for (wire::Setup& s : setups_) s.clear_final();
  }

  bool run(const std::function<bool()>& done) {
    int idle = 0;
    while (!done()) {
      idle = step() ? 0 : idle + 1;
      if (idle > 20000) return false;
      if (idle > 100) now_ += 1;
    }
    return true;
  }
  std::map<int, WorkerMachine::Vote> newest_votes;  // by rank
  std::map<int, WorkerMachine::StateWord> newest_words;
  std::map<int, std::vector<machine_event::Followed>> followed;
  bool step() {
    bool moved = connect();
    for (auto& n : nodes_) {
      if (n == nullptr) continue;
      if (disks_take && disk_random_() % 4 == 0) n->disk.taken = n->disk.asked;
      moved = n->life.engine().progress() || moved;
      if (n->gpu) {
        moved = n->gpu->move() || n->gpu->busy() || moved;
        (void)n->life.engine().take_done_gpu_work();
      }
      n->life.look_at_checkpoints();
      if (takes_failures) {
        n->life.report_trouble();
      } else if (const auto gap = n->life.engine().take_gap()) {
        hear(n->rank, machine_event::LogGap{generation_, *gap});
      }
      n->life.tick(TimeMs{now_});
      carry_out(n->rank);
    }
    moved = serve() || moved;
    if (votes_.size() == index(options_.size)) {
      Version least = votes_.begin()->second;
      for (const auto& [rank, version] : votes_) least = std::min(least, version);
      if (!committed_ || least > *committed_) {
        committed_ = least;
        for (auto& n : nodes_) {
          if (n != nullptr) n->life.committed(least, Timeline(0), TimeMs{now_});
        }
        moved = true;
      }
    }
    return moved;
  }

  // The tracker's answer to a load.
  void load(int rank) { checkpoints(rank).load({committed_.has_value(), committed_.value_or(Version()), Timeline(0)}); }
  std::vector<std::string> gaps, failures;
  bool gap_renumbers = false;     // the newest
  std::size_t most_segments = 0;  // that a life has kept after a generation began, its own apart
  bool disks_take = true;         // now and then
  bool takes_failures = true;     // else they are the test's

 private:
  struct Node {
    Node(World& world, int number, Incarnation incarnation)
        : rank(number),
          transport([&world, number](GroupId g, Rank p) { world.wanted_.emplace_back(number, g, p); },
                    [&world, this](Rank p) -> std::shared_ptr<const SegmentView> {
                      const auto& peer = world.nodes_[index(p.value)];
                      return peer == nullptr ? nullptr : life.log().segment_of(peer->self);
                    },
                    &memory),
          told(transport),
          life(told, board, false),
          self(incarnation) {}
    const int rank;
    RoundBoard board;
    std::unique_ptr<Gpu> gpu;
    HostMemory memory;
    LinkTransport transport;
    Told told;
    SlowDisk disk;
    Life life;
    Incarnation self;
    Generation since;
    std::unique_ptr<HostLogReader> serving;
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void start(int rank) {
    const Incarnation life(++lives_);
    auto node = std::make_unique<Node>(*this, rank, life);
    node->since = generation_.next();
    auto memory = heap_segment(options_.segment_bytes);
    auto log = HostLog::create(life, memory);
    EXPECT_TRUE(log.ok());
    node->serving = log.value()->reader();
    auto reader = log.value()->reader();
    node->life.keep_log(
        life, std::move(log).value(), std::move(reader), [this] { return TimeMs{now_}; },
        [this, rank](Replayer::Send send) { requests_.emplace_back(rank, std::move(send)); });
    if (options_.sync) node->life.recall().seen_once_in(node->disk);
    if (options_.gpus) {
      node->gpu = std::make_unique<Gpu>();
      node->gpu->number = node->memory.add_on_gpu(node->gpu->memory->addresses());
      node->life.engine().use(*node->gpu);
    }
    segments_[options_.hosts[index(rank)]][life] = memory;
    nodes_[index(rank)] = std::move(node);
  }

  void plan(const std::vector<wire::Position>& frontier, const std::set<int>& fresh) {
    generation_ = generation_.next();
    if (options_.gpus) map_gpus();
    for (int r = 0; r < options_.size; r++) {
      Node& n = *nodes_[index(r)];
      for (auto& [life, memory] : segments_[options_.hosts[index(r)]]) {
        if (life == n.self) continue;
        const auto known = n.life.log().attached();
        if (std::find(known.begin(), known.end(), life) != known.end()) continue;
        ASSERT_TRUE(n.life.attach(life, memory->bytes(), memory).ok());
      }
      n.transport.open(generation_, 1, true);
      Engine::Plan p;
      p.generation = generation_;
      p.self = Rank(r);
      p.world_size = static_cast<std::uint32_t>(options_.size);
      p.algorithm = options_.algorithm;
      p.chunk_bytes = options_.chunk_bytes;
      p.replicas = options_.replicas;
      p.orders = orders_;
      p.resumes = fresh.size() < index(options_.size) && generation_.value > 1;
      Replayer::Plan replay;
      replay.generation = generation_;
      replay.self = Rank(r);
      replay.replicas = options_.replicas;
      replay.timeout_ms = 1000;
      for (int peer = 0; peer < options_.size; peer++) {
        const int host = options_.hosts[index(peer)];
        p.hosts.push_back(static_cast<std::uint32_t>(host));
        p.domains.push_back(static_cast<std::uint32_t>(host));
        p.present.emplace_back(peer);
        replay.peers.push_back({Rank(peer), nodes_[index(peer)]->self, "h" + std::to_string(host),
                                "h" + std::to_string(host), fresh.contains(peer), nodes_[index(peer)]->since});
      }
      for (const wire::Position& at : frontier) {
        Engine::Frontier f{GroupId(at.group()), Version(at.version()), at.rounds(), at.closed(), {}};
        for (const wire::ByteRange& range : at.final()) f.final.add(range.begin(), range.end());
        p.frontier.push_back(std::move(f));
      }
      for (const wire::Setup& known : setups_) {
        Engine::Setup s{GroupId(known.group()), Sequence(known.name()), Timeline(known.timeline()), known.done(), {}};
        for (const wire::ByteRange& range : known.final()) s.final.add(range.begin(), range.end());
        p.setups.push_back(std::move(s));
      }
      n.life.install(p, replay);
    }
    votes_.clear();
    for (int r = 0; r < options_.size; r++) {
      life(r).open(TimeMs{now_});
      carry_out(r);
      most_segments = std::max(most_segments, log(r).attached().size());
    }
  }

  void carry_out(int rank) {
    for (const LifeEffect& effect : life(rank).take_effects()) {
      std::visit(
          Overloaded{[&](const MachineEvent& e) { hear(rank, e); },
                     [&](const life_effect::Vote& e) {
                       votes_[rank] = e.vote.version;
                       newest_votes.insert_or_assign(rank, e.vote);
                     },
                     [&](const life_effect::SegmentsStay& e) { ADD_FAILURE() << e.why.describe(); },
                     [&](const life_effect::ForgetSegment& e) { segments_[options_.hosts[index(rank)]].erase(e.life); },
                     [](const auto&) {}},
          effect);
    }
  }
  void hear(int rank, const MachineEvent& event) {
    std::visit(Overloaded{[&](const machine_event::StateWord& e) { newest_words.insert_or_assign(rank, e.word); },
                          [&](const machine_event::Followed& e) { followed[rank].push_back(e); },
                          [&](const machine_event::LogGap& e) {
                            gaps.push_back(e.gap.reason);
                            gap_renumbers = e.gap.renumbers;
                          },
                          [&](const machine_event::RoundFailed& e) { failures.push_back(e.why.describe()); },
                          [](const auto&) {}},
               event);
  }

  void map_gpus() {
    std::vector<Incarnation> lives;
    for (const auto& n : nodes_) lives.push_back(n->self);
    for (const auto& n : nodes_) n->memory.install(lives);
    for (int r = 0; r < options_.size; r++) {
      for (int mate = 0; mate < options_.size; mate++) {
        if (r == mate || options_.hosts[index(r)] != options_.hosts[index(mate)]) continue;
        Node &n = *nodes_[index(r)], &other = *nodes_[index(mate)];
        other.memory.attach(n.self, n.gpu->number, {n.gpu->memory->addresses(), n.gpu->memory}, true);
        n.memory.mapped_by(other.self, n.gpu->number);
      }
    }
  }

  bool connect() {
    bool made = false;
    while (!wanted_.empty()) {
      const auto [from, group, peer] = wanted_.front();
      wanted_.pop_front();
      const int a = std::min(from, peer.value), b = std::max(from, peer.value);
      if (nodes_[index(a)] == nullptr || nodes_[index(b)] == nullptr) continue;
      if (!connected_.insert({group.value, a, b}).second) continue;
      int fds[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      for (const int fd : fds) {
        const int small = 8192;  // so that an interrupt finds rounds in all stages
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
      }
      std::unique_ptr<HostPipe> first, second;
      if (options_.pipes && options_.hosts[index(a)] == options_.hosts[index(b)]) {
        const OwnedFd memory = HostPipe::create().value();
        first = HostPipe::map(memory.get(), true).value();
        second = HostPipe::map(memory.get(), false).value();
      }
      EXPECT_TRUE(nodes_[index(a)]->transport.adopt(generation_, group, Rank(b), 0, fds[0], std::move(first)).ok());
      EXPECT_TRUE(nodes_[index(b)]->transport.adopt(generation_, group, Rank(a), 0, fds[1], std::move(second)).ok());
      made = true;
    }
    return made;
  }

  bool serve() {
    bool moved = false;
    for (auto requests = std::exchange(requests_, {}); auto& [from, send] : requests) {
      moved = true;
      Node* to = nodes_[index(send.to.value)].get();
      if (to == nullptr || nodes_[index(from)] == nullptr) continue;
      const wire::FetchRequest& r = send.request;
      if (r.kind() == kGlobalRecord) ++state_requests_[from];
      const RoundId round{Timeline(r.timeline()), GroupId(r.group()), Version(r.version()),
                          Sequence(r.first_sequence())};
      const Inquiry::Answer word =
          r.asks() ? to->life.engine().say(round, {r.sites().data(), static_cast<std::size_t>(r.sites_size())})
                   : Inquiry::Answer();
      const wire::FetchReply reply =
          r.asks() ? answer_to(r, word.word, word.word == RoundWord::kRound ? &word.round : nullptr)
                   : Replayer::answer(r, *to->serving);
      life(from).fetched(send.to, reply);
    }
    return moved;
  }

  Options options_;
  std::vector<Engine::RingOrder> orders_;
  std::uint64_t lives_ = 0;
  std::int64_t now_ = 0;
  Generation generation_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<int, std::map<Incarnation, std::shared_ptr<SegmentMemory>>> segments_;  // by host
  std::deque<std::tuple<int, GroupId, Rank>> wanted_;
  std::set<std::tuple<std::uint64_t, int, int>> connected_;
  std::vector<std::pair<int, Replayer::Send>> requests_;
  std::map<int, std::size_t> state_requests_;
  std::map<int, Version> votes_;
  std::optional<Version> committed_;
  google::protobuf::RepeatedPtrField<wire::Setup> setups_;
  std::mt19937 disk_random_{11};
};

// Buffers that are elsewhere: pieces come and go when move() happens to.
class Moving final : public CallBuffers, public BufferStream {
 public:
  // In place: the two are the same. `finals`: what the output must become, where it is known. `gpu`: on which the input
  // may be lent.
  Moving(std::span<std::byte> input, std::span<std::byte> output, std::uint64_t seed,
         const std::vector<std::byte>* finals, Gpu* gpu = nullptr)
      : input_(input), output_(output), finals_(finals), gpu_(gpu), random_(seed) {
    host_in_.assign(input.size(), std::byte{0xbd});
    if (input.data() != output.data()) host_out_.assign(output.size(), std::byte{0xbe});
  }
  std::byte* host_input() { return host_in_.data(); }
  std::byte* host_output() { return host_out_.empty() ? host_in_.data() : host_out_.data(); }
  // As the call's prepare function.
  void begin() { began_ = true; }
  [[nodiscard]] std::size_t brought_back() const { return brought_back_; }
  // What moves from here on, at most.
  std::size_t pieces_let = SIZE_MAX, finals_let = SIZE_MAX;
  Status fails;

  [[nodiscard]] Status filled() const override { return {}; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override { return {Code::kInternal, "a stream is moved"}; }
  [[nodiscard]] BufferStream* stream() override { return this; }

  static constexpr std::size_t kMostBytes = 3000;
  [[nodiscard]] std::size_t most_bytes(std::int32_t) const override { return kMostBytes; }
  void order(std::vector<ByteRange> pieces) override {
    EXPECT_FALSE(began_);
    pieces_ = std::move(pieces);
    Ranges all;
    std::uint64_t bytes = 0;
    for (const ByteRange& p : pieces_) {
      EXPECT_LE(p.bytes, kMostBytes);
      all.add(p.at, p.at + p.bytes);
      bytes += p.bytes;
    }
    EXPECT_EQ(all, Ranges(0, input_.size()));
    EXPECT_EQ(bytes, input_.size()) << "each byte comes once";
  }
  [[nodiscard]] const std::byte* lendable() const override {
    return gpu_ == nullptr ? nullptr : gpu_->memory->addresses().data();
  }
  [[nodiscard]] bool lend() override {
    EXPECT_FALSE(began_ || block_);
    EXPECT_LE(input_.size(), Gpu::kBlockBytes);
    block_ = gpu_->take();
    return true;
  }
  [[nodiscard]] std::shared_ptr<const std::byte> lent() const override { return comes_home_ ? nullptr : block_; }
  void bring_home() override {
    if (!began_) block_ = nullptr;
    if (block_ == nullptr || comes_home_ || ended_) return;
    comes_home_ = true;
    home_ = Ranges(0, input_.size());
    if (host_out_.empty()) home_ = home_.minus(final_);
  }
  [[nodiscard]] std::size_t arrived() const override { return arrived_; }
  [[nodiscard]] bool all_arrived() const override { return began_ && arrived_ == pieces_.size() && home_.empty(); }
  void landed(const ByteRange& bytes) override {
    if (ended_) return;
    for (std::uint64_t i = bytes.at; i < bytes.at + bytes.bytes && finals_ != nullptr; i++) {
      ASSERT_EQ(host_output()[i], (*finals_)[i]) << "landed and not final";
    }
    waiting_.add(bytes.at, bytes.at + bytes.bytes);
    final_.add(bytes.at, bytes.at + bytes.bytes);
  }
  void conclude() override {
    concluded_ = true;
    home_ = {};
    waiting_.add(Ranges(0, output_.size()).minus(told_));
  }
  void give_up() override {
    ended_ = true;
    home_ = {};
    waiting_ = {};
  }
  [[nodiscard]] bool moves() const override {
    if (!fails.ok()) return false;
    return !home_.empty() || (began_ && !ended_ && !concluded_ && arrived_ < pieces_.size()) || !waiting_.empty();
  }
  [[nodiscard]] Result<bool> move() override {
    if (!fails.ok()) return fails;
    bool some = false;
    if (began_ && !ended_ && !concluded_ && arrived_ < pieces_.size() && pieces_let > 0 && random_() % 2 == 0) {
      const ByteRange& p = pieces_[arrived_++];
      pieces_let--;
      std::byte* const to = block_ ? GpuMemory::behind(block_.get(), input_.size()) : host_in_.data();
      std::memcpy(to + p.at, input_.data() + p.at, p.bytes);
      some = true;
    } else if (!home_.empty() && arrived_ == pieces_.size() && random_() % 2 == 0) {
      const Interval i = home_.intervals().front();
      const std::uint64_t end = std::min(i.end, i.begin + 20'000);
      std::memcpy(host_in_.data() + i.begin, GpuMemory::behind(block_.get(), input_.size()) + i.begin, end - i.begin);
      home_ = home_.minus(Ranges(i.begin, end));
      some = true;
    }
    if (!waiting_.empty() && finals_let > 0 && random_() % 2 == 0) {
      const Interval i = waiting_.intervals().front();
      const std::uint64_t end = std::min(i.end, i.begin + 1000 + random_() % 5000);
      std::memcpy(output_.data() + i.begin, host_output() + i.begin, end - i.begin);
      waiting_ = waiting_.minus(Ranges(i.begin, end));
      told_.add(i.begin, end);
      brought_back_ += end - i.begin;
      finals_let--;
      some = true;
    }
    return some;
  }

 private:
  const std::span<std::byte> input_, output_;
  const std::vector<std::byte>* const finals_;
  Gpu* const gpu_;
  std::mt19937_64 random_;
  std::vector<std::byte> host_in_, host_out_;
  std::vector<ByteRange> pieces_;
  std::size_t arrived_ = 0, brought_back_ = 0;
  std::shared_ptr<const std::byte> block_;
  bool comes_home_ = false;
  Ranges waiting_, told_, final_, home_;
  bool began_ = false, concluded_ = false, ended_ = false;
};

// One rank on each of these hosts.
inline World::Options on_hosts(const std::vector<int>& hosts) {
  World::Options options;
  options.size = static_cast<int>(hosts.size());
  options.hosts = hosts;
  return options;
}
inline World::Options two_hosts() {
  return on_hosts({0, 1});
}

inline void make_pair_group(World& world, int rank, GroupId id) {
  ASSERT_TRUE(world.engine(rank).add_group(id, {Rank(0), Rank(1)}, 1).ok());
}

inline void load_all(World& world, const std::vector<int>& ranks) {
  for (const int r : ranks) world.load(r);
  for (const int r : ranks) {
    std::optional<Result<Checkpoints::State>> state;
    ASSERT_TRUE(world.run([&] { return (state = world.checkpoints(r).loaded()).has_value(); }));
    ASSERT_TRUE(state->ok()) << state->status().describe();
  }
}

// Has a rank load, and returns its state.
inline Checkpoints::State loaded_by(World& world, int rank) {
  world.load(rank);
  std::optional<Result<Checkpoints::State>> state;
  EXPECT_TRUE(world.run([&] { return (state = world.checkpoints(rank).loaded()).has_value(); })) << "rank " << rank;
  if (!state) return {};
  EXPECT_TRUE(state->ok()) << state->status().describe();
  return state->ok() ? std::move(*state).value() : Checkpoints::State();
}

// Kills a rank. Returns the state that its next life loads, in a new generation.
inline Checkpoints::State next_life(World& world, int rank) {
  world.kill(rank);
  world.next_generation({rank});
  return loaded_by(world, rank);
}

inline void take_all(World& world, int size) {
  const std::uint64_t model = 5;
  for (int r = 0; r < size; r++) {
    ASSERT_TRUE(world.run([&] { return world.checkpoints(r).may_take(); }));
    const Status status = world.checkpoints(r).take(std::as_bytes(std::span(&model, 1)), nullptr);
    ASSERT_TRUE(status.ok()) << status.describe();
  }
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take(); }));
}

// A sum in place of `count` times the rank's number, counted from one.
inline void submit_sum(World& world, int rank, Call& call, std::vector<std::uint64_t>& buffer, std::size_t count) {
  buffer.assign(count, static_cast<std::uint64_t>(rank) + 1);
  make_sum(call.spec, buffer.data(), count);
  const Status status = world.engine(rank).submit(kWorldGroup, call);
  ASSERT_TRUE(status.ok()) << status.describe();
}

}  // namespace warren::worker::recovering
