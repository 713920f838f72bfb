// The program of a simulated worker: its steps, checkpoints and groups.
#include "chaos/sim/sim_worker.h"

#include <algorithm>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"

namespace warren::chaos {
namespace {

constexpr std::size_t kMostOutstanding = 6;
// Where somebody is slow on purpose.
constexpr Micros kStepUs = 30'000;
// One in so many states lies on a GPU.
constexpr std::uint64_t kEveryOnGpu = 3;

}  // namespace

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
  // A program that drains begins no call, and finalizes.
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
    } else if (step.kind == StepKind::kCheckpoint && finalizes_early(step)) {
      position_ = order_.size();
      continue;
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

// False: not yet.
bool SimWorker::load() {
  if (!life_.failure().ok()) return false;
  if (!life_.logs()) {
    const Status status = life_.engine().begin_version(version_of_program(0));
    WARREN_CHECK(status.ok(), "a version begins");
    begin_from({});
    return true;
  }
  if (!std::exchange(loading_, true)) {
    life_.loading().begin();
    carry_out_life();
    return false;
  }
  if (life_.engine().stopped()) return false;
  auto result = life_.loading().take();
  if (const auto wish = life_.loading().take_wish()) read_mirror(*wish);
  carry_out_life();
  if (!result) return false;
  loading_ = false;
  if (!result->ok()) {
    if (mirror_has_given_) world_.violated("I5", describe() + ": " + result->status().describe());
    judge_.load_failed(describe(), result->status());
    program_fails(result->status());
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

// Takes a checkpoint. False: not yet.
bool SimWorker::checkpoint(const ProgramStep& step) {
  if (!life_.failure().ok()) return false;
  if (!remove_groups(step.index)) return false;
  waits_for_commit_ = false;
  if (life_.engine().stopped()) return false;
  const std::optional<Status> taken =
      life_.logs() ? take_logged(step) : life_.engine().begin_version(life_.engine().version().next());
  if (!taken) return false;
  const Status& status = *taken;
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

// Takes a checkpoint that is logged. nullopt: not yet, or this process has ended.
std::optional<Status> SimWorker::take_logged(const ProgramStep& step) {
  if (!give_state()) return std::nullopt;
  waits_for_commit_ = !life_.checkpoints().may_take();
  if (waits_for_commit_) {
    watch_waits();
    return std::nullopt;
  }
  // A rank may have made other calls unnoticed. It saves the right state all the same: only its calls are wrong.
  const ProgramState* right = desynced_ ? judge_.oracle(timeline_).state_at(step.version, rank_) : nullptr;
  auto global = program_.saved_global(step.version, right != nullptr ? *right : state_);
  const auto local = program_.saved_local(step.version, rank_, right != nullptr ? *right : state_);
  const worker::StateHashes agreed(global);
  bool with_local = step.local;
  if (settings_.world_size() > 1 &&
      world_.gives_other_state(worker_id(), attempt(), life_.engine().timeline(), step.version)) {
    judge_.excuse_rollback();
    if (world_.keeps_transcript()) world_.tell(describe() + " checkpoints a state that the others do not have");
    Random draws(Random::mix(life_.engine().timeline().value) + step.version.value);
    if (draws.chance(0.3) && !step.lazy && !life_.engine().plan().shrinks) {
      with_local = !with_local;
    } else {
      alter(global, draws);
    }
  }
  Status status = take_state(step, global, with_local ? &local : nullptr, agreed);
  if (passes(KillPoint::kCheckpoint)) {
    links_.doomed();
    return std::nullopt;
  }
  judge_.pending(life_.checkpoints().pending());
  life_.taken(status);
  carry_out_life();
  return status;
}

// `agreed`: the hashes of the state that a root gives, which all ranks have heard in a round.
Status SimWorker::take_state(const ProgramStep& step, const std::vector<std::byte>& global,
                             const std::vector<std::byte>* local, const worker::StateHashes& agreed) {
  if (step.lazy) {
    Status status = life_.checkpoints().take_later();
    owed_state_ = global;
    return status;
  }
  const std::optional<worker::PlacedState> local_state =
      local != nullptr ? std::optional<worker::PlacedState>(*local) : std::nullopt;
  if (step.state_from) {
    const worker::PlacedState global_state = global;
    return life_.checkpoints().take_from_root(step.state_from == rank_ ? &global_state : nullptr,
                                              local_state ? &*local_state : nullptr, agreed);
  }
  // Of each checkpoint at some ranks, and in turn at all.
  const bool on_gpu = !life_.engine().plan().shrinks &&
                      (step.version.value + static_cast<std::uint64_t>(rank_.value)) % kEveryOnGpu == 0;
  if (on_gpu) return take_on_gpu(global, local);
  return life_.checkpoints().take(global, local_state ? &*local_state : nullptr);
}

Status SimWorker::take_on_gpu(const std::vector<std::byte>& global, const std::vector<std::byte>* local) {
  const Ranges share = life_.checkpoints().share_of(global.size());
  Status status = life_.checkpoints().take_in_parts(
      global.size(), local != nullptr ? std::optional<std::uint64_t>(local->size()) : std::nullopt, share,
      worker::StateHashes(global));
  const auto cut = [this](worker::StateKind kind, std::span<const std::byte> state, const Ranges& bytes) {
    for (const Interval& i : bytes.intervals()) {
      const std::uint64_t most = (i.end - i.begin + 1) / 2;
      for (std::uint64_t at = i.begin; at < i.end; at += most) {
        const auto part = state.subspan(at, std::min(most, i.end - at));
        parts_.push_back({kind, at, {part.begin(), part.end()}});
      }
    }
  };
  if (!status.ok()) return status;
  cut(worker::StateKind::kGlobal, global, share);
  if (local != nullptr) cut(worker::StateKind::kLocal, *local, Ranges(0, local->size()));
  if (parts_.empty()) return status;
  if (world_.is(Mutant::votes_without_its_state) && life_.checkpoints().pending() == 0)
    vote_early(worker::StateHashes(global).digest(local != nullptr, settings_.world_size()));
  bring_part();
  return status;
}

// Gives the state that a lazy checkpoint owes, before the next call. False: it could not be, and the program ends.
bool SimWorker::give_state() {
  if (!life_.logs() || !life_.checkpoints().owes_state() || !parts_.empty() || life_.engine().stopped()) return true;
  const Status status = life_.checkpoints().give_state(owed_state_);
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
  say({life_.engine().plan().generation, life_.engine().timeline(), life_.engine().version(), std::move(state),
       life_.engine().positions_of(Version(life_.engine().version().value - 1)), life_.engine().setups_done()});
}

// Parts of a state come from a GPU while the program goes on.
void SimWorker::bring_part() {
  later(world_.random.between(10, world_.random.chance(0.2) ? 2'000'000 : 20'000), [this] {
    if (exiting_ || life_.engine().stopped()) return;
    const Part& part = parts_.front();
    const Status status = life_.checkpoints().give_part({part.state, part.at, part.bytes});
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
    if (!life_.engine().idle(group.id)) return false;
    group_made_[g] = false;
    if (life_.engine().has_group(group.id)) life_.engine().remove_group(group.id);
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
    const Status made =
        life_.engine().stopped() ? Status() : life_.engine().add_group(group.id, group.members, *channel);
    if (!made.ok()) {
      program_fails(made);
      return false;
    }
  }
  return true;
}

// The members of a group agree on its channel, in a round of its own.
bool SimWorker::meet(std::size_t g) {
  const ProgramGroup& group = program_.groups()[g];
  if (std::find(group.members.begin(), group.members.end(), rank_) != group.members.end()) {
    if (!splitting_) {
      if (life_.engine().stopped()) return false;
      const Status added = life_.engine().add_group(group.id, group.members, worker::Engine::kMeetingChannel);
      if (!added.ok()) {
        program_fails(added);
        return false;
      }
    }
    const auto channel = agree_on_channel(group.id);
    if (!channel) return false;
    life_.engine().move_group(group.id, *channel);
  }
  group_made_[g] = true;
  return true;
}

// Nothing: not yet.
std::optional<std::uint32_t> SimWorker::agree_on_channel(GroupId among) {
  if (!splitting_) {
    const auto used = life_.engine().used_channels();
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
    const Status status = life_.engine().submit(among, *splitting_);
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

// Whether the next round was called from this step's site. nullopt: not yet, or the process ends.
std::optional<bool> SimWorker::meets(const ProgramStep& step) {
  if (world_.is(Mutant::asks_nobody)) return false;
  if (life_.engine().stopped() || !give_state()) return std::nullopt;
  if (!asks_) {
    asks_ = true;
    asked_site_ = step.site & ~kSiteCompared;
    life_.engine().ask_next({asked_site_});
    if (doomed_) {
      links_.doomed();
      return std::nullopt;
    }
    watch_waits();
    data_moved();
    arm();
  }
  const auto met = life_.engine().take_answer();
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
  if (world_.deadlock() && world_.deadlock()->what != Deadlock::What::kFinalizes && waits_in_circle(step)) return;
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

// Whether this rank goes to finalize in the place of a checkpoint: as Deadlock says.
bool SimWorker::finalizes_early(const ProgramStep& checkpoint) {
  const auto& deadlock = world_.deadlock();
  if (!deadlock || deadlock->what != Deadlock::What::kFinalizes || attempt() != 0) return false;
  if (checkpoint.version.value != kFirstCommit.value + deadlock->round) return false;
  judge_.excuse_rollback();
  return rank_ == Rank(0);
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

}  // namespace warren::chaos
