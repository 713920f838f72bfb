// A simulated worker: how it begins and ends, and its control thread, as worker/session/control.cc is one.
#include "chaos/sim/sim_worker.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "chaos/sim/kept.h"
#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/base/overloaded.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/fetch_codec.h"
#include "worker/rounds/logged.h"

namespace warren::chaos {
namespace {

constexpr Micros kLookAtDrainUs = 20'000;
// Between two looks at sends that wait for their receives.
constexpr Micros kLookAtSendsUs = 900'000;
// How long a caller looks before it sleeps. Odd ranks longer than it does in life, so that interrupts find them there.
constexpr Micros kSpinUs[] = {60, 1000};

Incarnation draw_incarnation(Random& random) {
  std::uint64_t v = 0;
  while (v == 0) v = random.next();
  return Incarnation(v);
}

std::string body_of(const wire::Envelope& e) {
  if (e.has_join()) return "Join of " + e.join().worker_id();
  if (e.has_heartbeat()) return "Heartbeat of generation " + std::to_string(e.heartbeat().generation());
  if (e.has_link_broken()) return "LinkBroken to rank " + std::to_string(e.link_broken().peer());
  if (e.has_round_failed()) return "RoundFailed: " + e.round_failed().reason();
  if (e.has_stopped()) return "Stopped " + std::to_string(e.stopped().generation());
  if (e.has_report()) {
    return "Report " + std::to_string(e.report().generation()) + describe_positions(e.report().positions());
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

// Opens the disk, and puts into the join what it holds.
std::unique_ptr<storage::FakeResultStore> open_disk(SimWorker::Options& options, Incarnation self) {
  if (!options.disk || options.join.settings().replicas() == 0) return nullptr;
  auto store = std::make_unique<storage::FakeResultStore>(options.disk, options.join.worker_id(), self);
  if (options.join.spare()) return store;
  auto held = held_on(*store, options.mirror);
  if (held) *options.join.mutable_held() = std::move(*held);
  return store;
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
      life_(transport_, board_, options_.ends_process),
      hosts_(hosts),
      progress_(sample_interval_ms(static_cast<std::int64_t>(options_.join.settings().round_timeout_ms()))) {
  if (options_.has_gpu) {
    const auto timeout_us = static_cast<Micros>(options_.join.settings().round_timeout_ms()) * 1000;
    gpu_.emplace(world_, timeout_us, options_.gpu_stalls, [this] { data_moved(); });
    shares_.emplace(*gpu_, !world_.random.chance(0.05));
    combines_.emplace(*gpu_, *shares_);
    life_.engine().use(*combines_);
  }
  if (options_.nccl != nullptr) {
    const auto& settings = options_.join.settings();
    exchange_.emplace(*gpu_, *options_.nccl, static_cast<Micros>(settings.round_timeout_ms()) * 1000,
                      settings.checksums(), options_.nccl_fails);
    life_.engine().use(*exchange_);
  }
  if (options_.join.settings().replicas() == 0) return;
  segment_ = heap_segment(options_.log_bytes);
  auto log = HostLog::create(self_, segment_).value();
  if (store_) log->spill_by([this] { return spill(); });
  log->give_up_but([this](const RecordKey& record) { return life_.engine().needs(record); });
  log->watch({{}, [this] { judge_.gives_up(*life_.log().gives_up()); }});
  shown_ = world_.is(Mutant::publishes_late) ? heap_segment(options_.log_bytes) : segment_;
  hosts_.add(host(), self_, shown_, options_.launcher_keeps_log);
  served_ = reader(*log);
  auto own = reader(*log);
  life_.keep_log(
      self_, std::move(log), std::move(own), [this] { return world_.now(); },
      [this](const worker::Replayer::Send& send) { links_.fetch(send); });
  if (store_) life_.vote_when_durable();
  if (store_ && options_.mirror != nullptr) life_.use_mirror();
}

// Calls under way hold themselves until they end.
SimWorker::~SimWorker() {
  if (gpu_) gpu_->vanish();
  if (installed_) life_.engine().stop(Status(Code::kClosed, "the run is over"));
  end_prepares();
}
std::string SimWorker::describe() const {
  return "life " + std::to_string(options_.life) + " (" + worker_id() +
         (installed_
              ? ", rank " + std::to_string(rank_.value) + " in generation " + std::to_string(plan_generation_.value)
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
    told_generation_ = std::max(told_generation_, Generation(envelope.value().plan().generation()));
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
  if (life_.logs()) {
    if (const auto d = life_.next_deadline(); d && (!deadline || *d < *deadline)) deadline = d;
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
  if (life_.logs()) {
    const bool takes_over = life_.takes_over();
    life_.tick(world_.now());
    if (doomed_) return links_.doomed();
    carry_out_life();
    if (takes_over) look_at_segments();
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

// The control thread looks at the progress of the data path, again and again.
void SimWorker::sample() {
  if (machine_.state() == WorkerMachine::State::kMember) progress_.sample(board_, world_.now());
  later(sample_interval_ms(static_cast<std::int64_t>(options_.join.settings().round_timeout_ms())) * 1000,
        [this] { sample(); });
}

// Before a worker sleeps it shows what it waits for.
void SimWorker::rest() {
  if (!alive_ || life_.engine().stopped()) return;
  if (life_.engine().has_unposted()) return spin();
  if (opened_) life_.engine().publish_waits();
  const worker::Engine& engine = life_.engine();
  const bool waits = engine.outstanding() > 0 || engine.asking() || loading_ || waits_for_commit_ || leaving_;
  board_.asleep.store(waits ? 1 : 0);
  show_blocked();
}

// A heartbeat says which calls a program waits in, as Session tells it.
void SimWorker::show_blocked() {
  const bool waits = std::ranges::any_of(calls_, [](const auto& c) { return !c->reaped && c->step.blocking; });
  if (waits && world_.now_us() >= next_look_at_sends_us_) {
    next_look_at_sends_us_ = world_.now_us() + kLookAtSendsUs;
    if (!life_.engine().end_waiting_sends().empty()) data_moved();
  }
  const bool may_call = !waits || computing_ || loading_ || waits_for_commit_ || leaving_ || exiting_ || !opened_;
  auto blocked = may_call ? std::nullopt : life_.engine().blocked();
  const auto shown = board_.blocked();
  if (!blocked) {
    if (shown != nullptr) board_.show_blocked(nullptr);
  } else if (shown == nullptr || shown->SerializeAsString() != blocked->SerializeAsString()) {
    board_.show_blocked(std::make_shared<const wire::Blocked>(std::move(*blocked)));
  }
}

// A caller looks for a while before it sleeps.
void SimWorker::spin() {
  if (std::exchange(spins_, true)) return;
  later(kSpinUs[rank_.value % 2], [this] {
    spins_ = false;
    if (!life_.engine().post_all()) return;
    if (doomed_) return links_.doomed();
    data_moved();
  });
}

bool SimWorker::passes(KillPoint point) {
  if (doomed_ || !alive_) return true;
  doomed_ = links_.killed_at(point, passages_[static_cast<std::size_t>(point)]++);
  // The process dies here, so the rest of this step logs nothing.
  if (doomed_ && segment_) at_death_.assign(segment_->bytes().begin(), segment_->bytes().end());
  return doomed_;
}

bool SimWorker::dies_at_send() {
  if (doomed_ || !alive_) return true;
  return passes(KillPoint::kSend);
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
              machine_.on_stopped(e.generation, life_.engine().standing(), world_.now(), more);
              return later(world_.random.between(1000, 50'000), [this, e, generation = plan_generation_] {
                if (generation == plan_generation_) (void)stop_data_path(e);
              });
            }
            if (last && world_.strikes(Fault::slow_stop)) {
              const bool twice = world_.random.chance(0.3);
              return later(world_.random.between(100, 100'000), [this, e, twice] {
                const auto standing = stop_data_path(e);
                std::vector<WorkerEffect> effects;
                machine_.on_stopped(e.generation, standing, world_.now(), effects);
                if (twice) machine_.on_stopped(e.generation, standing, world_.now(), effects);
                run_effects(std::move(effects));
              });
            }
            machine_.on_stopped(e.generation, stop_data_path(e), world_.now(), more);
          },
          [&](const worker_effect::Loaded& e) {
            judge_.loaded(e.committed ? std::optional(e.version) : std::nullopt, e.timeline);
            worker_effect::Loaded what = e;
            if (world_.is(Mutant::reuses_names)) what.timeline = Timeline(0);
            if (life_.checkpoints().has_followed(what)) judge_.loaded_followed();
            life_.loading().start_from(what);
            look_at_checkpoints();
            data_moved();
          },
          [&](const worker_effect::TrackerAway& e) {
            life_.tracker_away(e.away);
            carry_out_life();
          },
          [&](const worker_effect::Committed& e) {
            judge_.told_committed(e.version, e.timeline);
            committed_ = e;
            life_.committed(e.version, e.timeline, world_.now());
            carry_out_life();
            look_at_segments();
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
            if (store_) (void)store_->finish();
            store_.reset();
            life_.finished();
            stopped_ = true;
            data_moved();
            later(world_.random.between(0, 2000), [this] { exit(End::kFinished, Status()); });
          },
          [&](const worker_effect::Log& e) {
            judge_.sign();
            if (world_.keeps_transcript()) world_.tell(describe() + ": " + e.event.name + ": " + e.event.text);
          },
      },
      effect);
}
void SimWorker::finalize() {
  program_done_ = true;
  life_.engine().end_rounds();
  if (!life_.failure().ok() || life_.engine().stopped()) return;
  if (!world_.strikes(Fault::slow_finalize)) return say_finalized();
  computing_ = true;
  later(world_.random.between(1000, world_.random.chance(0.4) ? 16'000'000 : 1'000'000), [this] {
    computing_ = false;
    if (!exiting_) say_finalized();
  });
}

void SimWorker::say_finalized() {
  leaving_ = true;
  later(world_.random.between(0, 100), [this, last = life_.engine().version()] {
    std::vector<WorkerEffect> effects;
    machine_.finalize(last, world_.now(), effects);
    run_effects(std::move(effects));
  });
}

void SimWorker::program_fails(const Status& why) {
  if (exiting_ || life_.is_finished()) return;
  exiting_ = true;
  // The program sees its error and destroys the communicator, soon or late; until then the control thread answers.
  const Micros timeout_us = static_cast<Micros>(options_.join.settings().round_timeout_ms()) * 1000;
  later(world_.random.between(100, world_.random.chance(0.3) ? 2 * timeout_us : 20'000), [this, why] {
    if (life_.failure().ok() && !life_.is_finished()) {
      life_.close();
      stopped_ = installed_;
      std::vector<WorkerEffect> effects;
      machine_.leave("its communicator was destroyed without finalize", world_.now(), effects);
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
    if (exiting_ || life_.is_finished() || leave_by_us_) return;
    const Micros by_us = world_.now_us() + within_us;
    std::vector<WorkerEffect> effects;
    machine_.drain(TimeMs{by_us / 1000}, "the machine is needed elsewhere", serves, world_.now(), effects);
    run_effects(std::move(effects));
    leave_by(by_us);
  });
}

void SimWorker::leave_by(Micros by_us) {
  if (exiting_ || life_.is_finished() || leave_by_us_) return;
  leave_by_us_ = by_us;
  if (world_.keeps_transcript()) world_.tell(describe() + " is to leave by " + std::to_string(by_us) + " us");
  look_at_drain();
}

// A worker that drains leaves once no call is under way, at the latest when its time is over.
void SimWorker::look_at_drain() {
  if (!alive_ || exiting_ || life_.is_finished()) return;
  const bool over = world_.now_us() >= *leave_by_us_;
  const WorkerMachine::State state = machine_.state();
  if (state == WorkerMachine::State::kServing) return;  // its machine says when it may go
  const bool member = state == WorkerMachine::State::kMember;
  // Its data path is being stopped, or all that is missing is the others' word that they have finalized.
  const bool waits = state == WorkerMachine::State::kStopping || state == WorkerMachine::State::kLeaving;
  if (!over && (waits || (member && life_.engine().outstanding() > 0))) {
    return later(kLookAtDrainUs, [this] { look_at_drain(); });
  }
  std::vector<WorkerEffect> effects;
  machine_.leave("the machine is needed elsewhere", world_.now(), effects);
  if (state != WorkerMachine::State::kStopping && machine_.state() != WorkerMachine::State::kFailed) {
    run_effects(std::move(effects));
    // It serves, unless the interrupt that it answers meanwhile is one that ends its life.
    return later(kLookAtDrainUs, [this] { look_at_drain(); });
  }
  std::erase_if(effects, [](const WorkerEffect& e) { return !std::holds_alternative<worker_effect::Send>(e); });
  run_effects(std::move(effects));
  leave_place();
}

// A spare that was called in vain begins another life in the same process.
void SimWorker::begin_again() {
  if (exiting_ || life_.is_finished()) return;
  const char* const why = "it begins again, as a spare that has looked at nothing";
  std::vector<WorkerEffect> effects;
  begins_again_ = true;
  machine_.leave(why, world_.now(), effects);
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
      return life_.engine().outstanding() > 0 || life_.engine().asking() || loading_ || waits_for_commit_;
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
  if (installed_ && !life_.engine().stopped()) life_.engine().stop(Status(Code::kClosed, "killed"));
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
  if (installed_ && !life_.engine().stopped()) life_.engine().stop(Status(Code::kClosed, "the process ends"));
  end_prepares();
  transport_.vanish(false);
  stopped_ = true;
  close_disk();
  check_memory();
  links_.ended(end, why);
}

}  // namespace warren::chaos
