// Engines that are interrupted in mid-round and go on: replay, resume, checkpoints. Real links, real logs in plain
// memory; the tracker's part is recovery/frontier.h.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "recovery/fetch_codec.h"
#include "recovery/frontier.h"
#include "tests/sanitized.h"
#include "tests/worker/input_made_by.h"
#include "worker/checkpoints.h"
#include "worker/dead_segments.h"
#include "worker/engine.h"
#include "worker/host_memory.h"
#include "worker/transport/link_transport.h"

namespace warren::worker {
namespace {

// The disk of mode sync, which takes what it was asked for when the test says so.
struct SlowDisk final : Durable {
  std::uint64_t ask() override { return ++asked; }
  std::uint64_t reached() override { return taken; }
  [[nodiscard]] std::optional<TimeMs> next_deadline() const override { return std::nullopt; }
  std::uint64_t asked = 0, taken = 0;
};

// Counts what is told by its place in a log, and what was sent at once.
class Told : public Transport {
 public:
  explicit Told(Transport& to) : to_(to) {}
  [[nodiscard]] std::size_t places() const { return places_; }

  LinkId link(GroupId group, Rank peer) override { return to_.link(group, peer); }
  void post_send(LinkId l, const FrameHeader& h, std::span<const std::byte> p, Token t) override {
    to_.post_send(l, h, p, t);
  }
  void post_recv(LinkId l, const FrameHeader& h, std::span<std::byte> p, Token t) override {
    to_.post_recv(l, h, p, t);
  }
  void post_send_logged(LinkId l, const FrameHeader& h, std::span<const std::byte> p, const LogPlace& place,
                        Token t) override {
    places_++;
    to_.post_send_logged(l, h, p, place, t);
  }
  void post_send_lent(LinkId l, const FrameHeader& h, std::span<const std::byte> p, Token t) override {
    to_.post_send_lent(l, h, p, t);
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
  void move_payloads(LinkId l, std::span<const std::byte> from, const std::byte* to) override {
    to_.move_payloads(l, from, to);
  }
  std::size_t poll(std::span<Completion> out) override { return to_.poll(out); }
  void collect_pollfds(std::vector<pollfd>& out) override { to_.collect_pollfds(out); }
  void close_all() override { to_.close_all(); }

 private:
  Transport& to_;
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
class Gpu final : public Elsewhere {
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

  Engine& engine(int rank) { return nodes_[index(rank)]->engine; }
  // Null: it has none.
  Gpu* gpu(int rank) { return nodes_[index(rank)]->gpu.get(); }
  Checkpoints& checkpoints(int rank) { return *nodes_[index(rank)]->checkpoints; }
  HostLog& log(int rank) { return *nodes_[index(rank)]->log; }
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
    nodes_[index(rank)]->engine.stop(Status(Code::kClosed, "killed"));
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
    p.epoch = epoch_;
    p.self = Rank(options_.size);
    p.replicas = options_.replicas;
    p.timeout_ms = 1000;
    p.follows = true;
    for (int peer = 0; peer < options_.size; peer++) {
      if (peer == rank || nodes_[index(peer)] == nullptr) continue;
      const std::string host = "h" + std::to_string(options_.hosts[index(peer)]);
      p.peers.push_back({Rank(peer), nodes_[index(peer)]->self, host, host, false, nodes_[index(peer)]->since});
    }
    p.peers.push_back({p.self, n.self, "", "", false, Epoch(), true});
    n.recall->follow(p);
    n.checkpoints->follow(run, *committed_, Timeline(0));
    for (int i = 0; i < rounds_of_requests && serve(); i++) {
      (void)n.engine.drain_recalls();
      n.checkpoints->advance();
    }
  }
  // Requests for global states that this rank has made.
  std::size_t asked_for_states(int rank) const {
    const auto found = state_requests_.find(rank);
    return found == state_requests_.end() ? 0 : found->second;
  }

  // Interrupt, reports, replacements, plan: `lost` are started again. `inherited`: what plans before call completed.
  void next_epoch(const std::vector<int>& lost, const std::vector<wire::Position>& inherited = {}) {
    std::vector<wire::Report> reports(index(options_.size));
    std::vector<RankPositions> survivors;
    std::set<int> fresh(lost.begin(), lost.end());
    for (int r = 0; r < options_.size; r++) {
      if (nodes_[index(r)] == nullptr) continue;
      auto standing = engine(r).suspend();
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
  bool step() {
    bool moved = connect();
    for (auto& n : nodes_) {
      if (n == nullptr) continue;
      if (disks_take && disk_random_() % 4 == 0) n->disk.taken = n->disk.asked;
      moved = n->engine.progress() || moved;
      if (n->gpu) {
        moved = n->gpu->move() || n->gpu->busy() || moved;
        (void)n->engine.take_done_elsewhere();
      }
      n->checkpoints->advance();
      if (auto vote = n->checkpoints->take_vote()) {
        const std::int32_t rank = n->engine.plan().self.value;
        votes_[rank] = vote->version;
        newest_votes.insert_or_assign(rank, *std::move(vote));
      }
      if (const auto gap = n->engine.take_gap()) {
        gaps.push_back(gap->reason);
        gap_renumbers = gap->renumbers;
      }
      if (takes_failures) {
        if (auto failure = n->engine.take_failure()) failures.push_back(failure->status.describe());
      }
      if (const auto d = n->recall->next_deadline(); d && d->value <= now_) n->recall->on_tick();
    }
    moved = serve() || moved;
    if (votes_.size() == index(options_.size)) {
      Version least = votes_.begin()->second;
      for (const auto& [rank, version] : votes_) least = std::min(least, version);
      if (!committed_ || least > *committed_) {
        committed_ = least;
        for (auto& n : nodes_) {
          if (n != nullptr) n->checkpoints->committed(least, Timeline(0));
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
  std::size_t most_segments = 0;  // that a life has kept after an epoch began, its own apart
  bool disks_take = true;         // now and then
  bool takes_failures = true;     // else they are the test's

 private:
  struct Node {
    explicit Node(World& world, int rank, Incarnation life)
        : transport([&world, rank](GroupId g, Rank p) { world.wanted_.emplace_back(rank, g, p); },
                    [&world, this](Rank p) -> std::shared_ptr<const SegmentView> {
                      const auto& peer = world.nodes_[index(p.value)];
                      return peer == nullptr ? nullptr : log->segment_of(peer->self);
                    },
                    &memory),
          told(transport),
          engine(told, board),
          self(life) {}
    RoundBoard board;
    std::unique_ptr<Gpu> gpu;
    HostMemory memory;
    LinkTransport transport;
    Told told;
    std::unique_ptr<HostLog> log;
    SlowDisk disk;
    std::optional<Recall> recall;
    Engine engine;
    std::optional<Checkpoints> checkpoints;
    DeadSegments dead;
    Incarnation self;
    Epoch since;
    std::unique_ptr<HostLogReader> serving;
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  void start(int rank) {
    const Incarnation life(++lives_);
    auto node = std::make_unique<Node>(*this, rank, life);
    node->since = epoch_.next();
    auto memory = heap_segment(options_.segment_bytes);
    auto log = HostLog::create(life, memory);
    EXPECT_TRUE(log.ok());
    node->log = std::move(log).value();
    node->recall.emplace(
        *node->log, [this] { return TimeMs{now_}; },
        [this, rank](Replayer::Send send) { requests_.emplace_back(rank, std::move(send)); });
    if (options_.sync) node->recall->seen_once_in(node->disk);
    node->engine.use(*node->recall);
    if (options_.gpus) {
      node->gpu = std::make_unique<Gpu>();
      node->gpu->number = node->memory.add_on_gpu(node->gpu->memory->addresses());
      node->engine.use(*node->gpu);
    }
    node->checkpoints.emplace(node->engine, *node->recall);
    node->serving = node->log->reader();
    segments_[options_.hosts[index(rank)]][life] = memory;
    nodes_[index(rank)] = std::move(node);
  }

  void plan(const std::vector<wire::Position>& frontier, const std::set<int>& fresh) {
    epoch_ = epoch_.next();
    if (options_.gpus) map_gpus();
    for (int r = 0; r < options_.size; r++) {
      Node& n = *nodes_[index(r)];
      for (auto& [life, memory] : segments_[options_.hosts[index(r)]]) {
        if (life == n.self) continue;
        const auto known = n.log->attached();
        if (std::find(known.begin(), known.end(), life) != known.end()) continue;
        ASSERT_TRUE(n.log->attach(life, memory->bytes(), memory).ok());
        n.dead.attached(life, memory->bytes(), memory);
      }
      n.transport.open(epoch_, 1, true);
      Engine::Plan p;
      p.epoch = epoch_;
      p.self = Rank(r);
      p.world_size = static_cast<std::uint32_t>(options_.size);
      p.algorithm = options_.algorithm;
      p.chunk_bytes = options_.chunk_bytes;
      p.replicas = options_.replicas;
      p.orders = orders_;
      p.resumes = fresh.size() < index(options_.size) && epoch_.value > 1;
      Replayer::Plan replay;
      replay.epoch = epoch_;
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
      n.recall->install(replay);
      n.engine.install(p);
      n.checkpoints->install();
    }
    votes_.clear();
    for (int r = 0; r < options_.size; r++) look_at_dead_segments(r);
    for (int r = 0; r < options_.size; r++) engine(r).open();
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

  void look_at_dead_segments(int rank) {
    Node& n = *nodes_[index(rank)];
    const auto living = n.recall->replayer().host_lives();
    const auto looked = n.dead.look(n.checkpoints->horizon(), living, living.front() == n.self, n.board.rounds_computed,
                                    *n.log, n.recall->reader());
    EXPECT_TRUE(looked.taken_over.ok()) << looked.taken_over.describe();
    for (const auto& gone : looked.gone) {
      n.log->detach(gone.life);
      segments_[options_.hosts[index(rank)]].erase(gone.life);
    }
    most_segments = std::max(most_segments, n.log->attached().size());
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
      EXPECT_TRUE(nodes_[index(a)]->transport.adopt(epoch_, group, Rank(b), 0, fds[0], std::move(first)).ok());
      EXPECT_TRUE(nodes_[index(b)]->transport.adopt(epoch_, group, Rank(a), 0, fds[1], std::move(second)).ok());
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
          r.asks() ? to->engine.say(round, {r.sites().data(), static_cast<std::size_t>(r.sites_size())})
                   : Inquiry::Answer();
      const wire::FetchReply reply =
          r.asks() ? answer_to(r, word.word, word.word == RoundWord::kRound ? &word.round : nullptr)
                   : Replayer::answer(r, *to->serving);
      nodes_[index(from)]->recall->on_reply(send.to, reply);
    }
    return moved;
  }

  Options options_;
  std::vector<Engine::RingOrder> orders_;
  std::uint64_t lives_ = 0;
  std::int64_t now_ = 0;
  Epoch epoch_;
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

// What every rank runs: `rounds` collectives, each fed by what the one before gave.
struct Program {
  Collective collective = Collective::kAllreduce;
  std::uint64_t count = 5000;
  int rounds = 4;
  bool in_place = false;
  std::uint32_t blocking = 0;  // by rank, a bit each
  bool moves = false;          // an allreduce's buffers are elsewhere (Moving)
  std::uint32_t lends = 0;     // by rank, a bit each: its input may be lent where the CPU cannot read it
};

class Runner {
 public:
  // `expected`: what its calls must give, where it is known.
  Runner(const Program& program, int rank, int size, const std::vector<std::vector<std::byte>>* expected = nullptr)
      : program_(program), rank_(rank), size_(size), expected_(expected), random_(static_cast<unsigned>(rank)) {
    state_.assign(1, static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15u + 1);
  }
  // Issues the next call when the last is done; true while there is more.
  bool advance(Engine& engine, Gpu* gpu = nullptr) {
    if (program_.moves) move(engine);
    if (call_ && !call_->finished.load()) return true;
    if (call_) take();
    if (done_ == program_.rounds) return false;
    issue(engine, gpu);
    return true;
  }
  const std::vector<std::vector<std::byte>>& results() const { return results_; }
  bool finished() const { return done_ == program_.rounds; }

  // The same without any engine.
  static std::vector<std::vector<std::vector<std::byte>>> oracle(const Program& program, int size) {
    std::vector<Runner> all;
    for (int r = 0; r < size; r++) all.emplace_back(program, r, size);
    std::vector<std::vector<std::vector<std::byte>>> results(static_cast<std::size_t>(size));
    for (int round = 0; round < program.rounds; round++) {
      std::vector<std::vector<std::uint64_t>> inputs;
      for (auto& r : all) inputs.push_back(r.input());
      for (int r = 0; r < size; r++) {
        std::vector<std::uint64_t> out = combine(program, inputs, round, r, size);
        const auto bytes = std::as_bytes(std::span(out));
        results[static_cast<std::size_t>(r)].emplace_back(bytes.begin(), bytes.end());
        all[static_cast<std::size_t>(r)].mix(out);
      }
    }
    return results;
  }

 private:
  static std::vector<std::uint64_t> combine(const Program& p, const std::vector<std::vector<std::uint64_t>>& in,
                                            int round, int rank, int size) {
    std::vector<std::uint64_t> out;
    const auto k = static_cast<std::uint64_t>(size);
    switch (p.collective) {
      case Collective::kAllreduce:
      case Collective::kReduce:
        if (p.collective == Collective::kReduce && rank != round % size) return out;
        out.assign(p.count, 0);
        for (const auto& v : in) {
          for (std::uint64_t i = 0; i < p.count; i++) out[i] += v[i];
        }
        break;
      case Collective::kReduceScatter:
        out.assign(p.count, 0);
        for (const auto& v : in) {
          for (std::uint64_t i = 0; i < p.count; i++) out[i] += v[static_cast<std::uint64_t>(rank) * p.count + i];
        }
        break;
      case Collective::kReduceScatterv: {
        const std::uint64_t before = sum_of(row(p, 0, size, rank));
        out.assign(uneven(p, 0, rank), 0);
        for (const auto& v : in) {
          for (std::uint64_t i = 0; i < out.size(); i++) out[i] += v[before + i];
        }
        break;
      }
      case Collective::kAllToAllv:
        for (int from = 0; from < size; from++) {
          const auto* at = in[static_cast<std::size_t>(from)].data() + sum_of(row(p, from, size, rank));
          out.insert(out.end(), at, at + uneven(p, from, rank));
        }
        break;
      case Collective::kBroadcast: out = in[static_cast<std::size_t>(round % size)]; break;
      case Collective::kAllgather:
        for (const auto& v : in) out.insert(out.end(), v.begin(), v.end());
        break;
      case Collective::kAllToAll:
        for (const auto& v : in) {
          const auto* at = v.data() + static_cast<std::uint64_t>(rank) * p.count;
          out.insert(out.end(), at, at + p.count);
        }
        break;
      default: break;
    }
    (void)k;
    return out;
  }
  // Of uneven collectives: what goes from a rank to another; of a reduce_scatterv from rank 0.
  static std::uint64_t uneven(const Program& p, int from, int to) {
    return p.count * static_cast<std::uint64_t>((from + 2 * to + 1) % 3);
  }
  static std::vector<std::uint64_t> row(const Program& p, int from, int size, int below) {
    std::vector<std::uint64_t> counts;
    for (int to = 0; to < std::min(size, below); to++) counts.push_back(uneven(p, from, to));
    return counts;
  }
  static std::vector<std::uint64_t> column(const Program& p, int size, int to) {
    std::vector<std::uint64_t> counts;
    for (int from = 0; from < size; from++) counts.push_back(uneven(p, from, to));
    return counts;
  }
  static std::uint64_t sum_of(const std::vector<std::uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
  std::uint64_t in_count() const {
    if (program_.collective == Collective::kReduceScatterv) return sum_of(row(program_, 0, size_, size_));
    if (program_.collective == Collective::kAllToAllv) return sum_of(row(program_, rank_, size_, size_));
    const bool wide = program_.collective == Collective::kReduceScatter || program_.collective == Collective::kAllToAll;
    return program_.count * (wide ? static_cast<std::uint64_t>(size_) : 1);
  }
  std::vector<std::uint64_t> input() const {
    std::vector<std::uint64_t> v(in_count());
    std::mt19937_64 random(state_[0] ^ static_cast<std::uint64_t>(done_));
    for (auto& x : v) x = random();
    return v;
  }
  void mix(const std::vector<std::uint64_t>& out) {
    for (const std::uint64_t x : out) state_[0] = (state_[0] ^ x) * 0x100000001b3u;
    done_++;
  }
  void issue(Engine& engine, Gpu* gpu) {
    call_ = std::make_unique<Call>();
    call_->blocking = (program_.blocking >> rank_ & 1) != 0;
    in_ = input();
    CallSpec& s = call_->spec;
    s.collective = program_.collective;
    s.type = DataType::kU64;
    s.count = program_.count;
    const bool reduces = program_.collective == Collective::kAllreduce || program_.collective == Collective::kReduce ||
                         program_.collective == Collective::kReduceScatter ||
                         program_.collective == Collective::kReduceScatterv;
    s.op = reduces ? ReduceOp::kSum : ReduceOp::kNone;
    const int root = done_ % size_;
    if (program_.collective == Collective::kReduce || program_.collective == Collective::kBroadcast) s.root = root;
    const auto k = static_cast<std::uint64_t>(size_);
    std::uint64_t outs = program_.count;
    if (program_.collective == Collective::kAllgather || program_.collective == Collective::kAllToAll) outs *= k;
    if (program_.collective == Collective::kReduce && rank_ != root) outs = 0;
    std::vector<std::uint64_t> counts, from;
    if (program_.collective == Collective::kReduceScatterv) {
      counts = row(program_, 0, size_, size_);
      outs = uneven(program_, 0, rank_);
      s.count = 0;
    } else if (program_.collective == Collective::kAllToAllv) {
      counts = row(program_, rank_, size_, size_);
      from = column(program_, size_, rank_);
      outs = sum_of(from);
      s.count = 0;
    }
    s.counts = counts;
    s.counts_from = from;
    const bool exchanges = program_.collective == Collective::kAllToAllv;
    if (program_.collective == Collective::kBroadcast || (program_.in_place && outs == in_.size() && !exchanges)) {
      s.output = in_.data();
      s.input = program_.collective == Collective::kBroadcast ? nullptr : in_.data();
      out_size_ = outs;
      in_use_ = true;
    } else {
      out_.assign(outs, 0xdead);
      s.input = in_.data();
      s.output = out_.data();
      in_use_ = false;
    }
    if (program_.moves) {
      auto& out = in_use_ ? in_ : out_;
      auto moving = std::make_unique<Moving>(
          std::as_writable_bytes(std::span(in_)), std::as_writable_bytes(std::span(out)), state_[0],
          expected_ == nullptr ? nullptr : &(*expected_)[static_cast<std::size_t>(done_)],
          (program_.lends >> rank_ & 1) != 0 ? gpu : nullptr);
      s.input = moving->host_input();
      s.output = moving->host_output();
      s.prepare = &input_made_by<[](void* context) { static_cast<Moving*>(context)->begin(); }>;
      s.prepare_context = moving.get();
      call_->buffers = std::move(moving);
    }
    const Status status = engine.submit(kWorldGroup, *call_);
    EXPECT_TRUE(status.ok()) << status.describe();
  }
  // What its threads do outside the engine's lock, each as long as it likes.
  void move(Engine& engine) {
    if (prepares_ == nullptr) {
      prepares_ = engine.take_prepare();
    } else if (random_() % 8 == 0) {
      prepares_->spec.prepare(prepares_->spec.prepare_context);
      engine.prepared(*std::exchange(prepares_, nullptr));
    }
    if (moves_ == nullptr) {
      moves_ = engine.take_moving();
    } else if (random_() % 4 != 0) {
      const auto moved = moves_->buffers->stream()->move();
      ASSERT_TRUE(moved.ok());
      if (random_() % 2 == 0) engine.moved(*std::exchange(moves_, nullptr), {});
    }
  }
  void take() {
    EXPECT_TRUE(call_->status.ok()) << call_->status.describe();
    const std::vector<std::uint64_t>& out = in_use_ ? in_ : out_;
    const auto bytes = std::as_bytes(std::span(out));
    results_.emplace_back(bytes.begin(), bytes.end());
    std::vector<std::uint64_t> copy = out;
    // The program scribbles over its buffers: they are its own again.
    std::fill(in_.begin(), in_.end(), 0x5ca1ab1e);
    std::fill(out_.begin(), out_.end(), 0x5ca1ab1e);
    call_.reset();
    mix(copy);
  }

  Program program_;
  int rank_, size_;
  const std::vector<std::vector<std::byte>>* expected_;
  std::minstd_rand random_;
  Call *prepares_ = nullptr, *moves_ = nullptr;
  int done_ = 0;
  std::vector<std::uint64_t> state_, in_, out_;
  std::size_t out_size_ = 0;
  bool in_use_ = false;
  std::unique_ptr<Call> call_;
  std::vector<std::vector<std::byte>> results_;
};

struct Case {
  Program program;
  World::Options world;
  std::vector<int> lost;  // ranks; empty: only a link
  int host_lost = -1;
  unsigned most_steps = 400;            // between two interrupts
  std::size_t* sent_at_once = nullptr;  // counts
};

void survive(const Case& c, std::uint64_t seed, int interrupts) {
  std::mt19937 random(static_cast<unsigned>(seed));
  World world(c.world);
  const auto expected = Runner::oracle(c.program, c.world.size);
  std::vector<std::unique_ptr<Runner>> runners;
  const auto runner = [&](int r) {
    return std::make_unique<Runner>(c.program, r, c.world.size, &expected[static_cast<std::size_t>(r)]);
  };
  for (int r = 0; r < c.world.size; r++) runners.push_back(runner(r));
  const auto advance_all = [&] {
    bool more = false;
    for (int r = 0; r < c.world.size; r++)
      more = runners[static_cast<std::size_t>(r)]->advance(world.engine(r), world.gpu(r)) || more;
    return more;
  };
  const auto check = [&] {
    for (int r = 0; r < c.world.size; r++) {
      const auto& got = runners[static_cast<std::size_t>(r)]->results();
      for (std::size_t i = 0; i < got.size(); i++) {
        ASSERT_EQ(got[i], expected[static_cast<std::size_t>(r)][i])
            << "rank " << r << " round " << i << " seed " << seed;
      }
    }
  };
  for (int n = 0; n < interrupts; n++) {
    // Rounds stand somewhere in their middle.
    for (std::uint64_t steps = random() % c.most_steps; steps > 0; steps--) {
      (void)advance_all();
      (void)world.step();
    }
    check();
    std::vector<int> lost = c.lost;
    if (c.host_lost >= 0) {
      for (int r = 0; r < c.world.size; r++) {
        if (c.world.hosts[static_cast<std::size_t>(r)] == c.host_lost) lost.push_back(r);
      }
      world.kill_host(c.host_lost);
    } else {
      for (const int r : lost) world.kill(r);
    }
    for (const int r : lost) runners[static_cast<std::size_t>(r)] = runner(r);
    world.next_epoch(lost);
    if (::testing::Test::HasFatalFailure()) return;
  }
  ASSERT_TRUE(world.run([&] { return !advance_all(); })) << "seed " << seed;
  if (c.sent_at_once != nullptr) *c.sent_at_once += world.sent_at_once();
  check();
  EXPECT_EQ(world.gaps, std::vector<std::string>()) << "seed " << seed;
  EXPECT_EQ(world.failures, std::vector<std::string>()) << "seed " << seed;
}

// A sum by a function of the program's, which fails when it is called for the `fails_at`-th time; 0: never.
struct Adding {
  int fails_at = 0, calls = 0;
  static std::int32_t run(const void* a, void* inout, std::size_t n, void* context) {
    Adding& self = *static_cast<Adding*>(context);
    const bool fails = ++self.calls == self.fails_at;
    for (std::size_t i = 0; i < n; i++) {
      std::uint64_t x, y;
      std::memcpy(&x, static_cast<const std::byte*>(a) + i * sizeof x, sizeof x);
      std::memcpy(&y, static_cast<std::byte*>(inout) + i * sizeof y, sizeof y);
      y = fails ? 0xbadbadbad : x + y;
      std::memcpy(static_cast<std::byte*>(inout) + i * sizeof y, &y, sizeof y);
    }
    return fails ? 7 : 0;
  }
};

class FailingReduction : public ::testing::Test {
 protected:
  struct Setup {
    World::Options world;
    std::uint64_t count = 5;
    bool in_place = false, blocking = false;
    int fails = 0;  // which rank's, at which call
    int fails_at = 1;
  };
  struct Life {
    Adding adding;
    std::vector<std::uint64_t> in, out;
    Call call;
  };
  static void begin(World& world, const Setup& s, int rank, std::unique_ptr<Life>& life, int fails_at) {
    life = std::make_unique<Life>();
    life->adding.fails_at = fails_at;
    for (std::uint64_t i = 0; i < s.count; i++) life->in.push_back(static_cast<std::uint64_t>(rank) * 1000 + i);
    life->out.resize(s.count);
    CallSpec& spec = life->call.spec;
    spec.collective = Collective::kAllreduce;
    spec.type = DataType::kCustom;
    spec.op = ReduceOp::kCustom;
    spec.custom = &Adding::run;
    spec.custom_context = &life->adding;
    spec.custom_bytes = sizeof(std::uint64_t);
    spec.count = s.count;
    spec.input = life->in.data();
    spec.output = s.in_place ? life->in.data() : life->out.data();
    life->call.blocking = s.blocking;
    ASSERT_TRUE(world.engine(rank).submit(kWorldGroup, life->call).ok());
  }
  static void expect_sum(const Setup& s, const Life& life) {
    EXPECT_TRUE(life.call.status.ok()) << life.call.status.describe();
    const auto k = static_cast<std::uint64_t>(s.world.size);
    const auto& got = s.in_place ? life.in : life.out;
    for (std::uint64_t i = 0; i < s.count; i++) ASSERT_EQ(got[i], k * (k - 1) / 2 * 1000 + k * i) << i;
  }
  // False: the function was not called so often.
  static bool survives(const Setup& s) {
    World world(s.world);
    world.takes_failures = false;
    std::vector<std::unique_ptr<Life>> lives(static_cast<std::size_t>(s.world.size));
    for (int r = 0; r < s.world.size; r++) {
      begin(world, s, r, lives[static_cast<std::size_t>(r)], r == s.fails ? s.fails_at : 0);
    }
    const auto all_finished = [&] {
      return std::ranges::all_of(lives, [](const auto& life) { return life->call.finished.load(); });
    };
    const auto& failing = lives[static_cast<std::size_t>(s.fails)];
    EXPECT_TRUE(world.run([&] { return all_finished() || world.engine(s.fails).has_trouble(); }));
    if (all_finished()) {
      EXPECT_LT(failing->adding.calls, s.fails_at);
      for (const auto& life : lives) expect_sum(s, *life);
      return false;
    }
    const int calls = failing->adding.calls;
    // An interrupt comes before the owner has heard of it.
    world.next_epoch({});
    for (int n = 0; n < 100; n++) (void)world.step();
    const auto failure = world.engine(s.fails).take_failure();
    EXPECT_TRUE(failure && failure->by_program);
    if (!failure) return true;
    EXPECT_EQ(failure->status.code(), Code::kInternal);
    EXPECT_EQ(failure->peer, kNoRank);
    EXPECT_NE(failure->status.describe().find("the reduction has failed, and returned 7"), std::string::npos)
        << failure->status.describe();
    EXPECT_EQ(failing->adding.calls, calls) << "the function is not called again";
    EXPECT_FALSE(failing->call.finished);
    for (const auto& life : lives) {
      if (life->call.finished) expect_sum(s, *life);
    }
    world.kill(s.fails);
    EXPECT_TRUE(failing->call.finished);
    world.next_epoch({s.fails});
    begin(world, s, s.fails, lives[static_cast<std::size_t>(s.fails)], 0);
    EXPECT_TRUE(world.run(all_finished));
    for (const auto& life : lives) expect_sum(s, *life);
    return true;
  }
};

// Small and large, light and not, wherever ranks sit, and whichever rank's fails in the middle of what.
TEST_F(FailingReduction, EndsItsLifeAndReachesNobody) {
  for (const auto algorithm :
       {schedule::Algorithm::kRing, schedule::Algorithm::kDirect, schedule::Algorithm::kButterfly,
        schedule::Algorithm::kTree, schedule::Algorithm::kStar}) {
    int failures = 0;
    for (const std::vector<int>& hosts : {std::vector{0, 0, 0}, std::vector{0, 1, 2}, std::vector{0, 0, 1, 1}}) {
      for (const std::uint64_t count : {5u, 5000u}) {
        for (int variant = 0; variant < 4; variant++) {
          for (int fails = 0; fails < static_cast<int>(hosts.size()); fails++) {
            for (const int fails_at : {1, 6}) {
              Setup s;
              s.world.size = static_cast<int>(hosts.size());
              s.world.hosts = hosts;
              s.world.algorithm = algorithm;
              s.world.segment_bytes = std::size_t{1} << 20;
              s.count = count;
              s.in_place = variant % 2 == 0;
              s.blocking = variant < 2;
              s.fails = fails;
              s.fails_at = fails_at;
              SCOPED_TRACE(std::string(schedule::to_string(algorithm)) + ", count " + std::to_string(count) +
                           ", variant " + std::to_string(variant) + ", rank " + std::to_string(fails) + " at call " +
                           std::to_string(fails_at) + " of " + std::to_string(hosts.size()));
              failures += survives(s) ? 1 : 0;
              if (HasFailure()) return;
            }
          }
        }
      }
    }
    EXPECT_GT(failures, 10) << schedule::to_string(algorithm);
  }
}

// In mode sync no call returns, anywhere, while disks do not take what was published; and none waits once they have.
TEST(RecoveryInModeSync, NothingIsSeenBeforeItIsOnDisk) {
  for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter, Collective::kAllToAll}) {
    for (const std::vector<int>& hosts : {std::vector{0, 0, 0}, std::vector{0, 1, 2}}) {
      World::Options options;
      options.hosts = hosts;
      options.sync = true;
      World world(options);
      const Program program{collective, 5000, 3, false};
      const auto expected = Runner::oracle(program, 3);
      std::vector<std::unique_ptr<Runner>> runners;
      for (int r = 0; r < 3; r++) runners.push_back(std::make_unique<Runner>(program, r, 3));
      const auto advance_all = [&] {
        bool more = false;
        for (int r = 0; r < 3; r++) more = runners[static_cast<std::size_t>(r)]->advance(world.engine(r)) || more;
        return more;
      };
      world.disks_take = false;
      for (int n = 0; n < 3000; n++) {
        (void)advance_all();
        (void)world.step();
      }
      for (int r = 0; r < 3; r++) EXPECT_TRUE(runners[static_cast<std::size_t>(r)]->results().empty());
      const auto waits = world.engine(0).describe_waits();
      EXPECT_FALSE(waits.empty()) << "it is said what is waited for";
      world.disks_take = true;
      ASSERT_TRUE(world.run([&] { return !advance_all(); }));
      for (int r = 0; r < 3; r++) {
        EXPECT_EQ(runners[static_cast<std::size_t>(r)]->results(), expected[static_cast<std::size_t>(r)]);
      }
      EXPECT_EQ(world.failures, std::vector<std::string>());
    }
  }
}

TEST(RecoveryInModeSync, InterruptsComeWhileDisksAreWaitedFor) {
  for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter, Collective::kBroadcast}) {
    for (const bool in_place : {false, true}) {
      for (std::uint64_t seed = 0; seed < 12; seed++) {
        Case c;
        c.program = {collective, 5000, 6, in_place};
        c.world.hosts = {0, 0, 1};
        c.world.sync = true;
        c.lost = seed % 3 == 0 ? std::vector<int>{} : std::vector{static_cast<int>(seed % 3)};
        survive(c, seed, 4);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// Buffers move in pieces while their rounds run, and through interrupts and plans.
TEST(RecoveryOfMovingBuffers, EveryAlgorithmGivesTheSameBits) {
  for (const auto algorithm :
       {schedule::Algorithm::kRing, schedule::Algorithm::kDirect, schedule::Algorithm::kButterfly,
        schedule::Algorithm::kTree, schedule::Algorithm::kStar}) {
    for (const std::vector<int>& hosts : {std::vector{0, 0, 0}, std::vector{0, 1, 2}, std::vector{0, 0, 1}}) {
      for (const bool in_place : {false, true}) {
        for (std::uint64_t seed = 0; seed < 6; seed++) {
          SCOPED_TRACE(std::string(schedule::to_string(algorithm)) + (in_place ? ", in place, " : ", ") +
                       std::to_string(hosts[1]) + std::to_string(hosts[2]));
          Case c;
          c.program = {Collective::kAllreduce, 5000, 4, in_place};
          c.program.moves = true;
          c.world.algorithm = algorithm;
          c.world.hosts = hosts;
          c.world.sync = seed == 5;
          c.lost = seed % 3 == 0 ? std::vector<int>{} : std::vector{static_cast<int>(seed % 3)};
          survive(c, seed, 4);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Inputs that peers read where the CPU cannot, and finals that are made of them at some later time: some ranks', or
// all. What was lent is overwritten as soon as its rank needs it no more.
TEST(RecoveryOfLentBuffers, GivesTheSameBits) {
  constexpr std::uint64_t kFewer = kAddressSanitized ? 4 : 1;
  Gpu::begun = Gpu::made = Gpu::brought = 0;
  for (const auto algorithm : {schedule::Algorithm::kRing, schedule::Algorithm::kButterfly}) {
    for (const std::uint32_t lends : {0b111u, 0b101u, 0b010u}) {
      for (const bool in_place : {false, true}) {
        for (std::uint64_t seed = 0; seed < 20 / kFewer; seed++) {
          SCOPED_TRACE(std::string(schedule::to_string(algorithm)) + (in_place ? ", in place, " : ", ") +
                       std::to_string(lends) + ", seed " + std::to_string(seed));
          Case c;
          c.program = {Collective::kAllreduce, 9000, 5, in_place};
          c.program.moves = true;
          c.program.lends = lends;
          c.world.algorithm = algorithm;
          c.world.hosts = {0, 0, 0};
          c.world.gpus = true;
          c.world.sync = seed % 7 == 5;
          c.lost = seed % 3 == 0 ? std::vector<int>{} : std::vector{static_cast<int>(seed % 3)};
          c.most_steps = 1500;
          survive(c, seed, 4);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
  // It was about something.
  EXPECT_GT(Gpu::made, 300u / kFewer);
  EXPECT_GT(Gpu::brought, 300u / kFewer);
}

// One rank's buffers, of two, as they are moved by hand.
class ByHand : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::uint64_t kCount = 5000;
  ByHand() {
    options_.size = 2;
    options_.hosts = {0, 1};
    options_.algorithm = schedule::Algorithm::kRing;
    world_ = std::make_unique<World>(options_);
    for (std::size_t i = 0; i < kCount; i++) ours_[i] = i, theirs_[i] = 1'000'000 + 7 * i;
    spec(call_, ours_);
    auto moving = std::make_unique<Moving>(std::as_writable_bytes(std::span(ours_)),
                                           std::as_writable_bytes(std::span(GetParam() ? ours_ : result_)), 1, nullptr);
    moving_ = moving.get();
    call_.spec.input = moving->host_input();
    call_.spec.output = moving->host_output();
    call_.spec.prepare = &input_made_by<[](void* context) { static_cast<Moving*>(context)->begin(); }>;
    call_.spec.prepare_context = moving_;
    call_.buffers = std::move(moving);
    spec(other_, theirs_);
  }
  ~ByHand() override {
    for (int r = 0; r < 2; r++) world_->engine(r).stop(Status(Code::kClosed, "the test ends"));
    while (engine().has_moving()) move();
  }
  static void spec(Call& call, std::vector<std::uint64_t>& data) {
    call.spec.collective = Collective::kAllreduce;
    call.spec.type = DataType::kU64;
    call.spec.op = ReduceOp::kSum;
    call.spec.count = kCount;
    call.spec.input = call.spec.output = data.data();
  }
  void begin() {
    ASSERT_TRUE(world_->engine(1).submit(kWorldGroup, other_).ok());
    ASSERT_TRUE(engine().submit(kWorldGroup, call_).ok());
    ASSERT_EQ(engine().take_prepare(), &call_);
    call_.spec.prepare(call_.spec.prepare_context);
    engine().prepared(call_);
  }
  void move() {
    Call* const taken = engine().take_moving();
    ASSERT_EQ(taken, &call_);
    const auto moved = moving_->move();
    engine().moved(call_, moved.status());
  }
  // All that can move does, until nothing has for long.
  void run() {
    for (int idle = 0; idle < 2000; idle++) {
      if (engine().has_moving()) move();
      if (world_->step()) idle = 0;
    }
  }
  void expect_result() {
    ASSERT_TRUE(call_.finished.load());
    ASSERT_TRUE(call_.status.ok()) << call_.status.describe();
    const auto& out = GetParam() ? ours_ : result_;
    for (std::size_t i = 0; i < kCount; i++) ASSERT_EQ(out[i], 1'000'000 + 8 * i);
  }
  Engine& engine() { return world_->engine(0); }

  World::Options options_;
  std::unique_ptr<World> world_;
  std::vector<std::uint64_t> ours_ = std::vector<std::uint64_t>(kCount), theirs_ = ours_, result_ = ours_;
  Call call_, other_;
  Moving* moving_ = nullptr;
};

TEST_P(ByHand, ResultsComeBackWhileTheInputIsStillComing) {
  moving_->pieces_let = 6;
  begin();
  run();
  EXPECT_FALSE(call_.finished.load() || other_.finished.load());
  EXPECT_EQ(moving_->arrived(), 6u);
  EXPECT_GE(moving_->brought_back(), 6'000u) << "as far as it was there";
  const auto waits = engine().describe_waits();
  ASSERT_FALSE(waits.empty());
  EXPECT_NE(waits[0].find("waits for its own input"), std::string::npos) << waits[0];
  moving_->pieces_let = SIZE_MAX;
  run();
  expect_result();
}

TEST_P(ByHand, ACallEndsWhenItsResultHasComeBack) {
  moving_->finals_let = 0;
  begin();
  run();
  EXPECT_TRUE(other_.finished.load());
  EXPECT_FALSE(call_.finished.load());
  EXPECT_EQ(engine().outstanding(), 1u);
  const auto waits = engine().describe_waits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_NE(waits[0].find("to be brought back"), std::string::npos) << waits[0];
  moving_->finals_let = SIZE_MAX;
  run();
  expect_result();
  EXPECT_FALSE(engine().has_work_outside());
}

// The other rank is lost when a part is final; the rest of the input comes before the log, which would come over it.
TEST_P(ByHand, AResumedRoundWaitsForItsInput) {
  moving_->pieces_let = 6;
  begin();
  run();
  world_->kill(1);
  world_->next_epoch({1});
  Call again;
  spec(again, theirs_);
  for (std::size_t i = 0; i < kCount; i++) theirs_[i] = 1'000'000 + 7 * i;
  ASSERT_TRUE(world_->engine(1).submit(kWorldGroup, again).ok());
  run();
  EXPECT_FALSE(call_.finished.load());
  const auto waits = engine().describe_waits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_NE(waits[0].find("waits for its own input"), std::string::npos) << waits[0];
  moving_->pieces_let = SIZE_MAX;
  run();
  expect_result();
  EXPECT_TRUE(again.finished.load());
}

// What is under way ends before the call does, because it is the program's memory.
TEST_P(ByHand, AStoppedCallEndsWhenNothingMoves) {
  moving_->pieces_let = 2;
  begin();
  Call* const taken = engine().take_moving();
  ASSERT_EQ(taken, &call_);
  engine().stop(Status(Code::kClosed, "over"));
  EXPECT_FALSE(call_.finished.load());
  engine().moved(call_, {});
  EXPECT_TRUE(call_.finished.load());
  EXPECT_EQ(call_.status.code(), Code::kClosed);
  EXPECT_EQ(engine().outstanding(), 0u);
  EXPECT_FALSE(engine().has_moving());
}

TEST_P(ByHand, AFailureIsTheCallsReason) {
  moving_->finals_let = 1;
  begin();
  run();
  ASSERT_EQ(engine().take_moving(), &call_);
  moving_->fails = Status(Code::kUnavailable, "it broke");
  engine().stop(Status(Code::kClosed, "over"));
  engine().moved(call_, moving_->fails);
  EXPECT_TRUE(call_.finished.load());
  EXPECT_EQ(call_.status.code(), Code::kUnavailable) << "the round was over: " << call_.status.describe();
}

INSTANTIATE_TEST_SUITE_P(InPlace, ByHand, testing::Bool());

// Messages around the ring, two a round, received in the other order than they were sent; a checkpoint every second
// round.
class Messages {
 public:
  Messages(int rank, int size, int rounds, std::uint64_t count)
      : rank_(rank), size_(size), rounds_(rounds), count_(count) {
    state_ = static_cast<std::uint64_t>(rank) + 1;
  }
  bool advance(Engine& engine, Checkpoints& checkpoints, bool loaded) {
    if (!loaded) return true;
    if (engine.version() == kPreamble) return true;
    for (const auto& c : calls_) {
      if (!c->finished.load()) return true;
    }
    if (!calls_.empty()) take();
    if (round_ == rounds_) return false;
    if (round_ % 2 == 0 && round_ != checkpointed_) {
      if (!checkpoints.may_take()) return true;
      const PlacedState mine = std::as_bytes(std::span(&state_, 1));
      const std::uint64_t at = static_cast<std::uint64_t>(round_);
      const Status status = checkpoints.take(std::as_bytes(std::span(&at, 1)), &mine);
      EXPECT_TRUE(status.ok()) << status.describe();
      checkpointed_ = round_;
    }
    issue(engine);
    return true;
  }
  void restore(const Checkpoints::State& from) {
    if (from.version == 0) return;
    std::uint64_t at = 0;
    std::memcpy(&at, from.global.data(), sizeof at);
    std::memcpy(&state_, from.local.data(), sizeof state_);
    round_ = checkpointed_ = static_cast<int>(at);
  }
  std::uint64_t state() const { return state_; }
  int round() const { return round_; }

  static std::vector<std::uint64_t> oracle(int size, int rounds, std::uint64_t count) {
    std::vector<Messages> all;
    for (int r = 0; r < size; r++) all.emplace_back(r, size, rounds, count);
    for (int n = 0; n < rounds; n++) {
      std::vector<std::vector<std::uint64_t>> sent;
      for (auto& m : all) sent.push_back(m.payload());
      for (int r = 0; r < size; r++)
        all[static_cast<std::size_t>(r)].mix(sent[static_cast<std::size_t>((r + size - 1) % size)]);
    }
    std::vector<std::uint64_t> states;
    for (auto& m : all) states.push_back(m.state_);
    return states;
  }

 private:
  std::vector<std::uint64_t> payload() const {
    std::vector<std::uint64_t> v(count_ + 1);
    std::mt19937_64 random(state_ ^ static_cast<std::uint64_t>(round_));
    for (auto& x : v) x = random();
    return v;
  }
  void mix(const std::vector<std::uint64_t>& got) {
    for (const std::uint64_t x : got) state_ = (state_ ^ x) * 0x100000001b3u;
    round_++;
  }
  void issue(Engine& engine) {
    out_ = payload();
    in_.assign(count_ + 1, 0);
    const auto add = [&](bool sends, std::uint64_t at, std::uint64_t count, int tag) {
      auto call = std::make_unique<Call>();
      CallSpec& s = call->spec;
      s.collective = Collective::kPoint;
      s.type = DataType::kU64;
      s.count = count;
      s.sends = sends;
      s.tag = tag;
      s.root = sends ? (rank_ + 1) % size_ : (rank_ + size_ - 1) % size_;
      if (sends) s.input = out_.data() + at;
      if (!sends) s.output = in_.data() + at;
      const Status status = engine.submit(kWorldGroup, *call);
      EXPECT_TRUE(status.ok()) << status.describe();
      calls_.push_back(std::move(call));
    };
    add(true, 0, count_, 7);
    add(true, count_, 1, 8);
    add(false, count_, 1, 8);
    add(false, 0, count_, 7);
  }
  void take() {
    for (const auto& c : calls_) EXPECT_TRUE(c->status.ok()) << c->status.describe();
    calls_.clear();
    const auto got = in_;
    std::fill(in_.begin(), in_.end(), 0x5ca1ab1e);
    std::fill(out_.begin(), out_.end(), 0x5ca1ab1e);
    mix(got);
  }

  int rank_, size_, rounds_;
  std::uint64_t count_, state_ = 0;
  int round_ = 0, checkpointed_ = 0;
  std::vector<std::uint64_t> out_, in_;
  std::vector<std::unique_ptr<Call>> calls_;
};

TEST(RecoveryOfMessages, EndsWithTheSameStates) {
  for (std::uint64_t seed = 1; seed <= 60; seed++) {
    std::mt19937 random(static_cast<unsigned>(seed));
    World::Options options;
    options.size = 2 + static_cast<int>(seed % 3);
    options.replicas = 2;
    if (seed % 2 == 0) {
      for (int r = 0; r < options.size; r++) options.hosts.push_back(r);
    }
    const int rounds = 15;
    const std::uint64_t count = seed % 4 == 0 ? 3 : 2000;
    World world(options);
    const auto expected = Messages::oracle(options.size, rounds, count);
    std::vector<std::unique_ptr<Messages>> programs;
    std::vector<bool> loaded(static_cast<std::size_t>(options.size), false);
    for (int r = 0; r < options.size; r++) {
      programs.push_back(std::make_unique<Messages>(r, options.size, rounds, count));
      world.load(r);
    }
    const auto advance_all = [&] {
      bool more = false;
      for (int r = 0; r < options.size; r++) {
        const auto i = static_cast<std::size_t>(r);
        if (auto state = world.checkpoints(r).loaded()) {
          EXPECT_TRUE(state->ok()) << state->status().describe();
          if (state->ok()) programs[i]->restore(state->value());
          loaded[i] = true;
        }
        more = programs[i]->advance(world.engine(r), world.checkpoints(r), loaded[i]) || more;
      }
      return more;
    };
    for (int n = 0; n < 3; n++) {
      for (std::uint64_t steps = random() % 40; steps > 0; steps--) {
        (void)advance_all();
        (void)world.step();
      }
      const int lost = static_cast<int>(random() % static_cast<unsigned>(options.size));
      const auto i = static_cast<std::size_t>(lost);
      world.kill(lost);
      programs[i] = std::make_unique<Messages>(lost, options.size, rounds, count);
      loaded[i] = false;
      world.next_epoch({lost});
      world.load(lost);
    }
    ASSERT_TRUE(world.run([&] { return !advance_all(); })) << "seed " << seed;
    for (int r = 0; r < options.size; r++) {
      EXPECT_EQ(programs[static_cast<std::size_t>(r)]->state(), expected[static_cast<std::size_t>(r)])
          << "rank " << r << " seed " << seed;
    }
    EXPECT_EQ(world.gaps, std::vector<std::string>()) << "seed " << seed;
    EXPECT_EQ(world.failures, std::vector<std::string>()) << "seed " << seed;
    if (HasFailure()) return;
  }
}

// Machine after machine is lost, each after the one before was filled up again: at the end no byte lies where it was
// first stored.
TEST(RecoveryOfCheckpoints, WhoTakesALostRanksPlaceHoldsItsShareAgain) {
  for (const std::string how : {"host", "process", "moves"}) {
    const bool moves = how == "moves";
    World::Options options;
    options.size = 4;
    options.hosts = {0, 1, 2, 3};
    World world(options);
    const auto state_of = [](int rank, std::size_t bytes) {
      std::vector<std::byte> state(bytes);
      for (std::size_t i = 0; i < bytes; i++) {
        state[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(rank) * 7);
      }
      return state;
    };
    const auto global = state_of(-1, 1003);
    const auto local_of = [&](int rank) {
      return state_of(rank, rank == 3 ? 0 : 100 + static_cast<std::size_t>(rank));
    };
    const auto load = [&](int rank) {
      world.load(rank);
      std::optional<Result<Checkpoints::State>> state;
      EXPECT_TRUE(world.run([&] {
        if (!state) state = world.checkpoints(rank).loaded();
        return state.has_value();
      }));
      EXPECT_TRUE(state->ok()) << state->status().describe();
      return state->ok() ? state->value() : Checkpoints::State();
    };
    for (int r = 0; r < 4; r++) (void)load(r);
    for (int r = 0; r < 4; r++) {
      const auto local = local_of(r);
      const PlacedState local_state = local;
      ASSERT_TRUE(world.checkpoints(r).take(global, &local_state).ok());
    }
    const auto committed = [&](int r) { return world.checkpoints(r).newest_committed() == version_of_program(1); };
    ASSERT_TRUE(world.run([&] { return committed(0) && committed(1) && committed(2) && committed(3); }));
    const auto filled_up = [&] {
      const RoundId round{Timeline(0), kWorldGroup, version_of_program(1), Sequence(0)};
      if (world.copies({RecordKind::kGlobal, round}) < 2) return false;
      for (int r = 0; r < 4; r++) {
        RoundId of_rank = round;
        of_rank.sequence = Sequence(static_cast<std::uint64_t>(r));
        if (world.copies({RecordKind::kLocal, of_rank}) < 2) return false;
      }
      return true;
    };
    ASSERT_TRUE(filled_up());
    for (const int lost : {1, 2, 3, 0, 1}) {
      // Only its process, and what it has logged is there: it goes later, once nobody needs it.
      if (how == "process") {
        world.kill(lost);
      } else {
        world.kill_host(lost);
      }
      // A place of its own again, or beside a neighbour: then others get duties that they never had.
      world.move(lost, moves ? (lost + 1) % 4 : lost);
      world.next_epoch({lost});
      const auto state = load(lost);
      EXPECT_EQ(state.global, global);
      EXPECT_EQ(state.local, local_of(lost));
      ASSERT_TRUE(world.run(filled_up)) << how << ", after rank " << lost;
      if (moves) {
        world.kill(lost);
        world.move(lost, lost);
        world.next_epoch({lost});
        EXPECT_EQ(load(lost).local, local_of(lost));
        ASSERT_TRUE(world.run(filled_up)) << "after rank " << lost << " has come back";
      }
    }
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

// A rank's machine is lost, and a spare that has followed takes its place.
TEST(RecoveryOfCheckpoints, ASpareBeginsWithWhatItHasFollowed) {
  enum class What { kAll, kPart, kOtherRun };
  for (const What what : {What::kAll, What::kPart, What::kOtherRun}) {
    SCOPED_TRACE(static_cast<int>(what));
    World::Options options;
    options.size = 3;
    options.hosts = {0, 1, 2};
    World world(options);
    for (int r = 0; r < 3; r++) {
      world.load(r);
      ASSERT_TRUE(world.run([&] { return world.checkpoints(r).loaded().has_value(); }));
    }
    // Longer than one reply, and of another content each time.
    const auto state_of = [](std::uint64_t version) {
      std::vector<std::byte> state(5'000'000);
      for (std::size_t i = 0; i < state.size(); i++) state[i] = static_cast<std::byte>(i * 31 / 7 + version);
      return state;
    };
    const auto commit = [&](std::uint64_t version) {
      const auto state = state_of(version);
      for (int r = 0; r < 3; r++) ASSERT_TRUE(world.checkpoints(r).take(state, nullptr).ok());
      ASSERT_TRUE(world.run([&] {
        for (int r = 0; r < 3; r++) {
          if (world.checkpoints(r).newest_committed() != version_of_program(version)) return false;
        }
        return true;
      }));
    };
    commit(1);
    commit(2);
    std::size_t asked = 0;
    world.before_plan = [&](int r) {
      // The plans of this world are of run 0.
      world.follow(r, what == What::kOtherRun ? 9 : 0, what == What::kPart ? 1 : 1000);
      const auto followed = world.checkpoints(r).take_followed();
      EXPECT_EQ(followed.has_value(), what != What::kPart);
      if (followed) {
        EXPECT_EQ(followed->version, version_of_program(2));
        EXPECT_EQ(followed->bytes, 5'000'000u);
        EXPECT_EQ(world.checkpoints(r).has_followed({true, version_of_program(2), Timeline(0)}), what == What::kAll);
        EXPECT_FALSE(world.checkpoints(r).has_followed({true, version_of_program(1), Timeline(0)}));
        EXPECT_FALSE(world.checkpoints(r).has_followed({true, version_of_program(2), Timeline(1)}));
        EXPECT_FALSE(world.checkpoints(r).has_followed({false, Version(), Timeline(0)}));
        EXPECT_FALSE(world.checkpoints(r).take_followed()) << "it is said once";
      }
      asked = world.asked_for_states(r);
      EXPECT_GT(asked, 1u);
    };
    world.kill_host(2);
    world.next_epoch({2});
    world.load(2);
    std::optional<Result<Checkpoints::State>> state;
    ASSERT_TRUE(world.run([&] { return (state = world.checkpoints(2).loaded()).has_value(); }));
    ASSERT_TRUE(state->ok()) << state->status().describe();
    EXPECT_EQ(state->value().version, 2u);
    EXPECT_TRUE(state->value().global == state_of(2));
    if (what == What::kAll) {
      EXPECT_EQ(world.asked_for_states(2), asked);
    } else {
      EXPECT_GT(world.asked_for_states(2), asked);
    }
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

CallSpec message(std::vector<std::uint64_t>& v, int peer, bool sends) {
  CallSpec spec;
  spec.collective = Collective::kPoint;
  spec.type = DataType::kU64;
  spec.count = v.size();
  spec.root = peer;
  spec.tag = 7;
  spec.sends = sends;
  if (sends) spec.input = v.data();
  if (!sends) spec.output = v.data();
  return spec;
}

World::Options two_hosts() {
  World::Options options;
  options.size = 2;
  options.hosts = {0, 1};
  return options;
}

constexpr GroupId kPair{5};

void make_pair_group(World& world, int rank, GroupId id) {
  ASSERT_TRUE(world.engine(rank).add_group(id, {Rank(0), Rank(1)}, 1).ok());
}

TEST(RecoveryOfMessages, OfAGroupThatItsSenderHasDestroyedAreSentAgain) {
  World world(two_hosts());
  for (int r = 0; r < 2; r++) make_pair_group(world, r, kPair);
  std::vector<std::uint64_t> out(3000), in(3000), back(2, 0x77), got(2);
  for (std::size_t i = 0; i < out.size(); i++) out[i] = i * 0x9e3779b97f4a7c15u;
  Call calls[4];
  calls[0].spec = message(out, 1, true);
  calls[1].spec = message(in, 0, false);
  calls[2].spec = message(back, 0, true);
  calls[3].spec = message(got, 1, false);
  for (int i = 0; i < 4; i++) ASSERT_TRUE(world.engine(i == 0 || i == 3 ? 0 : 1).submit(kPair, calls[i]).ok());
  ASSERT_TRUE(
      world.run([&] { return calls[0].finished && calls[1].finished && calls[2].finished && calls[3].finished; }));
  EXPECT_EQ(in, out);
  // The sender scribbles and destroys; then the receiver is lost, twice.
  const auto right = out;
  std::fill(out.begin(), out.end(), 0x5ca1ab1e);
  world.engine(0).remove_group(kPair);
  for (int n = 0; n < 2; n++) {
    world.kill(1);
    world.next_epoch({1});
    EXPECT_EQ(world.engine(0).used_channels()[0], 3u);
    EXPECT_TRUE(world.engine(0).unsettled());
    make_pair_group(world, 1, kPair);
    std::fill(in.begin(), in.end(), 0);
    Call again[2];
    again[0].spec = message(in, 0, false);
    again[1].spec = message(back, 0, true);  // has arrived long ago
    for (Call& call : again) ASSERT_TRUE(world.engine(1).submit(kPair, call).ok());
    ASSERT_TRUE(world.run([&] { return again[0].finished && again[1].finished; })) << n;
    EXPECT_EQ(in, right) << n;
  }
  // Of the preamble, which any later life runs again: kept.
  world.engine(1).remove_group(kPair);
  ASSERT_TRUE(world.run([&] { return !world.engine(0).unsettled() && !world.engine(1).unsettled(); }));
  for (int r = 0; r < 2; r++) EXPECT_EQ(world.engine(r).used_channels()[0], 3u);
  EXPECT_EQ(world.failures, std::vector<std::string>());
  EXPECT_EQ(world.gaps, std::vector<std::string>());
}

// A sender's new life may have other data, and what the old one logged it may have sent: both are what the log says,
// the first, whose arrival is not known yet, and the second, which the greeting has said is missing.
TEST(RecoveryOfMessages, ANewLifeSendsWhatItsHostHasLogged) {
  World world(two_hosts());
  for (int r = 0; r < 2; r++) make_pair_group(world, r, kPair);
  std::vector<std::uint64_t> out[2], in[2];
  for (std::uint64_t i = 0; i < 2; i++) {
    out[i].assign(3000, i + 1);
    in[i].assign(3000, 0);
  }
  const auto right = std::vector(std::begin(out), std::end(out));
  Call first[2];
  for (int i = 0; i < 2; i++) {
    first[i].spec = message(out[i], 1, true);
    ASSERT_TRUE(world.engine(0).submit(kPair, first[i]).ok());
  }
  // Nothing has left. The new life reads something else.
  world.kill(0);
  world.next_epoch({0});
  make_pair_group(world, 0, kPair);
  for (auto& values : out) std::fill(values.begin(), values.end(), 0x5ca1ab1e);
  Call again[2], receives[2];
  again[0].spec = message(out[0], 1, true);
  receives[0].spec = message(in[0], 0, false);
  ASSERT_TRUE(world.engine(0).submit(kPair, again[0]).ok());
  ASSERT_TRUE(world.engine(1).submit(kPair, receives[0]).ok());
  ASSERT_TRUE(world.run([&] { return again[0].finished && receives[0].finished; }));
  again[1].spec = message(out[1], 1, true);
  receives[1].spec = message(in[1], 0, false);
  ASSERT_TRUE(world.engine(1).submit(kPair, receives[1]).ok());
  ASSERT_TRUE(world.engine(0).submit(kPair, again[1]).ok());
  ASSERT_TRUE(world.run([&] { return again[1].finished && receives[1].finished; }));
  for (int i = 0; i < 2; i++) EXPECT_EQ(in[i], right[static_cast<std::size_t>(i)]) << i;
  EXPECT_EQ(world.failures, std::vector<std::string>());
  EXPECT_EQ(world.gaps, std::vector<std::string>());
}

TEST(RecoveryOfMessages, OfADestroyedGroupKeepItsChannelUntilTheNextCommit) {
  World world(two_hosts());
  for (int r = 0; r < 2; r++) world.load(r);
  bool loaded[2] = {};
  ASSERT_TRUE(world.run([&] {
    for (int r = 0; r < 2; r++) loaded[r] = loaded[r] || world.checkpoints(r).loaded().has_value();
    return loaded[0] && loaded[1];
  }));
  for (std::uint64_t n = 1; n <= 3; n++) {
    for (int r = 0; r < 2; r++) make_pair_group(world, r, GroupId(n));
    std::vector<std::uint64_t> out(3, n), in(3);
    Call calls[2];
    calls[0].spec = message(out, 1, true);
    calls[1].spec = message(in, 0, false);
    for (int r = 0; r < 2; r++) ASSERT_TRUE(world.engine(r).submit(GroupId(n), calls[r]).ok());
    ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished; }));
    EXPECT_EQ(in, out);
    for (int r = 0; r < 2; r++) world.engine(r).remove_group(GroupId(n));
    if (n == 2) world.next_epoch({});
    ASSERT_TRUE(world.run([&] { return !world.engine(0).unsettled() && !world.engine(1).unsettled(); }));
    for (int r = 0; r < 2; r++) {
      EXPECT_EQ(world.engine(r).used_channels()[0], 3u);
      ASSERT_TRUE(world.checkpoints(r).take(std::as_bytes(std::span(&n, 1)), nullptr).ok());
    }
    ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
    for (int r = 0; r < 2; r++) EXPECT_EQ(world.engine(r).used_channels()[0], 1u) << n;
  }
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// I8: a link that one end alone knows of would never be done with, and its channel never free.
TEST(RecoveryOfMessages, WhatIsObsoleteWaitsForNoNewLife) {
  World world(two_hosts());
  const auto load = [&](std::vector<int> ranks) {
    for (const int r : ranks) world.load(r);
    return world.run([&] {
      std::erase_if(ranks, [&](int r) { return world.checkpoints(r).loaded().has_value(); });
      return ranks.empty();
    });
  };
  for (int r = 0; r < 2; r++) make_pair_group(world, r, kPair);
  ASSERT_TRUE(load({0, 1}));
  std::vector<std::uint64_t> out(3, 7), in(3);
  for (const GroupId group : {kWorldGroup, kPair}) {
    Call calls[2];
    calls[0].spec = message(out, 1, true);
    calls[1].spec = message(in, 0, false);
    for (int r = 0; r < 2; r++) ASSERT_TRUE(world.engine(r).submit(group, calls[r]).ok());
    ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished; }));
  }
  const std::uint64_t state = 1;
  for (int r = 0; r < 2; r++) ASSERT_TRUE(world.checkpoints(r).take(std::as_bytes(std::span(&state, 1)), nullptr).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
  world.kill(1);
  world.next_epoch({1});
  make_pair_group(world, 1, kPair);
  ASSERT_TRUE(load({1}));
  EXPECT_TRUE(world.run([&] { return !world.engine(0).unsettled() && !world.engine(1).unsettled(); }));
  for (int r = 0; r < 2; r++) world.engine(r).remove_group(kPair);
  EXPECT_TRUE(world.run([&] { return !world.engine(0).unsettled() && !world.engine(1).unsettled(); }));
  for (int r = 0; r < 2; r++) EXPECT_EQ(world.engine(r).used_channels()[0], 1u) << r;
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// I7: who replays says from whom.
TEST(Recovery, WhoReplaysSaysFromWhom) {
  World world(two_hosts());
  std::vector<std::uint64_t> buffers[3];
  Call calls[3];
  const auto issue = [&](int rank, int i) {
    buffers[i].assign(100, 1);
    CallSpec& spec = calls[i].spec;
    spec.collective = Collective::kAllreduce;
    spec.type = DataType::kU64;
    spec.op = ReduceOp::kSum;
    spec.input = spec.output = buffers[i].data();
    spec.count = buffers[i].size();
    ASSERT_TRUE(world.engine(rank).submit(kWorldGroup, calls[i]).ok());
  };
  issue(0, 0);
  issue(1, 1);
  ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished; }));
  world.kill_host(1);
  world.next_epoch({1});
  issue(1, 2);
  const auto lines = world.engine(1).describe_waits();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "rank 1 asks rank 0 who holds round p.0");
  ASSERT_TRUE(world.run([&] { return calls[2].finished.load(); }));
  EXPECT_EQ(world.engine(1).describe_waits(), std::vector<std::string>());
  EXPECT_EQ(buffers[2], buffers[0]);
}

// I1: what the log gave before its gap was found stands where an input was. Only a plan's word stood for the round;
// it is finished from what was overwritten and what was not, never from all as if it were input.
TEST(Recovery, WhatAGapHasOverwrittenIsNotComputedAgain) {
  World::Options options;
  options.size = 3;
  options.hosts = {0, 1, 2};
  World world(options);
  constexpr std::size_t kCount = 1000;
  std::vector<std::uint64_t> buffers[3];
  std::unique_ptr<Call> calls[3];
  const auto issue = [&](int rank) {
    buffers[rank].assign(kCount, std::uint64_t{1} << rank);
    calls[rank] = std::make_unique<Call>();
    CallSpec& spec = calls[rank]->spec;
    spec.collective = Collective::kAllreduce;
    spec.type = DataType::kU64;
    spec.op = ReduceOp::kSum;
    spec.input = spec.output = buffers[rank].data();
    spec.count = kCount;
    ASSERT_TRUE(world.engine(rank).submit(kWorldGroup, *calls[rank]).ok());
  };
  const auto finished = [&](std::initializer_list<int> ranks) {
    return std::all_of(ranks.begin(), ranks.end(), [&](int r) { return calls[r]->finished.load(); });
  };
  const auto sums = [&](int rank) { return std::count(buffers[rank].begin(), buffers[rank].end(), 7u); };
  for (int r = 0; r < 3; r++) issue(r);
  ASSERT_TRUE(world.run([&] { return finished({0, 1, 2}); }));
  // Somebody has completed the next round, and is gone with its host. Half of it lies where rank 2 has died.
  issue(0);
  issue(1);
  const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(0), Sequence(1)}};
  const std::vector<std::uint64_t> half(kCount / 2, 7);
  ASSERT_TRUE(world.log(2).publish(key, {calls[0]->fingerprint, kCount * 8}, 0, std::as_bytes(std::span(half))).ok());
  world.kill(2);
  wire::Position done;
  done.set_rounds(2);
  world.next_epoch({2}, {done});
  ASSERT_TRUE(world.run([&] { return world.gaps.size() == 2; }));
  for (int r = 0; r < 2; r++) ASSERT_EQ(sums(r), std::ssize(half)) << "rank " << r;
  // Survivors alone count now, and rank 2 is too far behind to speak of that round.
  world.next_epoch({});
  issue(2);
  ASSERT_TRUE(world.run([&] { return finished({2}); }));
  issue(2);
  ASSERT_TRUE(world.run([&] { return finished({0, 1, 2}); }));
  for (int r = 0; r < 3; r++) {
    EXPECT_TRUE(calls[r]->status.ok()) << calls[r]->status.describe();
    EXPECT_EQ(sums(r), std::ssize(buffers[r])) << "rank " << r;
  }
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// Parts of results that a lost machine kept for other ranks are kept again: at the end none lies where it was first.
TEST(RecoveryOfOneSidedRounds, CopiesForOtherRanksAreFilledUp) {
  for (const Collective collective : {Collective::kReduceScatter, Collective::kReduce, Collective::kAllToAll}) {
    World::Options options;
    options.size = 4;
    options.hosts = {0, 1, 2, 0};
    World world(options);
    const Program program{collective, 700, 5, false};
    const auto expected = Runner::oracle(program, 4);
    std::vector<std::unique_ptr<Runner>> runners;
    for (int r = 0; r < 4; r++) runners.push_back(std::make_unique<Runner>(program, r, 4));
    const auto finish = [&] {
      return world.run([&] {
        bool more = false;
        for (int r = 0; r < 4; r++) more = runners[static_cast<std::size_t>(r)]->advance(world.engine(r)) || more;
        return !more;
      });
    };
    ASSERT_TRUE(finish());
    for (const int host : {1, 0, 2, 1}) {
      std::vector<int> lost;
      for (int r = 0; r < 4; r++) {
        if (options.hosts[static_cast<std::size_t>(r)] != host) continue;
        lost.push_back(r);
        runners[static_cast<std::size_t>(r)] = std::make_unique<Runner>(program, r, 4);
      }
      world.kill_host(host);
      world.next_epoch(lost);
      ASSERT_TRUE(finish()) << "after host " << host;
      for (std::uint64_t s = 0; s < 5; s++) {
        const RoundId round{Timeline(0), kWorldGroup, Version(0), Sequence(s)};
        EXPECT_GE(world.copies({RecordKind::kRound, round}), 2u) << "round " << s << " after host " << host;
      }
      for (int r = 0; r < 4; r++) {
        EXPECT_EQ(runners[static_cast<std::size_t>(r)]->results(), expected[static_cast<std::size_t>(r)]);
      }
    }
    EXPECT_EQ(world.gaps, std::vector<std::string>());
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

// However often those who replay are interrupted on their way, also before the first plan has reached them.
TEST(RecoveryOfOneSidedRounds, AnInterruptInTheMiddleOfAReplayFillsUpToo) {
  for (const Collective collective : {Collective::kReduceScatter, Collective::kReduce, Collective::kAllToAll}) {
    for (const int steps : {0, 1, 2, 4}) {
      SCOPED_TRACE(steps);
      World::Options options;
      options.size = 4;
      options.hosts = {0, 1, 2, 1};
      World world(options);
      const Program program{collective, 700, 12, false};
      const auto expected = Runner::oracle(program, 4);
      std::vector<std::unique_ptr<Runner>> runners;
      for (int r = 0; r < 4; r++) runners.push_back(std::make_unique<Runner>(program, r, 4));
      const auto advance = [&] {
        bool more = false;
        for (int r = 0; r < 4; r++) more = runners[static_cast<std::size_t>(r)]->advance(world.engine(r)) || more;
        return more;
      };
      ASSERT_TRUE(world.run([&] { return !advance(); }));
      for (const int host : {1, 0, 2}) {
        std::vector<int> lost;
        for (int r = 0; r < 4; r++) {
          if (options.hosts[static_cast<std::size_t>(r)] != host) continue;
          lost.push_back(r);
          runners[static_cast<std::size_t>(r)] = std::make_unique<Runner>(program, r, 4);
        }
        world.kill_host(host);
        world.next_epoch(lost);
        for (int n = 0; n < 2; n++) {
          for (int i = 0; i < steps; i++) {
            (void)advance();
            (void)world.step();
          }
          ASSERT_FALSE(runners[static_cast<std::size_t>(lost.back())]->finished());
          world.next_epoch({});
        }
        ASSERT_TRUE(world.run([&] { return !advance(); })) << "after host " << host;
        for (std::uint64_t s = 0; s < 12; s++) {
          const RoundId round{Timeline(0), kWorldGroup, Version(0), Sequence(s)};
          EXPECT_GE(world.copies({RecordKind::kRound, round}), 2u) << "round " << s << " after host " << host;
        }
        for (int r = 0; r < 4; r++) {
          EXPECT_EQ(runners[static_cast<std::size_t>(r)]->results(), expected[static_cast<std::size_t>(r)]);
        }
      }
      EXPECT_EQ(world.gaps, std::vector<std::string>());
      EXPECT_EQ(world.failures, std::vector<std::string>());
    }
  }
}

// The same of rounds in which a machine was lost: what was final in them then is not computed again.
TEST(RecoveryOfOneSidedRounds, CopiesInRoundsThatAreResumedAreFilledUp) {
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllToAll}) {
    for (int steps = 1; steps < 100; steps += 11) {
      SCOPED_TRACE(steps);
      World::Options options;
      options.size = 3;
      options.hosts = {0, 1, 2};
      World world(options);
      const Program program{collective, 2000, 2, false};
      std::vector<std::unique_ptr<Runner>> runners;
      for (int r = 0; r < 3; r++) runners.push_back(std::make_unique<Runner>(program, r, 3));
      const auto advance = [&] {
        bool more = false;
        for (int r = 0; r < 3; r++) more = runners[static_cast<std::size_t>(r)]->advance(world.engine(r)) || more;
        return more;
      };
      int left = steps;
      ASSERT_TRUE(world.run([&] { return !advance() || left-- == 0; }));
      for (const int host : {1, 0, 2}) {
        world.kill_host(host);
        runners[static_cast<std::size_t>(host)] = std::make_unique<Runner>(program, host, 3);
        world.next_epoch({host});
        ASSERT_TRUE(world.run([&] { return !advance(); })) << "after host " << host;
        for (std::uint64_t s = 0; s < 2; s++) {
          const RoundId round{Timeline(0), kWorldGroup, Version(0), Sequence(s)};
          ASSERT_GE(world.copies({RecordKind::kRound, round}), 2u) << "round " << s << " after host " << host;
        }
      }
      EXPECT_EQ(world.gaps, std::vector<std::string>());
      EXPECT_EQ(world.failures, std::vector<std::string>());
    }
  }
}

// A program that takes no checkpoint, and whose processes end again and again: the log segments that they leave have a
// bound, and what they hold is never lost.
TEST(RecoveryWithoutCheckpoints, HundredsOfLivesLeaveFewSegments) {
  for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter}) {
    for (const int hosts : {1, 2}) {
      World::Options options;
      options.size = 3;
      options.replicas = static_cast<std::uint32_t>(hosts);
      for (int r = 0; r < 3; r++) options.hosts.push_back(r * hosts / 3);
      World world(options);
      const Program program{collective, 1500, 8, false};
      const auto expected = Runner::oracle(program, 3);
      std::vector<std::unique_ptr<Runner>> runners;
      for (int r = 0; r < 3; r++) runners.push_back(std::make_unique<Runner>(program, r, 3));
      std::mt19937 random(7);
      const auto advance_all = [&] {
        bool more = false;
        for (int r = 0; r < 3; r++) more = runners[static_cast<std::size_t>(r)]->advance(world.engine(r)) || more;
        return more;
      };
      for (int n = 0; n < 300; n++) {
        for (std::uint64_t steps = random() % 60; steps > 0; steps--) {
          (void)advance_all();
          (void)world.step();
        }
        const int lost = static_cast<int>(random() % 3);
        world.kill(lost);
        runners[static_cast<std::size_t>(lost)] = std::make_unique<Runner>(program, lost, 3);
        world.next_epoch({lost});
      }
      EXPECT_LE(world.most_segments, 2 + DeadSegments::most_waiting(3));
      ASSERT_TRUE(world.run([&] { return !advance_all(); }));
      EXPECT_EQ(world.gaps, std::vector<std::string>());
      EXPECT_EQ(world.failures, std::vector<std::string>());
      for (int r = 0; r < 3; r++) {
        EXPECT_EQ(runners[static_cast<std::size_t>(r)]->results(), expected[static_cast<std::size_t>(r)]);
      }
    }
  }
}

// All processes of a host end at once, with logs that are together more than one of them can hold: nobody takes over
// what the others will replay, and nobody replays more into its log than there is room for.
TEST(RecoveryWithoutCheckpoints, AHostOfEightDiesAtOnce) {
  World::Options options;
  options.size = 9;
  options.replicas = 1;
  options.hosts = {0, 0, 0, 0, 0, 0, 0, 0, 1};
  options.segment_bytes = std::size_t{1} << 20;
  options.algorithm = schedule::Algorithm::kRing;
  World world(options);
  const Program program{Collective::kAllreduce, 36'000, 8, false};
  const auto expected = Runner::oracle(program, options.size);
  std::vector<std::unique_ptr<Runner>> runners;
  for (int r = 0; r < options.size; r++) runners.push_back(std::make_unique<Runner>(program, r, options.size));
  const auto advance_all = [&] {
    bool more = false;
    for (int r = 0; r < options.size; r++) {
      more = runners[static_cast<std::size_t>(r)]->advance(world.engine(r)) || more;
    }
    return more;
  };
  const auto rounds = [&] { return world.engine(8).rounds_done(kWorldGroup, kPreamble).value_or(0); };
  const auto die = [&](const std::vector<int>& lost) {
    for (const int r : lost) {
      world.kill(r);
      runners[static_cast<std::size_t>(r)] = std::make_unique<Runner>(program, r, options.size);
    }
    world.next_epoch(lost);
  };
  ASSERT_TRUE(world.run([&] {
    (void)advance_all();
    return rounds() == 6;
  }));
  std::uint64_t held = 0;
  for (int r = 0; r < 8; r++) held += world.log(r).bytes_held();
  EXPECT_GT(held, options.segment_bytes);
  die({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_LT(world.log(0).bytes_held(), options.segment_bytes / 8) << "it has replayed nothing yet";
  // Again, in the middle of the replay.
  ASSERT_TRUE(world.run([&] {
    (void)advance_all();
    return world.engine(3).rounds_done(kWorldGroup, kPreamble).value_or(0) == 3;
  }));
  die({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(world.run([&] { return !advance_all(); }));
  EXPECT_EQ(world.gaps, std::vector<std::string>());
  EXPECT_EQ(world.failures, std::vector<std::string>());
  for (int r = 0; r < options.size; r++) {
    EXPECT_EQ(runners[static_cast<std::size_t>(r)]->results(), expected[static_cast<std::size_t>(r)]);
  }
}

// One rank's call of a sum, in or out of a set-up round.
struct Sum {
  Sum(World& world, int rank, const std::string& setup, std::uint64_t value, std::uint64_t count = 3000,
      std::uint64_t site = 0)
      : in(count, value), out(count, 0) {
    call.setup = setup;
    call.spec.site = site;
    call.spec.collective = Collective::kAllreduce;
    call.spec.type = DataType::kU64;
    call.spec.op = ReduceOp::kSum;
    call.spec.input = in.data();
    call.spec.output = out.data();
    call.spec.count = count;
    submitted = world.engine(rank).submit(kWorldGroup, call);
  }
  bool gives(std::uint64_t value) const {
    return call.finished && call.status.ok() && std::count(out.begin(), out.end(), value) == std::ssize(out);
  }
  std::vector<std::uint64_t> in, out;
  Call call;
  Status submitted;
};

void load_all(World& world, const std::vector<int>& ranks) {
  for (const int r : ranks) world.load(r);
  for (const int r : ranks) {
    std::optional<Result<Checkpoints::State>> state;
    ASSERT_TRUE(world.run([&] { return (state = world.checkpoints(r).loaded()).has_value(); }));
    ASSERT_TRUE(state->ok()) << state->status().describe();
  }
}

void take_all(World& world, int size) {
  const std::uint64_t model = 5;
  for (int r = 0; r < size; r++) {
    ASSERT_TRUE(world.run([&] { return world.checkpoints(r).may_take(); }));
    const Status status = world.checkpoints(r).take(std::as_bytes(std::span(&model, 1)), nullptr);
    ASSERT_TRUE(status.ok()) << status.describe();
  }
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take(); }));
}

// A verdict on a checkpoint that nobody holds is one on the hosts that were asked: those of a later plan may hold it.
TEST(RecoveryOfCheckpoints, WhoHasNotFoundItKnowsInWhichEpoch) {
  World::Options options;
  options.size = 2;
  options.hosts = {0, 1};
  World world(options);
  load_all(world, {0, 1});
  take_all(world, 2);
  for (const int host : {0, 1}) world.kill_host(host);
  world.next_epoch({0, 1});
  const Epoch asked = world.engine(0).plan().epoch;
  world.load(0);
  // Asked in this epoch, looked at in the next.
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).loaded_in() == asked; }));
  world.next_epoch({});
  EXPECT_GT(world.engine(0).plan().epoch, asked);
  const auto state = world.checkpoints(0).loaded();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->status().code(), Code::kUnavailable);
  EXPECT_EQ(world.checkpoints(0).loaded_in(), asked);
}

// A process that is started again in a later version gets what its first life got, alone, while the others are in
// the middle of that version.
TEST(SetupRounds, AreKeptForLivesThatComeLater) {
  for (const bool two_hosts : {false, true}) {
    World::Options options;
    options.size = 3;
    if (two_hosts) options.hosts = {0, 1, 1};
    World world(options);
    load_all(world, {0, 1, 2});
    {
      Sum a(world, 0, "sketch", 1), b(world, 1, "sketch", 10), c(world, 2, "sketch", 100);
      ASSERT_TRUE(world.run([&] { return a.gives(111) && b.gives(111) && c.gives(111); }));
      // Again in the same life, whatever is given.
      Sum again(world, 1, "sketch", 77);
      ASSERT_TRUE(world.run([&] { return again.gives(111); }));
      EXPECT_EQ(world.engine(1).next_round(kWorldGroup).sequence, Sequence(0)) << "it takes no number";
    }
    for (int n = 0; n < 3; n++) take_all(world, 3);
    Sum a(world, 0, "", 2), b(world, 1, "", 20);
    (void)world.run([&] { return false; });
    ASSERT_FALSE(a.call.finished) << "rank 2 is missing";
    world.kill(2);
    world.next_epoch({2});
    load_all(world, {2});
    Sum setup(world, 2, "sketch", 5000);
    ASSERT_TRUE(world.run([&] { return setup.gives(111); })) << "the others are elsewhere";
    Sum c(world, 2, "", 200);
    ASSERT_TRUE(world.run([&] { return a.gives(222) && b.gives(222) && c.gives(222); }));
    // Twice: a rank that has it from the log, and one that has not called it in its new life.
    world.kill(0);
    world.kill(1);
    world.next_epoch({0, 1});
    load_all(world, {0, 1});
    Sum d(world, 0, "sketch", 1), e(world, 1, "sketch", 2);
    ASSERT_TRUE(world.run([&] { return d.gives(111) && e.gives(111); }));
    EXPECT_EQ(world.gaps, std::vector<std::string>());
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

TEST(SetupRounds, InterruptedOnesAreResumed) {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    std::mt19937 random(static_cast<unsigned>(seed));
    World::Options options;
    options.size = 3;
    options.hosts = {0, 1, 2};
    options.algorithm = schedule::Algorithm::kRing;
    World world(options);
    load_all(world, {0, 1, 2});
    std::vector<std::unique_ptr<Sum>> sums;
    for (int r = 0; r < 3; r++) sums.push_back(std::make_unique<Sum>(world, r, "big", 1u << r, 30'000));
    for (std::uint64_t steps = random() % 60; steps > 0; steps--) (void)world.step();
    const int lost = static_cast<int>(seed) % 3;
    world.kill(lost);
    sums[static_cast<std::size_t>(lost)].reset();
    world.next_epoch({lost});
    load_all(world, {lost});
    sums[static_cast<std::size_t>(lost)] = std::make_unique<Sum>(world, lost, "big", 1u << lost, 30'000);
    ASSERT_TRUE(world.run([&] { return sums[0]->gives(7) && sums[1]->gives(7) && sums[2]->gives(7); })) << seed;
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

// One rank's call of a sum of floats, whose bits show in which order it was made.
struct FloatSum {
  static constexpr std::size_t kCount = 4001;
  static std::vector<float> input(int rank) {
    std::vector<float> values(kCount);
    for (std::size_t i = 0; i < kCount; i++) values[i] = 1.0f / static_cast<float>(i * 16 + index(rank) * 3 + 1);
    return values;
  }
  // As the ring brackets it: a segment begins after its owner and ends with it.
  static std::vector<float> by(const std::vector<int>& order) {
    const std::size_t k = order.size();
    std::vector<std::vector<float>> in;
    for (const int rank : order) in.push_back(input(rank));
    std::vector<float> out;
    for (std::size_t owner = 0; owner < k; owner++) {
      const std::size_t end = out.size() + kCount / k + (owner < kCount % k ? 1 : 0);
      for (std::size_t i = out.size(); i < end; i++) {
        float sum = in[(owner + 1) % k][i];
        for (std::size_t next = 2; next <= k; next++) sum += in[(owner + next) % k][i];
        out.push_back(sum);
      }
    }
    return out;
  }
  FloatSum(World& world, int rank, GroupId group = kWorldGroup, const std::string& setup = "")
      : in(input(rank)), out(kCount, 0) {
    call.setup = setup;
    call.spec.collective = Collective::kAllreduce;
    call.spec.type = DataType::kF32;
    call.spec.op = ReduceOp::kSum;
    call.spec.input = in.data();
    call.spec.output = out.data();
    call.spec.count = kCount;
    submitted = world.engine(rank).submit(group, call);
  }
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::vector<float> in, out;
  Call call;
  Status submitted;
};

class RingOrder : public testing::Test {
 protected:
  static World::Options options() {
    World::Options options;
    options.size = 4;
    options.hosts = {0, 1, 2, 3};
    options.algorithm = schedule::Algorithm::kRing;
    return options;
  }
  // From program's version 1 on.
  static std::vector<Engine::RingOrder> order() {
    return {{version_of_program(1), {Rank(0), Rank(2), Rank(1), Rank(3)}}};
  }
  bool finish(const std::vector<std::unique_ptr<FloatSum>>& sums) {
    return world_.run([&] {
      return std::ranges::all_of(sums, [](const auto& s) { return s->call.finished && s->call.status.ok(); });
    });
  }
  std::vector<float> sum(const std::string& setup = "", GroupId group = kWorldGroup,
                         const std::vector<int>& ranks = {0, 1, 2, 3}) {
    std::vector<std::unique_ptr<FloatSum>> sums;
    for (const int r : ranks) sums.push_back(std::make_unique<FloatSum>(world_, r, group, setup));
    EXPECT_TRUE(finish(sums));
    for (const auto& s : sums) EXPECT_EQ(s->out, sums.front()->out);
    return sums.front()->out;
  }
  const std::vector<float> by_rank_ = FloatSum::by({0, 1, 2, 3}), by_order_ = FloatSum::by({0, 2, 1, 3});
  World world_{options()};
};

TEST_F(RingOrder, BeginsWithItsVersion) {
  ASSERT_NE(by_rank_, by_order_);
  world_.order(order());
  world_.next_epoch({});
  EXPECT_EQ(sum(), by_rank_) << "in the preamble";
  load_all(world_, {0, 1, 2, 3});
  EXPECT_EQ(sum(), by_rank_);
  EXPECT_EQ(sum(), by_rank_) << "by the schedule that was kept";
  take_all(world_, 4);
  EXPECT_EQ(sum(), by_order_) << "which is not kept over a version";
  EXPECT_EQ(sum("sketch"), by_rank_) << "set-up rounds are of no version";
  EXPECT_EQ(sum(), by_order_);
  for (int r = 1; r < 4; r++) ASSERT_TRUE(world_.engine(r).add_group(GroupId(7), {Rank(1), Rank(2), Rank(3)}, 1).ok());
  EXPECT_EQ(sum("", GroupId(7), {1, 2, 3}), FloatSum::by({2, 1, 3})) << "of those who are in a group";
  take_all(world_, 4);
  EXPECT_EQ(sum(), by_order_);
}

// A round that is interrupted, in the version before and in the first one that has the order.
TEST_F(RingOrder, IsTheSameInEveryAttemptOfARound) {
  load_all(world_, {0, 1, 2, 3});
  for (const bool in_force : {false, true}) {
    for (int steps = 5; steps < 60; steps += 7) {
      std::vector<std::unique_ptr<FloatSum>> sums;
      for (int r = 0; r < 4; r++) sums.push_back(std::make_unique<FloatSum>(world_, r));
      for (int i = 0; i < steps; i++) (void)world_.step();
      // The first of these plans is the one that names it.
      world_.order(order());
      world_.next_epoch({});
      ASSERT_TRUE(finish(sums));
      for (const auto& s : sums) ASSERT_EQ(s->out, in_force ? by_order_ : by_rank_) << steps;
    }
    if (!in_force) take_all(world_, 4);
  }
  EXPECT_EQ(world_.failures, std::vector<std::string>());
}

TEST(SetupRounds, OfEarlierTimelinesThoseOfThePlanAreInUse) {
  LinkTransport transport([](GroupId, Rank) {});
  RoundBoard board;
  Engine engine(transport, board);
  Engine::Plan p;
  p.epoch = Epoch(1);
  p.timeline = Timeline(3);
  p.self = Rank(0);
  p.chunk_bytes = 1 << 18;
  p.hosts = p.domains = {0};
  p.present = {Rank(0)};
  const auto name = [](std::uint64_t n) { return Sequence(kSetupBit | n); };
  p.setups = {{GroupId(4), name(7), Timeline(2), true, {}},
              {kWorldGroup, name(8), Timeline(3), false, {}},
              {kWorldGroup, name(9), Timeline(1), true, {}}};
  transport.open(p.epoch, 1, false);
  engine.install(p);
  const SetupsInUse in_use = engine.setups_in_use();
  const auto has = [&](std::uint32_t timeline, std::uint64_t group, std::uint64_t n) {
    return in_use.has({Timeline(timeline), GroupId(group), kPreamble, name(n)});
  };
  EXPECT_EQ(in_use.earlier.size(), 2u);
  EXPECT_TRUE(has(2, 4, 7) && has(1, 0, 9));
  EXPECT_FALSE(has(1, 4, 7)) << "begun in timeline 1, and again in 2";
  EXPECT_FALSE(has(2, 0, 7) || has(2, 0, 8));
  EXPECT_TRUE(has(3, 0, 8) && has(3, 4, 7)) << "in this timeline others may be in whatever they like";
}

constexpr std::uint64_t kHere = 111, kThere = 222;

// A world of two in its second version.
void begin_second_version(World& world) {
  load_all(world, {0, 1});
  take_all(world, 2);
}
// What rank's new life hears of its next round, if it calls from kHere; nullopt: nothing yet.
std::optional<bool> hears(World& world, int rank) {
  std::optional<bool> met;
  int looks = 0;  // it asks again and again
  (void)world.run([&] { return (met = world.engine(rank).take_answer()).has_value() || ++looks == 5000; });
  return met;
}

TEST(NextRound, IsWhatAnOlderLifeIsIn) {
  for (const std::uint64_t site : {kHere, kThere}) {
    World world({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
    begin_second_version(world);
    world.kill(1);
    world.next_epoch({1});
    load_all(world, {1});
    world.engine(1).ask_next({5, kHere});
    EXPECT_EQ(hears(world, 1), std::nullopt) << "rank 0 computes";
    EXPECT_TRUE(world.engine(1).asking());
    ASSERT_EQ(world.engine(1).describe_waits().size(), 1u);
    EXPECT_NE(world.engine(1).describe_waits()[0].find("waits for rank 0 to say which round"), std::string::npos);
    Sum a(world, 0, "", 1, 3000, site);
    ASSERT_EQ(hears(world, 1), site == kHere);
    Sum b(world, 1, "", 2, 3000, site);
    ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
  }
}

TEST(NextRound, IsNoneWhereAnOlderLifeHasEndedTheVersion) {
  World world({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(world);
  world.kill(1);
  world.next_epoch({1});
  load_all(world, {1});
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), std::nullopt);
  const std::uint64_t model = 6;
  ASSERT_TRUE(world.checkpoints(0).take(std::as_bytes(std::span(&model, 1)), nullptr).ok());
  EXPECT_EQ(hears(world, 1), false);
  // Or its program.
  World other({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(other);
  other.kill(1);
  other.next_epoch({1});
  load_all(other, {1});
  other.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(other, 1), std::nullopt);
  other.engine(0).end_rounds();
  EXPECT_EQ(hears(other, 1), false);
}

// What the log has of it was made, whoever is left.
TEST(NextRound, IsWhatTheLogHas) {
  World world({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(world);
  Sum a(world, 0, "", 1, 3000, kThere), b(world, 1, "", 2, 3000, kThere);
  ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
  for (const int lost : {1, 0}) {
    world.kill(lost);
    world.next_epoch({lost});
    load_all(world, {lost});
    world.engine(lost).ask_next({kHere});
    EXPECT_EQ(hears(world, lost), false) << "rank " << lost;
    Sum again(world, lost, "", 77, 3000, kThere);
    ASSERT_TRUE(world.run([&] { return again.gives(3); }));
  }
}

TEST(NextRound, IsMadeWhereAllAskAndNobodyKnows) {
  World world({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(world);
  world.kill(0);
  world.next_epoch({0});
  load_all(world, {0});
  world.engine(0).ask_next({kHere});
  EXPECT_EQ(hears(world, 0), std::nullopt) << "rank 1 is not new";
  world.kill(1);
  world.next_epoch({1});
  EXPECT_EQ(hears(world, 0), std::nullopt) << "rank 1 has not loaded";
  load_all(world, {1});
  EXPECT_EQ(hears(world, 0), std::nullopt) << "rank 1 computes";
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), true);
  EXPECT_EQ(hears(world, 0), std::nullopt) << "rank 1 has not begun it";
  Sum b(world, 1, "", 2, 3000, kHere);
  EXPECT_EQ(hears(world, 0), true);
  Sum a(world, 0, "", 1, 3000, kHere);
  ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
}

// Each would make its own, and a version with two different rounds of a number would be committed.
TEST(NextRound, IsAGapWhereNewProcessesAskForDifferentCalls) {
  World world({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(world);
  world.kill(0);
  world.next_epoch({0});
  load_all(world, {0});
  world.engine(0).ask_next({kHere});
  world.kill(1);
  world.next_epoch({1});
  load_all(world, {1});
  world.engine(1).ask_next({kThere});
  EXPECT_EQ(hears(world, 0), std::nullopt);
  EXPECT_EQ(hears(world, 1), std::nullopt);
  ASSERT_FALSE(world.gaps.empty());
  EXPECT_NE(world.gaps[0].find("no rank knows which call is round 1.0"), std::string::npos) << world.gaps[0];
  EXPECT_TRUE(world.gap_renumbers);
}

// Rank 0 was told that the round is another one, and who told it is lost: rank 1 must hear the same.
TEST(NextRound, WhatWasHeardStaysTrue) {
  World world({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(world);
  world.kill(0);
  world.next_epoch({0});
  load_all(world, {0});
  world.engine(0).ask_next({kHere});
  {
    Sum lost(world, 1, "", 2, 3000, kThere);
    EXPECT_EQ(hears(world, 0), false);
    world.kill(1);
  }
  world.next_epoch({1});
  load_all(world, {1});
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), false);
  // Also where both ask again: two set-up rounds follow each other.
  world.engine(0).ask_next({kHere});
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 0), false);
  EXPECT_EQ(hears(world, 1), false);
  Sum a(world, 0, "", 1, 3000, kThere), b(world, 1, "", 2, 3000, kThere);
  ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
}

// A sum of nothing and forty more, so that nobody remembers the first: by these ranks together, or from the log.
void make_rounds(World& world, const std::vector<int>& ranks) {
  for (int n = 0; n <= 40; n++) {
    std::vector<std::unique_ptr<Sum>> sums;
    for (const int r : ranks) {
      sums.push_back(std::make_unique<Sum>(world, r, "", 1, n == 0 ? 0 : 3, n == 0 ? kThere : 5));
    }
    ASSERT_TRUE(world.run([&] { return std::ranges::all_of(sums, [](auto& s) { return s->gives(2); }); })) << n;
  }
}

// Seen in its log's records alone, and those of a round without bytes nobody fetches: each who replays it logs it
// again, or they go with the segments of the dead.
TEST(NextRound, OfNoBytesIsKnownAfterItsMakersAreGone) {
  World world({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(world);
  make_rounds(world, {0, 1});
  world.kill(0);
  world.next_epoch({0});
  load_all(world, {0});
  make_rounds(world, {0});
  (void)world.run([&] { return false; });
  world.next_epoch({});
  ASSERT_TRUE(world.log(0).attached().empty()) << "nothing is needed of the dead life's";
  world.kill_host(1);
  world.next_epoch({1});
  load_all(world, {1});
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), false);
  make_rounds(world, {1});
  EXPECT_EQ(world.gaps, std::vector<std::string>());
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// I7: more was lost than there are copies. The process that asks must not do so for ever, while the others wait for it.
TEST(NextRound, ThatNobodyKnowsAnyMoreIsAGap) {
  World world({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(world);
  make_rounds(world, {0, 1});
  world.kill(1);
  world.next_epoch({1});
  load_all(world, {1});
  for (int r = 0; r < 2; r++) world.log(r).drop_below(world.engine(r).version().next());
  world.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(world, 1), std::nullopt);
  ASSERT_EQ(world.gaps.size(), 1u);
  EXPECT_NE(world.gaps[0].find("no host holds anything of round 1.0"), std::string::npos) << world.gaps[0];
  EXPECT_TRUE(world.gap_renumbers);
  // So is one of a version that the others have ended.
  World other({2, 2, {0, 1}, schedule::Algorithm::kAuto, 4096});
  begin_second_version(other);
  make_rounds(other, {0, 1});
  other.kill(1);
  other.next_epoch({1});
  load_all(other, {1});
  const std::uint64_t model = 6;
  ASSERT_TRUE(other.checkpoints(0).take(std::as_bytes(std::span(&model, 1)), nullptr).ok());
  for (int r = 0; r < 2; r++) other.log(r).drop_below(other.engine(1).version().next());
  other.engine(1).ask_next({kHere});
  EXPECT_EQ(hears(other, 1), std::nullopt);
  EXPECT_EQ(other.gaps.size(), 1u);
}

TEST(SetupRounds, AnotherCallUnderTheNameIsADesync) {
  World world({2, 2, {0, 0}, schedule::Algorithm::kAuto, 4096});
  Sum a(world, 0, "schema", 1), b(world, 1, "schema", 2);
  ASSERT_TRUE(world.run([&] { return a.gives(3) && b.gives(3); }));
  Sum other(world, 0, "schema", 1, 17);
  EXPECT_FALSE(world.run([&] { return other.call.finished.load(); }));
  ASSERT_FALSE(world.failures.empty());
  EXPECT_NE(world.failures[0].find("set-up round \"schema\""), std::string::npos) << world.failures[0];
}

TEST(SetupRounds, AreBounded) {
  World world({1, 1, {0}, schedule::Algorithm::kAuto, 4096});
  for (std::size_t n = 0; n < limits::kMaxSetups; n++) {
    Sum s(world, 0, "n" + std::to_string(n), 1, 1);
    ASSERT_TRUE(s.submitted.ok()) << s.submitted.describe();
    ASSERT_TRUE(world.run([&] { return s.gives(1); }));
  }
  Sum more(world, 0, "more", 1, 1);
  EXPECT_EQ(more.submitted.code(), Code::kExhausted);
  EXPECT_NE(more.submitted.describe().find("at most 1024"), std::string::npos) << more.submitted.describe();
  Sum known(world, 0, "n5", 9, 1);
  EXPECT_TRUE(world.run([&] { return known.gives(1); })) << "those that are known go on";
}

// Seed 93000102: a rank computed for long before its checkpoint, others waited for the commit of theirs, and nothing
// said so.
TEST(Checkpoint, AWaitForItsCommitNamesWhatIsLacking) {
  World::Options options;
  options.size = 2;
  options.hosts = {0, 1};
  World world(options);
  load_all(world, {0, 1});
  const std::uint64_t model = 5;
  const PlacedState state = std::as_bytes(std::span(&model, 1));
  ASSERT_TRUE(world.checkpoints(0).take(state, &state).ok());
  EXPECT_EQ(world.checkpoints(0).describe_wait(),
            "checkpoint waits until checkpoint 1 is committed: rank 0 lacks the local state of rank 1");
  ASSERT_TRUE(world.checkpoints(1).take(state, &state).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
}

// Rank 0 alone has a local state, so its vote waits for one of rank 1 that never comes: what they have given is told
// before.
TEST(Checkpoint, TheStateIsToldBeforeAVoteThatHasToWait) {
  World::Options options;
  options.size = 2;
  options.hosts = {0, 1};
  World world(options);
  load_all(world, {0, 1});
  const std::uint64_t model = 5;
  const PlacedState state = std::as_bytes(std::span(&model, 1));
  ASSERT_TRUE(world.checkpoints(0).take(state, &state).ok());
  ASSERT_TRUE(world.checkpoints(1).take(state, nullptr).ok());
  EXPECT_FALSE(world.checkpoints(0).take_vote());
  const auto word = world.checkpoints(0).take_state_word();
  ASSERT_TRUE(word);
  EXPECT_EQ(word->version, version_of_program(1));
  EXPECT_TRUE(word->state.has_local());
  EXPECT_FALSE(world.checkpoints(0).take_state_word()) << "once an epoch";
  EXPECT_FALSE(world.checkpoints(1).take_state_word()) << "it lacks nothing";
  const auto vote = world.checkpoints(1).take_vote();
  ASSERT_TRUE(vote);
  EXPECT_FALSE(vote->state.has_local());
  ASSERT_EQ(vote->state.hashes_size(), 1);
  EXPECT_EQ(vote->state.hashes(0), word->state.hashes(0));
  world.next_epoch({});
  EXPECT_TRUE(world.checkpoints(0).take_state_word()) << "votes of an epoch that is over count no more";
}

// Killed between a lazy checkpoint and the giving of its state: nothing is committed, and its next life gives it.
TEST(LazyCheckpoint, IsCommittedOnceAllHaveGivenTheirState) {
  World::Options options;
  options.size = 3;
  options.hosts = {0, 1, 2};
  World world(options);
  load_all(world, {0, 1, 2});
  const auto model = [](std::uint64_t value) { return std::vector<std::uint64_t>(500, value); };
  for (int r = 0; r < 3; r++) ASSERT_TRUE(world.checkpoints(r).take_later().ok());
  const auto first = model(1);
  for (int r = 0; r < 2; r++) ASSERT_TRUE(world.checkpoints(r).give_state(std::as_bytes(std::span(first))).ok());
  (void)world.run([&] { return false; });
  EXPECT_FALSE(world.checkpoints(0).may_take()) << "rank 2 owes its state";
  EXPECT_FALSE(world.checkpoints(2).may_take());
  world.kill(2);
  world.next_epoch({2});
  load_all(world, {2});
  EXPECT_EQ(world.engine(2).version(), version_of_program(0)) << "it starts from the beginning";
  ASSERT_TRUE(world.checkpoints(2).take_later().ok());
  ASSERT_TRUE(world.checkpoints(2).give_state(std::as_bytes(std::span(first))).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(2).may_take(); }));
  world.kill(1);
  world.next_epoch({1});
  world.load(1);
  std::optional<Result<Checkpoints::State>> state;
  ASSERT_TRUE(world.run([&] { return (state = world.checkpoints(1).loaded()).has_value(); }));
  ASSERT_TRUE(state->ok());
  EXPECT_EQ(state->value().version, 1u);
  const auto bytes = std::as_bytes(std::span(first));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), state->value().global.begin(), state->value().global.end()));
}

// While the tracker is away a rank takes one version after the other, as long as its log has room. What all have taken
// is committed when it is back, one after the other, and then one alone may be pending again.
TEST(PendingCheckpoints, WaitForATrackerThatIsAway) {
  World::Options options;
  options.size = 3;
  options.hosts = {0, 1, 2};
  options.segment_bytes = std::size_t{1} << 20;
  World world(options);
  load_all(world, {0, 1, 2});
  const auto model = [](std::uint64_t value) { return std::vector<std::uint64_t>(15'000, value); };
  const auto take = [&](int r) {
    const auto state = model(world.engine(r).version().value);
    return world.checkpoints(r).take(std::as_bytes(std::span(state)), nullptr);
  };
  ASSERT_TRUE(take(0).ok());
  EXPECT_FALSE(world.checkpoints(0).may_take());
  for (int r = 0; r < 3; r++) world.checkpoints(r).tracker_away(true);
  for (int r = 0; r < 2; r++) {
    while (world.checkpoints(r).may_take()) ASSERT_TRUE(take(r).ok());
    EXPECT_GT(world.checkpoints(r).pending(), 5u);
    EXPECT_GT(world.log(r).bytes_held(), options.segment_bytes / 2);
  }
  // Rank 2 comes later, and does not get so far.
  for (int i = 0; i < 4; i++) ASSERT_TRUE(take(2).ok());
  for (int r = 0; r < 3; r++) world.checkpoints(r).tracker_away(false);
  EXPECT_FALSE(world.checkpoints(2).may_take());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).newest_committed() == version_of_program(4); }));
  EXPECT_TRUE(world.checkpoints(2).may_take());
  EXPECT_FALSE(world.checkpoints(0).may_take());
  world.kill(1);
  world.next_epoch({1});
  world.load(1);
  std::optional<Result<Checkpoints::State>> state;
  ASSERT_TRUE(world.run([&] { return (state = world.checkpoints(1).loaded()).has_value(); }));
  ASSERT_TRUE(state->ok());
  EXPECT_EQ(state->value().version, 4u);
  const auto saved = model(version_of_program(3).value);
  const auto bytes = std::as_bytes(std::span(saved));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), state->value().global.begin(), state->value().global.end()));
  // The versions that rank 0 has taken are committed as the others come to them.
  for (const int r : {1, 2}) ASSERT_TRUE(take(r).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).newest_committed() == version_of_program(5); }));
}

// Rank 0's machine is lost when rank 1 has a copy of its local state, and its next life gives another one: their votes
// tell, and nobody who has both may mix them.
TEST(StateOfADeadLife, AVoteTellsOfWhichLocalStateARankHasACopy) {
  World::Options options;
  options.size = 3;
  options.hosts = {0, 1, 2};
  World world(options);
  load_all(world, {0, 1, 2});
  const std::vector<std::byte> global(1000, std::byte{1}), first(5000, std::byte{2}), second(5000, std::byte{3});
  const auto take = [&](int r, const std::vector<std::byte>& mine) {
    const PlacedState local = mine;
    ASSERT_TRUE(world.checkpoints(r).take(global, &local).ok());
  };
  for (const int r : {0, 1}) take(r, first);
  for (int i = 0; i < 3000; i++) (void)world.step();
  world.kill(0);
  world.move(0, 3);
  world.next_epoch({0});
  load_all(world, {0});
  take(0, second);
  const auto& votes = world.newest_votes;
  take(2, first);
  ASSERT_TRUE(world.run([&] { return votes.size() == 3; }));
  std::size_t copies = 0;
  for (const auto& [rank, vote] : votes) {
    for (const wire::LocalCopy& copy : vote.copies) {
      if (copy.rank() != 0) continue;
      ++copies;
      EXPECT_EQ(copy.hash(), hash_of_state(first));
    }
  }
  EXPECT_EQ(votes.at(0).local_hash, hash_of_state(second));
  EXPECT_EQ(copies, 1u);
}

// A sum in place of `count` times the rank's number, counted from one.
void submit_sum(World& world, int rank, Call& call, std::vector<std::uint64_t>& buffer, std::size_t count) {
  buffer.assign(count, static_cast<std::uint64_t>(rank) + 1);
  call.spec.collective = Collective::kAllreduce;
  call.spec.type = DataType::kU64;
  call.spec.op = ReduceOp::kSum;
  call.spec.input = call.spec.output = buffer.data();
  call.spec.count = count;
  const Status status = world.engine(rank).submit(kWorldGroup, call);
  ASSERT_TRUE(status.ok()) << status.describe();
}

// All of a state's bytes that this rank is to give, `step` at a time.
void give_parts(Checkpoints& checkpoints, StateKind kind, std::span<const std::byte> state, const Ranges& bytes,
                std::uint64_t step) {
  for (const Interval& i : bytes.intervals()) {
    for (std::uint64_t at = i.begin; at < i.end; at += step) {
      const Status status = checkpoints.give_part({kind, at, state.subspan(at, std::min(step, i.end - at))});
      ASSERT_TRUE(status.ok()) << status.describe();
    }
  }
}

// The states of all ranks come in parts, while the ranks are at the rounds of the next version.
TEST(CheckpointInParts, IsCommittedOnceAllPartsHaveCome) {
  World::Options options;
  options.size = 3;
  options.hosts = {0, 1, 2};
  World world(options);
  load_all(world, {0, 1, 2});
  const std::vector<std::uint64_t> model(5000, 7);
  const auto state = std::as_bytes(std::span(model));
  const auto local_of = [](int rank) { return std::vector<std::byte>(100, static_cast<std::byte>(rank + 1)); };
  Ranges shares[3];
  for (int r = 0; r < 3; r++) {
    shares[r] = world.checkpoints(r).share_of(state.size());
    EXPECT_LT(shares[r].size(), state.size());
    ASSERT_TRUE(world.checkpoints(r).take_in_parts(state.size(), 100, shares[r], StateHashes(state)).ok());
    EXPECT_EQ(world.engine(r).version(), version_of_program(1));
  }
  for (int r = 0; r < 2; r++) {
    give_parts(world.checkpoints(r), StateKind::kGlobal, state, shares[r], 4096);
    give_parts(world.checkpoints(r), StateKind::kLocal, local_of(r), Ranges(0, 100), 64);
  }
  give_parts(world.checkpoints(2), StateKind::kGlobal, state, shares[2], 1000);
  EXPECT_EQ(world.checkpoints(2).describe_wait(),
            "rank 2 waits for 100 bytes of checkpoint 1, which are on their way from a GPU to its log");
  Call calls[3];
  std::vector<std::uint64_t> buffers[3];
  for (int r = 0; r < 3; r++) submit_sum(world, r, calls[r], buffers[r], 1000);
  ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished && calls[2].finished; }));
  EXPECT_EQ(buffers[2], std::vector<std::uint64_t>(1000, 6));
  // Whoever lacks a part asks for it again and again.
  for (int i = 0; i < 10000; i++) (void)world.step();
  EXPECT_FALSE(world.checkpoints(0).may_take()) << "rank 2 has not given all";
  EXPECT_FALSE(world.checkpoints(2).may_take());
  give_parts(world.checkpoints(2), StateKind::kLocal, local_of(2), Ranges(0, 100), 100);
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(2).may_take(); }));
  world.kill(1);
  world.next_epoch({1});
  world.load(1);
  std::optional<Result<Checkpoints::State>> loaded;
  ASSERT_TRUE(world.run([&] { return (loaded = world.checkpoints(1).loaded()).has_value(); }));
  ASSERT_TRUE(loaded->ok());
  EXPECT_TRUE(std::equal(state.begin(), state.end(), loaded->value().global.begin(), loaded->value().global.end()));
  EXPECT_EQ(loaded->value().local, local_of(1));
}

// Rank 1 took its share under one plan and gives it under another, which wants all of the state from it.
TEST(CheckpointInParts, WhatAPlanWantsMoreIsPulled) {
  World::Options options;
  options.size = 3;
  options.hosts = {0, 0, 1};
  World world(options);
  load_all(world, {0, 1, 2});
  const std::vector<std::uint64_t> model(5000, 7);
  const auto state = std::as_bytes(std::span(model));
  const Ranges share = world.checkpoints(1).share_of(state.size());
  ASSERT_TRUE(world.checkpoints(1).take_in_parts(state.size(), std::nullopt, share, StateHashes(state)).ok());
  ASSERT_TRUE(world.checkpoints(2).take(state, nullptr).ok());
  world.kill(0);
  world.move(0, 1);
  world.next_epoch({0});
  EXPECT_EQ(world.checkpoints(1).share_of(state.size()), Ranges(0, state.size()));
  EXPECT_LT(share.size(), state.size());
  load_all(world, {0});
  ASSERT_TRUE(world.checkpoints(0).take(state, nullptr).ok());
  for (int i = 0; i < 10000; i++) (void)world.step();
  EXPECT_FALSE(world.checkpoints(0).may_take());
  give_parts(world.checkpoints(1), StateKind::kGlobal, state, share, 4096);
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
  EXPECT_EQ(world.copies({RecordKind::kGlobal, {Timeline(0), kWorldGroup, version_of_program(1), Sequence(0)}}), 2u);
}

TEST(CheckpointInParts, WithoutRoomForAPartItIsStillOwed) {
  World::Options options;
  options.size = 1;
  options.replicas = 1;
  options.segment_bytes = std::size_t{1} << 20;
  World world(options);
  load_all(world, {0});
  const std::vector<std::byte> state(std::size_t{2} << 20);
  ASSERT_TRUE(
      world.checkpoints(0).take_in_parts(state.size(), std::nullopt, Ranges(0, state.size()), StateHashes(state)).ok());
  const Status status = world.checkpoints(0).give_part({StateKind::kGlobal, 0, state});
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.describe().find("cannot take checkpoint 1"), std::string::npos) << status.describe();
  EXPECT_TRUE(world.checkpoints(0).owes_state());
  EXPECT_FALSE(world.checkpoints(0).may_take());
}

// Each form of a checkpoint tells the same of equal states.
TEST(CheckpointInParts, EqualStatesHaveEqualHashesHoweverTheyAreGiven) {
  World::Options options;
  options.size = 4;
  options.replicas = 1;
  World world(options);
  load_all(world, {0, 1, 2, 3});
  std::vector<std::byte> state((std::size_t{2} << 20) + 1000);
  for (std::size_t i = 0; i < state.size(); i++) state[i] = static_cast<std::byte>(i * 7 + i / 1000);
  const Ranges share = world.checkpoints(0).share_of(state.size());
  ASSERT_TRUE(world.checkpoints(0).take_in_parts(state.size(), std::nullopt, share, StateHashes(state)).ok());
  give_parts(world.checkpoints(0), StateKind::kGlobal, state, share, 4096);
  ASSERT_TRUE(world.checkpoints(1).take_later().ok());
  ASSERT_TRUE(world.checkpoints(1).give_state(state).ok());
  StateHashes begun(state.size());
  begun.add_outside(Ranges(1000, std::size_t{1} << 20), state);
  ASSERT_TRUE(world.checkpoints(2).take(state, nullptr, begun).ok());
  state[(std::size_t{2} << 20) + 10] ^= std::byte{1};
  ASSERT_TRUE(world.checkpoints(3).take(state, nullptr).ok());
  std::vector<wire::StateDigest> told;
  for (int r = 0; r < 4; r++) told.push_back(world.checkpoints(r).take_vote()->state);
  for (int r = 0; r < 4; r++) {
    ASSERT_EQ(told[static_cast<std::size_t>(r)].hashes_size(), 3) << r;
    EXPECT_EQ(told[static_cast<std::size_t>(r)].global_bytes(), state.size());
    EXPECT_EQ(told[static_cast<std::size_t>(r)].SerializeAsString() == told[0].SerializeAsString(), r != 3) << r;
  }
  EXPECT_EQ(told[3].hashes(1), told[0].hashes(1)) << "the first difference is in the last MiB";
  EXPECT_NE(told[3].hashes(2), told[0].hashes(2));
}

// Nothing comes of states that have no bytes, and they are committed.
TEST(CheckpointInParts, OfNothingIsCommittedAtOnce) {
  World::Options options;
  options.size = 2;
  options.hosts = {0, 1};
  World world(options);
  load_all(world, {0, 1});
  for (int r = 0; r < 2; r++) ASSERT_TRUE(world.checkpoints(r).take_in_parts(0, 0, {}, StateHashes()).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
}

// Three hosts, of which each byte of a state is on two.
class CheckpointFromRoot : public ::testing::Test {
 protected:
  CheckpointFromRoot() {
    World::Options options;
    options.size = 3;
    options.hosts = {0, 1, 2};
    world_.emplace(options);
    load_all(*world_, {0, 1, 2});
    for (std::size_t i = 0; i < state_.size(); i++) state_[i] = static_cast<std::byte>(i * 7 + i / 1000);
  }
  // `given`: what the rank gives; null: it is not the root.
  void take(int rank, const std::vector<std::byte>* given) {
    const std::vector<std::byte> mine(100, static_cast<std::byte>(rank + 1));
    const PlacedState local(mine), global(given != nullptr ? *given : mine);
    const Status status =
        world_->checkpoints(rank).take_from_root(given != nullptr ? &global : nullptr, &local, StateHashes(state_));
    ASSERT_TRUE(status.ok()) << status.describe();
    EXPECT_EQ(world_->engine(rank).version(), version_of_program(1));
  }
  bool committed() {
    return world_->run([&] {
      return std::ranges::all_of(std::array{0, 1, 2}, [&](int r) { return world_->checkpoints(r).may_take(); });
    });
  }
  // Kills a rank, whose next life loads.
  Checkpoints::State next_life(int rank) {
    world_->kill(rank);
    world_->next_epoch({rank});
    world_->load(rank);
    std::optional<Result<Checkpoints::State>> loaded;
    EXPECT_TRUE(world_->run([&] { return (loaded = world_->checkpoints(rank).loaded()).has_value(); }));
    EXPECT_TRUE(loaded->ok()) << loaded->status().describe();
    return loaded->ok() ? std::move(*loaded).value() : Checkpoints::State{};
  }

  std::optional<World> world_;
  std::vector<std::byte> state_ = std::vector<std::byte>(300'000);
  const RecordKey key_{RecordKind::kGlobal, {Timeline(0), kWorldGroup, version_of_program(1), Sequence(0)}};
};

TEST_F(CheckpointFromRoot, TheRootsBytesAreTheStateOfAll) {
  for (const int rank : {2, 0, 1}) take(rank, rank == 1 ? &state_ : nullptr);
  ASSERT_TRUE(committed());
  EXPECT_EQ(world_->log(1).reader()->held(key_), Ranges(0, state_.size()));
  for (const int rank : {0, 2}) EXPECT_LT(world_->log(rank).reader()->held(key_).size(), state_.size()) << rank;
  const auto loaded = next_life(1);
  EXPECT_EQ(loaded.version, 1u);
  EXPECT_EQ(loaded.global, state_) << "from the others' copies";
  EXPECT_EQ(loaded.local, std::vector<std::byte>(100, std::byte{2}));
}

TEST_F(CheckpointFromRoot, ARootThatIsKilledBeforeTheCommitGivesItAgain) {
  for (const int rank : {0, 2}) take(rank, nullptr);
  for (int i = 0; i < 10000; i++) (void)world_->step();
  EXPECT_FALSE(world_->checkpoints(0).may_take());
  EXPECT_EQ(next_life(1).version, 0u);
  take(1, &state_);
  ASSERT_TRUE(committed());
  EXPECT_EQ(next_life(0).global, state_);
}

// As a pickle of a set is, whose order is another one in each process.
TEST_F(CheckpointFromRoot, ARootWhoseNextLifeHasAnotherStateTakesTheJobBack) {
  for (const int rank : {0, 1, 2}) take(rank, rank == 1 ? &state_ : nullptr);
  EXPECT_EQ(next_life(1).version, 0u);
  std::vector<std::byte> other = state_;
  other[200'000] ^= std::byte{1};
  take(1, &other);
  const auto reader = world_->log(1).reader();
  const Ranges there = reader->held(key_);
  for (const Interval& i : there.intervals()) {
    std::vector<std::byte> held(i.end - i.begin);
    ASSERT_TRUE(reader->read(key_, i.begin, held));
    EXPECT_TRUE(std::ranges::equal(held, std::span(state_).subspan(i.begin, held.size())))
        << "what others had of the first state may come; nothing of the other one may be mixed with it";
  }
  const Status failure = world_->checkpoints(1).take_failure();
  EXPECT_EQ(failure.code(), Code::kUnavailable);
  EXPECT_NE(failure.describe().find("all ranks go back to the checkpoint before"), std::string::npos)
      << failure.describe();
  EXPECT_FALSE(world_->checkpoints(1).take_vote());
}

TEST_F(CheckpointFromRoot, AStateWithoutBytesIsCommitted) {
  state_.clear();
  for (const int rank : {0, 1, 2}) take(rank, rank == 1 ? &state_ : nullptr);
  ASSERT_TRUE(committed());
}

TEST_F(CheckpointFromRoot, ARootWhoseNextLifeHasAStateWhereTheOneBeforeHadNoneTakesTheJobBack) {
  const std::vector<std::byte> other = std::exchange(state_, {});
  for (const int rank : {0, 2}) take(rank, nullptr);
  take(1, &other);
  EXPECT_EQ(world_->checkpoints(1).take_failure().code(), Code::kUnavailable);
  EXPECT_FALSE(world_->checkpoints(1).take_vote());
}

// So that a group which is not among them has not been made (recovery/deadlock.h).
TEST(Blocked, TellsOfGroupsThatWereDestroyedInTheVersion) {
  World world(two_hosts());
  const auto destroy = [&](std::uint64_t id) {
    make_pair_group(world, 0, GroupId(id));
    world.engine(0).remove_group(GroupId(id));
  };
  make_pair_group(world, 0, GroupId(9));
  destroy(7);
  std::vector<std::uint64_t> buffer;
  Call call;
  submit_sum(world, 0, call, buffer, 1);
  std::optional<wire::Blocked> blocked;
  ASSERT_TRUE(world.run([&] { return (blocked = world.engine(0).blocked()).has_value(); }));
  EXPECT_TRUE(blocked->complete());
  std::vector<std::uint64_t> groups;
  for (const wire::BegunRounds& begun : blocked->begun()) groups.push_back(begun.group());
  EXPECT_EQ(groups, (std::vector<std::uint64_t>{0, 7, 9}));
  for (std::uint64_t id = 100; id < 100 + limits::kMaxBlockedGroups; id++) destroy(id);
  blocked = world.engine(0).blocked();
  ASSERT_TRUE(blocked);
  EXPECT_FALSE(blocked->complete()) << "there is no room for all of them";
  EXPECT_EQ(blocked->begun_size(), 2);
}

// The rest would be computed from an input that the final part has overwritten: no number then, but an error.
TEST(RecoveryAtItsLimits, WhatIsFinalAndNotLoggedIsNotComputedAgain) {
  World::Options options;
  options.size = 2;
  options.replicas = 1;
  options.hosts = {0, 1};
  options.algorithm = schedule::Algorithm::kTree;
  World world(options);
  std::vector<std::uint64_t> buffers[2];
  Call calls[3];
  const auto issue = [&](int rank, Call& call) { submit_sum(world, rank, call, buffers[rank], 100'000); };
  issue(0, calls[0]);
  issue(1, calls[1]);
  // Nothing fits into the log of the rank that gets the result from the other.
  const auto has_final = [&](int rank) { return std::count(buffers[rank].begin(), buffers[rank].end(), 3u) != 0; };
  ASSERT_TRUE(world.run([&] { return has_final(0) && has_final(1); }));
  const RecordKey sum{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(0), Sequence(0)}};
  const int owner = world.log(0).reader()->held(sum).empty() ? 1 : 0, other = 1 - owner;
  ASSERT_TRUE(world.log(other).reader()->held(sum).empty());
  ASSERT_FALSE(calls[other].finished);
  std::uint64_t filled = 0;
  for (const std::size_t size : {100'000, 1000, 1}) {
    const std::vector<std::byte> filling(size);
    RecordInfo info;
    info.fingerprint.collective = Collective::kPoint;
    info.fingerprint.type = DataType::kU8;
    info.total_bytes = size;
    const auto key = [&] {
      return RecordKey{RecordKind::kMessage, {Timeline(0), GroupId(1), Version(0), Sequence(filled++)}};
    };
    while (world.log(other).publish(key(), info, 0, filling).ok()) {
    }
  }
  world.kill_host(owner);
  world.next_epoch({owner});
  issue(owner, calls[2]);
  EXPECT_FALSE(world.run([&] { return calls[other].finished || calls[2].finished; }));
  ASSERT_FALSE(world.failures.empty());
  EXPECT_NE(world.failures[0].find("known here alone"), std::string::npos) << world.failures[0];
  EXPECT_NE(world.failures[0].find("cannot log round"), std::string::npos) << world.failures[0];
}

// A piece that an extent has no room for is two records, and its owner is killed between them: what is there of it is
// no piece, and nobody was sent anything of it.
TEST(RecoveryAtItsLimits, HalfAPieceInTheLogIsComputedAgain) {
  for (const auto algorithm : {schedule::Algorithm::kRing, schedule::Algorithm::kButterfly}) {
    for (const std::size_t half : {std::size_t{8}, std::size_t{1000}, std::size_t{1004}}) {
      World::Options options;
      options.algorithm = algorithm;
      World world(options);
      std::vector<std::uint64_t> buffers[3];
      Call calls[4];
      const auto issue = [&](int rank, Call& call) { submit_sum(world, rank, call, buffers[rank], 5000); };
      for (int r = 0; r < 3; r++) issue(r, calls[r]);
      const std::vector<std::uint64_t> sums(5000, 6);
      const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(0), Sequence(0)}};
      const RecordInfo info{calls[0].fingerprint, 40'000};
      ASSERT_TRUE(world.log(0).publish(key, info, 0, std::as_bytes(std::span(sums)).first(half)).ok());
      world.kill(0);
      world.next_epoch({0});
      issue(0, calls[3]);
      ASSERT_TRUE(world.run([&] { return calls[1].finished && calls[2].finished && calls[3].finished; }));
      for (const auto& buffer : buffers) EXPECT_EQ(buffer, sums);
      EXPECT_EQ(world.failures, std::vector<std::string>());
    }
  }
}

// The next round is one like any other.
TEST(RecoveryAtItsLimits, ARoundAfterAResumedOneTellsPlacesAgain) {
  World world({});
  std::vector<std::uint64_t> buffers[3];
  Call calls[7];
  const auto issue = [&](int rank, Call& call) { submit_sum(world, rank, call, buffers[rank], 5000); };
  for (int r = 0; r < 3; r++) issue(r, calls[r]);
  const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(0), Sequence(0)}};
  ASSERT_TRUE(world.run([&] { return !world.log(0).reader()->held(key).empty(); }));
  ASSERT_FALSE(calls[0].finished || calls[1].finished || calls[2].finished);
  world.kill(0);
  world.next_epoch({0});
  issue(0, calls[3]);
  ASSERT_TRUE(world.run([&] { return calls[1].finished && calls[2].finished && calls[3].finished; }));
  const std::size_t before = world.places_told();
  for (int r = 0; r < 3; r++) issue(r, calls[4 + r]);
  ASSERT_TRUE(world.run([&] { return calls[4].finished && calls[5].finished && calls[6].finished; }));
  EXPECT_GT(world.places_told(), before);
  for (const auto& buffer : buffers) EXPECT_EQ(buffer, std::vector<std::uint64_t>(5000, 6));
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// More pieces of results than a report may hold: what stands in this life's buffers is told, the rest computed again.
TEST(RecoveryAtItsLimits, AReportIsNeverTooLong) {
  World::Options options;
  options.size = 2;
  options.hosts = {0, 1};
  options.algorithm = schedule::Algorithm::kRing;
  World world(options);
  constexpr std::size_t kCount = 100'000;
  std::vector<std::uint64_t> buffers[2];
  Call calls[2];
  for (int r = 0; r < 2; r++) {
    buffers[r].assign(kCount, static_cast<std::uint64_t>(r) + 1);
    CallSpec& s = calls[r].spec;
    s.collective = Collective::kAllreduce;
    s.type = DataType::kU64;
    s.op = ReduceOp::kSum;
    s.input = s.output = buffers[r].data();
    s.count = kCount;
    ASSERT_TRUE(world.engine(r).submit(kWorldGroup, calls[r]).ok());
  }
  const auto finals = [&](int r) { return std::count(buffers[r].begin(), buffers[r].end(), 3u); };
  ASSERT_TRUE(world.run([&] { return finals(0) > 0 && finals(1) > 0; }));
  ASSERT_FALSE(calls[0].finished || calls[1].finished);
  // What another rank of the host has published of a round that this one has not entered.
  const GroupId other(77);
  for (int r = 0; r < 2; r++) ASSERT_TRUE(world.engine(r).add_group(other, {Rank(0), Rank(1)}, 1).ok());
  const RecordKey key{RecordKind::kRound, {Timeline(0), other, Version(0), Sequence(0)}};
  const std::vector<std::byte> piece(8);
  for (std::uint64_t i = 0; i < 20'000; i++) {
    ASSERT_TRUE(world.log(0).publish(key, {calls[0].fingerprint, 320'000}, 16 * i, piece).ok());
  }
  const auto ranges = [](const WorkerMachine::Standing& standing, GroupId group) {
    std::size_t n = 0;
    for (const wire::Position& p : standing.positions) n += GroupId(p.group()) == group ? p.final_size() : 0;
    return n;
  };
  const auto standing = world.engine(0).suspend();
  EXPECT_EQ(ranges(standing, other), 0u);
  EXPECT_GT(ranges(standing, kWorldGroup), 0u);
  world.next_epoch({});
  ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished; }));
  EXPECT_EQ(finals(0), static_cast<std::ptrdiff_t>(kCount));
  EXPECT_EQ(finals(1), static_cast<std::ptrdiff_t>(kCount));
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// Some ranks run small rounds step by step, others by the executor, and interrupts meet them anywhere.
class RecoveryOfLightRounds : public ::testing::TestWithParam<Collective> {};

TEST_P(RecoveryOfLightRounds, InterruptedOnesEndWithTheSameBytes) {
  std::size_t sent_at_once = 0;
  for (const int size : {2, 3, 5}) {
    for (std::uint64_t seed = 1; seed <= 16; seed++) {
      Case c;
      c.program = {GetParam(), seed % 5, 200, seed % 2 == 0 && GetParam() != Collective::kAllToAll};
      c.program.blocking = seed % 4 == 0 ? 0x15 : seed % 4 == 1 ? 0x0a : 0xff;
      c.world.size = size;
      const int hosts = seed % 3 == 0 ? 2 : 1;
      for (int r = 0; r < size; r++) c.world.hosts.push_back(r * hosts / size);
      c.world.pipes = seed % 5 != 0;
      c.most_steps = 60;
      c.sent_at_once = &sent_at_once;
      survive(c, seed, 6);  // a link
      c.lost = {static_cast<int>(seed) % size};
      survive(c, seed + 100, 6);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(sent_at_once, 3000u);
}

INSTANTIATE_TEST_SUITE_P(All, RecoveryOfLightRounds,
                         ::testing::Values(Collective::kAllreduce, Collective::kReduce, Collective::kBroadcast,
                                           Collective::kAllgather, Collective::kReduceScatter, Collective::kAllToAll,
                                           Collective::kReduceScatterv, Collective::kAllToAllv),
                         [](const auto& p) { return std::string(to_string(p.param)); });

class Recovery : public ::testing::TestWithParam<std::tuple<Collective, int, bool>> {};

TEST_P(Recovery, InterruptedRoundsEndWithTheSameBytes) {
  const auto [collective, hosts, in_place] = GetParam();
  if (in_place && collective == Collective::kAllToAll) return;  // is never in place
  for (const int size : {2, 3, 4}) {
    for (std::uint64_t seed = 1; seed <= 6; seed++) {
      Case c;
      c.program = {collective, seed % 2 == 0 ? 40u : 5000u, 3, in_place};
      c.world.size = size;
      for (int r = 0; r < size; r++) c.world.hosts.push_back(hosts == 1 ? 0 : r * hosts / size);
      c.world.pipes = seed % 3 != 0;
      survive(c, seed, 2);  // a link
      c.lost = {static_cast<int>(seed) % size};
      survive(c, seed + 100, 3);
      if (hosts > 1 && size >= hosts) {
        c.lost.clear();
        c.host_lost = static_cast<int>(seed) % hosts;
        survive(c, seed + 200, 1);
      }
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Recovery,
                         ::testing::Combine(::testing::Values(Collective::kAllreduce, Collective::kReduce,
                                                              Collective::kBroadcast, Collective::kAllgather,
                                                              Collective::kReduceScatter, Collective::kAllToAll),
                                            ::testing::Values(1, 2), ::testing::Bool()),
                         [](const auto& p) {
                           return std::string(to_string(std::get<0>(p.param))) + "_hosts" +
                                  std::to_string(std::get<1>(p.param)) + (std::get<2>(p.param) ? "_in_place" : "");
                         });

}  // namespace
}  // namespace warren::worker
