#include "worker/rounds/group_rounds.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/base/text.h"

namespace warren::worker {

GroupRounds::GroupRounds(SharedByGroups& shared, GroupId id, std::uint32_t channel, std::vector<Rank> members,
                         std::int32_t rank, std::uint32_t slot)
    : shared_(shared),
      id_(id),
      channel_(channel),
      slot_(slot),
      schedules_(shared.plan, shared.costs, std::move(members), rank),
      executor_(shared.transport, &shared.transport, GroupId(channel), schedules_.members(), slot, &shared.board),
      light_(shared.transport, shared.transport, executor_, GroupId(channel), schedules_.members(), slot,
             &shared.board),
      publisher_(shared.recall),
      vote_(shared.exchange),
      parts_(shared.recall, schedules_) {
  place();
}

void GroupRounds::install() {
  if (shared_.plan.shrinks) {
    WARREN_CHECK(id_ == kWorldGroup, "a job that shrinks has no other groups");
    if (schedules_.members() != shared_.plan.present) {
      schedules_.reseat();
      executor_.reseat(schedules_.members());
      light_.reseat();
    }
    if (active_ != nullptr) rename(*active_);
    queue_.for_each([&](Call* call) { rename(*call); });
  }
  place();
}

void GroupRounds::place() {
  schedules_.place(shared_.known.ring_order(shared_.version));
  publisher_.read_here(schedules_.read_here());
  vote_.place();
}

void GroupRounds::begin_version() {
  WARREN_CHECK(idle(), "no round crosses a checkpoint");
  next_ = Sequence(0);
  done_ = 0;
}

// A round has the name of the timeline in which it is, or was, computed, and is made for those who take part in it.
void GroupRounds::rename(Call& call) {
  const RoundId name = round_of(call.round.sequence);
  if (name == call.round) return;
  call.round = name;
  // Finals of another attempt, with other inputs, are no part of it (I6).
  if (&call == active_) parts_.begin();
  resize(call);
  if (&call == active_) shared_.board.begin(lane(), call.round, call.fingerprint);
}

// A call's algorithm and reducer depend on how many ranks take part in its round. Nothing is made for a round that is
// in the log.
void GroupRounds::resize(Call& call) {
  if (shared_.known.known_of(call.round).done) return;
  const std::int32_t size = size_of(call.round);
  call.fingerprint.algorithm = static_cast<std::uint8_t>(schedules_.algorithm_for(call.spec, size));
  if (call.spec.collective == Collective::kBarrier) return;
  WARREN_CHECK(make_reducer(call, size).ok(), "it was made for another size");
}

// How many members take part, or took, in a round.
std::int32_t GroupRounds::size_of(const RoundId& round) const {
  if (!shared_.plan.shrinks) return schedules_.size();
  const auto ranks = shared_.known.contributors_to(round);
  return static_cast<std::int32_t>(ranks != nullptr ? ranks->size() : shared_.plan.world_size);
}

// A program's call sites are compared where the job wants it.
std::uint64_t GroupRounds::told_site(std::uint64_t site) const {
  site &= ~kSiteCompared;
  return shared_.plan.check_call_sites && site != 0 ? site | kSiteCompared : site;
}

Status GroupRounds::make_reducer(Call& call, std::int32_t size) {
  auto reducer = Reducer::make(call.spec.type, call.spec.op, static_cast<std::uint32_t>(size), call.spec.custom_bytes,
                               call.spec.custom, call.spec.custom_context);
  if (!reducer.ok()) return reducer.status();
  call.reducer = std::move(reducer).value();
  return {};
}

bool GroupRounds::run_at_once(const CallSpec& spec, int looks) {
  const RoundId next = next_round();
  ScheduleCache::Repeated* const r = schedules_.repeats(spec, next, schedules_.size());
  if (r == nullptr || !r->light) return false;
  // As known_of(): others have it, or a part of it.
  const RoundsPlan::Frontier* const others = shared_.known.frontier_of(id_, shared_.version);
  if (others != nullptr && next_.value <= others->rounds) return false;
  Round& round = r->round;
  round.id = next;
  round.fingerprint.site = told_site(spec.site);
  round.input = static_cast<const std::byte*>(spec.input != nullptr ? spec.input : spec.output);
  round.output = static_cast<std::byte*>(spec.output);
  publisher_.begin(round.id, round.fingerprint, r->width, r->total_bytes);
  LightRound::Outcome outcome{};
  {
    const ShownAtOnce shown(shared_.board);
    light_.begin(round);
    outcome = light_.go();
    for (; outcome == LightRound::Outcome::kWaits && looks > 0; looks--) outcome = light_.go();
  }
  if (outcome != LightRound::Outcome::kDone) return false;
  next_ = next_.next();
  done_++;
  remember_begun(round.id, round.fingerprint);
  shared_.board.computed(light_.bytes_sent());
  RoundBoard::add(shared_.board.rounds_finished, 1);
  return true;
}

Status GroupRounds::submit(Call& call) {
  const Collective c = call.spec.collective;
  if (c == Collective::kAllToAllv) {
    if (const Status told = tell_counts(call); !told.ok()) return told;
  }
  call.round = round_of(next_);
  const std::int32_t size = size_of(call.round);
  const bool setup = !call.setup.empty() && shared_.recall != nullptr;
  const bool may_repeat = !setup || schedules_.serves_setups_alike();
  const ScheduleCache::Repeated* const repeated =
      may_repeat ? schedules_.repeats(call.spec, call.round, size) : nullptr;
  if (repeated != nullptr) {
    call.reducer = repeated->reducer;
  } else if (c != Collective::kBarrier) {
    if (const Status made = make_reducer(call, size); !made.ok()) return made;
  }
  if (c != Collective::kAllToAllv) {
    call.counts.assign(call.spec.counts.begin(), call.spec.counts.end());
    call.spec.counts = call.counts;
  }
  const schedule::Algorithm algorithm =
      repeated != nullptr ? repeated->algorithm : schedules_.algorithm_for(call.spec, size);
  call.fingerprint = fingerprint_of(call.spec, static_cast<std::uint8_t>(algorithm));
  call.fingerprint.site = told_site(call.spec.site);
  if (setup) {
    if (const Status named = name_setup(call); !named.ok()) return named;
  }
  if (!shared_.known.known_of(call.round).done && c != Collective::kAllToAllv) {
    if (repeated != nullptr) {
      call.schedule = repeated->schedule;
    } else {
      // Here, where a schedule that cannot be made is still an error of this call alone.
      auto prepared = schedules_.schedule_for(call);
      if (!prepared.ok()) return prepared.status();
      call.schedule = std::move(prepared).value();
      if (may_repeat) schedules_.repeat(call, size, publisher_.publisher());
    }
    call.schedule_generation = shared_.plan.generation;
  }
  if (!setup) next_ = next_.next();
  queue_.push() = &call;
  shared_.calls.accept(call);
  if (active_ == nullptr) {
    start_next();
    check();
  }
  return {};
}

// An all_to_allv is two rounds. In the first one ranks tell each other how much each sends to each. So all know where
// everything stands in the result of the second one, whose fingerprint is of all counts.
Status GroupRounds::tell_counts(Call& call) {
  if (!call.setup.empty()) {
    return {Code::kInvalidArgument, name_of(call) +
                                        " is an all_to_allv, which is no set-up round: its counts are told in "
                                        "a round of their own"};
  }
  if (shared_.calls.count() + 2 > limits::kMaxOutstandingRounds) {
    return {Code::kExhausted, "an all_to_allv is two of " + std::to_string(limits::kMaxOutstandingRounds) +
                                  " asynchronous calls that may be outstanding: wait for some of them"};
  }
  const std::size_t size = call.spec.counts.size();
  call.counts.assign(call.spec.counts.begin(), call.spec.counts.end());
  call.counts.insert(call.counts.end(), call.spec.counts_from.begin(), call.spec.counts_from.end());
  call.spec.counts = std::span(call.counts).first(size);
  call.spec.counts_from = std::span(call.counts).subspan(size);
  call.all_counts.assign(size * size, 0);
  call.telling = std::make_unique<Call>();
  CallSpec& spec = call.telling->spec;
  spec.collective = Collective::kAllgather;
  spec.type = DataType::kU64;
  spec.counted = call.spec.type;
  spec.input = call.counts.data();
  spec.output = call.all_counts.data();
  spec.count = size;
  spec.site = call.spec.site;
  call.telling->blocking = call.blocking;
  return submit(*call.telling);
}

void GroupRounds::hear_counts(Call& call) const {
  call.spec.all_counts = call.all_counts;
  call.fingerprint = fingerprint_of(call.spec, call.fingerprint.algorithm);
  call.fingerprint.site = told_site(call.spec.site);
}

// Gives the call its name's number. The set-up rounds of one life are bounded: they stay in the log.
Status GroupRounds::name_setup(Call& call) {
  const Sequence name = setup_sequence(call.setup);
  call.round = shared_.known.setup_round(id_, name);
  const std::uint64_t bytes = schedules_.result_of(call.spec).total * element_bytes(call.spec);
  if (shared_.known.call_setup(id_, name, bytes)) return {};
  return {Code::kExhausted, name_of(call) + ": set-up rounds stay in the log for as long as the job lasts; a process " +
                                "calls at most " + std::to_string(limits::kMaxSetups) + ", with " +
                                std::to_string(limits::kMaxSetupBytes) + " bytes of results"};
}

void GroupRounds::start_next() {
  if (queue_.empty() || shared_.trouble.failed() || !shared_.open) return;
  active_ = queue_.front();
  queue_.pop();
  parts_.begin();
  awaited_ = 0;
  interrupted_ = false;
  vote_.forget();
  if (active_->telling != nullptr) hear_counts(*active_);
  const RoundId& round = active_->round;
  if (!is_setup(round)) remember_begun(round, active_->fingerprint);
  shared_.board.begin(lane(), round, active_->fingerprint);
  if (shared_.trace != nullptr) shared_.trace->round_began(lane(), *active_);
  begin();
}

void GroupRounds::enter(Phase phase) {
  phase_ = phase;
  Trace* const trace = shared_.trace;
  if (trace == nullptr) return;
  switch (phase) {
    case Phase::kWaits:
    case Phase::kAgrees: return trace->round_does(lane(), Trace::Stage::kWaits);
    case Phase::kPrepares: return trace->round_does(lane(), Trace::Stage::kPrepares);
    case Phase::kRecalls: return trace->round_does(lane(), Trace::Stage::kReplays);
    case Phase::kRuns: return trace->round_does(lane(), Trace::Stage::kRuns);
    case Phase::kIdle: return trace->round_ended(lane());
    case Phase::kDone: return;
  }
}

void GroupRounds::resume() {
  if (active_ != nullptr) return begin();
  start_next();
}

// Decides how the active call comes to its result in this generation.
void GroupRounds::begin() {
  Call& call = *active_;
  Known known = shared_.known.known_of(call.round);
  if (call.telling != nullptr) {
    if (const Status agree = check_counts(call.spec, schedules_.shape(), schedules_.members()); !agree.ok()) {
      enter(Phase::kWaits);
      return fail_in_round(agree.because_of_this("all_to_allv, " + name_of(call)));
    }
  }
  auto whole = schedules_.whole_pieces(call, known.final);
  if (!whole.ok()) return fail_in_round(whole.status());
  known.final = std::move(whole).value();
  parts_.know(known.final);
  // The round was taken for one that the log has whole, and that has proved wrong. The prepare function overwrites what
  // came.
  if (!known.done && call.spec.prepare != nullptr && call.prepare == Call::Prepare::kNot) parts_.lose_output();
  // Finals in the output may stand where the input was: they must not be computed again.
  if (!known.done) {
    if (const Status alone = parts_.known_here_alone(call); !alone.ok()) return fail_in_round(alone);
  }
  // The round may have to run again with other inputs beside this one: also one that comes from the log, should that
  // prove wrong. A copy is made before anything final comes to the output, which may be the same memory.
  if (shared_.plan.shrinks) {
    if (const Status kept = input_.keep(call); !kept.ok()) return fail_in_round(kept);
  }
  if (waits_for_words(known)) return;
  if (waits_for_prepare(!known.done)) return;
  if (waits_for_input(!known.done && known.final.empty() && !interrupted_ && !vote_.comes_home())) return;
  if (known.beyond) {
    return fail_in_round(Status(Code::kDesync, "other ranks have done " + rounds_text(call.round.sequence.value) +
                                                   " and no more in this version, this rank calls " +
                                                   to_string(call.fingerprint) + " as " + to_string(call.round) +
                                                   "; a program must make the same calls in each of its lives"));
  }
  if (!known.done && known.final.empty()) {
    return run(call.schedule_generation == shared_.plan.generation ? call.schedule : nullptr);
  }
  take_from_log();
}

// Whether GPUs may exchange the round, as far as all ranks know it alike. No rank has begun it in an earlier
// generation: the plan would tell of one that has, or that rank says that it could not.
bool GroupRounds::may_exchange(const Known& known) const {
  const Call& call = *active_;
  if (shared_.exchange == nullptr || shared_.recall == nullptr || shared_.plan.shrinks || id_ != kWorldGroup ||
      known.done || known.beyond || !known.final.empty() || is_setup(call.round) || !vote_.serves(call, schedules_)) {
    return false;
  }
  const RoundsPlan::Frontier* const others = shared_.known.frontier_of(call.round.group, call.round.version);
  return others == nullptr || call.round.sequence.value > others->rounds;
}

// All ranks tell each other whether they could; then all do, or none. A rank that could says so when its input is
// there: what is exchanged then waits for no program's work.
bool GroupRounds::waits_for_words(const Known& known) {
  if (vote_.agreed() || !may_exchange(known)) return false;
  const Call& call = *active_;
  // Only in a first attempt, as may_lend().
  const bool may = shared_.gpu_work != nullptr && !interrupted_ && call.prepare == Call::Prepare::kNot;
  const bool could = vote_.could(call, schedules_, may);
  if (could && (waits_for_prepare(true) || waits_for_input(false))) return true;
  enter(Phase::kAgrees);
  executor_.start(vote_.ask(call, schedules_, shared_.plan.generation, could));
  return true;
}

void GroupRounds::hear_words() {
  Call& call = *active_;
  const auto all = vote_.hear(call, schedules_.members(), shared_.plan.generation);
  if (!all.ok()) return fail(all.status(), all.status().peer());
  if (all.value()) RoundBoard::add(shared_.board.rounds_exchanged, 1);
  if (vote_.comes_home()) shared_.calls.move_on(call);
}

// Whether the call's prepare function has to run, or is running, before anything else may touch its buffers.
bool GroupRounds::waits_for_prepare(bool runs) {
  Call& call = *active_;
  if (call.spec.prepare == nullptr || call.prepare == Call::Prepare::kDone) return false;
  if (call.prepare == Call::Prepare::kNot && !runs) return false;
  if (phase_ != Phase::kPrepares) enter(Phase::kPrepares);
  if (call.prepare == Call::Prepare::kNot) {
    if (stream_of(call) != nullptr) order_input();
    shared_.calls.ask_prepare(call);
  }
  return true;
}

// Whether all peers that are to read this rank's input can do so in this memory of a GPU. Only a first attempt lends.
// Any other may take finals from the log, and needs the rest of the input in memory of the CPU.
bool GroupRounds::may_lend(const std::byte* memory) const {
  const Call& call = *active_;
  if (shared_.gpu_work == nullptr || shared_.plan.shrinks || interrupted_ || parts_.resumed() ||
      call.schedule == nullptr || call.schedule_generation != shared_.plan.generation || !call.schedule->lends_all()) {
    return false;
  }
  return std::ranges::all_of(call.schedule->readers(), [&](std::int32_t peer) {
    return shared_.transport.lends(GroupId(channel_), schedules_.members()[static_cast<std::size_t>(peer)], memory);
  });
}

void GroupRounds::order_input() {
  const Call& call = *active_;
  BufferStream& stream = *stream_of(call);
  const PreparedSchedule* const exchanged = vote_.schedule();
  const std::byte* const memory = stream.lendable();
  if (memory != nullptr && exchanged == nullptr && may_lend(memory) && stream.lend()) {
    RoundBoard::add(shared_.board.inputs_lent, 1);
  }
  input_.order(call, schedules_.shape(), exchanged != nullptr ? exchanged : call.schedule.get());
}

// A part of the input may be still to come, over the output. Then only a first attempt continues: it makes nothing
// final but what it has read. Bytes from the log would be overwritten.
bool GroupRounds::waits_for_input(bool begins) {
  const Call& call = *active_;
  const BufferStream* stream = stream_of(call);
  if (begins || stream == nullptr || call.prepare != Call::Prepare::kDone || stream->all_arrived()) return false;
  if (phase_ != Phase::kPrepares) enter(Phase::kPrepares);
  return true;
}

bool GroupRounds::prepared() {
  shared_.calls.move_on(*active_);
  // In a generation that has begun meanwhile, or not yet.
  if (phase_ != Phase::kPrepares) return false;
  begin();
  return true;
}

void GroupRounds::moved() {
  BufferStream& stream = *stream_of(*active_);
  if (phase_ == Phase::kRuns) {
    while (const auto brought = stream.take_brought()) executor_.on_brought(brought->number, brought->stood);
    executor_.arrive(stream.arrived());
  } else if (phase_ == Phase::kPrepares && active_->prepare == Call::Prepare::kDone && stream.all_arrived()) {
    begin();
  }
}

// The result of the active call, or the part of it that is final, comes from the log.
void GroupRounds::take_from_log() {
  enter(Phase::kRecalls);
  recall_id_ = 0;
  Replayer::Want want = parts_.want(*active_);
  if (want.bytes.empty() && (!want.refill || want.total_bytes == 0)) return take_nothing(want);
  recall_id_ = shared_.recall->fetch(std::move(want));
}

// This rank lacks no bytes of the result.
void GroupRounds::take_nothing(const Replayer::Want& want) {
  const Call& call = *active_;
  Recall& recall = *shared_.recall;
  const auto info = recall.reader().info(want.key);
  if (info.ok() && info.value() && !agree(info.value()->fingerprint, call.fingerprint)) {
    return fail_in_round(Status(Code::kDesync, "the log has " + to_string(info.value()->fingerprint) + " as " +
                                                   name_of(call) + ", this rank calls " + to_string(call.fingerprint)));
  }
  if (parts_.resumed()) return run_rest();
  // Nothing is fetched, and no bytes show whose segment has the record. Each life that replays the round logs it again,
  // so that it stays known which round it was (docs/decisions/0010).
  const bool has = is_setup(call.round) && shared_.known.completed_setup(id_, call.round.sequence);
  if (want.total_bytes == 0 && !has) {
    const Status logged = recall.publish(want.key, {call.fingerprint, 0}, 0, {});
    if (!logged.ok()) return fail_in_round(logged.because_of_this("cannot log " + name_of(call)));
  }
  phase_ = Phase::kDone;
}

bool GroupRounds::recalled(const Replayer::Done& done) {
  const Call& call = *active_;
  Recall& recall = *shared_.recall;
  const auto failed = [&](const Status& why) {
    fail(why);
    return false;
  };
  // However it has ended: the output may be where the input was, and suspend() says what stands there.
  parts_.add(done.written);
  if (done.status.code() == Code::kUnavailable) {
    Trouble::Gap gap{.reason = done.status.describe(), .setup = {}};
    if (is_setup(call.round) && !parts_.resumed()) gap.setup = done_setup(call.round);
    shared_.trouble.lack(std::move(gap));
    return false;
  }
  if (!done.status.ok()) return failed(done.status.because_of_this(name_of(call)));
  const RecordKey key = result_key(call.round);
  for (const Replayer::Done::Piece& piece : done.refill) {
    const Status logged = recall.publish(key, *done.info, piece.begin, piece.bytes);
    if (!logged.ok()) return failed(logged);
  }
  if (parts_.resumed()) {
    run_rest();
    return true;
  }
  Ranges again = done.log_again;
  if (shared_.plan.shrinks) {
    // As where a round is run: whoever returns it leaves it whole on its host (docs/invariants.md, "Attempts").
    again.add(Ranges(0, call.spec.count * element_bytes(call.spec)).minus(recall.reader().held(key)));
  }
  const Status logged = parts_.log(call, recall.room_for(key, again));
  if (!logged.ok()) return failed(logged);
  phase_ = Phase::kDone;
  return true;
}

// The rest of a round that was interrupted: what the log holds of it has come.
void GroupRounds::run_rest() {
  const Call& call = *active_;
  if (const Status logged = parts_.log_what_came(call); !logged.ok()) return fail(logged);
  // The call waits for what this life had published before the interrupt, too.
  awaited_ = shared_.recall->newest();
  auto made = schedules_.rest_of(call, parts_.in_log());
  if (!made.ok()) return fail(made.status().because_of_this("cannot finish " + to_string(call.round)));
  run(std::move(made).value());
}

void GroupRounds::run(Prepared prepared) {
  Call& call = *active_;
  if (prepared == nullptr) {
    // The call was issued when the log was to serve it.
    auto made = schedules_.schedule_for(call);
    if (!made.ok()) return fail(made.status());
    prepared = std::move(made).value();
  }
  enter(Phase::kRuns);
  call.schedule = std::move(prepared);
  const Round round = round_for(call);
  // Not what was interrupted: the executor knows what stood where. Nor what a disk may have to see first.
  ran_light_ = call.blocking && shared_.light == nullptr && !interrupted_ && !parts_.resumed() &&
               call.spec.prepare == nullptr && (shared_.recall == nullptr || shared_.recall->shows_at_once()) &&
               LightRound::serves(*round.schedule, round.reducer);
  publisher_.begin(call, schedules_.result_of(call.spec).total * element_bytes(call.spec), parts_.resumed());
  // run_at_once() may have begun it.
  WARREN_CHECK(!light_.runs() || (ran_light_ && light_.round() == call.round), "what was begun is gone on with");
  if (!ran_light_) return executor_.start(round);
  shared_.light = this;
  if (!light_.runs()) light_.begin(round);
  (void)go_light();
}

// As the active call's schedule carries it out.
Round GroupRounds::round_for(const Call& call) {
  Round round;
  round.schedule = call.schedule.get();
  round.generation = shared_.plan.generation;
  round.id = call.round;
  round.fingerprint = call.fingerprint;
  const std::byte* const kept = input_.kept();
  round.input = kept != nullptr ? kept : static_cast<const std::byte*>(call.spec.input);
  round.output = static_cast<std::byte*>(call.spec.output);
  // A broadcast's data stands in the one buffer that the call names.
  if (round.input == nullptr) round.input = round.output;
  round.reducer = call.reducer;
  round.publisher = publisher_.publisher();
  if (const BufferStream* stream = stream_of(call); stream != nullptr) {
    round.landing = &publisher_;
    if (!stream->all_arrived()) round.pieces = input_.pieces();
    round.arrived = stream->arrived();
    round.input_keeper = stream->lent();
    round.input_on_gpu = round.input_keeper != nullptr;
    if (round.input_on_gpu) round.input = static_cast<const std::byte*>(round.input_keeper.get());
    round.output_keeper = stream->output_keeper();
  }
  round.gpu_work = shared_.gpu_work;
  if (round.schedule->exchanges()) {
    round.exchange = shared_.exchange;
    round.gpu_scratch = vote_.take_scratch();
  }
  return round;
}

bool GroupRounds::go_light() {
  const LightRound::Outcome outcome = light_.go();
  if (outcome == LightRound::Outcome::kWaits) return false;
  shared_.light = nullptr;
  if (outcome == LightRound::Outcome::kStuck) hand_over();
  if (outcome == LightRound::Outcome::kProgramFailed) shared_.trouble.fail_by_program(light_.status());
  return true;
}

void GroupRounds::hand_over() {
  ran_light_ = false;
  light_.hand_over();
}

void GroupRounds::check() {
  const auto executes = [&] { return phase_ == Phase::kRuns || phase_ == Phase::kAgrees; };
  while (active_ != nullptr && (phase_ == Phase::kDone || (executes() && !light_.runs() && executor_.done()))) {
    if (executes() && !executor_.status().ok()) {
      // The call ends with the generation: the tracker's word says who is to blame.
      const Status status = executor_.status().about(active_->round);
      if (executor_.program_failed()) {
        shared_.trouble.fail_by_program(status);
      } else {
        fail(status, executor_.failed_peer());
      }
      break;
    }
    if (phase_ == Phase::kAgrees) {
      enter(Phase::kWaits);
      hear_words();
      if (vote_.agreed()) begin();
      continue;
    }
    // On disk too, where mode sync says so, before the call returns.
    if (phase_ == Phase::kRuns && awaited_ != 0 && !shared_.recall->may_be_seen(awaited_)) break;
    if (phase_ == Phase::kRuns) shared_.board.computed(ran_light_ ? light_.bytes_sent() : executor_.bytes_sent());
    complete();
  }
  if (active_ != nullptr) shared_.calls.move_on(*active_);
}

void GroupRounds::complete() {
  Call& call = *active_;
  const bool ran = phase_ == Phase::kRuns;
  if (is_setup(call.round)) {
    shared_.known.complete_setup(id_, call.round.sequence);
  } else {
    done_++;
    if (!ran) RoundBoard::add(shared_.board.rounds_replayed, 1);
    if (ran && call.schedule != nullptr && call.schedule->exchanges()) shared_.exchange->proved();
  }
  call.contributors = shared_.known.contributors_to(call.round);
  input_.forget();
  active_ = nullptr;
  BufferStream* const stream = stream_of(call);
  if (stream != nullptr && is_root_of_broadcast(call.spec, schedules_.rank()) && ran && !interrupted_ &&
      !parts_.resumed()) {
    stream->result_is_there();
  }
  leave();
  RoundBoard::add(shared_.board.rounds_finished, 1);
  shared_.calls.conclude(call, Status());
  start_next();
}

// No round is under way.
void GroupRounds::leave() {
  enter(Phase::kIdle);
  shared_.board.end(lane());
}

// Bytes of the active call's whole result that have become final in its output in this generation.
Ranges GroupRounds::fresh_finals() {
  if (phase_ == Phase::kRecalls) return shared_.recall->cancel(recall_id_);
  Ranges fresh;
  if (phase_ != Phase::kRuns) return fresh;
  const std::uint64_t width = element_bytes(active_->spec);
  const std::uint64_t begin = schedules_.result_of(active_->spec).begin;
  for (const Executor::Final& f : light_.runs() ? light_.finals() : executor_.finals()) {
    fresh.add((begin + f.at) * width, (begin + f.at + f.count) * width);
  }
  return fresh;
}

void GroupRounds::suspend() {
  if (active_ != nullptr && shared_.recall != nullptr) {
    parts_.add(fresh_finals());
    parts_.log_output(*active_);
  }
  if (active_ != nullptr) {
    enter(Phase::kWaits);
    interrupted_ = true;
    if (active_->prepare == Call::Prepare::kAsked) active_->prepare = Call::Prepare::kNot;
    // All loans have ended. Buffers that move because of that are moved between two generations, too.
    if (BufferStream* stream = stream_of(*active_); stream != nullptr) stream->bring_home();
    vote_.forget();
    shared_.calls.move_on(*active_);
  }
  executor_.abandon();
  light_.abandon();
}

void GroupRounds::stop(const Status& why, const Status& reason) {
  vote_.forget();
  if (active_ != nullptr && active_->prepare != Call::Prepare::kRuns) {
    shared_.calls.end(*std::exchange(active_, nullptr), reason);
    input_.forget();
    leave();
  }
  executor_.abandon();
  light_.abandon();
  for (; !queue_.empty(); queue_.pop()) shared_.calls.finish(*queue_.front(), why);
}

void GroupRounds::drop(const Status& why) {
  Call& call = *std::exchange(active_, nullptr);
  leave();
  shared_.calls.end(call, why);
}

}  // namespace warren::worker
