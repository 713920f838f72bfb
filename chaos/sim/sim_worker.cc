#include "chaos/sim/sim_worker.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "recovery/check.h"
#include "recovery/codec.h"
#include "recovery/fetch_codec.h"
#include "recovery/limits.h"
#include "worker/dead_segments.h"
#include "worker/disk/past.h"
#include "worker/logged.h"
#include "worker/plans.h"

namespace warren::chaos {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
// What C++20 deduces by itself, and Clang 14 does not.
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

constexpr std::byte kUntouched{0xa5}, kScribbled{0x5c};
constexpr std::size_t kMostOutstanding = 6;
constexpr std::size_t kLeastOnGpu = 16 << 10;  // bytes of a call's larger buffer
// Where somebody is slow on purpose.
constexpr Micros kStepUs = 30'000;
// One in so many states lies on a GPU.
constexpr std::uint64_t kEveryOnGpu = 3;
constexpr Micros kLookAtDrainUs = 20'000;
// Until worker/transport/knocks.h has found out that a process has gone, and again.
constexpr Micros kLookAtSendsUs = 900'000;
constexpr Micros kKnockUs = 100'000, kKnockSuspendedUs = 70'000;
// How long a caller looks before it sleeps. Odd ranks longer than it does in life, so that interrupts find them there.
constexpr Micros kSpinUs[] = {60, 1000};

Incarnation draw_incarnation(Random& random) {
  std::uint64_t v = 0;
  while (v == 0) v = random.next();
  return Incarnation(v);
}

std::string body_of(const wire::Envelope& e) {
  if (e.has_join()) return "Join of " + e.join().worker_id();
  if (e.has_heartbeat()) return "Heartbeat of epoch " + std::to_string(e.heartbeat().epoch());
  if (e.has_link_broken()) return "LinkBroken to rank " + std::to_string(e.link_broken().peer());
  if (e.has_round_failed()) return "RoundFailed: " + e.round_failed().reason();
  if (e.has_stopped()) return "Stopped " + std::to_string(e.stopped().epoch());
  if (e.has_report()) {
    return "Report " + std::to_string(e.report().epoch()) + describe_positions(e.report().positions());
  }
  if (e.has_load()) return "Load";
  if (e.has_vote()) return "Vote for " + std::to_string(e.vote().version());
  if (e.has_log_gap()) return "LogGap: " + e.log_gap().reason();
  if (e.has_leave()) {
    return e.leave().finalize()
               ? "Leave: finalize"
               : "Leave: " + e.leave().reason() +
                     (e.leave().serves_ms() == 0 ? ""
                                                 : ", serves for " + std::to_string(e.leave().serves_ms()) + " ms" +
                                                       describe_positions(e.leave().logged().positions()));
  }
  return "";
}

// As Session::held_on_disk.
std::optional<wire::Held> held_on(storage::ResultStore& store, const SimWorker::Options& options) {
  return worker::with_mirror(worker::past_on(store), options.mirror == nullptr ? std::nullopt : options.mirror->held());
}

// Opens the disk, and puts into the join what it holds.
std::unique_ptr<storage::FakeResultStore> open_disk(SimWorker::Options& options, Incarnation self) {
  if (!options.disk || options.join.settings().replicas() == 0) return nullptr;
  auto store = std::make_unique<storage::FakeResultStore>(options.disk, options.join.worker_id(), self);
  if (options.join.spare()) return store;
  auto held = held_on(*store, options);
  if (held) *options.join.mutable_held() = std::move(*held);
  return store;
}

// As Control::open: what the launcher has kept is attached before the join.
wire::Logged kept_by_launcher(const std::string& host, Hosts& hosts, Incarnation self) {
  const auto log = HostLog::create(self, heap_segment(std::size_t{64} << 10)).value();
  for (const Hosts::Segment& s : hosts.segments(host)) {
    if (s.life == self || !s.kept) continue;
    WARREN_CHECK(log->attach(s.life, s.memory->bytes(), s.memory).ok(), "a kept segment is one");
  }
  return worker::kept_in(*log);
}

wire::Join join_of(const SimWorker::Options& options, Hosts& hosts, Incarnation self) {
  wire::Join join = options.join;
  if (join.settings().replicas() == 0 || join.spare()) return join;
  auto logged = kept_by_launcher(join.host_id(), hosts, self);
  if (!worker::says_nothing(logged)) *join.mutable_logged() = std::move(logged);
  return join;
}

}  // namespace

SimWorker::SimWorker(World& world, Judge& judge, DataNetwork& network, Hosts& hosts, const Program& program,
                     Links links, Options options)
    : world_(world),
      judge_(judge),
      program_(program),
      links_(std::move(links)),
      options_(std::move(options)),
      self_(draw_incarnation(world.random)),
      store_(open_disk(options_, self_)),
      machine_({options_.job, self_, join_of(options_, hosts, self_), options_.join_timeout_ms, "tracker:9370",
                options_.follows}),
      transport_(network, *this, self_),
      engine_(transport_, board_),
      hosts_(hosts),
      progress_(sample_interval_ms(static_cast<std::int64_t>(options_.join.settings().round_timeout_ms()))) {
  if (options_.has_gpu) {
    const auto timeout_us = static_cast<Micros>(options_.join.settings().round_timeout_ms()) * 1000;
    gpu_.emplace(world_, timeout_us, options_.gpu_stalls, [this] { data_moved(); });
    shares_.emplace(*gpu_, !world_.random.chance(0.05));
    combines_.emplace(*gpu_, *shares_);
    engine_.use(*combines_);
  }
  if (options_.nccl != nullptr) {
    const auto& settings = options_.join.settings();
    exchange_.emplace(*gpu_, *options_.nccl, static_cast<Micros>(settings.round_timeout_ms()) * 1000,
                      settings.checksums(), options_.nccl_fails);
    engine_.use(*exchange_);
  }
  if (options_.join.settings().replicas() == 0) return;
  segment_ = heap_segment(options_.log_bytes);
  host_log_ = HostLog::create(self_, segment_).value();
  if (store_) host_log_->spill_by([this] { return spill(); });
  host_log_->give_up_but([this](const RecordKey& record) { return engine_.needs(record); });
  host_log_->watch({{}, [this] { judge_.gives_up(*host_log_->gives_up()); }});
  shown_ = world_.is(Mutant::publishes_late) ? heap_segment(options_.log_bytes) : segment_;
  hosts_.add(host(), self_, shown_, options_.launcher_keeps_log);
  served_ = reader();
  recall_.emplace(
      *host_log_, reader(), [this] { return world_.now(); },
      [this](const worker::Replayer::Send& send) { links_.fetch(send); });
  engine_.use(*recall_);
  checkpoints_.emplace(engine_, *recall_);
}

// Calls under way hold themselves until they end.
SimWorker::~SimWorker() {
  if (gpu_) gpu_->vanish();
  if (installed_) engine_.stop(Status(Code::kClosed, "the run is over"));
  end_prepares();
}

// ---- the disk, as in worker/disk and storage/write_behind.h

std::unique_ptr<HostLogReader> SimWorker::reader() const {
  auto memory = host_log_->reader();
  return store_ ? storage::combined_reader(std::move(memory), store_->reader()) : std::move(memory);
}

void SimWorker::leave_to_later_lives(const wire::Plan& plan) {
  store_->belong(plan.run());
  (void)store_->set_others_aside();
  const wire::Known before = std::exchange(known_, worker::known_of(plan));
  const bool first = before.epoch() == 0;
  if (worker::leaves_host(before.plan(), plan, rank_)) store_->refresh(worker::lives_of(plan));
  (void)store_->note(worker::note_of(known_));
  if (first) write_behind();
}

// Written now and durable some time later, again and again.
void SimWorker::write_behind() {
  later(world_.random.between(1000, 60'000), [this] {
    if (!store_) return;
    write_to_disk();
    later(world_.random.between(100, 20'000), [this] {
      if (!store_) return;
      (void)store_->confirm();
      unconfirmed_ = false;
      write_behind();
    });
  });
}

void SimWorker::write_to_disk() {
  storage::RecordBatch batch(options_.log_bytes);
  const SegmentView view = SegmentView::open(segment_->bytes(), self_).value();
  (void)view.for_each_record([&](std::uint32_t extent, std::uint64_t generation, const SegmentView::Record& r) {
    const bool result = r.key.kind == RecordKind::kRound || r.key.kind == RecordKind::kMessage;
    if (result && options_.disk_takes_states_alone) return true;
    if (!written_.insert(storage::encode_key(r.key, r.first_byte, r.payload_bytes)).second) return true;
    const auto out = batch.add(r.key, r.info, r.first_byte, r.payload_bytes);
    WARREN_CHECK(view.copy(extent, generation, r.payload_at, out), "nobody drops meanwhile");
    return true;
  });
  if (batch.empty()) return;
  unconfirmed_ = true;
  store_->write(batch);
}

// As WriteBehind::spill().
Result<std::vector<ExtentUse>> SimWorker::spill() {
  if (!store_) return Status(Code::kClosed, "this life has ended");
  if (options_.disk_takes_states_alone) return Status(Code::kExhausted, "the disk has no room for results");
  write_to_disk();
  if (Status s = store_->confirm(); !s.ok()) {
    judge_.excuse_rollback();
    return s;
  }
  unconfirmed_ = false;
  std::vector<std::pair<SegmentClass, ExtentUse>> durable;
  const SegmentView view = SegmentView::open(segment_->bytes(), self_).value();
  for (std::uint32_t e = 0; e < view.layout().extents; ++e) {
    const SegmentView::Extent extent = view.extent(e);
    bool stays = !extent.in_use() || !extent.sealed || extent.cls.setup;
    SegmentView::Record r;
    for (std::uint64_t at = 0; !stays && view.record(e, extent.generation, at, r) == SegmentView::Found::kRecord;
         at = r.next) {
      stays = r.key.kind == RecordKind::kGlobal || r.key.kind == RecordKind::kLocal;
    }
    if (!stays) durable.push_back({extent.cls, {e, extent.generation}});
  }
  std::ranges::stable_sort(durable, {}, [](const auto& d) { return d.first; });
  std::vector<ExtentUse> out;
  for (const auto& [cls, use] : durable) {
    if (out.size() < 4) out.push_back(use);
  }
  judge_.spilled();
  return out;
}

bool SimWorker::disk_is_current() const {
  if (!store_) return true;
  if (unconfirmed_ || options_.disk_takes_states_alone) return false;
  const SegmentView view = SegmentView::open(segment_->bytes(), self_).value();
  return view.for_each_record([&](std::uint32_t, std::uint64_t, const SegmentView::Record& r) {
    return written_.contains(storage::encode_key(r.key, r.first_byte, r.payload_bytes));
  });
}

