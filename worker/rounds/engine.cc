#include "worker/rounds/engine.h"

#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/base/text.h"

namespace warren::worker {

void Engine::install(const Plan& plan) {
  WARREN_CHECK(!shared_.open && broken_.ok() && plan.generation > shared_.plan.generation,
               "one generation after the other (I6)");
  WARREN_CHECK((plan.replicas == 0) == (shared_.recall == nullptr), "what is logged has a log");
  shared_.plan = plan;
  shared_.known.install();
  shared_.board.open_links(plan.world_size);
  if (shared_.recall != nullptr) shared_.recall->log().belong(plan.run);
  if (!installed_) {
    installed_ = true;
    const Status status = add_group(kWorldGroup, plan.present, 0);
    WARREN_CHECK(status.ok(), "the first group fits");
  }
  for (const auto& [id, group] : groups_.present()) group->rounds.install();
  if (shared_.exchange != nullptr)
    shared_.exchange->open(plan.generation, plan.self.value, static_cast<std::int32_t>(plan.world_size));
}

void Engine::open() {
  WARREN_CHECK(installed_ && !shared_.open, "a generation is opened once");
  if (stopped() || shared_.trouble.failed()) return;
  shared_.open = true;
  const Plan& plan = shared_.plan;
  for (const auto& [id, group] : groups_.present()) {
    group->points.open(plan.generation, plan.timeline, plan.resumes);
    group->rounds.resume();
    check(*group);
  }
  for (const auto& [id, group] : groups_.departed()) {
    group->points.open(plan.generation, plan.timeline, plan.resumes);
    check(*group);
  }
  begin_question();
}

WorkerMachine::Standing Engine::suspend() {
  if (!stopped()) shared_.transport.close_all();
  if (shared_.exchange != nullptr) shared_.exchange->close();
  shared_.open = false;
  shared_.trouble.end_generation();
  shared_.calls.forget_prepares();
  if (shared_.recall != nullptr) shared_.recall->suspend();
  for (const auto& [id, group] : groups_.present()) {
    group->rounds.suspend();
    group->points.suspend();
    groups_.settle(*group);
  }
  shared_.light = nullptr;
  for (const auto& [id, group] : groups_.departed()) {
    group->points.suspend();
    groups_.settle(*group);
  }
  groups_.release_departed();
  return standing();
}

bool Engine::has_room_for_version() const {
  return closed_.size() + 2 * (groups() + 1) <= limits::kMaxPositions;
}

Status Engine::begin_version(Version version) {
  WARREN_CHECK(version > shared_.version, "versions rise");
  for (const Frontier& f : shared_.plan.frontier) {
    const Group* const group = groups_.find(f.group);
    if (f.version != shared_.version || group == nullptr) continue;
    if (group->rounds.next().value < f.rounds) {
      return {Code::kDesync, "other ranks have done " + rounds_text(f.rounds) + " before this point, this rank " +
                                 std::to_string(group->rounds.next().value) +
                                 "; a program must make the same calls in each of its lives"};
    }
  }
  for (const auto& [id, group] : groups_.present()) {
    close(*group);
    group->rounds.begin_version();
  }
  const RingOrder* const before = shared_.known.ring_order(shared_.version);
  shared_.version = version;
  closed_.begin_version();
  if (shared_.known.ring_order(version) != before) {
    for (const auto& [id, group] : groups_.present()) group->rounds.place();
  }
  next_round_.begin_version();
  for (const auto& [id, group] : groups_.present()) {
    const Status status = group->points.begin_version(version);
    if (!status.ok()) return status;
    check(*group);
  }
  return {};
}

// The group has no more rounds in this version.
void Engine::close(const Group& group) {
  if (shared_.recall == nullptr) return closed_.forget_one();
  closed_.close(group.id, shared_.version, group.rounds.next());
}

void Engine::committed(Version version) {
  closed_.committed(version);
  for (const auto& [id, group] : groups_.present()) group->points.committed(version);
  for (const auto& [id, group] : groups_.departed()) group->points.committed(version);
  groups_.release_departed();
  if (shared_.recall != nullptr) shared_.recall->log().drop_below(version);
}

Status Engine::add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  if (const Status may = groups_.may_add(id); !may.ok()) return may;
  if (!has_room_for_version()) {
    return {Code::kExhausted, std::to_string(closed_.size()) +
                                  " groups of versions that are not obsolete have been destroyed or checkpointed: make "
                                  "fewer of them between two checkpoints"};
  }
  Group& group = groups_.add(id, std::move(members), channel);
  // One of this name may have been destroyed in this version.
  if (const auto rounds = closed_.rounds_of(id, shared_.version)) group.rounds.count_from(Sequence(*rounds), *rounds);
  return {};
}

