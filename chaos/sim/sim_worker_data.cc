// The data path of a simulated worker: plans, segments of its host, its life and its engine.
#include "chaos/sim/sim_worker.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "chaos/sim/kept.h"
#include "recovery/base/limits.h"
#include "recovery/base/overloaded.h"
#include "recovery/wire/fetch_codec.h"
#include "worker/disk/past.h"
#include "worker/life/plans.h"
#include "worker/rounds/logged.h"

namespace warren::chaos {
namespace {

// Until worker/transport/knocks.h has found out that a process has gone, and again.
constexpr Micros kLookForMatesUs = 100'000, kLookForLinkedUs = 70'000;

}  // namespace

void SimWorker::install(const wire::Plan& plan) {
  judge_.installed(plan, self_, worker_id());
  if (world_.failed()) return;
  SimTransport::Membership membership;
  membership.generation = Generation(plan.generation());
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
  plan_generation_ = membership.generation;
  progress_.restart();
  generations_.insert(plan_generation_);
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
  worker::Replayer::Plan replay;
  if (life_.logs()) {
    for (const Hosts::Segment& s : hosts_.segments(host())) map_segment(s.life, s.memory);
    replay = worker::replay_plan(plan, rank_);
    if (world_.is(Mutant::server_is_a_copy)) {
      for (worker::Replayer::Peer& peer : replay.peers) peer.server = false;
    }
  }
  if (world_.is(Mutant::mixes_attempts) && installed_ && before < timeline_) mix_attempts(before, timeline_);
  for (auto& a : calls_) {
    if (a->reaped || a->shadow.empty()) continue;
    std::memcpy(a->shadow.data(), a->bytes().data() + a->out_at, a->shadow.size());
  }
  life_.install(p, replay);
  carry_out_life();
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
  if (world_.is(Mutant::finals_of_own_host) && life_.logs()) {
    for (worker::Engine::Frontier& f : plan.frontier) {
      if (f.final.empty()) continue;
      f.final =
          life_.recall().reader().held({RecordKind::kRound, {plan.timeline, f.group, f.version, Sequence(f.rounds)}});
    }
  }
}

// Mutant::mixes_attempts.
void SimWorker::mix_attempts(Timeline before, Timeline now) {
  const Version version = life_.engine().version();
  const Sequence next(frontier_rounds(kWorldGroup, version));
  const RecordKey old{RecordKind::kRound, {before, kWorldGroup, version, next}};
  RecordKey mixed = old;
  mixed.round.timeline = now;
  const auto info = life_.recall().reader().info(old);
  if (!info.ok() || !info.value()) return;
  const Ranges held = life_.recall().reader().held(old);
  for (const Interval& i : held.intervals()) {
    std::vector<std::byte> bytes(i.end - i.begin);
    if (life_.recall().reader().read(old, i.begin, bytes))
      (void)life_.log().publish(mixed, *info.value(), i.begin, bytes);
  }
}

std::shared_ptr<const SegmentView> SimWorker::log_of(Rank rank) {
  const auto lives = transport_.lives();
  return life_.logs() ? life_.log().segment_of(lives[static_cast<std::size_t>(rank.value)]) : nullptr;
}

// Mutant::publishes_late.
void SimWorker::show_segment() {
  std::copy(segment_->bytes().begin(), segment_->bytes().end(), shown_->bytes().begin());
  later(world_.random.between(50, 3000), [this] { show_segment(); });
}

// Every rank of the host can read this life's log before anything of it moves.
void SimWorker::give_segment() {
  const auto opens = [this] {
    later(world_.random.between(0, 300), [this, generation = plan_generation_] {
      if (generation == plan_generation_ && !stopped_) open();
    });
  };
  auto waiting = std::make_shared<std::set<Rank>>();
  for (std::size_t at = 0; life_.logs() && at < lives_.size(); ++at) {
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
    mate->later(world_.random.between(5, 300), [this, mate, rank, waiting, opens, generation = plan_generation_] {
      mate->map_segment(self_, shown_);
      later(world_.random.between(5, 100), [this, mate, rank, waiting, opens, generation] {
        given_to_.insert(mate->self_);
        waiting->erase(rank);
        if (waiting->empty() && generation == plan_generation_ && !stopped_) opens();
      });
    });
  }
  if (waiting->empty()) return opens();
  look_for_mates(waiting, world_.now_us() + static_cast<Micros>(settings_.round_timeout_ms()) * 1000);
}

void SimWorker::map_segment(Incarnation life, const std::shared_ptr<SegmentMemory>& memory) {
  if (life == self_ || !life_.logs() || !mapped_.insert(life).second) return;
  const Status status = life_.attach(life, memory->bytes(), memory);
  if (!status.ok()) return world_.violated("I8", describe() + " cannot map a segment: " + status.describe());
  hosts_.mapped(life, self_);
}

// The number of dead lives' segments has a bound (I8).
void SimWorker::look_at_segments() {
  if (!life_.logs() || life_.takes_over() || !opened_) return;
  const std::size_t living = life_.recall().replayer().host_lives().size();
  const std::size_t kept = life_.log().attached().size();
  if (kept > living + worker::DeadSegments::most_waiting(living)) {
    world_.violated("I8", describe() + " keeps " + std::to_string(kept) + " log segments");
  }
}

void SimWorker::open() {
  if (life_.engine().stopped()) return;
  if (world_.is(Mutant::replay_ignores_prepare)) {
    for (auto& a : calls_) {
      const bool runs = !a->call->finished && a->call->prepare == worker::Call::Prepare::kRuns;
      if (runs && in_log(a->call->round)) a->call->prepare = worker::Call::Prepare::kDone;
    }
  }
  life_.open(world_.now());
  opened_ = true;
  carry_out_life();
  look_at_segments();
  if (doomed_) return links_.doomed();
  data_moved();
}

WorkerMachine::Standing SimWorker::stop_data_path(const worker_effect::StopDataPath& what) {
  if (!installed_ || stopped_)
    return installed_ && !life_.engine().stopped() ? life_.engine().standing() : WorkerMachine::Standing();
  auto linked = transport_.linked();
  WorkerMachine::Standing standing = life_.stop(what);
  stopped_ = true;
  if (what.resume) {
    if (options_.join.waits()) {
      look_for_linked(std::move(linked), world_.now_us() + static_cast<Micros>(settings_.round_timeout_ms()) * 1000);
    }
    links_.recovers();
  }
  data_moved();
  return standing;
}

// As FetchService::install.
void SimWorker::serve(const wire::Plan& plan) {
  judge_.serves(plan, self_);
  plan_generation_ = Generation(plan.generation());
  if (store_) store_->refresh(worker::lives_of(plan));
  if (!done_) done_.emplace(*served_, plan);
}

void SimWorker::follow(const worker_effect::Follow& what) {
  life_.follow(what, what.plan ? std::optional(worker::follow_plan(*what.plan, self_)) : std::nullopt);
  carry_out_life();
  arm();
}

// A spare that is called looks at what its host holds, outside of the control thread.
void SimWorker::look(const worker_effect::Called& call) {
  std::optional<wire::Held> held;
  wire::Logged logged;
  if (segment_) {
    hosts_.called(self_, call.generation);
    if (call.stale) {
      std::vector<Incarnation> stale;
      for (const Hosts::Segment& s : hosts_.segments(host())) {
        if (s.life == self_ || (s.running && s.called >= call.generation)) continue;
        const auto view = SegmentView::open(s.memory->bytes(), s.life);
        if (!view.ok() || worker::ever_written(view.value())) stale.push_back(s.life);
      }
      for (const Incarnation life : stale) hosts_.forgotten(life, self_);
      if (store_ && !worker::leave_out_stale(*store_, host(), call.generation).ok()) {
        return program_fails(Status(Code::kUnavailable, "what is stale on the disk cannot be marked"));
      }
    } else {
      logged = kept_by_launcher(host(), hosts_, self_);
    }
    if (store_) held = held_on(*store_, options_.mirror);
  }
  std::vector<WorkerEffect> effects;
  machine_.looked(call.generation, std::move(held), std::move(logged), world_.now(), effects);
  run_effects(std::move(effects));
}

void SimWorker::fail(const worker_effect::Fail& what) {
  const Status& why = what.why;
  // This host may have no rank that would.
  if (why.code() == Code::kFinished && store_ && !installed_) (void)store_->finish();
  const worker::Life::Ending ending = life_.ending(why, what.fenced);
  // Where a program joins again by itself, another process does here: both are another life.
  if (ending != worker::Life::Ending::kTellsProgram) return exit(End::kFailed, why);
  const bool may_begin_again = why.code() == Code::kRolledBack || what.fenced;
  // Its launcher takes what comes now for the program's own failure, which ends the job.
  const bool blameless =
      why.code() == Code::kClosed || (installed_ && (why.code() == Code::kTimeout || why.code() == Code::kPeerLost));
  const bool replaced = why.describe().find("a newer life of") != std::string::npos;  // another process has its id
  if (blameless && !may_begin_again && !replaced && life_.logs() && !exiting_ && !begins_again_) {
    return world_.violated("I7",
                           describe() + " is not started again, and its program is not to blame: " + why.describe());
  }
  if (!world_.is(Mutant::stopped_before_stop)) {
    life_.failed(why);
    stopped_ = true;
    if (installed_) data_moved();
  }
  program_fails(why);
}

void SimWorker::look_at_checkpoints() {
  life_.look_at_checkpoints();
  carry_out_life();
}

void SimWorker::carry_out_life() {
  for (const worker::LifeEffect& effect : life_.take_effects()) carry_out(effect);
}

void SimWorker::carry_out(const worker::LifeEffect& effect) {
  namespace life_effect = worker::life_effect;
  std::visit(Overloaded{
                 [&](const worker::MachineEvent& e) { tell(e); },
                 [&](const life_effect::Vote& e) { store_ ? make_durable(e.vote) : say(e.vote); },
                 [&](const life_effect::End& e) {
                   ended_ = e.why;
                   data_moved();
                 },
                 [&](const life_effect::ForgetSegment& e) {
                   // One that has joined and waits is mapped again when a plan has it.
                   if (e.over) {
                     hosts_.forgotten(e.life, self_);
                   } else {
                     mapped_.erase(e.life);
                   }
                 },
                 [&](const life_effect::SegmentsStay&) {},
                 [&](const life_effect::NoteCommit& e) {
                   if (!store_) return;
                   (void)store_->note(worker::note_of(e.known));
                   (void)store_->drop(e.horizon);
                 },
                 [&](const life_effect::CopyToMirror& e) { mirror(e); },
                 [&](const life_effect::LoadedFromMirror&) {
                   if (world_.keeps_transcript()) world_.tell(describe() + " has loaded from the mirror");
                 },
                 [&](const life_effect::Warn& e) {
                   if (world_.keeps_transcript()) world_.tell(describe() + ": " + e.text);
                 },
                 [&](const life_effect::Wake&) { data_moved(); },
             },
             effect);
}

void SimWorker::tell(const worker::MachineEvent& event) {
  if (const auto* gap = std::get_if<worker::machine_event::LogGap>(&event); gap != nullptr && gap->gap.checkpoint) {
    judge_.load_failed(describe(), Status(Code::kUnavailable, gap->gap.reason));
  }
  if (std::holds_alternative<worker::machine_event::Followed>(event)) judge_.followed();
  post([this, event](auto& effects) { worker::tell(machine_, event, world_.now(), effects); });
}

void SimWorker::make_durable(const WorkerMachine::Vote& vote) {
  later(world_.random.between(100, 5000), [this, vote] {
    if (!store_) return;
    write_to_disk();
    (void)store_->confirm();
    unconfirmed_ = false;
    say(vote);
  });
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
    const worker::Inquiry::Answer answer = life_.engine().say(round, sites);
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
    if (!life_.logs()) return;
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
    life_.fetched(from, reply);
    if (doomed_) return links_.doomed();
    carry_out_life();
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
    if (const auto done = life_.engine().rounds_done(group, Version(p.version()))) return *done < p.rounds();
    // Of a version that it began after, or has not begun; or of a group that it has not made.
    if (Version(p.version()) != life_.engine().version()) return Version(p.version()) > life_.engine().version();
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
  while (!doomed_ && (prepare() || life_.engine().progress() || (gpu_ && move_on_gpu()))) {
  }
  if (doomed_) return links_.doomed();
  // Also of a program that has failed, and is about to destroy the communicator.
  if (!ended_.ok()) {
    exiting_ = stopped_ = true;
    std::vector<WorkerEffect> effects;
    machine_.leave(ended_.describe(), world_.now(), effects);
    run_effects(std::move(effects));
    return exit(End::kFailed, ended_);
  }
  report_failure();
  if (!alive_) return;
  look_at_checkpoints();
  if (doomed_) return links_.doomed();
  if (!life_.engine().stopped()) life_.engine().publish_waits();
  life_.engine().finished_calls().clear();
  advance();
  if (alive_) arm();
}

// The program makes a call's input; that takes as long as it likes: now and then longer than an interrupt and the plan
// after it.
bool SimWorker::prepare() {
  worker::Call* call = life_.engine().take_prepare();
  if (call == nullptr) return false;
  const auto timeout_us = static_cast<Micros>(options_.join.settings().round_timeout_ms()) * 1000;
  const std::uint64_t how = world_.random.below(100);
  const Micros most = how < 60 || world_.straggler() ? 1000 : how < 85 ? 30'000 : 2 * timeout_us;
  later(world_.random.between(0, most), [this, call] {
    if (call->finished)
      return world_.violated("Prepare", describe() + ": a call returned and its input was being made");
    (void)call->spec.prepare(call->spec.prepare_context);
    life_.engine().prepared(*call);
    if (doomed_) return links_.doomed();
    data_moved();
  });
  return true;
}

// Moves what the GPU is at as far as it goes.
bool SimWorker::move_on_gpu() {
  bool some = false;
  std::set<const worker::Call*> looked_at;
  while (worker::Call* call = life_.engine().take_moving()) {
    const bool again = !looked_at.insert(call).second;
    Status status;
    if (!again) {
      const auto moved = call->buffers->stream()->move();
      status = moved.status();
      some = (moved.ok() && moved.value()) || some;
    }
    if (!status.ok()) gpu_fails(status);
    life_.engine().moved(*call, status);
    if (again) break;
  }
  if (const Status status = combines_->move(); !status.ok()) gpu_fails(status);
  if (exchange_) exchange_->move();
  some = life_.engine().take_done_gpu_work() || some;
  return (exchange_ && life_.engine().take_done_exchanged()) || some;
}

void SimWorker::gpu_fails(const Status& why) {
  life_.end(why, worker::Blame::kNobody);
  carry_out_life();
}

// The process has gone: what runs in it never comes back.
void SimWorker::end_prepares() {
  for (auto& a : calls_) {
    if (!a->call->finished && a->call->prepare == worker::Call::Prepare::kRuns) life_.engine().prepared(*a->call);
  }
  while (gpu_ && installed_ && move_on_gpu()) {
  }
}

void SimWorker::report_failure() {
  life_.report_trouble();
  carry_out_life();
}

void SimWorker::link_closed(Rank peer, const std::string& evidence) {
  later(world_.random.between(0, 200), [this, generation = machine_.generation(), peer, evidence] {
    if (generation != machine_.generation()) return;
    std::vector<WorkerEffect> effects;
    machine_.on_link_broken(generation, peer, evidence, world_.now(), effects);
    run_effects(std::move(effects));
  });
}

void SimWorker::process_gone(Rank peer) {
  later(0, [this, generation = machine_.generation(), peer] {
    std::vector<WorkerEffect> effects;
    machine_.on_peer_gone(generation, peer, "its process has gone", world_.now(), effects);
    run_effects(std::move(effects));
  });
}

void SimWorker::look_for_mates(std::shared_ptr<std::set<Rank>> waiting, Micros until_us) {
  later(kLookForMatesUs, [this, waiting = std::move(waiting), until_us, generation = plan_generation_]() mutable {
    if (generation != plan_generation_ || stopped_ || waiting->empty()) return;
    for (const Rank mate : *waiting) {
      if (transport_.refused_by(lives_[static_cast<std::size_t>(mate.value)])) return process_gone(mate);
    }
    if (world_.now_us() < until_us) look_for_mates(std::move(waiting), until_us);
  });
}

void SimWorker::look_for_linked(std::set<Rank> peers, Micros until_us) {
  later(kLookForLinkedUs, [this, peers = std::move(peers), until_us, generation = plan_generation_]() mutable {
    if (generation != plan_generation_ || !stopped_) return;
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
    if (life_.engine().stopped() ||
        (life_.engine().outstanding() == 0 && !waits_for_commit_ && !life_.engine().asking()))
      return;
    auto lines = life_.engine().describe_waits();
    if (waits_for_commit_) lines.push_back(life_.checkpoints().describe_wait());
    for (const std::string& line : lines) {
      judge_.sign();
      if (world_.keeps_transcript()) world_.tell(describe() + ": " + line);
    }
    watch_waits();
  });
}

}  // namespace warren::chaos