// The process has gone: what it had written and not confirmed may be there.
void SimWorker::close_disk() {
  if (!store_) return;
  store_.reset();
  const auto life = options_.disk->lives.find(self_.value);
  if (life == options_.disk->lives.end()) return;
  for (auto& [key, record] : life->second.unsynced) {
    if (world_.random.chance(0.5)) life->second.durable.insert({key, std::move(record)});
  }
  life->second.unsynced.clear();
}

// Behind a commit: of those that come meanwhile, the newest.
void SimWorker::mirror(const worker_effect::Committed& what) {
  wire::Known known = known_;
  known.clear_setups();
  known.mutable_plan()->clear_setups();
  later(world_.random.between(100, 50'000), [this, what, note = worker::note_of(known), number = ++mirrored_] {
    if (number == mirrored_ && store_) options_.mirror->write(note, what.timeline, what.version, rank_, *served_);
  });
}

// As Session::load_from_mirror.
void SimWorker::load_from_mirror(std::optional<Result<worker::Checkpoints::State>>& result) {
  const SimMirror::State* state = options_.mirror->find(load_from_.timeline, load_from_.version);
  if (state == nullptr) return;
  std::vector<std::byte> local;
  if (state->has_local) local = state->locals.at(static_cast<std::uint32_t>(rank_.value));
  const Status status =
      checkpoints_->restore(load_from_, {0, settings_.world_size(), state->global, std::move(local)}, state->has_local);
  if (!status.ok()) return world_.violated("I5", describe() + ": " + status.describe());
  if (world_.keeps_transcript()) world_.tell(describe() + " has loaded from the mirror");
  result = checkpoints_->loaded();
}

std::string SimWorker::describe() const {
  return "life " + std::to_string(options_.life) + " (" + worker_id() +
         (installed_ ? ", rank " + std::to_string(rank_.value) + " in epoch " + std::to_string(plan_epoch_.value)
                     : "") +
         ")";
}

void SimWorker::later(Micros delay_us, std::function<void()> what) {
  world_.after(delay_us, [this, what = std::move(what)]() mutable {
    if (!alive_) return;
    if (world_.now_us() < stands_still_until_us_) {
      return later(stands_still_until_us_ - world_.now_us(), std::move(what));
    }
    what();
  });
}

// ---- control, as in worker/control.cc

void SimWorker::start() {
  alive_ = true;
  if (world_.keeps_transcript()) world_.tell(describe() + " starts");
  if (shown_ != segment_) show_segment();
  std::vector<WorkerEffect> effects;
  machine_.start(world_.now(), effects);
  run_effects(std::move(effects));
  sample();
}

void SimWorker::receive(const std::string& bytes) {
  if (!alive_) return;
  auto envelope = decode_envelope(std::as_bytes(std::span(bytes.data(), bytes.size())), Side::kTracker);
  if (envelope.ok() && envelope.value().receiver() == self().value) {
    told_epoch_ = std::max(told_epoch_, Epoch(envelope.value().plan().epoch()));
    told_commit_ = std::max({told_commit_, Version(envelope.value().committed().version()),
                             Version(envelope.value().plan().committed_version())});
  }
  if (world_.now_us() < stands_still_until_us_) {
    return later(stands_still_until_us_ - world_.now_us(), [this, bytes] { receive(bytes); });
  }
  std::vector<WorkerEffect> effects;
  if (envelope.ok()) {
    machine_.on_message(envelope.value(), world_.now(), effects);
  } else {
    machine_.on_connection_trouble(envelope.status().describe(), world_.now(), effects);
  }
  run_effects(std::move(effects));
}

void SimWorker::connection_trouble(const std::string& what) {
  later(0, [this, what] {
    std::vector<WorkerEffect> effects;
    machine_.on_connection_trouble(what, world_.now(), effects);
    run_effects(std::move(effects));
  });
}

void SimWorker::arm() {
  auto deadline = machine_.next_deadline();
  if (recall_) {
    if (const auto d = recall_->next_deadline(); d && (!deadline || *d < *deadline)) deadline = d;
  }
  if (!deadline || !alive_) return;
  const Micros at = std::max(deadline->value * 1000, world_.now_us());
  if (armed_us_ && *armed_us_ <= at) return;
  armed_us_ = at;
  later(at - world_.now_us(), [this] { on_timer(); });
}

void SimWorker::on_timer() {
  armed_us_.reset();
  const auto deadline = machine_.next_deadline();
  std::vector<WorkerEffect> effects;
  if (deadline && *deadline <= world_.now()) {
    set_progress();
    machine_.on_tick(world_.now(), effects);
  }
  if (recall_) {
    if (const auto d = recall_->next_deadline(); d && *d <= world_.now()) {
      recall_->on_tick();
      (void)engine_.drain_recalls();
      if (doomed_) return links_.doomed();
      look_at_checkpoints();
      data_moved();
    }
  }
  run_effects(std::move(effects));
}

void SimWorker::set_progress() {
  WorkerMachine::Progress progress = progress_.read(board_, world_.now());
  if (progress.activity && world_.is(Mutant::idle_told_as_work) && world_.straggler() &&
      rank_.value == (world_.straggler()->rank.value + 1) % static_cast<std::int32_t>(settings_.world_size())) {
    wire::Activity& a = *progress.activity;
    a.set_outside_ms(a.outside_ms() + a.idle_ms());
    a.set_idle_ms(0);
    for (wire::LinkActivity& l : *a.mutable_links()) {
      l.set_awaited_ms(0);
      l.set_blocked_ms(0);
    }
  }
  if (progress.activity && world_.is(Mutant::ends_swapped)) {
    for (wire::LinkActivity& l : *progress.activity->mutable_links()) {
      const std::uint32_t awaited_ms = l.awaited_ms();
      l.set_awaited_ms(l.blocked_ms());
      l.set_blocked_ms(awaited_ms);
    }
  }
  machine_.set_progress(std::move(progress));
}

// As Control::loop.
void SimWorker::sample() {
  if (machine_.state() == WorkerMachine::State::kMember) progress_.sample(board_, world_.now());
  later(sample_interval_ms(static_cast<std::int64_t>(options_.join.settings().round_timeout_ms())) * 1000,
        [this] { sample(); });
}

// What Session::sleep shows when nothing moves.
void SimWorker::rest() {
  if (!alive_ || engine_.stopped()) return;
  if (engine_.has_unposted()) return spin();
  if (opened_) engine_.publish_waits();
  board_.asleep.store(engine_.outstanding() > 0 || loading_ || waits_for_commit_ || leaving_ ? 1 : 0);
  show_blocked();
}

// A heartbeat says which calls a program waits in, as Session tells it.
void SimWorker::show_blocked() {
  const bool waits = std::ranges::any_of(calls_, [](const auto& c) { return !c->reaped && c->step.blocking; });
  if (waits && world_.now_us() >= next_look_at_sends_us_) {
    next_look_at_sends_us_ = world_.now_us() + kLookAtSendsUs;
    if (!engine_.end_waiting_sends().empty()) data_moved();
  }
  const bool may_call = !waits || computing_ || loading_ || waits_for_commit_ || leaving_ || exiting_ || !opened_;
  auto blocked = may_call ? std::nullopt : engine_.blocked();
  const auto shown = board_.blocked();
  if (!blocked) {
    if (shown != nullptr) board_.show_blocked(nullptr);
  } else if (shown == nullptr || shown->SerializeAsString() != blocked->SerializeAsString()) {
    board_.show_blocked(std::make_shared<const wire::Blocked>(std::move(*blocked)));
  }
}

// What Session::drive does before it sleeps.
void SimWorker::spin() {
  if (std::exchange(spins_, true)) return;
  later(kSpinUs[rank_.value % 2], [this] {
    spins_ = false;
    if (!engine_.post_all()) return;
    if (doomed_) return links_.doomed();
    data_moved();
  });
}

bool SimWorker::passes(KillPoint point) {
  if (doomed_ || !alive_) return true;
  doomed_ = links_.killed_at(point, passages_[static_cast<std::size_t>(point)]++);
  return doomed_;
}

bool SimWorker::dies_at_send() {
  if (doomed_ || !alive_) return true;
  if (!passes(KillPoint::kSend)) return false;
  // What else this step logs never happened.
  if (segment_) at_death_.assign(segment_->bytes().begin(), segment_->bytes().end());
  return true;
}

// Commands to the control thread, in their order.
void SimWorker::post(std::function<void(std::vector<WorkerEffect>&)> command) {
  commands_.push_back(std::move(command));
  if (commands_.size() > 1) return;
  later(world_.random.between(0, 100), [this] {
    while (!commands_.empty() && alive_) {
      const auto next = std::move(commands_.front());
      std::vector<WorkerEffect> effects;
      next(effects);
      run_effects(std::move(effects));
      commands_.pop_front();
    }
  });
}

void SimWorker::run_effects(std::vector<WorkerEffect> effects) {
  machine_.check_invariants();
  for (std::size_t i = 0; i < effects.size() && alive_ && !world_.failed(); ++i) {
    if (passes(KillPoint::kEffect)) return links_.doomed();
    std::vector<WorkerEffect> more;
    const WorkerEffect effect = effects[i];
    carry_out(effect, i + 1 == effects.size(), more);
    effects.insert(effects.begin() + static_cast<std::ptrdiff_t>(i) + 1, more.begin(), more.end());
  }
  if (alive_ && machine_.state() == WorkerMachine::State::kServing && !serving_) {
    serving_ = true;
    links_.serves();
  }
  if (alive_) arm();
}