void Engine::move_group(GroupId id, std::uint32_t channel) {
  Group* const group = groups_.find(id);
  WARREN_CHECK(group != nullptr, "a group that meets is moved");
  groups_.move(*group, channel);
}

void Engine::remove_group(GroupId id) {
  Group* const group = groups_.find(id);
  if (group == nullptr) return;
  close(*group);
  groups_.remove(*group);
}

bool Engine::idle(GroupId id) const {
  const Group* const group = groups_.find(id);
  return group == nullptr || (group->rounds.idle() && !group->points.busy());
}

bool Engine::run_at_once(GroupId id, const CallSpec& spec, int looks) {
  // A round needs books where something is under way, is shown or is drawn.
  if (!shared_.open || shared_.trouble.failed() || outstanding() != 0 || unsettled() || shared_.trace != nullptr ||
      shared_.plan.shrinks) {
    return false;
  }
  if (shared_.recall != nullptr && !shared_.recall->shows_at_once()) return false;
  Group* const group = groups_.find(id);
  if (group == nullptr) return false;
  try {
    if (spec.collective == Collective::kPoint) return run_point_at_once(*group, spec, looks);
    return group->rounds.run_at_once(spec, looks);
  } catch (...) {
    // A part of the round, or of the message, may have left.
    const bool message = spec.collective == Collective::kPoint;
    stop(Status(Code::kExhausted, "no memory for " + (message ? "a message" : to_string(group->rounds.next_round()))));
    throw;
  }
}

bool Engine::run_point_at_once(Group& group, const CallSpec& spec, int looks) {
  {
    const ShownAtOnce shown(shared_.board);
    if (!group.points.run_at_once(spec, looks)) return false;
  }
  // A message that has not left, or not all of it, is one that no call waits for.
  groups_.settle(group);
  RoundBoard::add(shared_.board.rounds_finished, 1);
  if (spec.sends) RoundBoard::add(shared_.board.bytes_moved, spec.count * element_bytes(spec));
  return true;
}

Status Engine::submit(GroupId id, Call& call) {
  if (!broken_.ok()) return broken_;
  WARREN_CHECK(installed_, "calls come after the plan");
  Group* const group = groups_.find(id);
  if (group == nullptr) return {Code::kClosed, "this communicator has been destroyed"};
  if (outstanding() >= limits::kMaxOutstandingRounds) {
    return {Code::kExhausted, "over " + std::to_string(limits::kMaxOutstandingRounds) +
                                  " asynchronous calls are outstanding: wait for some of them"};
  }
  const Collective c = call.spec.collective;
  WARREN_CHECK(!shared_.plan.shrinks || ((c == Collective::kAllreduce || c == Collective::kBarrier) &&
                                         call.setup.empty() && call.spec.prepare == nullptr),
               "the owner refuses what a job that shrinks does not have");
  if (c == Collective::kPoint) return submit_point(*group, call);
  const bool begins = group->rounds.active() == nullptr;
  const Status status = group->rounds.submit(call);
  if (begins) check(*group);
  return status;
}

Status Engine::submit_point(Group& group, Call& call) {
  if (call.spec.sends) {
    const Status status = group.points.send(call);
    if (!status.ok()) return status;
  } else {
    group.points.recv(call);
  }
  shared_.calls.accept(call);
  check(group);
  return {};
}

