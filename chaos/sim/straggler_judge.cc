#include "chaos/sim/straggler_judge.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "recovery/base/limits.h"
#include "recovery/decide/verdict.h"

namespace warren::chaos {
namespace {

std::string field_of(const LogEvent& event, std::string_view name) {
  const auto found = std::ranges::find(event.fields, name, [](const auto& f) { return f.first; });
  return found == event.fields.end() ? std::string() : found->second;
}

}  // namespace

void StragglerJudge::heard(const LogEvent& event, const wire::Plan& plan) {
  if (event.name == "replace_withdrawn") told_to_leave_ = {};
  if (event.name == "replace_asked") {
    told_to_leave_ = Incarnation(plan.members(std::stoi(field_of(event, "rank"))).incarnation());
  }
  if (!world_.straggler() || !world_.straggler()->judged) return;
  if (event.name == "replace_asked") return asked_to_leave(std::stoul(field_of(event, "rank")), plan);
  if (event.name == "replace_withdrawn") asked_.reset();
  if (event.name == "rewired") {
    return rewired(Rank(std::stoi(field_of(event, "rank"))), Rank(std::stoi(field_of(event, "peer"))), plan);
  }
  if (event.name != "straggler") return;
  if (!is_right(event, plan)) return world_.violated("Blame", "the wrong one is named: " + event.text);
  ++named_;
}

bool StragglerJudge::is_right(const LogEvent& event, const wire::Plan& plan) const {
  const Straggler& s = *world_.straggler();
  const auto named = [&](const char* kind, bool link) {
    const auto rank = static_cast<int>(std::stoul(field_of(event, "rank")));
    return field_of(event, "kind") == kind && world_.is_straggler(Rank(rank), plan.members(rank).worker_id()) &&
           field_of(event, "peer") == (link ? std::to_string(s.peer.value) : "");
  };
  switch (s.what) {
    case Straggler::What::kNobody: break;
    case Straggler::What::kProgram:
    case Straggler::What::kDataPath: return named("slow_rank", false);
    case Straggler::What::kLink: return named("slow_link", true);
    // A process that wakes has been silent, and late for its rounds.
    case Straggler::What::kHung: return named("hung", false) || named("slow_rank", false);
  }
  return false;
}

// One at a time, and not soon after another.
void StragglerJudge::asked_to_leave(std::size_t rank, const wire::Plan& plan) {
  const auto timeout_ms = static_cast<std::int64_t>(plan.settings().round_timeout_ms());
  const Micros pause_us = limits::kWindowsBetweenReplacements * straggler_limits(timeout_ms).window_ms * 1000;
  const wire::Member& member = plan.members(static_cast<int>(rank));
  if (!world_.is_straggler(Rank(static_cast<std::int32_t>(rank)), member.worker_id())) {
    return world_.violated("Blame", "the wrong one is asked to leave: rank " + std::to_string(rank));
  }
  if (asked_ && world_.now_us() < asked_->at_us + pause_us) {
    return world_.violated("Replace", "two ranks are asked to leave in " + std::to_string(pause_us) + " us");
  }
  asked_ = {Incarnation(member.incarnation()), rank, world_.now_us(), world_.now_us() + 3 * timeout_ms * 1000};
}

// The slow link and no other, and not soon after another time.
void StragglerJudge::rewired(Rank a, Rank b, const wire::Plan& plan) {
  const Straggler& s = *world_.straggler();
  if (s.what != Straggler::What::kLink || std::minmax(a, b) != std::minmax(s.rank, s.peer)) {
    return world_.violated("Blame", "bytes between ranks " + std::to_string(a.value) + " and " +
                                        std::to_string(b.value) + " take another way");
  }
  const auto timeout_ms = static_cast<std::int64_t>(plan.settings().round_timeout_ms());
  const Micros pause_us = limits::kWindowsBetweenReplacements * straggler_limits(timeout_ms).window_ms * 1000;
  if (rewired_at_us_ && world_.now_us() < *rewired_at_us_ + pause_us) {
    return world_.violated("Rewire", "twice in " + std::to_string(pause_us) + " us");
  }
  rewired_at_us_ = world_.now_us();
}

void StragglerJudge::check_replaced(const wire::Plan& plan) {
  if (!asked_ || asked_->left) return;
  const wire::Member& member = plan.members(static_cast<int>(asked_->rank));
  if (member.incarnation() != asked_->life.value || member.absent()) {
    asked_->left = true;
    ++replaced_;
  } else if (world_.now_us() > asked_->until_us) {
    world_.violated("Replace", "rank " + std::to_string(asked_->rank) + " was asked to leave, and is there still");
  }
}

}  // namespace warren::chaos
