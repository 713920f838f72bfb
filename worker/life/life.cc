#include "worker/life/life.h"

namespace warren::worker {
namespace {

// Between two slices of what is taken over from dead lives' segments.
constexpr std::int64_t kLookAgainMs = 50;

}  // namespace

void Life::keep_log(Incarnation self, std::unique_ptr<HostLog> log, std::unique_ptr<HostLogReader> reader,
                    Recall::Clock clock, Recall::SendRequest send) {
  self_ = self;
  kept_ =
      std::make_unique<Kept>(engine_, effects_, std::move(log), std::move(reader), std::move(clock), std::move(send));
  engine_.use(kept_->recall);
}

void Life::use_mirror() {
  mirrors_ = true;
  kept_->loading.use_mirror();
}

void Life::install(const Engine::Plan& plan, const Replayer::Plan& replay) {
  if (kept_) kept_->recall.install(replay);
  engine_.install(plan);
  if (!kept_) return;
  kept_->checkpoints.install();
  look_at_checkpoints();
}

void Life::open(TimeMs now) {
  if (!engine_.stopped()) {
    // All that the host holds is mapped now, by all its ranks.
    if (kept_) look_at_dead_segments(now);
    engine_.open();
  }
  opened_ = true;
}

Life::Ending Life::ending(const Status& why, bool fenced) const {
  if (fenced && !opened_) return Ending::kJoinsAgain;
  if (!ends_process_) return Ending::kTellsProgram;
  if (why.code() == Code::kRolledBack) return Ending::kRolledBack;
  // The others go on, and another life can take its place.
  return fenced && kept_ ? Ending::kFenced : Ending::kTellsProgram;
}

WorkerMachine::Standing Life::stop(const worker_effect::StopDataPath& what) {
  look_again_.reset();
  const Ending then = ending(what.why, what.fenced);
  // No call returns, also where failed() ends the process in a moment.
  if (what.resume || then == Ending::kRolledBack || then == Ending::kFenced) return engine_.suspend();
  engine_.stop(what.why);
  // Who waits sees that it has stopped, and asks why, before failed() comes.
  if (failure_.ok() && then != Ending::kJoinsAgain) failure_ = what.why;
  return {};
}

void Life::failed(const Status& why) {
  if (failure_.ok()) failure_ = why;
  engine_.stop(why);
}

void Life::end(const Status& why, Blame blame) {
  if (closed_ || !failure_.ok()) return;
  failure_ =
      why.because_of_this("this worker's life in the job is over; end the process, and its next life takes its place");
  effects_.emplace_back(life_effect::End{why, blame});
  engine_.stop(failure_);
}

void Life::finished() {
  finished_ = true;
  engine_.stop(Status(Code::kClosed, "the communicator has been finalized"));
}

void Life::close() {
  closed_ = true;
  engine_.stop(Status(Code::kClosed, "the communicator has been destroyed"));
}

Status Life::attach(Incarnation life, std::span<const std::byte> segment, std::shared_ptr<const void> keeper) {
  const Status status = kept_->log->attach(life, segment, keeper);
  if (status.ok()) kept_->dead_segments.attached(life, segment, std::move(keeper));
  return status;
}

void Life::follow(const worker_effect::Follow& what, const std::optional<Replayer::Plan>& from) {
  if (from) kept_->recall.follow(*from);
  if (what.plan) follows_run_ = what.plan->run();
  kept_->checkpoints.follow(follows_run_, what.version, what.timeline);
  (void)engine_.drain_recalls();
  look_at_checkpoints();
}

void Life::tracker_away(bool away) {
  if (!kept_) return;
  kept_->checkpoints.tracker_away(away);
  effects_.emplace_back(life_effect::Wake{});
}

void Life::committed(Version version, Timeline timeline, TimeMs now) {
  if (!kept_) return;
  kept_->checkpoints.committed(version, timeline);
  effects_.emplace_back(life_effect::Wake{});
  known_.set_committed(true);
  known_.set_committed_version(version.value);
  known_.set_committed_timeline(timeline.value);
  if (mirrors_ && opened_) {
    wire::Known known = known_;
    known.clear_setups();
    known.mutable_plan()->clear_setups();
    effects_.emplace_back(life_effect::CopyToMirror{std::move(known), timeline, version});
  }
  if (durable_) {
    effects_.emplace_back(life_effect::NoteCommit{
        known_, {engine_.oldest_timeline(), version, {{timeline, version}}, engine_.setups_in_use()}});
  }
  if (opened_) look_at_dead_segments(now);
  look_at_checkpoints();
}

void Life::fetched(Rank from, const wire::FetchReply& reply) {
  kept_->recall.on_reply(from, reply);
  look_at_replies();
}

void Life::fetched(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
  kept_->recall.on_reply(from, reply, payloads);
  look_at_replies();
}

void Life::look_at_replies() {
  for (std::string& warning : kept_->recall.take_warnings())
    effects_.emplace_back(life_effect::Warn{std::move(warning)});
  (void)engine_.drain_recalls();
  look_at_checkpoints();
  effects_.emplace_back(life_effect::Wake{});
}

void Life::tick(TimeMs now) {
  if (look_again_ && *look_again_ <= now) look_at_dead_segments(now);
  if (const auto deadline = kept_->recall.next_deadline(); deadline && *deadline <= now) {
    kept_->recall.on_tick();
    look_at_replies();
  }
}

std::optional<TimeMs> Life::next_deadline() const {
  const auto deadline = kept_->recall.next_deadline();
  return look_again_ && (!deadline || *look_again_ < *deadline) ? look_again_ : deadline;
}

void Life::report_trouble() {
  if (!engine_.has_trouble()) return;
  const Generation generation = engine_.plan().generation;
  if (const auto gap = engine_.take_gap()) tell(machine_event::LogGap{generation, *gap});
  auto failure = engine_.take_failure();
  if (!failure) return;
  if (failure->by_program) return end(failure->status, Blame::kProgram);
  if (failure->status.code() == Code::kPeerLost && failure->peer != kNoRank) {
    tell(machine_event::LinkBroken{generation, failure->peer, failure->status.describe()});
  }
  // Also of a lost link: one to a rank that has called finalize ends the generation only if a round needs it.
  tell(machine_event::RoundFailed{generation, std::move(failure->status)});
}

void Life::look_at_checkpoints() {
  if (!kept_ || engine_.stopped()) return;
  Checkpoints& checkpoints = kept_->checkpoints;
  checkpoints.advance();
  // What the own host holds of a state is found at once, and nobody may come by for it before the next call.
  while (engine_.drain_recalls()) {
    checkpoints.advance();
    effects_.emplace_back(life_effect::Wake{});
  }
  const Generation generation = engine_.plan().generation;
  if (const auto followed = checkpoints.take_followed()) tell(*followed);
  if (checkpoints.has_trouble()) {
    if (std::string warning = checkpoints.take_warning(); !warning.empty()) {
      effects_.emplace_back(life_effect::Warn{std::move(warning)});
    }
    if (Status failure = checkpoints.take_failure(); !failure.ok()) {
      tell(machine_event::RoundFailed{generation, std::move(failure)});
    }
  }
  if (auto word = checkpoints.take_state_word()) {
    tell(machine_event::StateWord{*std::move(word)});
  }
  auto vote = checkpoints.take_vote();
  if (!vote) return;
  if (durable_) {
    if (const Status taken = take_over_setups(); !taken.ok()) {
      // Whoever waited for this vote would wait for ever; after a rollback the log has room.
      tell(machine_event::RoundFailed{
          generation, taken.because_of_this("a checkpoint cannot be committed: set-up rounds that lives which are over "
                                            "have logged do not fit into this rank's log")});
      return;
    }
    known_.mutable_setups()->Assign(vote->setups.begin(), vote->setups.end());
  }
  // A generation that ends before this is durable makes it void, and another vote is given then.
  effects_.emplace_back(life_effect::Vote{*std::move(vote)});
}

// Set-up rounds that a checkpoint may be made of are to be durable with it, and nobody writes dead lives' segments to a
// disk.
Status Life::take_over_setups() {
  const auto living = kept_->recall.replayer().host_lives();
  if (living.empty() || living.front() != self_) return {};
  return kept_->dead_segments.take_over_setups(living, *kept_->log, kept_->recall.reader());
}

void Life::taken(const Status& status) {
  if (status.code() == Code::kDesync) {
    tell(machine_event::RoundFailed{engine_.plan().generation, status});
  }
  look_at_checkpoints();
}

// Lets go of what dead lives of this host have logged and nobody needs any more.
void Life::look_at_dead_segments(TimeMs now) {
  const auto living = kept_->recall.replayer().host_lives();
  const bool first = !living.empty() && living.front() == self_;
  auto looked = kept_->dead_segments.look(kept_->checkpoints.horizon(), living, first,
                                          board_.rounds_computed.load(std::memory_order_relaxed), *kept_->log,
                                          kept_->recall.reader());
  look_again_ = looked.more ? std::optional(now + kLookAgainMs) : std::nullopt;
  for (const DeadSegments::Gone& gone : looked.gone) {
    kept_->log->detach(gone.life);
    effects_.emplace_back(life_effect::ForgetSegment{gone.life, gone.over});
  }
  taken_over_ = std::move(looked.taken_over);
  if (!taken_over_.ok()) effects_.emplace_back(life_effect::SegmentsStay{taken_over_});
}

}  // namespace warren::worker
