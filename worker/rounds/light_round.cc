#include "worker/rounds/light_round.h"

#include "recovery/base/check.h"
#include "worker/rounds/steps.h"

namespace warren::worker {

using schedule::Place;
using schedule::Space;
using schedule::Step;
using schedule::StepKind;

LightRound::LightRound(Transport& transport, FramesAtOnce& frames, Executor& executor, GroupId links,
                       const std::vector<Rank>& members, std::uint32_t slot, RoundBoard* board)
    : transport_(transport),
      frames_(frames),
      executor_(executor),
      link_group_(links),
      members_(members),
      slot_(slot),
      board_(board),
      links_(members.size(), 0) {}

bool LightRound::serves(const PreparedSchedule& schedule, const Reducer& reducer) {
  return schedule.steps().size() <= kMostSteps && schedule.in_order() &&
         schedule.largest() * reducer.bytes(Form::kPartial) <= kMostBytes;
}

void LightRound::begin(const Round& round) {
  WARREN_CHECK(!runs_ && executor_.done(), "one round at a time");
  round_ = round;
  value_bytes_ = round.reducer.bytes(Form::kValue);
  partial_bytes_ = round.reducer.bytes(Form::kPartial);
  const std::uint64_t scratch = round.schedule->schedule().scratch_elements;
  scratch_ = scratch == 0 ? nullptr : executor_.scratch(scratch * partial_bytes_);
  header_.kind = FrameKind::kCollective;
  header_.generation = round.generation;
  header_.round = round.id;
  header_.fingerprint = round.fingerprint;
  bytes_sent_ = 0;
  done_ = 0;
  posted_ = false;
  runs_ = true;
}

LinkId LightRound::link_to(std::int32_t peer) {
  LinkId& link = links_[static_cast<std::size_t>(peer)];
  if (link == 0) link = transport_.link(link_group_, members_[static_cast<std::size_t>(peer)]) + 1;
  return link - 1;
}

std::byte* LightRound::address(const Place& place) const {
  switch (place.space) {
    case Space::kInput: return const_cast<std::byte*>(round_.input) + place.at * value_bytes_;
    case Space::kOutput: return round_.output + place.at * value_bytes_;
    case Space::kScratch:
      return scratch_ + place.at * partial_bytes_ +
             place.skip * (place.form == Form::kValue ? value_bytes_ : partial_bytes_);
  }
  WARREN_UNREACHABLE("a place is input, output or scratch");
}

LightRound::Outcome LightRound::go() {
  if (posted_) return Outcome::kStuck;
  const std::vector<Step>& steps = round_.schedule->steps();
  const auto bytes_of = [this](const Place& place, std::uint64_t count) {
    return count * (place.form == Form::kValue ? value_bytes_ : partial_bytes_);
  };
  for (; done_ < steps.size(); done_++) {
    const Step& step = steps[done_];
    switch (step.kind) {
      case StepKind::kSend: {
        const std::size_t bytes = bytes_of(step.a, step.count);
        header_.message = step.message;
        const auto sent = frames_.send_now(link_to(step.peer), header_, {bytes == 0 ? nullptr : address(step.a), bytes},
                                           static_cast<Token>(slot_) << 32 | done_);
        posted_ = sent == FramesAtOnce::Now::kPosted;
        if (sent != FramesAtOnce::Now::kDone) return Outcome::kStuck;
        bytes_sent_ += bytes;
        if (board_ != nullptr) board_->sent(members_[static_cast<std::size_t>(step.peer)], bytes);
        break;
      }
      case StepKind::kRecv: {
        const std::size_t bytes = bytes_of(step.dst, step.count);
        header_.message = step.message;
        const auto came =
            frames_.recv_now(link_to(step.peer), header_, {bytes == 0 ? nullptr : address(step.dst), bytes});
        if (came == FramesAtOnce::Now::kLater) return Outcome::kWaits;
        if (came != FramesAtOnce::Now::kDone) return Outcome::kStuck;
        if (board_ != nullptr) board_->received(members_[static_cast<std::size_t>(step.peer)], bytes);
        break;
      }
      case StepKind::kPublish: {
        LogPlace place;
        // The executor tries again, and says why it cannot be.
        if (!round_.publisher->publish(step.result_at, step.count, address(step.a), place).ok()) {
          return Outcome::kStuck;
        }
        break;
      }
      case StepKind::kReduce: {
        if (step.count == 0) break;
        const Status reduced = round_.reducer.reduce(address(step.dst), step.dst.form, address(step.a), step.a.form,
                                                     address(step.b), step.b.form, step.count, step.finish);
        if (reduced.ok()) break;
        status_ = reduced.because_of_this("cannot combine the inputs of " + to_string(round_.fingerprint) + ", " +
                                          to_string(round_.id));
        return Outcome::kProgramFailed;
      }
      case StepKind::kCopy:
        if (step.count == 0) break;
        round_.reducer.copy(address(step.dst), step.dst.form, address(step.a), step.a.form, step.count, step.finish);
        break;
      case StepKind::kCombine: WARREN_UNREACHABLE("such a schedule is the executor's");
    }
  }
  runs_ = false;
  return Outcome::kDone;
}

void LightRound::hand_over() {
  WARREN_CHECK(runs_, "there is a round");
  runs_ = false;
  executor_.take_over(round_, done_, posted_);
}

std::vector<Executor::Final> LightRound::finals() const {
  std::vector<Executor::Final> finals;
  const std::vector<Step>& steps = round_.schedule->steps();
  for (std::uint32_t i = 0; i < done_; i++) {
    if (writes_final(steps[i])) finals.push_back({steps[i].dst.at, steps[i].count});
  }
  return finals;
}

void LightRound::abandon() {
  runs_ = false;
  status_ = Status();
  links_.assign(members_.size(), 0);
}

Rank LightRound::waits_for() const {
  if (!runs_) return kNoRank;
  const Step& step = round_.schedule->steps()[done_];
  return step.kind == StepKind::kRecv ? members_[static_cast<std::size_t>(step.peer)] : kNoRank;
}

}  // namespace warren::worker