bool Engine::post_all() {
  if (shared_.light == nullptr) return false;
  GroupRounds& rounds = *std::exchange(shared_.light, nullptr);
  rounds.hand_over();
  check(*groups_.at_slot(rounds.slot()));
  return true;
}

void Engine::prepared(Call& call) {
  call.prepare = Call::Prepare::kDone;
  Group* const group = groups_.group_of(call);
  if (group == nullptr) return;
  if (stopped()) return group->rounds.drop(broken_);
  if (group->rounds.prepared()) check(*group);
}

void Engine::moved(Call& call, const Status& status) {
  if (!shared_.calls.moved(call, status)) return;
  Group* const group = groups_.group_of(call);
  if (group == nullptr) return;
  group->rounds.moved();
  check(*group);
}

std::uint64_t Engine::fetch(Replayer::Want want) {
  const std::uint64_t id = shared_.recall->fetch(std::move(want));
  wanted_.emplace(id, std::nullopt);
  return id;
}

std::optional<Replayer::Done> Engine::take_recalled(std::uint64_t id) {
  const auto it = wanted_.find(id);
  if (it == wanted_.end() || !it->second) return std::nullopt;
  std::optional<Replayer::Done> done = std::move(it->second);
  wanted_.erase(it);
  return done;
}

void Engine::cancel(std::uint64_t id) {
  (void)shared_.recall->cancel(id);
  wanted_.erase(id);
}

bool Engine::drain_recalls() {
  if (shared_.recall == nullptr || (!asking() && !shared_.recall->has_done())) return false;
  bool some = false;
  for (Replayer::Done& done : shared_.recall->take_done()) {
    some = true;
    recalled(std::move(done));
  }
  look_at_question();
  return some;
}

void Engine::recalled(Replayer::Done done) {
  for (const auto& [id, group] : groups_.present()) {
    if (!group->rounds.wants(done.id)) continue;
    if (group->rounds.recalled(done)) check(*group);
    return;
  }
  if (const auto it = wanted_.find(done.id); it != wanted_.end()) it->second = std::move(done);
}

RoundId Engine::next_round(GroupId id) const {
  const Group* const group = groups_.find(id);
  return group != nullptr ? group->rounds.next_round() : shared_.known.round_of(id, shared_.version, Sequence(0));
}

void Engine::ask_next(std::vector<std::uint64_t> sites) {
  WARREN_CHECK(has_group(kWorldGroup) && idle(kWorldGroup), "a question comes between two calls");
  if (shared_.recall == nullptr) return next_round_.ask_nobody();
  next_round_.ask({next_round(kWorldGroup), std::move(sites)});
  if (shared_.open) begin_question();
}

void Engine::begin_question() {
  const NextRound::Question* const question = next_round_.question();
  if (question == nullptr) return;
  if (next_round_.answer_here(say(question->round, question->sites), shared_.known.known_of(question->round))) {
    return shared_.recall->end_question();
  }
  shared_.recall->ask(question->round, question->sites);
  look_at_question();
}

void Engine::look_at_question() {
  const NextRound::Question* const question = next_round_.question();
  if (question == nullptr || !shared_.open || shared_.trouble.has_gap()) return;
  const auto answer = shared_.recall->inquiry().answer();
  if (!answer) return;
  auto gap = next_round_.hear(*answer, shared_.known.known_of(question->round));
  if (gap) shared_.trouble.lack(*std::move(gap));
  shared_.recall->end_question();
}

// After an event of the group's: ends what is over.
void Engine::check(Group& group) {
  group.rounds.check();
  for (auto& [call, status] : group.points.finished()) {
    RoundBoard::add(shared_.board.rounds_finished, 1);
    if (call->spec.sends) RoundBoard::add(shared_.board.bytes_moved, call->spec.count * element_bytes(call->spec));
    shared_.calls.conclude(*call, status);
  }
  group.points.finished().clear();
  if (auto gap = group.points.take_gap()) shared_.trouble.lack({.reason = std::move(*gap), .setup = {}});
  if (group.point_shown && group.rounds.active() == nullptr && !group.points.busy()) {
    shared_.board.end(group.rounds.slot() / 2);
    group.point_shown = false;
  }
  if (!group.points.status().ok()) shared_.trouble.fail(group.points.status(), group.points.failed_peer());
  groups_.settle(group);
}

