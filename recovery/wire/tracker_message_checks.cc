// Whether a message of the tracker contradicts itself, but for plans (plan_checks.cc); and its journal's records.
#include <set>
#include <string>
#include <string_view>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/field_checks.h"
#include "recovery/wire/progress_checks.h"

namespace warren {

using namespace checks;

namespace {

Status validate_follow(const wire::Follow& f) {
  if (Status s = member_generation(f.generation()); !s.ok()) return s;
  if (Status s = validate_committed(true, f.version(), f.timeline(), kOfDecisions); !s.ok()) return s;
  if (f.run() == 0) return bad("it is of no run");
  if (!f.has_plan()) return {};
  if (f.plan().generation() != f.generation() || f.plan().run() != f.run())
    return bad("a plan of another generation, or run");
  if (f.plan().settings().replicas() == 0) return bad("the plan logs nothing");
  return validate(f.plan());
}

}  // namespace

Status validate(const wire::Welcome& w) {
  if (Status s = in_range("world size", w.world_size(), 1, limits::kMaxWorldSize); !s.ok()) return s;
  if (Status s = in_range("joined", w.joined(), w.spare() ? 0 : 1, w.world_size()); !s.ok()) return s;
  if (Status s = in_range("generation of the call", w.called(), 0, kMaxGeneration); !s.ok()) return s;
  if (static_cast<std::size_t>(w.missing_size()) > kMaxMissingNames) return bad("too many missing workers are named");
  std::set<std::string_view> seen;
  for (const std::string& name : w.missing()) {
    if (Status s = validate_name("missing worker id", name, limits::kMaxWorkerIdBytes); !s.ok()) return s;
    if (!seen.insert(name).second) return bad("missing worker " + name + " stands twice");
  }
  if (!w.has_follow()) return {};
  if (!w.spare()) return bad("who is no spare is to follow checkpoints");
  if (Status s = validate_follow(w.follow()); !s.ok()) return s.because_of_this("the checkpoint to be followed");
  return {};
}

Status validate(const wire::Refused& r) {
  if (Status s = known_code(r.code()); !s.ok()) return s;
  if (r.reason().empty()) return bad("no reason");
  return text_is_printable("reason", r.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Interrupt& i) {
  if (Status s = member_generation(i.generation()); !s.ok()) return s;
  if (Status s = known_code(i.code()); !s.ok()) return s;
  if (i.reason().empty()) return bad("no reason");
  if (i.ends_job() && i.resume()) return bad("it ends the job, and resumes");
  if (Status s = validate(i.about()); !s.ok()) return s;
  if (Status s = text_is_printable("reason", i.reason(), limits::kMaxReasonBytes); !s.ok()) return s;
  std::int64_t last = -1;
  for (const std::uint32_t rank : i.lost()) {
    if (Status s = rank_in_any_world("lost rank", rank); !s.ok()) return s;
    if (rank <= last) return bad("lost ranks are not in rising order");
    last = rank;
  }
  return {};
}

Status validate(const wire::Finished& f) {
  return member_generation(f.generation());
}

Status validate(const wire::HeartbeatReply& r) {
  if (Status s = in_range("time that others have waited in ms", r.awaited_ms(), 0, kMaxWaitedMs); !s.ok()) return s;
  if (!r.has_leave()) return {};
  const wire::LeaveRequest& l = r.leave();
  if (Status s = member_generation(l.generation()); !s.ok()) return s;
  if (Status s = in_range("time until it leaves", l.within_ms(), 0, limits::kMaxDrainMs); !s.ok()) return s;
  if (l.reason().empty()) return bad("it is to leave for no reason");
  return text_is_printable("reason to leave", l.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Loaded& l) {
  return validate_committed(l.committed(), l.version(), l.timeline(), kOfDecisions);
}

Status validate(const wire::Committed& c) {
  return validate_committed(true, c.version(), c.timeline(), kOfDecisions);
}

Status validate(const wire::JobRecord& r) {
  if (r.format() != kJobRecordFormat) {
    return {Code::kRefused, "format " + str(r.format()) + ", this build reads format " + str(kJobRecordFormat)};
  }
  if (Status s = validate_name("job", r.job(), limits::kMaxJobNameBytes); !s.ok()) return s;
  if (Status s = member_generation(r.generation()); !s.ok()) return s;
  if (!r.has_settings()) return bad("no settings");
  if (Status s = validate(r.settings()); !s.ok()) return s;
  if (Status s = text_is_printable("origin of the settings", r.settings_from(), limits::kMaxReasonBytes); !s.ok()) {
    return s;
  }
  if (r.term() == 0 || r.term() + 1 >= kMaxGeneration) return bad("term " + str(r.term()));
  if (r.finished()) {
    return r.has_plan() || r.has_interrupt() || r.finalized_size() != 0 || r.committed() || r.setups_size() != 0
               ? bad("a finished job has a plan")
               : Status();
  }
  if (Status s = validate_committed(r.committed(), r.committed_version(), r.committed_timeline(), kOfDecisions);
      !s.ok()) {
    return s;
  }
  if (Status s = validate_setups(r.setups(), limits::kMaxSetupsPerJob, 0); !s.ok()) return s;
  for (const wire::Setup& s : r.setups()) {
    if (s.timeline() > r.timeline()) return bad("set-up round " + hex(s.name()) + ": of a timeline that has not begun");
  }
  if (Status s = in_range("join timeout in ms", r.join_timeout_ms(), 0, limits::kMaxRoundTimeoutMs); !s.ok()) return s;
  if (!r.has_plan()) return bad("no plan");
  if (Status s = validate(r.plan()); !s.ok()) return s.because_of_this("bad plan");
  if (r.plan().settings().SerializeAsString() != r.settings().SerializeAsString()) {
    return bad("the plan's settings are not the job's");
  }
  if (r.plan().timeline() != r.timeline()) return bad("the plan's timeline is not the job's");
  if (r.committed_timeline() > r.timeline()) return bad("a version was committed in a later timeline");
  if (r.plan().committed() && r.committed_version() < r.plan().committed_version()) {
    return bad("the plan knows of a later commit");
  }
  if (r.has_interrupt()) {
    if (Status s = validate(r.interrupt()); !s.ok()) return s.because_of_this("bad interrupt");
    if (r.interrupt().generation() != r.generation() || r.plan().generation() >= r.generation())
      return bad("the interrupt ends no plan");
  } else if (r.plan().generation() != r.generation()) {
    return bad("the plan is not the newest generation's");
  } else if (r.without_frontier()) {
    return bad("a plan is in force without its frontier");
  }
  std::int64_t last = -1;
  for (const std::uint32_t rank : r.finalized()) {
    if (rank >= r.settings().world_size() || rank <= last) return bad("the finalized ranks are wrong");
    last = rank;
  }
  if (static_cast<std::size_t>(r.retired_size()) > limits::retired_lives(r.settings().world_size())) {
    return bad("too many lives are over");
  }
  std::set<std::uint64_t> lives;
  for (const std::uint64_t life : r.retired()) {
    if (life == 0 || !lives.insert(life).second) return bad("the lives that are over are wrong");
  }
  if (static_cast<std::uint32_t>(r.left_domains_size()) > r.settings().replicas())
    return bad("too many domains were left");
  std::set<std::string> left;
  for (const std::string& domain : r.left_domains()) {
    if (Status s = validate_name("failure domain", domain, limits::kMaxHostIdBytes); !s.ok()) return s;
    if (!left.insert(domain).second) return bad("a domain was left twice");
  }
  return {};
}

}  // namespace warren
