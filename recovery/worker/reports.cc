// Reports of a member: broken links, peers that have gone, failed rounds, and gaps in the log. Each is repeated until
// an interrupt answers it.
#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/worker/transitions.h"
#include "recovery/worker/worker_machine.h"

namespace warren {

using worker_effect::Send;

void WorkerMachine::send_link_broken(const BrokenLink& broken, std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  wire::LinkBroken& b = *e.mutable_link_broken();
  b.set_generation(plan_.generation());
  b.set_peer(static_cast<std::uint32_t>(broken.peer.value));
  b.set_peer_incarnation(plan_.members(broken.peer.value).incarnation());
  b.set_evidence(wire_text(broken.evidence));
  b.set_gone(broken.gone);
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_round_failed(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  wire::RoundFailed& f = *e.mutable_round_failed();
  f.set_generation(plan_.generation());
  f.set_code(static_cast<std::uint32_t>(failed_round_.code()));
  const std::string reason = wire_text(failed_round_.describe());
  f.set_reason(reason.empty() ? "no reason given" : reason);
  if (const Rank peer = failed_round_.peer(); peer != kNoRank) {
    f.mutable_about()->set_peer(static_cast<std::uint32_t>(peer.value));
  }
  f.mutable_about()->set_round(std::string(failed_round_.round().substr(0, limits::kMaxRoundTextBytes)));
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_log_gap(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_log_gap()->set_generation(plan_.generation());
  e.mutable_log_gap()->set_reason(log_gap_);
  if (setup_gap_) *e.mutable_log_gap()->mutable_setup() = *setup_gap_;
  e.mutable_log_gap()->set_renumbers(gap_renumbers_);
  if (checkpoint_gap_) {
    e.mutable_log_gap()->mutable_checkpoint()->set_version(checkpoint_gap_->version.value);
    e.mutable_log_gap()->mutable_checkpoint()->set_timeline(checkpoint_gap_->timeline.value);
  }
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::on_log_gap(Generation generation, const Gap& gap, TimeMs now, std::vector<WorkerEffect>& effects) {
  if (!reports() || generation != Generation(plan_.generation()) || !log_gap_.empty())
    return count(Transition::report_stale);
  count(Transition::log_gap_reported);
  if (broken_links_.empty() && failed_round_.ok()) reported_ = now;
  log_gap_ = wire_text(gap.reason.empty() ? "no reason given" : gap.reason);
  setup_gap_ = gap.setup;
  gap_renumbers_ = gap.renumbers;
  checkpoint_gap_ = gap.checkpoint;
  if (checkpoint_gap_) {
    log(Severity::kError, "checkpoint_lost", log_gap_, effects);
  } else {
    log(Severity::kError, "log_gap", log_gap_, effects);
  }
  send_log_gap(effects);
}

void WorkerMachine::on_link_broken(Generation generation, Rank peer, const std::string& evidence, TimeMs now,
                                   std::vector<WorkerEffect>& effects) {
  if (!reports() || generation != Generation(plan_.generation())) return count(Transition::report_stale);
  count(Transition::link_broken_reported);
  report_broken({peer, evidence}, now, effects);
}

void WorkerMachine::on_peer_gone(Generation generation, Rank peer, const std::string& evidence, TimeMs now,
                                 std::vector<WorkerEffect>& effects) {
  const bool suspended = state_ == State::kSuspended;
  if ((!suspended && !reports()) || generation != Generation(plan_.generation()))
    return count(Transition::report_stale);
  count(suspended ? Transition::peer_gone_reported_suspended : Transition::peer_gone_reported);
  report_broken({peer, evidence, true}, now, effects);
}

void WorkerMachine::report_broken(BrokenLink broken, TimeMs now, std::vector<WorkerEffect>& effects) {
  WARREN_CHECK(broken.peer.value >= 0 && broken.peer.value < plan_.members_size(), "links lead to ranks of the plan");
  if (broken_links_.empty() && failed_round_.ok()) reported_ = now;
  send_link_broken(broken, effects);
  if (broken_links_.size() == kMaxBrokenLinks) return;
  // Its connections, the rounds on them and whoever looks for its process find the same one after the other.
  const bool known = std::ranges::any_of(broken_links_, [&](const BrokenLink& b) { return b.peer == broken.peer; });
  // Where a job ends well its ranks close their ends one after the other, which is nothing to tell people.
  if (!known && state_ != State::kLeaving) {
    const wire::Member& peer = plan_.members(broken.peer.value);
    log(Severity::kWarning, "link_broken",
        "the link to rank " + std::to_string(broken.peer.value) + " (worker " + peer.worker_id() + " on host " +
            peer.host_id() + ") broke in generation " + std::to_string(plan_.generation()) + ": " +
            wire_text(broken.evidence),
        effects);
  }
  broken_links_.push_back(std::move(broken));
}

void WorkerMachine::on_round_failed(Generation generation, const Status& why, TimeMs now,
                                    std::vector<WorkerEffect>& effects) {
  if (!reports() || generation != Generation(plan_.generation()) || !failed_round_.ok()) {
    return count(Transition::report_stale);
  }
  WARREN_CHECK(!why.ok(), "a failed round has a reason");
  count(Transition::round_failed_reported);
  if (broken_links_.empty()) reported_ = now;
  failed_round_ = why;
  // With a log, a lost link or a damaged chunk costs an interrupt and no more.
  const bool mends =
      options_.join.settings().replicas() != 0 && (why.code() == Code::kPeerLost || why.code() == Code::kCorrupt);
  // Of a round over a broken link the link's line says all.
  const bool told = why.code() == Code::kPeerLost && !broken_links_.empty();
  if (!told) log(mends ? Severity::kWarning : Severity::kError, "round_failed", wire_text(why.describe()), effects);
  send_round_failed(effects);
}

// With a log, who finalizes may owe others messages, and results that they replay.
bool WorkerMachine::reports() const {
  return state_ == State::kMember || (state_ == State::kLeaving && options_.join.settings().replicas() != 0);
}

void WorkerMachine::repeat_reports(std::vector<WorkerEffect>& effects) {
  for (const BrokenLink& broken : broken_links_) {
    count(Transition::link_broken_repeated);
    send_link_broken(broken, effects);
  }
  if (failed_round_.ok()) return;
  count(Transition::round_failed_repeated);
  send_round_failed(effects);
}

std::optional<TimeMs> WorkerMachine::report_deadline() const {
  const bool reported = !broken_links_.empty() || !failed_round_.ok() || !log_gap_.empty();
  if (state_ != State::kMember || !reported) return std::nullopt;
  return std::max(heard_, reported_) + options_.join_timeout_ms;
}

}  // namespace warren