// Rounds that have waited until a disk has what they published.
bool Engine::settle_published() {
  if (shared_.recall == nullptr || shared_.recall->newest() == 0) return false;
  bool some = false;
  for (const auto& [id, group] : groups_.present()) {
    GroupRounds& rounds = group->rounds;
    const bool settled = rounds.settle();
    if (!settled && !rounds.awaits_disk()) continue;
    const Call* const before = rounds.active();
    check(*group);
    some = some || settled || rounds.active() != before;
  }
  return some;
}

bool Engine::take_done_gpu_work() {
  bool some = false;
  while (const auto done = shared_.gpu_work->take_done()) {
    some = true;
    for (const auto& [id, group] : groups_.present()) {
      if (!group->rounds.on_done(*done)) continue;
      check(*group);
      break;
    }
  }
  return some;
}

bool Engine::take_done_exchanged() {
  bool some = false;
  while (const auto done = shared_.exchange->take_done()) {
    some = true;
    Group& world = *groups_.find(kWorldGroup);
    if (world.rounds.on_exchanged(*done)) check(world);
  }
  return some;
}

bool Engine::progress() {
  if (stopped() || !shared_.open) return false;
  if (shared_.light != nullptr) {
    GroupRounds& rounds = *shared_.light;
    if (rounds.go_light()) {
      check(*groups_.at_slot(rounds.slot()));
      return true;
    }
  }
  const bool recalled_some = drain_recalls();
  const bool settled_some = settle_published();
  completions_.resize(64);
  const std::size_t n = shared_.transport.poll(completions_);
  for (std::size_t i = 0; i < n; i++) {
    Completion& c = completions_[i];  // what it holds of a mate's memory goes with it
    const auto slot = static_cast<std::uint32_t>(c.token >> 32);
    Group* const group = groups_.at_slot(slot);
    if (group == nullptr) continue;  // a send of a group that was removed when its bytes had been taken
    if (slot == group->rounds.slot()) {
      group->rounds.on_completion(c);
    } else {
      group->points.on_completion(c.token, c.status);
    }
    check(*group);
    if (group->departed && group->points.clean()) groups_.release_departed();
  }
  return n != 0 || recalled_some || settled_some;
}

void Engine::stop(const Status& why) {
  WARREN_CHECK(!why.ok(), "a generation ends for a reason");
  if (stopped()) return;
  broken_ = why;
  shared_.open = false;
  shared_.light = nullptr;
  shared_.calls.stop(why);
  if (shared_.recall != nullptr) shared_.recall->suspend();
  shared_.transport.close_all();
  if (shared_.exchange != nullptr) shared_.exchange->close();
  for (const auto& [id, group] : groups_.present()) {
    const bool by_program = group->rounds.program_failed();
    const auto reason = [&](const Status& own) {
      // Where ranks disagree, both ends find the same, and one of them has been told to all.
      const bool told = own.code() == Code::kDesync && why.code() == Code::kDesync;
      // The owner was told of the program's failure, and stops this for that.
      const bool own_end = by_program && shared_.trouble.failure() == nullptr;
      return own.ok() || told || own_end ? why : own.because_of_this(why.code(), std::string(why.describe()));
    };
    group->rounds.stop(why, reason(group->rounds.status()));
    const Status point_reason = reason(group->points.status());
    for (Call* call : group->points.abandon()) shared_.calls.finish(*call, point_reason);
    groups_.settle(*group);
  }
  for (const auto& [id, group] : groups_.departed()) {
    (void)group->points.abandon();
    groups_.settle(*group);
  }
}

}  // namespace warren::worker
