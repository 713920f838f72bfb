#include "chaos/sim/sim_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "recovery/codec.h"
#include "recovery/limits.h"

namespace warren::chaos {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
// What C++20 deduces by itself, and Clang 14 does not.
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

constexpr std::byte kUntouched{0xa5};
constexpr std::size_t kMostOutstanding = 6;

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
  if (e.has_leave()) return e.leave().finalize() ? "Leave: finalize" : "Leave: " + e.leave().reason();
  return "";
}

}  // namespace

SimWorker::SimWorker(World& world, Judge& judge, DataNetwork& network, const Program& program, Links links,
                     Options options)
    : world_(world),
      judge_(judge),
      program_(program),
      links_(std::move(links)),
      options_(std::move(options)),
      self_(draw_incarnation(world.random)),
      machine_({options_.job, self_, options_.join, options_.join_timeout_ms, "tracker:9370"}),
      transport_(network, *this, self_),
      engine_(transport_, board_) {}

// Calls under way hold themselves until they end.
SimWorker::~SimWorker() {
  if (installed_) engine_.stop(Status(Code::kClosed, "the run is over"));
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
  std::vector<WorkerEffect> effects;
  machine_.start(world_.now(), effects);
  run_effects(std::move(effects));
}

void SimWorker::receive(const std::string& bytes) {
  if (!alive_) return;
  if (world_.now_us() < stands_still_until_us_) {
    return later(stands_still_until_us_ - world_.now_us(), [this, bytes] { receive(bytes); });
  }
  auto envelope = decode_envelope(std::as_bytes(std::span(bytes.data(), bytes.size())), Side::kTracker);
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
  const auto deadline = machine_.next_deadline();
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
  run_effects(std::move(effects));
}

void SimWorker::set_progress() {
  machine_.set_progress(progress_.read(board_, world_.now()));
}

void SimWorker::run_effects(std::vector<WorkerEffect> effects) {
  machine_.check_invariants();
  for (std::size_t i = 0; i < effects.size() && alive_ && !world_.failed(); ++i) {
    if (options_.die_before_effect == effects_ || world_.strikes(Fault::death_between_effects)) {
      return die(world_.random.chance(0.3));
    }
    ++effects_;
    std::vector<WorkerEffect> more;
    const WorkerEffect effect = effects[i];
    carry_out(effect, i + 1 == effects.size(), more);
    effects.insert(effects.begin() + static_cast<std::ptrdiff_t>(i) + 1, more.begin(), more.end());
  }
  if (alive_) arm();
}