void SimWorker::carry_out(const WorkerEffect& effect, bool last, std::vector<WorkerEffect>& more) {
  std::visit(
      Overloaded{
          [&](const worker_effect::Send& e) {
            if (world_.keeps_transcript() && !e.envelope.has_heartbeat()) {
              world_.tell(describe() + " → tracker: " + body_of(e.envelope));
            }
            links_.send(encode(e.envelope, Side::kWorker));
          },
          [&](const worker_effect::Install& e) { install(e.plan); },
          [&](const worker_effect::StopDataPath& e) {
            if (world_.is(Mutant::stopped_before_stop)) {
              machine_.on_stopped(e.epoch, engine_.standing(), world_.now(), more);
              return later(world_.random.between(1000, 50'000),
                           [this, why = e.why, resume = e.resume, epoch = plan_epoch_] {
                             if (epoch == plan_epoch_) (void)stop_engine(why, resume);
                           });
            }
            if (last && world_.strikes(Fault::slow_stop)) {
              const bool twice = world_.random.chance(0.3);
              return later(world_.random.between(100, 100'000), [this, e, twice] {
                const auto standing = stop_engine(e.why, e.resume);
                std::vector<WorkerEffect> effects;
                machine_.on_stopped(e.epoch, standing, world_.now(), effects);
                if (twice) machine_.on_stopped(e.epoch, standing, world_.now(), effects);
                run_effects(std::move(effects));
              });
            }
            machine_.on_stopped(e.epoch, stop_engine(e.why, e.resume), world_.now(), more);
          },
          [&](const worker_effect::Loaded& e) {
            judge_.loaded(e.committed ? std::optional(e.version) : std::nullopt, e.timeline);
            worker_effect::Loaded what = e;
            if (world_.is(Mutant::reuses_names)) what.timeline = Timeline(0);
            load_from_ = what;
            if (checkpoints_->has_followed(what)) judge_.loaded_followed();
            checkpoints_->load(what);
            look_at_checkpoints();
            data_moved();
          },
          [&](const worker_effect::TrackerAway& e) {
            if (checkpoints_) checkpoints_->tracker_away(e.away);
            data_moved();
          },
          [&](const worker_effect::Committed& e) {
            judge_.told_committed(e.version, e.timeline);
            committed_ = e;
            if (checkpoints_) {
              checkpoints_->committed(e.version, e.timeline);
              if (store_) {
                known_.set_committed(true);
                known_.set_committed_version(e.version.value);
                known_.set_committed_timeline(e.timeline.value);
                (void)store_->note(worker::note_of(known_));
                (void)store_->drop(
                    {engine_.oldest_timeline(), e.version, {{e.timeline, e.version}}, engine_.setups_in_use()});
                if (options_.mirror != nullptr) mirror(e);
              }
              if (opened_) look_at_dead_segments();
            }
            data_moved();
          },
          [&](const worker_effect::Fail& e) { fail(e); },
          [&](const worker_effect::Spare& e) {
            if (e.looked) later(world_.random.between(50, 5000), [this] { begin_again(); });
          },
          [&](const worker_effect::Follow& e) { follow(e); },
          [&](const worker_effect::Drain& e) {
            if (!world_.is(Mutant::stays_when_asked)) later(0, [this, e] { leave_by(e.by.value * 1000); });
          },
          [&](const worker_effect::Serve& e) { serve(e.plan); },
          [&](const worker_effect::Left&) { leave_place(); },
          [&](const worker_effect::Called& e) { later(world_.random.between(50, 20'000), [this, e] { look(e); }); },
          [&](const worker_effect::Finished&) {
            finished_ = true;
            if (store_) (void)store_->finish();
            store_.reset();
            (void)stop_engine(Status(Code::kClosed, "the communicator has been finalized"), false);
            later(world_.random.between(0, 2000), [this] { exit(End::kFinished, Status()); });
          },
          [&](const worker_effect::Log& e) {
            judge_.sign();
            if (world_.keeps_transcript()) world_.tell(describe() + ": " + e.event.name + ": " + e.event.text);
          },
      },
      effect);
}

// ---- the data path, as in worker/session.cc

void SimWorker::install(const wire::Plan& plan) {
  judge_.installed(plan, self_, worker_id());
  if (world_.failed()) return;
  SimTransport::Membership membership;
  membership.epoch = Epoch(plan.epoch());
  present_.clear();
  for (const wire::Member& m : plan.members()) {
    membership.lives.emplace_back(m.incarnation());
    if (!m.absent()) present_.emplace_back(m.incarnation());
    if (m.incarnation() == self_.value) rank_ = Rank(static_cast<std::int32_t>(m.rank()));
  }
  membership.self = rank_;
  lives_ = membership.lives;
  hosts_of_ranks_.clear();
  for (const wire::Member& m : plan.members()) hosts_of_ranks_.push_back(m.host_id());
  settings_ = plan.settings();
  membership.streams = settings_.streams();
  membership.checksums = settings_.checksums();
  membership.timeout_ms = static_cast<std::int64_t>(settings_.round_timeout_ms());
  for (const wire::Detour& d : plan.detours()) {
    std::vector<Rank>& relays =
        membership.relays[{Rank(static_cast<std::int32_t>(d.a())), Rank(static_cast<std::int32_t>(d.b()))}];
    for (const std::uint32_t relay : d.relays()) relays.emplace_back(static_cast<std::int32_t>(relay));
  }
  plan_epoch_ = membership.epoch;
  progress_.restart();
  epochs_.insert(plan_epoch_);
  worker::Engine::Plan p = worker::engine_plan(plan, rank_);
  frontier_.assign(plan.frontier().begin(), plan.frontier().end());
  setups_done_.clear();
  for (const wire::Setup& setup : plan.setups()) {
    if (setup.done()) setups_done_.emplace(GroupId(setup.group()), Sequence(setup.name()));
  }
  const Timeline before = std::exchange(timeline_, p.timeline);
  mutate(p);
  transport_.open(std::move(membership));
  if (store_) leave_to_later_lives(plan);
  if (recall_) {
    for (const Hosts::Segment& s : hosts_.segments(host())) map_segment(s.life, s.memory);
    worker::Replayer::Plan replay = worker::replay_plan(plan, rank_);
    if (world_.is(Mutant::server_is_a_copy)) {
      for (worker::Replayer::Peer& peer : replay.peers) peer.server = false;
    }
    recall_->install(replay);
  }
  if (world_.is(Mutant::mixes_attempts) && installed_ && before < timeline_) mix_attempts(before, timeline_);
  for (auto& a : calls_) {
    if (a->reaped || a->shadow.empty()) continue;
    std::memcpy(a->shadow.data(), a->bytes().data() + a->out_at, a->shadow.size());
  }
  engine_.install(p);
  if (checkpoints_) {
    checkpoints_->install();
    look_at_checkpoints();
  }
  stopped_ = false;
  for (auto& a : calls_) {
    if (a->reaped || a->call->round.group.value != program_.groups()[a->step.group].id.value) continue;
    const RoundId& round = a->call->round;
    a->to_be_run = a->to_be_run || !in_log(round);
  }
  if (!installed_) {
    order_ = program_.order_of(rank_);
    group_made_.assign(program_.groups().size(), false);
    group_made_[0] = true;
  }
  installed_ = true;
  if (behind()) links_.recovers();
  give_segment();
}

void SimWorker::mutate(worker::Engine::Plan& plan) {
  if (world_.is(Mutant::one_copy_short) && plan.replicas > 1) --plan.replicas;
  if (world_.is(Mutant::reuses_names)) {
    plan.timeline = Timeline(0);
    for (worker::Engine::Setup& s : plan.setups) s.timeline = Timeline(0);
  }
  if (world_.is(Mutant::order_at_once) && !plan.orders.empty()) plan.orders.back().from = version_of_program(0);
  if (world_.is(Mutant::finals_of_own_host) && recall_) {
    for (worker::Engine::Frontier& f : plan.frontier) {
      if (f.final.empty()) continue;
      f.final = recall_->reader().held({RecordKind::kRound, {plan.timeline, f.group, f.version, Sequence(f.rounds)}});
    }
  }
}

// Mutant::mixes_attempts.
void SimWorker::mix_attempts(Timeline before, Timeline now) {
  const Version version = engine_.version();
  const Sequence next(frontier_rounds(kWorldGroup, version));
  const RecordKey old{RecordKind::kRound, {before, kWorldGroup, version, next}};
  RecordKey mixed = old;
  mixed.round.timeline = now;
  const auto info = recall_->reader().info(old);
  if (!info.ok() || !info.value()) return;
  const Ranges held = recall_->reader().held(old);
  for (const Interval& i : held.intervals()) {
    std::vector<std::byte> bytes(i.end - i.begin);
    if (recall_->reader().read(old, i.begin, bytes)) (void)recall_->log().publish(mixed, *info.value(), i.begin, bytes);
  }
}

std::shared_ptr<const SegmentView> SimWorker::log_of(Rank rank) {
  const auto lives = transport_.lives();
  return host_log_ ? host_log_->segment_of(lives[static_cast<std::size_t>(rank.value)]) : nullptr;
}

// Mutant::publishes_late.
void SimWorker::show_segment() {
  std::copy(segment_->bytes().begin(), segment_->bytes().end(), shown_->bytes().begin());
  later(world_.random.between(50, 3000), [this] { show_segment(); });
}

// Every rank of the host can read this life's log before anything of it moves.
void SimWorker::give_segment() {
  const auto opens = [this] {
    later(world_.random.between(0, 300), [this, epoch = plan_epoch_] {
      if (epoch == plan_epoch_ && !stopped_) open();
    });
  };
  auto waiting = std::make_shared<std::set<Rank>>();
  for (std::size_t at = 0; recall_ && at < lives_.size(); ++at) {
    const Incarnation life = lives_[at];
    if (std::ranges::find(present_, life) == present_.end()) continue;
    SimWorker* mate = life == self_ || given_to_.contains(life) ? nullptr : links_.mate(life);
    if (mate == nullptr || hosts_of_ranks_[at] != hosts_of_ranks_[static_cast<std::size_t>(rank_.value)]) continue;
    const Rank rank(static_cast<std::int32_t>(at));
    waiting->insert(rank);
    if (world_.is_bad(BadLink::What::kNoMemory, rank_, rank)) {
      link_closed(rank, "it cannot map the log segment of this rank");
      continue;
    }
    mate->later(world_.random.between(5, 300), [this, mate, rank, waiting, opens, epoch = plan_epoch_] {
      mate->map_segment(self_, shown_);
      later(world_.random.between(5, 100), [this, mate, rank, waiting, opens, epoch] {
        given_to_.insert(mate->self_);
        waiting->erase(rank);
        if (waiting->empty() && epoch == plan_epoch_ && !stopped_) opens();
      });
    });
  }
  if (waiting->empty()) return opens();
  look_for_mates(waiting, world_.now_us() + static_cast<Micros>(settings_.round_timeout_ms()) * 1000);
}

void SimWorker::map_segment(Incarnation life, const std::shared_ptr<SegmentMemory>& memory) {
  if (life == self_ || !recall_ || !mapped_.insert(life).second) return;
  const Status status = host_log_->attach(life, memory->bytes(), memory);
  if (!status.ok()) return world_.violated("I8", describe() + " cannot map a segment: " + status.describe());
  dead_segments_.attached(life, memory->bytes(), memory);
  hosts_.mapped(life, self_);
}

void SimWorker::look_at_dead_segments() {
  const auto living = recall_->replayer().host_lives();
  const bool first = !living.empty() && living.front() == self_;
  const auto looked =
      dead_segments_.look(checkpoints_->horizon(), living, first,
                          board_.rounds_computed.load(std::memory_order_relaxed), *host_log_, recall_->reader());
  for (const auto& gone : looked.gone) {
    host_log_->detach(gone.life);
    // One that has joined and waits is mapped again when a plan has it.
    if (gone.over) {
      hosts_.forgotten(gone.life, self_);
    } else {
      mapped_.erase(gone.life);
    }
  }
  if (looked.more) {
    return later(20'000, [this, epoch = plan_epoch_] {
      if (epoch == plan_epoch_ && !stopped_) look_at_dead_segments();
    });
  }
  const std::size_t most = living.size() + worker::DeadSegments::most_waiting(living.size());
  if (looked.taken_over.ok() && host_log_->attached().size() > most) {
    world_.violated("I8", describe() + " keeps " + std::to_string(host_log_->attached().size()) + " log segments");
  }
}

void SimWorker::open() {
  if (engine_.stopped()) return;
  if (recall_) look_at_dead_segments();
  if (world_.is(Mutant::replay_ignores_prepare)) {
    for (auto& a : calls_) {
      const bool runs = !a->call->finished && a->call->prepare == worker::Call::Prepare::kRuns;
      if (runs && in_log(a->call->round)) a->call->prepare = worker::Call::Prepare::kDone;
    }
  }
  engine_.open();
  opened_ = true;
  if (doomed_) return links_.doomed();
  data_moved();
}

WorkerMachine::Standing SimWorker::stop_engine(const Status& why, bool resume) {
  if (!installed_ || stopped_) return installed_ && !engine_.stopped() ? engine_.standing() : WorkerMachine::Standing();
  WorkerMachine::Standing standing;
  if (resume) {
    auto linked = transport_.linked();
    standing = engine_.suspend();
    stopped_ = true;
    if (options_.join.waits()) {
      look_for_linked(std::move(linked), world_.now_us() + static_cast<Micros>(settings_.round_timeout_ms()) * 1000);
    }
    links_.recovers();
  } else {
    engine_.stop(why);
    stopped_ = true;
  }
  data_moved();
  return standing;
}

// As FetchService::install.
void SimWorker::serve(const wire::Plan& plan) {
  judge_.serves(plan, self_);
  plan_epoch_ = Epoch(plan.epoch());
  if (store_) store_->refresh(worker::lives_of(plan));
  if (!done_) done_.emplace(*served_, plan);
}

// As Session::follow.
void SimWorker::follow(const worker_effect::Follow& what) {
  if (what.plan) {
    follows_run_ = what.plan->run();
    recall_->follow(worker::follow_plan(*what.plan, self_));
  }
  checkpoints_->follow(follows_run_, what.version, what.timeline);
  (void)engine_.drain_recalls();
  look_at_checkpoints();
  arm();
}

// As Session::look.
void SimWorker::look(const worker_effect::Called& call) {
  std::optional<wire::Held> held;
  wire::Logged logged;
  if (segment_) {
    hosts_.called(self_, call.epoch);
    if (call.stale) {
      std::vector<Incarnation> stale;
      for (const Hosts::Segment& s : hosts_.segments(host())) {
        if (s.life == self_ || (s.running && s.called >= call.epoch)) continue;
        const auto view = SegmentView::open(s.memory->bytes(), s.life);
        if (!view.ok() || worker::ever_written(view.value())) stale.push_back(s.life);
      }
      for (const Incarnation life : stale) hosts_.forgotten(life, self_);
      if (store_ && !worker::leave_out_stale(*store_, host(), call.epoch).ok()) {
        return program_fails(Status(Code::kUnavailable, "what is stale on the disk cannot be marked"));
      }
    } else {
      logged = kept_by_launcher(host(), hosts_, self_);
    }
    if (store_) held = held_on(*store_, options_);
  }
  std::vector<WorkerEffect> effects;
  machine_.looked(call.epoch, std::move(held), std::move(logged), world_.now(), effects);
  run_effects(std::move(effects));
}

void SimWorker::fail(const worker_effect::Fail& what) {
  const Status& why = what.why;
  if (failed_.ok()) failed_ = why;
  // As Session::wait_for_plan.
  if (why.code() == Code::kFinished && store_ && !installed_) (void)store_->finish();
  if (why.code() == Code::kRolledBack || what.fenced) return exit(End::kFailed, why);
  // Its launcher takes what comes now for the program's own failure, which ends the job.
  const bool blameless =
      why.code() == Code::kClosed || (installed_ && (why.code() == Code::kTimeout || why.code() == Code::kPeerLost));
  const bool replaced = why.describe().find("a newer life of") != std::string::npos;  // another process has its id
  if (blameless && !replaced && recall_ && !exiting_ && !begins_again_) {
    return world_.violated("I7",
                           describe() + " is not started again, and its program is not to blame: " + why.describe());
  }
  if (installed_ && !engine_.stopped() && !world_.is(Mutant::stopped_before_stop)) {
    engine_.stop(why);
    stopped_ = true;
    data_moved();
  }
  program_fails(why);
}

void SimWorker::look_at_checkpoints() {
  if (!checkpoints_ || engine_.stopped()) return;
  checkpoints_->advance();
  // As in worker/session.cc.
  while (engine_.drain_recalls()) {
    checkpoints_->advance();
    data_moved();
  }
  if (const auto followed = checkpoints_->take_followed()) {
    judge_.followed();
    post([this, what = *followed](auto&) { machine_.followed(what.version, what.timeline); });
  }
  if (const Status failure = checkpoints_->take_failure(); !failure.ok()) {
    post([this, epoch = transport_.epoch(), failure](auto& effects) {
      machine_.on_round_failed(epoch, failure, world_.now(), effects);
    });
  }
  if (auto word = checkpoints_->take_state_word()) {
    post([this, word = *std::move(word)](auto& effects) { machine_.tell_state(word, world_.now(), effects); });
  }
  if (auto vote = checkpoints_->take_vote()) {
    known_.mutable_setups()->Assign(vote->setups.begin(), vote->setups.end());
    if (!store_) return say(*vote);
    const auto living = recall_->replayer().host_lives();
    if (!living.empty() && living.front() == self_) {
      (void)dead_segments_.take_over_setups(living, *host_log_, recall_->reader());
    }
    later(world_.random.between(100, 5000), [this, vote = std::move(*vote)] {
      if (!store_) return;
      write_to_disk();
      (void)store_->confirm();
      unconfirmed_ = false;
      say(vote);
    });
  }
}

void SimWorker::say(const WorkerMachine::Vote& vote) {
  post([this, vote](auto& effects) { machine_.vote(vote, world_.now(), effects); });
}

wire::FetchReply SimWorker::serve(const wire::FetchRequest& request) {
  if (request.asks()) {
    const RoundId round{Timeline(request.timeline()), GroupId(request.group()), Version(request.version()),
                        Sequence(request.first_sequence())};
    std::vector<std::uint64_t> sites(request.sites().begin(), request.sites().end());
    if (world_.is(Mutant::takes_any_question)) sites = {asked_site_};
    const worker::Inquiry::Answer answer = engine_.say(round, sites);
    if (world_.keeps_transcript()) {
      world_.tell(describe() + " says of " + to_string(round) + ": " + std::to_string(static_cast<int>(answer.word)) +
                  (answer.word == RoundWord::kRound ? " " + to_string(answer.round) : ""));
    }
    return answer_to(request, answer.word, answer.word == RoundWord::kRound ? &answer.round : nullptr);
  }
  if (done_ && !world_.is(Mutant::serves_what_was_begun)) return worker::Replayer::answer(request, *done_);
  if (world_.is(Mutant::replays_stale_timeline) && request.timeline() > 0) {
    wire::FetchRequest stale = request;
    stale.set_timeline(request.timeline() - 1);
    wire::FetchReply reply = worker::Replayer::answer(stale, *served_);
    if (!reply.entries().empty()) return reply;
  }
  return worker::Replayer::answer(request, *served_);
}

void SimWorker::fetched(Rank from, const wire::FetchReply& reply) {
  later(0, [this, from, reply] {
    if (!recall_) return;
    if (passes(KillPoint::kRecall)) return links_.doomed();
    if (world_.keeps_transcript()) {
      std::string text = describe() + ": the log of rank " + std::to_string(from.value) + " has answered request " +
                         std::to_string(reply.id()) + ":";
      for (const wire::FetchEntry& entry : reply.entries()) {
        text += " " + std::to_string(entry.sequence());
        for (const wire::ByteRange& r : entry.held()) {
          text += "[" + std::to_string(r.begin()) + "-" + std::to_string(r.end()) + "]";
        }
      }
      world_.tell(text);
    }
    recall_->on_reply(from, reply);
    (void)engine_.drain_recalls();
    if (doomed_) return links_.doomed();
    look_at_checkpoints();
    data_moved();
    arm();
  });
}

std::uint64_t SimWorker::frontier_rounds(GroupId group, Version version) const {
  for (const wire::Position& p : frontier_) {
    if (p.group() == group.value && p.version() == version.value) return p.rounds();
  }
  return 0;
}

bool SimWorker::in_log(const RoundId& round) const {
  if (is_setup(round)) {
    const std::pair name(round.group, round.sequence);
    return setups_completed_.contains(name) || setups_done_.contains(name);
  }
  return round.sequence.value < frontier_rounds(round.group, round.version);
}

bool SimWorker::behind() const {
  return std::any_of(frontier_.begin(), frontier_.end(), [&](const wire::Position& p) {
    if (p.rounds() == 0 && p.final().empty()) return false;
    const GroupId group(p.group());
    if (const auto done = engine_.rounds_done(group, Version(p.version()))) return *done < p.rounds();
    // Of a version that it began after, or has not begun; or of a group that it has not made.
    if (Version(p.version()) != engine_.version()) return Version(p.version()) > engine_.version();
    return std::any_of(program_.groups().begin(), program_.groups().end(), [&](const ProgramGroup& g) {
      return g.id == group && std::find(g.members.begin(), g.members.end(), rank_) != g.members.end();
    });
  });
}

void SimWorker::data_moved() {
  if (pumping_) return;
  pumping_ = true;
  board_.asleep.store(0);
  const Micros drag_us = installed_ ? world_.drag_us(Straggler::What::kDataPath, rank_, worker_id()) : 0;
  later(world_.random.between(0, 15) + drag_us, [this] { pump(); });
}

void SimWorker::pump() {
  pumping_ = false;
  while (!doomed_ && (prepare() || engine_.progress() || (gpu_ && move_on_gpu()))) {
  }
  if (doomed_) return links_.doomed();
  // Also of a program that has failed, and is about to destroy the communicator.
  if (!gpu_failed_.ok()) {
    exiting_ = stopped_ = true;
    std::vector<WorkerEffect> effects;
    machine_.leave(false, gpu_failed_.describe(), world_.now(), effects);
    run_effects(std::move(effects));
    return exit(End::kFailed, gpu_failed_);
  }
  report_failure();
  if (!alive_) return;
  look_at_checkpoints();
  if (doomed_) return links_.doomed();
  if (!engine_.stopped()) engine_.publish_waits();
  engine_.finished_calls().clear();
  advance();
  if (alive_) arm();
}

// The program makes a call's input; that takes as long as it likes: now and then longer than an interrupt and the plan
// after it.
bool SimWorker::prepare() {
  worker::Call* call = engine_.take_prepare();
  if (call == nullptr) return false;
  const auto timeout_us = static_cast<Micros>(options_.join.settings().round_timeout_ms()) * 1000;
  const std::uint64_t how = world_.random.below(100);
  const Micros most = how < 60 || world_.straggler() ? 1000 : how < 85 ? 30'000 : 2 * timeout_us;
  later(world_.random.between(0, most), [this, call] {
    if (call->finished)
      return world_.violated("Prepare", describe() + ": a call returned and its input was being made");
    (void)call->spec.prepare(call->spec.prepare_context);
    engine_.prepared(*call);
    if (doomed_) return links_.doomed();
    data_moved();
  });
  return true;
}

// As worker/session.cc does between two looks at the links.
bool SimWorker::move_on_gpu() {
  bool some = false;
  std::set<const worker::Call*> looked_at;
  while (worker::Call* call = engine_.take_moving()) {
    const bool again = !looked_at.insert(call).second;
    Status status;
    if (!again) {
      const auto moved = call->buffers->stream()->move();
      status = moved.status();
      some = (moved.ok() && moved.value()) || some;
    }
    if (!status.ok()) gpu_fails(status);
    engine_.moved(*call, status);
    if (again) break;
  }
  if (const Status status = combines_->move(); !status.ok()) gpu_fails(status);
  if (exchange_) exchange_->move();
  some = engine_.take_done_elsewhere() || some;
  return (exchange_ && engine_.take_done_exchanged()) || some;
}

// As worker/session.cc ends a life.
void SimWorker::gpu_fails(const Status& why) {
  if (!gpu_failed_.ok()) return;
  gpu_failed_ = why;
  if (!engine_.stopped()) engine_.stop(Status(Code::kClosed, why.describe()));
}

// The process has gone: what runs in it never comes back.
void SimWorker::end_prepares() {
  for (auto& a : calls_) {
    if (!a->call->finished && a->call->prepare == worker::Call::Prepare::kRuns) engine_.prepared(*a->call);
  }
  while (gpu_ && installed_ && move_on_gpu()) {
  }
}

void SimWorker::report_failure() {
  if (const auto gap = engine_.take_gap()) {
    post([this, epoch = transport_.epoch(), gap = *gap](auto& effects) {
      machine_.on_log_gap(epoch, gap, world_.now(), effects);
    });
  }
  const auto failure = engine_.take_failure();
  if (!failure) return;
  const Epoch epoch = transport_.epoch();
  if (failure->status.code() == Code::kPeerLost && failure->peer != kNoRank) {
    post([this, epoch, failure](auto& effects) {
      machine_.on_link_broken(epoch, failure->peer, failure->status.describe(), world_.now(), effects);
    });
  }
  post([this, epoch, failure](auto& effects) {
    machine_.on_round_failed(epoch, failure->status, world_.now(), effects);
  });
}

void SimWorker::link_closed(Rank peer, const std::string& evidence) {
  later(world_.random.between(0, 200), [this, epoch = machine_.epoch(), peer, evidence] {
    if (epoch != machine_.epoch()) return;
    std::vector<WorkerEffect> effects;
    machine_.on_link_broken(epoch, peer, evidence, world_.now(), effects);
    run_effects(std::move(effects));
  });
}

void SimWorker::process_gone(Rank peer) {
  later(0, [this, epoch = machine_.epoch(), peer] {
    std::vector<WorkerEffect> effects;
    machine_.on_peer_gone(epoch, peer, "its process has gone", world_.now(), effects);
    run_effects(std::move(effects));
  });
}

void SimWorker::look_for_mates(std::shared_ptr<std::set<Rank>> waiting, Micros until_us) {
  later(kKnockUs, [this, waiting = std::move(waiting), until_us, epoch = plan_epoch_]() mutable {
    if (epoch != plan_epoch_ || stopped_ || waiting->empty()) return;
    for (const Rank mate : *waiting) {
      if (transport_.refused_by(lives_[static_cast<std::size_t>(mate.value)])) return process_gone(mate);
    }
    if (world_.now_us() < until_us) look_for_mates(std::move(waiting), until_us);
  });
}

void SimWorker::look_for_linked(std::set<Rank> peers, Micros until_us) {
  later(kKnockSuspendedUs, [this, peers = std::move(peers), until_us, epoch = plan_epoch_]() mutable {
    if (epoch != plan_epoch_ || !stopped_) return;
    std::erase_if(peers, [this](Rank peer) {
      if (!transport_.refused_by(lives_[static_cast<std::size_t>(peer.value)])) return false;
      process_gone(peer);
      return true;
    });
    if (world_.now_us() < until_us) look_for_linked(std::move(peers), until_us);
  });
}

void SimWorker::watch_waits() {
  if (watching_) return;
  watching_ = true;
  later(kWaitLogIntervalMs * 1000, [this] {
    watching_ = false;
    if (engine_.stopped() || (engine_.outstanding() == 0 && !waits_for_commit_ && !engine_.asking())) return;
    auto lines = engine_.describe_waits();
    if (waits_for_commit_) lines.push_back(checkpoints_->describe_wait());
    for (const std::string& line : lines) {
      judge_.sign();
      if (world_.keeps_transcript()) world_.tell(describe() + ": " + line);
    }
    watch_waits();
  });
}

// ---- the program

void SimWorker::advance() {
  run_program();
  if (!pumping_) rest();
}

void SimWorker::run_program() {
  if (!alive_ || !opened_ || world_.failed() || exiting_) return;
  for (auto& call : calls_) {
    if (!call->reaped && call->call->finished) reap(*call);
    if (!alive_ || exiting_ || world_.failed()) return;
  }
  // Who drains begins nothing, and finalizes what it has done.
  while (!leaving_ && !program_done_ && !leave_by_us_) {
    const auto outstanding = std::count_if(calls_.begin(), calls_.end(), [](const auto& c) { return !c->reaped; });
    const bool blocked =
        std::any_of(calls_.begin(), calls_.end(), [](const auto& c) { return !c->reaped && c->step.blocking; });
    if (computing_ || blocked || static_cast<std::size_t>(outstanding) >= kMostOutstanding) return;
    if (after_setup_ && position_ == program_.setup_end()) {
      if (outstanding > 0) return;
      settle();
      position_ = *std::exchange(after_setup_, std::nullopt);
      owes_once_rounds_ = program_.has_made_once_rounds_before(program_version_);
      begin_program_version(program_version_);
    }
    const bool version_ends =
        position_ == order_.size() || program_.steps()[order_[position_]].kind == StepKind::kCheckpoint;
    if (makes_once_rounds_ && again_.empty() && version_ends) {
      makes_once_rounds_ = owes_once_rounds_ = false;
      const auto again = program_.made_again(ProgramStep::Inferred::kOnceLast);
      again_.assign(again.begin(), again.end());
    }
    if (!again_.empty()) {
      if (outstanding > 0) return;
      settle();
      if (!make_again()) return;
      continue;
    }
    if (position_ == order_.size()) {
      if (outstanding > 0) return;
      if (!give_state() || !parts_.empty()) return;
      return finalize();
    }
    const ProgramStep& step = program_.steps()[order_[position_]];
    if (step.kind != StepKind::kRound || step.wait_before) {
      if (outstanding > 0) return;
      settle();
    }
    if (step.kind == StepKind::kLoad) {
      if (!load()) return;
    } else if (step.kind == StepKind::kCheckpoint) {
      if (!checkpoint(step)) return;
    } else {
      if (!make_groups(position_) || exiting_) return;
      const bool asks = loaded_ && !made_recurring_ && step.inferred == ProgramStep::Inferred::kRecurs;
      if (asks && !desynced_) {
        const auto met = meets(step);
        if (!met) return;
        made_recurring_ = true;
        // It goes on with what it takes for the result; the others wait.
        if (!*met) {
          ++position_;
          continue;
        }
      }
      issue(position_++);
    }
    if (!alive_ || exiting_ || world_.failed()) return;
  }
}

// Results of calls that did not block count from the next wait for all on: the same in each life.
void SimWorker::settle() {
  state_.global += deferred_.global;
  state_.local += deferred_.local;
  deferred_ = {};
}

void SimWorker::begin_program_version(Version version) {
  program_version_ = version;
  makes_once_rounds_ = owes_once_rounds_ && program_.makes_once_rounds(version);
  if (!makes_once_rounds_) return;
  const auto again = program_.made_again(ProgramStep::Inferred::kOnceFirst);
  again_.assign(again.begin(), again.end());
}

// As Session::load. False: not yet.
bool SimWorker::load() {
  if (!failed_.ok()) return false;
  if (!checkpoints_) {
    const Status status = engine_.begin_version(version_of_program(0));
    WARREN_CHECK(status.ok(), "a version begins");
    begin_from({});
    return true;
  }
  if (told_lost_ && *told_lost_ != transport_.epoch()) {
    told_lost_.reset();
    loading_ = false;
  }
  if (!loading_) {
    loading_ = true;
    post([this](auto& effects) { machine_.load(world_.now(), effects); });
    return false;
  }
  if (engine_.stopped() || told_lost_) return false;
  auto result = checkpoints_->loaded();
  if (!result) return false;
  if (result->status().code() == Code::kUnavailable && options_.mirror != nullptr) load_from_mirror(result);
  if (result->status().code() == Code::kUnavailable) {
    if (checkpoints_->loaded_in() != transport_.epoch()) {
      loading_ = false;
      return load();
    }
    const Status why = result->status();
    judge_.load_failed(describe(), why);
    told_lost_ = transport_.epoch();
    post([this, epoch = *told_lost_, why](auto& effects) {
      WorkerMachine::Gap gap;
      gap.reason = why.describe();
      gap.checkpoint = load_from_;
      machine_.on_log_gap(epoch, gap, world_.now(), effects);
    });
    return false;
  }
  loading_ = false;
  if (!result->ok()) {
    const Status why = result->status();
    if (why.code() == Code::kDesync) {
      post([this, epoch = transport_.epoch(), why](auto& effects) {
        machine_.on_round_failed(epoch, why, world_.now(), effects);
      });
    }
    judge_.load_failed(describe(), why);
    program_fails(why);
    return false;
  }
  begin_from(result->value());
  return true;
}

void SimWorker::begin_from(const worker::Checkpoints::State& state) {
  const Version version = version_of_program(state.version);
  ++position_;
  if (state.version == 0) return;
  after_setup_ = program_.position_after_load(version);
  loaded_ = true;
  program_version_ = version;
  const auto restored = program_.restored(version, rank_, state.global, state.local);
  if (!restored) {
    return world_.violated("I5",
                           describe() + " has loaded something else than version " + std::to_string(state.version));
  }
  state_ = {restored->global, restored->local, state_.setup};
  judge_.restored(describe(), timeline_, version, rank_, state_);
  if (world_.keeps_transcript()) world_.tell(describe() + " starts from version " + std::to_string(state.version));
  judge_.sign();
}

// As Session::checkpoint. False: not yet.
bool SimWorker::checkpoint(const ProgramStep& step) {
  if (!failed_.ok()) return false;
  if (!remove_groups(step.index)) return false;
  Status status;
  waits_for_commit_ = false;
  if (!checkpoints_) {
    if (engine_.stopped()) return false;
    status = engine_.begin_version(engine_.version().next());
  } else {
    if (engine_.stopped() || !give_state()) return false;
    waits_for_commit_ = !checkpoints_->may_take();
    if (waits_for_commit_) {
      watch_waits();
      return false;
    }
    // Who has left the others' way, and nobody could notice, saves what the way leads to: only its calls are wrong.
    const ProgramState* right = desynced_ ? judge_.oracle(timeline_).state_at(step.version, rank_) : nullptr;
    auto global = program_.saved_global(step.version, right != nullptr ? *right : state_);
    const auto local = program_.saved_local(step.version, rank_, right != nullptr ? *right : state_);
    const worker::PlacedState local_state = local;
    // Of what the ranks take from a root, all of them have heard in a round.
    const worker::StateHashes agreed(global);
    bool with_local = step.local;
    if (settings_.world_size() > 1 &&
        world_.gives_other_state(worker_id(), attempt(), engine_.timeline(), step.version)) {
      judge_.excuse_rollback();
      if (world_.keeps_transcript()) world_.tell(describe() + " checkpoints a state that the others do not have");
      Random draws(Random::mix(engine_.timeline().value) + step.version.value);
      if (draws.chance(0.3) && !step.lazy && !engine_.plan().shrinks) {
        with_local = !with_local;
      } else {
        alter(global, draws);
      }
    }
    // Of each checkpoint at some ranks, and in turn at all.
    const bool on_gpu =
        !engine_.plan().shrinks && (step.version.value + static_cast<std::uint64_t>(rank_.value)) % kEveryOnGpu == 0;
    if (step.lazy) {
      status = checkpoints_->take_later();
      owed_state_ = global;
    } else if (step.state_from) {
      const worker::PlacedState global_state = global;
      status = checkpoints_->take_from_root(step.state_from == rank_ ? &global_state : nullptr,
                                            with_local ? &local_state : nullptr, agreed);
    } else if (on_gpu) {
      const Ranges share = checkpoints_->share_of(global.size());
      status = checkpoints_->take_in_parts(global.size(),
                                           with_local ? std::optional<std::uint64_t>(local.size()) : std::nullopt,
                                           share, worker::StateHashes(global));
      const auto cut = [this](worker::StateKind kind, std::span<const std::byte> state, const Ranges& bytes) {
        for (const Interval& i : bytes.intervals()) {
          const std::uint64_t most = (i.end - i.begin + 1) / 2;
          for (std::uint64_t at = i.begin; at < i.end; at += most) {
            const auto part = state.subspan(at, std::min(most, i.end - at));
            parts_.push_back({kind, at, {part.begin(), part.end()}});
          }
        }
      };
      if (status.ok()) {
        cut(worker::StateKind::kGlobal, global, share);
        if (with_local) cut(worker::StateKind::kLocal, local, Ranges(0, local.size()));
        if (!parts_.empty()) {
          if (world_.is(Mutant::votes_without_its_state) && checkpoints_->pending() == 0)
            vote_early(worker::StateHashes(global).digest(with_local, settings_.world_size()));
          bring_part();
        }
      }
    } else {
      status = checkpoints_->take(global, with_local ? &local_state : nullptr);
    }
    if (status.code() == Code::kDesync) {
      post([this, epoch = transport_.epoch(), status](auto& effects) {
        machine_.on_round_failed(epoch, status, world_.now(), effects);
      });
    }
    if (passes(KillPoint::kCheckpoint)) {
      links_.doomed();
      return false;
    }
    judge_.pending(checkpoints_->pending());
    look_at_checkpoints();
  }
  if (!status.ok()) {
    if (world_.keeps_transcript()) world_.tell(describe() + ": " + status.describe());
    program_fails(status);
    return false;
  }
  Program::settle(step, state_);
  ++position_;
  begin_program_version(step.version);
  if (program_.infers() && world_.random.chance(0.4)) {
    // The version may be committed before this process begins the first round of the next one.
    computing_ = true;
    later(world_.random.between(1, 20'000), [this] {
      computing_ = false;
      advance();
    });
  }
  judge_.sign();
  if (world_.keeps_transcript()) {
    world_.tell(describe() + " has taken checkpoint " + std::to_string(step.version.value - 1));
  }
  return true;
}

// As Session::give_state: before the call that follows a lazy checkpoint. False: it could not be, and the program ends.
bool SimWorker::give_state() {
  if (!checkpoints_ || !checkpoints_->owes_state() || !parts_.empty() || engine_.stopped()) return true;
  const Status status = checkpoints_->give_state(owed_state_);
  if (!status.ok()) {
    program_fails(status);
    return false;
  }
  if (passes(KillPoint::kCheckpoint)) {
    links_.doomed();
    return false;
  }
  look_at_checkpoints();
  return true;
}

void SimWorker::vote_early(wire::StateDigest state) {
  say({engine_.plan().epoch, engine_.timeline(), engine_.version(), std::move(state),
       engine_.positions_of(Version(engine_.version().value - 1)), engine_.setups_done()});
}

// As Session::move_states: parts come while the program goes on.
void SimWorker::bring_part() {
  later(world_.random.between(10, world_.random.chance(0.2) ? 2'000'000 : 20'000), [this] {
    if (exiting_ || engine_.stopped()) return;
    const Part& part = parts_.front();
    const Status status = checkpoints_->give_part({part.state, part.at, part.bytes});
    if (!status.ok()) return program_fails(status);
    parts_.pop_front();
    if (!parts_.empty()) return bring_part();
    if (passes(KillPoint::kCheckpoint)) return links_.doomed();
    look_at_checkpoints();
    // It may wait for this with its end.
    advance();
  });
}

// As warren_destroy: when the group's own calls have ended. False: not yet.
bool SimWorker::remove_groups(std::size_t position) {
  for (std::size_t g = 0; g < program_.groups().size(); ++g) {
    const ProgramGroup& group = program_.groups()[g];
    if (!group_made_[g] || group.end > position) continue;
    if (!engine_.idle(group.id)) return false;
    group_made_[g] = false;
    if (engine_.has_group(group.id)) engine_.remove_group(group.id);
  }
  return true;
}

// False: not yet.
bool SimWorker::make_groups(std::size_t position) {
  if (!remove_groups(position)) return false;
  for (std::size_t g = 0; g < program_.groups().size(); ++g) {
    const ProgramGroup& group = program_.groups()[g];
    if (group_made_[g] || group.made_at > position || position >= group.end) continue;
    if (!(group.by_members ? meet(g) : split(g))) return false;
  }
  return true;
}

// As warren_split: all ranks agree on a channel that none of them uses, in a round of the world.
bool SimWorker::split(std::size_t first) {
  const auto channel = agree_on_channel(kWorldGroup);
  if (!channel) return false;
  for (std::size_t g = first; g < program_.groups().size(); ++g) {
    const ProgramGroup& group = program_.groups()[g];
    if (group.split != program_.groups()[first].split) break;
    group_made_[g] = true;
    if (std::find(group.members.begin(), group.members.end(), rank_) == group.members.end()) continue;
    const Status made = engine_.stopped() ? Status() : engine_.add_group(group.id, group.members, *channel);
    if (!made.ok()) {
      program_fails(made);
      return false;
    }
  }
  return true;
}

// As Session::make_group: its members agree, in a round of its own.
bool SimWorker::meet(std::size_t g) {
  const ProgramGroup& group = program_.groups()[g];
  if (std::find(group.members.begin(), group.members.end(), rank_) != group.members.end()) {
    if (!splitting_) {
      if (engine_.stopped()) return false;
      const Status added = engine_.add_group(group.id, group.members, worker::Engine::kMeetingChannel);
      if (!added.ok()) {
        program_fails(added);
        return false;
      }
    }
    const auto channel = agree_on_channel(group.id);
    if (!channel) return false;
    engine_.move_group(group.id, *channel);
  }
  group_made_[g] = true;
  return true;
}

// Nothing: not yet.
std::optional<std::uint32_t> SimWorker::agree_on_channel(GroupId among) {
  if (!splitting_) {
    const auto used = engine_.used_channels();
    WARREN_CHECK(std::all_of(used.begin() + 1, used.end(), [](std::uint64_t word) { return word == 0; }),
                 "a simulated program has few groups");
    used_channels_ = used[0];
    splitting_ = std::make_shared<worker::Call>();
    worker::CallSpec& spec = splitting_->spec;
    spec.collective = Collective::kAllreduce;
    spec.type = DataType::kU64;
    spec.op = ReduceOp::kBitOr;
    spec.input = &used_channels_;
    spec.output = &taken_channels_;
    spec.count = 1;
    splitting_->self = splitting_;
    const Status status = engine_.submit(among, *splitting_);
    if (doomed_) {
      links_.doomed();
      return std::nullopt;
    }
    if (!status.ok()) {
      splitting_->self.reset();
      program_fails(status);
      return std::nullopt;
    }
    watch_waits();
    data_moved();
  }
  if (!splitting_->finished) return std::nullopt;
  const Status agreed = std::exchange(splitting_, nullptr)->status;
  if (!agreed.ok()) {
    program_fails(agreed);
    return std::nullopt;
  }
  WARREN_CHECK(taken_channels_ != UINT64_MAX, "a simulated program has few groups");
  return static_cast<std::uint32_t>(std::countr_one(taken_channels_));
}

// As Session::meets. nullopt: not yet, or the process ends.
std::optional<bool> SimWorker::meets(const ProgramStep& step) {
  if (world_.is(Mutant::asks_nobody)) return false;
  if (engine_.stopped() || !give_state()) return std::nullopt;
  if (!asks_) {
    asks_ = true;
    asked_site_ = step.site & ~kSiteCompared;
    engine_.ask_next({asked_site_});
    if (doomed_) {
      links_.doomed();
      return std::nullopt;
    }
    watch_waits();
    data_moved();
    arm();
  }
  const auto met = engine_.take_answer();
  if (!met) return std::nullopt;
  asks_ = false;
  judge_.asked(*met);
  if (world_.keeps_transcript()) {
    world_.tell(describe() + (*met ? " meets" : " does not meet") + " step " + std::to_string(step.index));
  }
  return met;
}

// A call that a process makes once, by a new one. False: not yet.
bool SimWorker::make_again() {
  const ProgramStep& step = program_.steps()[again_.front()];
  const auto met = desynced_ ? std::optional(false) : meets(step);
  if (!met) return false;
  again_.pop_front();
  if (*met) submit(step, *program_.place(step, rank_), false);
  return alive_ && !exiting_ && !world_.failed();
}

void SimWorker::issue(std::size_t position) {
  ProgramStep step = program_.steps()[order_[position]];
  const auto place = program_.place(step, rank_);
  if (!place || !give_state()) return;
  if (world_.straggler()) {
    // All take some time between calls, and one of them more.
    computing_ = true;
    later(kStepUs + world_.drag_us(Straggler::What::kProgram, rank_, worker_id()), [this] {
      computing_ = false;
      advance();
    });
  } else if (world_.strikes(Fault::slow_rank)) {
    // Longer than a wait may stay unexplained, now and then.
    const Micros most = world_.random.chance(0.2) ? 40'000'000 : 500'000;
    computing_ = true;
    later(world_.random.between(1000, most), [this] {
      computing_ = false;
      advance();
    });
  } else if (world_.random.chance(0.3)) {
    computing_ = true;
    // Long enough for lost ranks to be given up and to come back within a few calls.
    const Micros most = settings_.min_workers() == 0 ? 2000 : 20'000;
    later(world_.random.between(1, most), [this] {
      computing_ = false;
      advance();
    });
  }
  if (world_.deadlock() && waits_in_circle(step)) return;
  const bool can_alter = step.collective != Collective::kPoint && program_.members(step).size() > 1;
  if (can_alter && world_.strays(worker_id())) {
    desynced_ = true;
    judge_.excuse_rollback();
    if (world_.keeps_transcript()) world_.tell(describe() + " calls something else");
    if (alter(step)) return submit(std::move(step), *place, true);
    if (settings_.check_call_sites() && world_.random.chance(0.5)) return;  // skips the call
    position_ = order_.size();                                              // goes to finalize
    return;
  }
  submit(std::move(step), *place, false);
}

// Whether this rank receives what nobody sends, in the place of the next step: as Deadlock says.
bool SimWorker::waits_in_circle(const ProgramStep& next) {
  const Deadlock& deadlock = *world_.deadlock();
  // One in which no rank can end before all have entered it: what a rank still sends may leave without the other's
  // help.
  const bool needs_all = next.collective == Collective::kBarrier ||
                         (next.collective == Collective::kAllreduce && next.count != 0) ||
                         (next.collective == Collective::kAllgather && next.count != 0);
  const bool counts = next.group == 0 && next.blocking && !next.setup && needs_all;
  if (!counts || attempt() != 0 || world_rounds_++ != deadlock.round) return false;
  judge_.excuse_rollback();
  const bool receives = rank_ == Rank(0) || (rank_ == Rank(1) && deadlock.what == Deadlock::What::kReceives);
  if (!receives) return false;
  ProgramStep step;
  step.index = next.index;
  step.version = next.version;
  step.collective = Collective::kPoint;
  step.receiver = rank_.value;
  step.root = 1 - rank_.value;
  step.tag = 1'000'000;
  step.count = 8;
  submit(std::move(step), rank_.value, true);
  return true;
}

// Another byte, or another length.
void SimWorker::alter(std::vector<std::byte>& state, Random& draws) {
  if (draws.chance(0.6)) {
    state[draws.below(state.size())] ^= std::byte{1};
  } else if (draws.chance(0.5)) {
    state.resize(state.size() + static_cast<std::size_t>(draws.between(1, 100)));
  } else {
    state.pop_back();
  }
}

// Makes another call of it; false: it is to be left out.
bool SimWorker::alter(ProgramStep& step) {
  if (world_.random.chance(0.3)) return false;
  if (step.op == ReduceOp::kSum && world_.random.chance(0.5)) {
    step.op = step.type == DataType::kF32AsI8 ? ReduceOp::kAverage : ReduceOp::kMax;
  } else if (step.collective == Collective::kBarrier || !step.counts.empty()) {
    step.collective = Collective::kAllreduce;
    step.type = DataType::kI32;
    step.op = ReduceOp::kSum;
    step.count = 5;
    step.counts.clear();
    step.in_place = false;
  } else {
    step.count += 1;
  }
  return true;
}

void SimWorker::submit(ProgramStep step, std::int32_t place, bool altered) {
  auto active = std::make_unique<ActiveCall>();
  ActiveCall& a = *active;
  a.place = place;
  a.altered = altered;
  const std::size_t width = width_of(step);
  const std::uint64_t in = program_.in_count(step, place), out = program_.out_count(step, place);
  const std::int64_t offset = program_.in_place_at(step, place);
  const std::uint64_t shift = static_cast<std::uint64_t>(offset < 0 ? -offset : offset);
  a.memory.assign((in + out + shift + 2) * width / sizeof(std::uint64_t) + 4, 0);
  std::fill(a.bytes().begin(), a.bytes().end(), kUntouched);
  std::size_t in_at = 16;
  a.out_at = 16 + (in * width + 7) / 8 * 8;
  if (step.in_place) {
    in_at = 16 + (offset > 0 ? shift * width : 0);
    a.out_at = 16 + (offset < 0 ? shift * width : 0);
  }
  a.out_bytes = out * width;
  const bool holds_data = step.collective == Collective::kBroadcast && place == step.root;
  // Who has left the others' way goes on with what it would have received: only its calls are wrong.
  const auto* right = desynced_ ? judge_.oracle(timeline_).expected(step.index) : nullptr;
  const std::uint64_t key = right != nullptr ? right->keys[static_cast<std::size_t>(place)]
                            : step.values == Values::kFresh
                                ? world_.random.next()
                                : program_.input_key(step, place, state_, judge_.oracle(timeline_).salt());
  a.input = program_.input(step, place, key);
  a.input_at = holds_data ? a.out_at : in_at;
  const bool prepares = step.prepares;
  if (!a.input.empty() && !prepares) std::memcpy(a.bytes().data() + a.input_at, a.input.data(), a.input.size());
  a.before.assign(a.bytes().begin(), a.bytes().end());

  a.call = std::make_shared<worker::Call>();
  a.call->blocking = step.blocking;
  if (step.setup) a.call->setup = Program::setup_name(*step.setup);
  worker::CallSpec& spec = a.call->spec;
  spec.collective = step.collective;
  spec.type = step.type;
  spec.op = step.op;
  const bool bufferless = step.collective == Collective::kBroadcast || step.collective == Collective::kBarrier;
  spec.input = bufferless ? nullptr : a.bytes().data() + in_at;
  spec.output = step.collective == Collective::kBarrier ? nullptr : a.bytes().data() + a.out_at;
  if (world_.is(Mutant::works_in_place) && step.in_place && !a.input.empty()) {
    a.shadow = a.input;
    spec.input = a.shadow.data();
  }
  spec.count = step.count;
  if (step.type == DataType::kF32AsI8) spec.values = step.count * kI8BlockValues;
  std::vector<std::uint64_t> sent, got;
  if (step.collective == Collective::kAllToAllv) {
    sent = program_.sent_by(step, place);
    got = program_.got_by(step, place);
    spec.counts = sent;
    spec.counts_from = got;
  } else {
    spec.counts = step.counts;
  }
  spec.root = step.root;
  spec.site = step.site;
  if (step.collective == Collective::kPoint) {
    spec.sends = place == step.root;
    spec.root = spec.sends ? step.receiver : step.root;
    spec.tag = step.tag;
  }
  if (step.type == DataType::kCustom) {
    spec.custom = chain_affine;
    spec.custom_bytes = sizeof(Affine);
    // Any address says "swapped".
    if (world_.is(Mutant::operands_swapped) && rank_ == Rank(1)) spec.custom_context = &world_;
  }
  const auto prepare = [](void* context) {
    ActiveCall& call = *static_cast<ActiveCall*>(context);
    ++call.prepared;
    // Who has no input runs the same program, and may write where the result will stand.
    const auto output = call.bytes().subspan(call.out_at, call.out_bytes);
    if (call.input.empty()) std::fill(output.begin(), output.end(), kScribbled);
    if (!call.input.empty()) std::memcpy(call.bytes().data() + call.input_at, call.input.data(), call.input.size());
    call.before.assign(call.bytes().begin(), call.bytes().end());
    return 0;
  };
  if (prepares) {
    spec.prepare = prepare;
    spec.prepare_context = &a;
  }
  const bool on_gpu = gpu_ && step.collective != Collective::kPoint && !step.setup &&
                      std::max(in * width, a.out_bytes) > kLeastOnGpu && world_.random.chance(0.95);
  if (on_gpu) {
    a.host = std::make_shared<std::vector<std::uint64_t>>(a.memory.size());
    std::byte* const host = reinterpret_cast<std::byte*>(a.host->data());
    const bool reduces = step.collective == Collective::kAllreduce || step.collective == Collective::kReduceScatter ||
                         step.collective == Collective::kReduceScatterv;
    const bool gathers = step.collective == Collective::kAllgather || step.collective == Collective::kAllgatherv;
    const bool may_lend = gathers || (reduces && combined_on_gpus(step.type, step.op));
    auto buffers = std::make_unique<SimGpuCall>(
        *gpu_, may_lend ? &*shares_ : nullptr,
        SimGpuCall::Buffer{a.bytes().data() + a.input_at, host + a.input_at, a.input.size()},
        SimGpuCall::Buffer{a.bytes().data() + a.out_at, host + a.out_at, a.out_bytes, a.host},
        prepares ? std::function<void()>([&a, prepare] { prepare(&a); }) : nullptr);
    if (spec.input != nullptr) spec.input = host + in_at;
    spec.output = host + a.out_at;
    if (prepares || !a.input.empty()) {
      spec.prepare = [](void* call) {
        static_cast<SimGpuCall*>(call)->begin_filling();
        return 0;
      };
      spec.prepare_context = buffers.get();
    }
    a.call->buffers = std::move(buffers);
  }
  const auto size = static_cast<std::int32_t>(program_.members(step).size());
  const GroupId group = program_.groups()[step.group].id;
  // A round of blocks is what narrow() makes of a call that was valid.
  const bool narrowed = step.type == DataType::kF32AsI8;
  const Status valid = narrowed ? Status() : worker::validate(spec, {place, size});
  a.step = std::move(step);
  if (!valid.ok()) return world_.violated("Program", valid.describe());
  calls_.push_back(std::move(active));
  a.call->self = a.call;
  if (a.step.values == Values::kFresh && spec.sends) judge_.sends(a.step, timeline_, host());
  const bool repeats =
      a.step.blocking && !a.step.setup && !prepares && !on_gpu && spec.collective != Collective::kPoint;
  const RoundId round = engine_.next_round(group);
  const bool at_once = repeats && engine_.run_at_once(group, spec, 1);
  if (at_once) {
    a.call->round = round;
    a.call->self.reset();
    a.call->settled = a.call->finished = true;
  }
  const Status taken = at_once ? Status() : engine_.submit(group, *a.call);
  if (doomed_) return links_.doomed();
  if (!taken.ok()) {
    a.call->self.reset();
    a.reaped = true;
    a.after.assign(a.bytes().begin(), a.bytes().end());
    if (taken.code() == Code::kInvalidArgument) return world_.violated("Program", taken.describe());
    return program_fails(taken);
  }
  if (engine_.outstanding() > limits::kMaxOutstandingRounds) world_.violated("I8", "too many calls are outstanding");
  a.to_be_run = a.step.collective == Collective::kPoint || !in_log(a.call->round);
  if (world_.is(Mutant::overwrites_input) && a.step.in_place && a.out_bytes > 0) {
    later(world_.random.between(1, 50), [&a] {
      if (!a.call->finished) a.bytes()[a.out_at] ^= std::byte{1};
    });
  }
  watch_waits();
  data_moved();
}

void SimWorker::reap(ActiveCall& a) {
  a.reaped = true;
  // As a program's call ends: what it has lent is used again.
  a.call->buffers.reset();
  a.after.assign(a.bytes().begin(), a.bytes().end());
  const auto memory = a.bytes();
  const std::size_t end = a.out_at + a.out_bytes;
  if (!std::equal(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(a.out_at), a.before.begin()) ||
      !std::equal(memory.begin() + static_cast<std::ptrdiff_t>(end), memory.end(),
                  a.before.begin() + static_cast<std::ptrdiff_t>(end))) {
    return world_.violated("Input",
                           describe() + ": step " + std::to_string(a.step.index) + " wrote outside its output");
  }
  const auto output = memory.subspan(a.out_at, a.out_bytes);
  if (a.call->status.ok()) {
    if (is_setup(a.call->round)) setups_completed_.emplace(a.call->round.group, a.call->round.sequence);
    if (world_.keeps_transcript()) {
      world_.tell(describe() + " finished step " + std::to_string(a.step.index) + ", " +
                  (a.step.collective == Collective::kPoint
                       ? "message " + std::to_string(a.step.root) + " → " + std::to_string(a.step.receiver) + " tag " +
                             std::to_string(a.step.tag) + " in group " + std::to_string(a.step.group)
                       : to_string(a.call->fingerprint)) +
                  (a.step.in_place ? ", in place" : "") + (a.prepared > 0 ? ", prepared" : ""));
    }
    if (a.step.prepares && !a.altered && a.prepared != (a.to_be_run ? 1 : 0)) {
      // It may have been prepared in one epoch, and replayed in the next; or the other way round.
      const bool replayed = a.step.collective != Collective::kPoint && in_log(a.call->round);
      if (a.prepared > 1 || (a.prepared == 1 && !a.to_be_run) || (a.prepared == 0 && !replayed)) {
        return world_.violated("Prepare", describe() + ": the input of step " + std::to_string(a.step.index) + " was " +
                                              "prepared " + std::to_string(a.prepared) + " times, and it was " +
                                              (replayed ? "" : "not ") + "replayed");
      }
    }
    if (a.step.once()) {
      std::vector<std::uint64_t> keys;
      for (std::int32_t place = 0; place < static_cast<std::int32_t>(program_.members(a.step).size()); ++place) {
        keys.push_back(program_.input_key(a.step, place, {}, 0));
      }
      const auto right = program_.expected(a.step, a.place, keys);
      if (!a.altered && !std::equal(output.begin(), output.end(), right.begin(), right.end())) {
        return world_.violated("I2", describe() + ": step " + std::to_string(a.step.index) +
                                         ", which each process makes once, has given something else");
      }
      judge_.sign();
    } else if (!a.altered) {
      judge_.returned(a.step, output, {a.place, timeline_, host(), self_, a.call->contributors.get()});
      if (recall_ && a.step.collective != Collective::kPoint && !is_setup(a.call->round)) {
        judge_.completed(a.call->round, self_);
      }
    }
    if (!a.altered && !desynced_) Program::fold(a.step, output, a.step.blocking ? state_ : deferred_);
    // They are the program's own again: it scribbles over them.
    std::fill(memory.begin(), memory.end(), kScribbled);
    a.after.assign(memory.begin(), memory.end());
    if (passes(KillPoint::kReturn)) links_.doomed();
    return;
  }
  if (!a.altered && !a.step.once())
    judge_.interrupted(a.step, a.place, std::span(a.before).subspan(a.out_at, a.out_bytes), output, timeline_);
  program_fails(a.call->status);
}

void SimWorker::finalize() {
  program_done_ = true;
  engine_.end_rounds();
  if (!failed_.ok() || engine_.stopped()) return;
  if (!world_.strikes(Fault::slow_finalize)) return leave(true, "");
  computing_ = true;
  later(world_.random.between(1000, world_.random.chance(0.4) ? 16'000'000 : 1'000'000), [this] {
    computing_ = false;
    if (!exiting_) leave(true, "");
  });
}

void SimWorker::leave(bool finalize, const std::string& reason) {
  leaving_ = true;
  later(world_.random.between(0, 100), [this, finalize, reason] {
    std::vector<WorkerEffect> effects;
    machine_.leave(finalize, reason, world_.now(), effects);
    run_effects(std::move(effects));
  });
}

void SimWorker::program_fails(const Status& why) {
  if (exiting_ || finished_) return;
  exiting_ = true;
  // The program sees its error and destroys the communicator, soon or late; until then the control thread answers.
  const Micros timeout_us = static_cast<Micros>(options_.join.settings().round_timeout_ms()) * 1000;
  later(world_.random.between(100, world_.random.chance(0.3) ? 2 * timeout_us : 20'000), [this, why] {
    if (failed_.ok() && !finished_) {
      if (installed_ && !engine_.stopped()) engine_.stop(Status(Code::kClosed, "the communicator has been destroyed"));
      stopped_ = installed_;
      std::vector<WorkerEffect> effects;
      machine_.leave(false, "its communicator was destroyed without finalize", world_.now(), effects);
      run_effects(std::move(effects));
    }
    exit(End::kFailed, why);
  });
}

void SimWorker::give_up() {
  later(0, [this] { program_fails(Status(Code::kClosed, "the program gave up")); });
}

void SimWorker::drain(Micros within_us, bool serves) {
  later(0, [this, within_us, serves] {
    if (exiting_ || finished_ || leave_by_us_) return;
    const Micros by_us = world_.now_us() + within_us;
    std::vector<WorkerEffect> effects;
    machine_.drain(TimeMs{by_us / 1000}, "the machine is needed elsewhere", serves, world_.now(), effects);
    run_effects(std::move(effects));
    leave_by(by_us);
  });
}

void SimWorker::leave_by(Micros by_us) {
  if (exiting_ || finished_ || leave_by_us_) return;
  leave_by_us_ = by_us;
  if (world_.keeps_transcript()) world_.tell(describe() + " is to leave by " + std::to_string(by_us) + " us");
  look_at_drain();
}

// As Control::look_at_drain and Session::leave.
void SimWorker::look_at_drain() {
  if (!alive_ || exiting_ || finished_) return;
  const bool over = world_.now_us() >= *leave_by_us_;
  const WorkerMachine::State state = machine_.state();
  if (state == WorkerMachine::State::kServing) return;  // its machine says when it may go
  const bool member = state == WorkerMachine::State::kMember;
  // Its data path is being stopped, or all that is missing is the others' word that they have finalized.
  const bool waits = state == WorkerMachine::State::kStopping || state == WorkerMachine::State::kLeaving;
  if (!over && (waits || (member && engine_.outstanding() > 0))) {
    return later(kLookAtDrainUs, [this] { look_at_drain(); });
  }
  std::vector<WorkerEffect> effects;
  machine_.leave(false, "the machine is needed elsewhere", world_.now(), effects);
  if (state != WorkerMachine::State::kStopping && machine_.state() != WorkerMachine::State::kFailed) {
    run_effects(std::move(effects));
    // It serves, unless the interrupt that it answers meanwhile is one that ends its life.
    return later(kLookAtDrainUs, [this] { look_at_drain(); });
  }
  std::erase_if(effects, [](const WorkerEffect& e) { return !std::holds_alternative<worker_effect::Send>(e); });
  run_effects(std::move(effects));
  leave_place();
}

// As Session::wait_for_plan.
void SimWorker::begin_again() {
  if (exiting_ || finished_) return;
  const char* const why = "it begins again, as a spare that has looked at nothing";
  std::vector<WorkerEffect> effects;
  begins_again_ = true;
  machine_.leave(false, why, world_.now(), effects);
  run_effects(std::move(effects));
  exit(End::kBeginsAgain, Status(Code::kClosed, why));
}

void SimWorker::leave_place() {
  exit(End::kFailed, Status(Code::kUnavailable, "its place is needed elsewhere"));
}

bool SimWorker::waits() const {
  if (!alive_ || computing_ || exiting_ || world_.now_us() < stands_still_until_us_) return false;
  switch (machine_.state()) {
    case WorkerMachine::State::kJoining:
    case WorkerMachine::State::kSuspended:
    case WorkerMachine::State::kLeaving: return true;
    case WorkerMachine::State::kMember:
      return engine_.outstanding() > 0 || engine_.asking() || loading_ || waits_for_commit_;
    default: return false;
  }
}

bool SimWorker::can_tell() const {
  if (!alive_ || exiting_ || world_.now_us() < stands_still_until_us_) return false;
  switch (machine_.state()) {
    case WorkerMachine::State::kJoining:
    case WorkerMachine::State::kMember:
    case WorkerMachine::State::kStopping:
    case WorkerMachine::State::kSuspended:
    case WorkerMachine::State::kLeaving: return true;
    default: return false;
  }
}

void SimWorker::stand_still(Micros for_us) {
  stands_still_until_us_ = std::max(stands_still_until_us_, world_.now_us() + for_us);
}

void SimWorker::check_memory() {
  for (auto& a : calls_) {
    if (a->reaped && !std::equal(a->after.begin(), a->after.end(), a->bytes().begin())) {
      return world_.violated("I6", describe() + ": the buffer of step " + std::to_string(a->step.index) +
                                       " was written to after the call had returned");
    }
  }
}

void SimWorker::die(bool silently) {
  if (!alive_) return;
  if (world_.keeps_transcript()) world_.tell(describe() + (silently ? " vanishes" : " dies"));
  exiting_ = true;
  alive_ = false;
  if (gpu_) gpu_->vanish();
  transport_.vanish(silently);
  if (installed_ && !engine_.stopped()) engine_.stop(Status(Code::kClosed, "killed"));
  end_prepares();
  if (!at_death_.empty()) std::copy(at_death_.begin(), at_death_.end(), segment_->bytes().begin());
  stopped_ = true;
  close_disk();
  check_memory();
  links_.ended(End::kDied, Status(Code::kPeerLost, "killed"));
}

void SimWorker::exit(End end, const Status& why) {
  if (!alive_) return;
  if (world_.keeps_transcript()) {
    world_.tell(describe() + (end == End::kFinished ? " has finished" : " ends: " + why.describe()));
  }
  alive_ = false;
  exiting_ = true;
  if (gpu_) gpu_->vanish();
  if (installed_ && !engine_.stopped()) engine_.stop(Status(Code::kClosed, "the process ends"));
  end_prepares();
  transport_.vanish(false);
  stopped_ = true;
  close_disk();
  check_memory();
  links_.ended(end, why);
}

}  // namespace warren::chaos