void SimWorker::carry_out(const WorkerEffect& effect, bool last, std::vector<WorkerEffect>& more) {
  std::visit(Overloaded{
                 [&](const worker_effect::Send& e) {
                   if (world_.keeps_transcript() && !e.envelope.has_heartbeat()) {
                     world_.tell(describe() + " → tracker: " + body_of(e.envelope));
                   }
                   links_.send(encode(e.envelope, Side::kWorker));
                 },
                 [&](const worker_effect::Install& e) { install(e.plan); },
                 [&](const worker_effect::StopDataPath& e) {
                   if (world_.is(Mutant::stopped_before_stop)) {
                     machine_.on_stopped(e.epoch, world_.now(), more);
                     return later(world_.random.between(1000, 50'000), [this, why = e.why] { stop_engine(why); });
                   }
                   if (last && world_.strikes(Fault::slow_stop)) {
                     const bool twice = world_.random.chance(0.3);
                     return later(world_.random.between(100, 100'000), [this, epoch = e.epoch, why = e.why, twice] {
                       stop_engine(why);
                       std::vector<WorkerEffect> effects;
                       machine_.on_stopped(epoch, world_.now(), effects);
                       if (twice) machine_.on_stopped(epoch, world_.now(), effects);
                       run_effects(std::move(effects));
                     });
                   }
                   stop_engine(e.why);
                   machine_.on_stopped(e.epoch, world_.now(), more);
                 },
                 [&](const worker_effect::Fail& e) { fail(e.why); },
                 [&](const worker_effect::Finished&) {
                   finished_ = true;
                   stop_engine(Status(Code::kClosed, "the communicator has been finalized"));
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
  for (const wire::Member& m : plan.members()) {
    membership.lives.emplace_back(m.incarnation());
    if (m.incarnation() == self_.value) rank_ = Rank(static_cast<std::int32_t>(m.rank()));
  }
  membership.self = rank_;
  settings_ = plan.settings();
  membership.streams = settings_.streams();
  membership.checksums = settings_.checksums();
  membership.timeout_ms = static_cast<std::int64_t>(settings_.round_timeout_ms());
  plan_epoch_ = membership.epoch;
  transport_.open(std::move(membership));
  worker::Engine::Plan p;
  p.epoch = plan_epoch_;
  p.timeline = Timeline(plan.timeline());
  p.self = rank_;
  p.world_size = static_cast<std::uint32_t>(plan.members_size());
  p.chunk_bytes = settings_.chunk_bytes();
  p.check_call_sites = settings_.check_call_sites();
  p.algorithm = schedule::parse_algorithm(settings_.algorithm()).value();
  engine_.install(p);
  installed_ = true;
  order_ = program_.order_of(rank_);
  group_made_.assign(program_.groups().size(), false);
  group_made_[0] = true;
  later(world_.random.between(0, 500), [this] { advance(); });
}

void SimWorker::stop_engine(const Status& why) {
  if (!installed_) return;
  engine_.stop(why);
  stopped_ = true;
  data_moved();
}

void SimWorker::fail(const Status& why) {
  if (failed_.ok()) failed_ = why;
  if (!world_.is(Mutant::stopped_before_stop)) stop_engine(why);
  program_fails(why);
}

void SimWorker::data_moved() {
  if (pumping_) return;
  pumping_ = true;
  later(world_.random.between(0, 15), [this] { pump(); });
}

void SimWorker::pump() {
  pumping_ = false;
  while (engine_.progress()) {
  }
  report_failure();
  if (!engine_.stopped()) engine_.publish_waits();
  engine_.finished_calls().clear();
  advance();
}

void SimWorker::report_failure() {
  const auto failure = engine_.take_failure();
  if (!failure) return;
  std::vector<WorkerEffect> effects;
  if (failure->status.code() == Code::kPeerLost && failure->peer != kNoRank) {
    machine_.on_link_broken(plan_epoch_, failure->peer, failure->status.describe(), world_.now(), effects);
  }
  machine_.on_round_failed(plan_epoch_, failure->status, world_.now(), effects);
  run_effects(std::move(effects));
}

void SimWorker::link_closed(Rank peer, const std::string& evidence) {
  later(world_.random.between(0, 200), [this, epoch = machine_.epoch(), peer, evidence] {
    if (epoch != machine_.epoch()) return;
    std::vector<WorkerEffect> effects;
    machine_.on_link_broken(epoch, peer, evidence, world_.now(), effects);
    run_effects(std::move(effects));
  });
}

void SimWorker::watch_waits() {
  if (watching_) return;
  watching_ = true;
  later(kWaitLogIntervalMs * 1000, [this] {
    watching_ = false;
    if (engine_.stopped() || engine_.outstanding() == 0) return;
    for (const std::string& line : engine_.describe_waits()) {
      judge_.sign();
      if (world_.keeps_transcript()) world_.tell(describe() + ": " + line);
    }
    watch_waits();
  });
}

// ---- the program

void SimWorker::advance() {
  if (!alive_ || !installed_ || world_.failed() || exiting_) return;
  for (auto& call : calls_) {
    if (!call->reaped && call->call->finished) reap(*call);
    if (exiting_ || world_.failed()) return;
  }
  while (!leaving_ && !program_done_) {
    const auto outstanding = std::count_if(calls_.begin(), calls_.end(), [](const auto& c) { return !c->reaped; });
    const bool blocked =
        std::any_of(calls_.begin(), calls_.end(), [](const auto& c) { return !c->reaped && c->step.blocking; });
    if (computing_ || blocked || static_cast<std::size_t>(outstanding) >= kMostOutstanding) return;
    if (waits_for_all_ && outstanding > 0) return;
    waits_for_all_ = false;
    if (position_ == order_.size()) {
      if (outstanding > 0) return;
      return finalize();
    }
    issue(position_++);
    if (exiting_ || world_.failed()) return;
  }
}

void SimWorker::issue(std::size_t position) {
  for (std::size_t g = 0; g < program_.groups().size(); ++g) {
    const ProgramGroup& group = program_.groups()[g];
    if (group_made_[g] || group.made_at > position) continue;
    group_made_[g] = true;
    if (std::find(group.members.begin(), group.members.end(), rank_) == group.members.end()) continue;
    const Status made =
        engine_.stopped() ? Status() : engine_.add_group(group.id, group.members, static_cast<std::uint32_t>(g) + 1);
    if (!made.ok()) return program_fails(made);
  }
  ProgramStep step = program_.steps()[order_[position]];
  const auto place = program_.place(step, rank_);
  if (!place) return;
  if (position + 1 < order_.size() && program_.steps()[order_[position + 1]].wait_before) waits_for_all_ = true;
  if (world_.strikes(Fault::slow_rank)) {
    // Longer than a wait may stay unexplained, now and then.
    const Micros most = world_.random.chance(0.2) ? 40'000'000 : 500'000;
    computing_ = true;
    later(world_.random.between(1000, most), [this] {
      computing_ = false;
      advance();
    });
  } else if (world_.random.chance(0.3)) {
    computing_ = true;
    later(world_.random.between(1, 2000), [this] {
      computing_ = false;
      advance();
    });
  }
  const bool can_alter = step.collective != Collective::kPoint && program_.members(step).size() > 1;
  if (can_alter && world_.strikes(Fault::desync)) {
    desynced_ = true;
    if (world_.keeps_transcript()) world_.tell(describe() + " calls something else");
    if (alter(step)) return submit(std::move(step), *place, true);
    if (settings_.check_call_sites() && world_.random.chance(0.5)) return;  // skips the call
    position_ = order_.size();                                              // goes to finalize
    return;
  }
  submit(std::move(step), *place, false);
}

// Makes another call of it; false: it is to be left out.
bool SimWorker::alter(ProgramStep& step) {
  if (world_.random.chance(0.3)) return false;
  if (step.op == ReduceOp::kSum && world_.random.chance(0.5)) {
    step.op = ReduceOp::kMax;
  } else if (step.collective == Collective::kBarrier || step.collective == Collective::kAllgatherv) {
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
  const std::vector<std::byte> input = program_.input(step, place);
  if (!input.empty()) std::memcpy(a.bytes().data() + (holds_data ? a.out_at : in_at), input.data(), input.size());
  a.before.assign(a.bytes().begin(), a.bytes().end());

  a.call = std::make_shared<worker::Call>();
  worker::CallSpec& spec = a.call->spec;
  spec.collective = step.collective;
  spec.type = step.type;
  spec.op = step.op;
  const bool bufferless = step.collective == Collective::kBroadcast || step.collective == Collective::kBarrier;
  spec.input = bufferless ? nullptr : a.bytes().data() + in_at;
  spec.output = step.collective == Collective::kBarrier ? nullptr : a.bytes().data() + a.out_at;
  spec.count = step.count;
  spec.counts = step.counts;
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
  const auto size = static_cast<std::int32_t>(program_.members(step).size());
  const GroupId group = program_.groups()[step.group].id;
  const Status valid = worker::validate(spec, {place, size});
  a.step = std::move(step);
  if (!valid.ok()) return world_.violated("Program", valid.describe());
  calls_.push_back(std::move(active));
  a.call->self = a.call;
  const Status taken = engine_.submit(group, *a.call);
  if (!taken.ok()) {
    a.call->self.reset();
    a.reaped = true;
    a.after.assign(a.bytes().begin(), a.bytes().end());
    if (taken.code() == Code::kInvalidArgument) return world_.violated("Program", taken.describe());
    return program_fails(taken);
  }
  if (engine_.outstanding() > limits::kMaxOutstandingRounds) world_.violated("I8", "too many calls are outstanding");
  watch_waits();
  data_moved();
}

void SimWorker::reap(ActiveCall& a) {
  a.reaped = true;
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
    if (world_.keeps_transcript()) {
      world_.tell(describe() + " finished step " + std::to_string(a.step.index) + ", " +
                  to_string(a.call->fingerprint));
    }
    if (!a.altered) judge_.returned(a.step, a.place, output);
    return;
  }
  if (!a.altered) judge_.interrupted(a.step, a.place, std::span(a.before).subspan(a.out_at, a.out_bytes), output);
  program_fails(a.call->status);
}

void SimWorker::finalize() {
  program_done_ = true;
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
      stop_engine(Status(Code::kClosed, "the communicator has been destroyed"));
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

bool SimWorker::waits() const {
  if (!alive_ || computing_ || exiting_ || world_.now_us() < stands_still_until_us_) return false;
  switch (machine_.state()) {
    case WorkerMachine::State::kJoining:
    case WorkerMachine::State::kLeaving: return true;
    case WorkerMachine::State::kMember: return engine_.outstanding() > 0;
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
  transport_.vanish(silently);
  stop_engine(Status(Code::kClosed, "killed"));
  stopped_ = true;
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
  if (installed_ && !engine_.stopped()) engine_.stop(Status(Code::kClosed, "the process ends"));
  transport_.vanish(false);
  stopped_ = true;
  check_memory();
  links_.ended(end, why);
}

}  // namespace warren::chaos
