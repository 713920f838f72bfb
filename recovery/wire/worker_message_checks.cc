// Whether a message of a worker contradicts itself, but for heartbeats (heartbeat_checks.cc).
#include <bit>
#include <string>
#include <tuple>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/field_checks.h"
#include "recovery/wire/peer_checks.h"
#include "recovery/wire/plan_checks.h"
#include "recovery/wire/progress_checks.h"

namespace warren {

using namespace checks;

namespace {

static_assert(limits::kMaxPositions * limits::kMaxPositionBytes + limits::kMaxRangesPerReport * limits::kMaxRangeBytes +
                      limits::kMaxSetups * limits::kMaxSetupEntryBytes +
                      limits::kMaxSetupRangesPerReport * limits::kMaxRangeBytes + 1024 <=
                  kMaxWorkerMessageBytes,
              "the longest report fits");
static_assert(limits::kMaxPositions * limits::kMaxPositionBytes + limits::kMaxSetups * limits::kMaxSetupEntryBytes +
                      limits::kMaxStateHashes * 8 + limits::kMaxLocalCopies * limits::kMaxLocalCopyBytes + 1024 <=
                  kMaxWorkerMessageBytes,
              "the longest vote fits");
static_assert(limits::kMaxHeldRounds * limits::kMaxHeldRoundsBytes + limits::kMaxHeldRuns * limits::kMaxHeldRunBytes +
                      limits::kMaxHeldRanges * limits::kMaxRangeBytes + limits::kMaxHeldPlanBytes +
                      limits::kMaxSetups * limits::kMaxSetupEntryBytes +
                      limits::kMaxLoggedPositions * limits::kMaxPositionBytes +
                      limits::kMaxLoggedRanges * limits::kMaxRangeBytes +
                      limits::kMaxLoggedSetups * limits::kMaxSetupEntryBytes + limits::kMaxLoggedLives * 8 +
                      limits::kMaxMemberBytes + 4096 <=
                  kMaxWorkerMessageBytes,
              "the longest join fits");

Status validate_followed(const wire::Followed& f) {
  if (Status s = in_range("generation", f.generation(), 0, kMaxGeneration); !s.ok()) return s;
  if ((f.generation() == 0) != (f.run() == 0)) return bad("a plan of no run, or a run without a plan");
  if (f.version() != 0 && f.run() == 0) return bad("a version of no run");
  return validate_committed(f.version() != 0, f.version(), f.timeline(), kOfClaims);
}

Status validate_state(const wire::StateDigest& d) {
  if (Status s = in_range("global state's bytes", d.global_bytes(), 0, limits::kMaxStateBytes); !s.ok()) return s;
  if (d.global_bytes() == 0) {
    return d.piece_bytes() == 0 && d.hashes_size() == 0 ? Status() : bad("hashes of a global state without bytes");
  }
  if (d.piece_bytes() < limits::kStatePieceBytes || !std::has_single_bit(d.piece_bytes())) {
    return bad("a hash for " + str(d.piece_bytes()) + " bytes of a global state");
  }
  const std::uint64_t pieces = (d.global_bytes() - 1) / d.piece_bytes() + 1;
  if (pieces > limits::kMaxStateHashes || static_cast<std::uint64_t>(d.hashes_size()) != pieces) {
    return bad(str(d.hashes_size()) + " hashes of " + str(pieces) + " pieces of a global state");
  }
  return {};
}

}  // namespace

Status validate(const wire::Join& j) {
  if (Status s = validate_identity(j.worker_id(), j.host_id(), j.domain_id()); !s.ok()) return s;
  if (Status s = validate_endpoints(j.endpoints()); !s.ok()) return s;
  if (!j.has_settings()) return bad("no settings");
  if (Status s = validate(j.settings()); !s.ok()) return s;
  if (Status s = validate_log_addresses(j.fetch_port(), j.segment_socket(), j.settings().replicas()); !s.ok()) return s;
  if (Status s = validate_traits(j.traits()); !s.ok()) return s;
  if (j.has_held()) {
    if (j.settings().replicas() == 0) return bad("nothing is logged, and a disk holds something");
    if (Status s = validate(j.held()); !s.ok()) return s.because_of_this("what the disk holds");
  }
  if (j.has_logged()) {
    if (j.settings().replicas() == 0) return bad("nothing is logged, and memory holds something");
    if (Status s = validate_logged(j.logged()); !s.ok()) return s.because_of_this("what memory holds");
  }
  if (Status s = in_range("join timeout in ms", j.join_timeout_ms(), 0, limits::kMaxRoundTimeoutMs); !s.ok()) return s;
  if (Status s = in_range("generation of the call", j.called(), 0, kMaxGeneration); !s.ok()) return s;
  if (!j.waits() && (j.spare() || j.called() != 0)) return bad("it does not wait, and is a spare");
  if (!j.waits() && j.settings().min_workers() != 0) return bad("the job may go on without it, and it does not wait");
  if (j.spare() && (j.called() != 0 || j.has_held() || j.has_logged())) {
    return bad("it waits as a spare, and says what its host holds");
  }
  if (j.has_followed()) {
    if (!j.spare()) return bad("it follows checkpoints, and is no spare");
    if (Status s = validate_followed(j.followed()); !s.ok()) return s.because_of_this("what it follows");
  }
  return text_is_printable("software", j.software(), kMaxSoftwareBytes);
}

Status validate(const wire::Held& h) {
  if (h.run() == 0) return bad("of no run");
  if (!h.has_known()) return bad("nothing is known of the job");
  if (Status s = validate(h.known()); !s.ok()) return s;
  if (h.known().has_plan()) {
    if (h.known().plan().run() != h.run()) return bad("the plan is of another run");
    if (h.known().plan().ByteSizeLong() > limits::kMaxHeldPlanBytes) return bad("the plan is too long");
  }
  if (static_cast<std::size_t>(h.rounds_size()) > limits::kMaxHeldRounds) return bad("too many groups and versions");
  if (h.mirrored() && (h.rounds_size() != 0 || !h.known().committed()))
    return bad("a mirror holds checkpoints, and only these");
  std::size_t runs = 0, ranges = 0;
  const wire::HeldRounds* last = nullptr;
  for (const wire::HeldRounds& r : h.rounds()) {
    if (last != nullptr && std::tuple(last->timeline(), last->group(), last->version()) >=
                               std::tuple(r.timeline(), r.group(), r.version())) {
      return bad("rounds are not in rising order, or stand twice");
    }
    if (r.version() > kOfClaims.count) return bad("version is over the limit");
    std::uint64_t after = 0;
    for (const wire::HeldRun& run : r.runs()) {
      if (Status s = validate_run(run, after); !s.ok()) return s;
      after = run.first() + run.count();
      ranges += static_cast<std::size_t>(run.held_size());
    }
    runs += static_cast<std::size_t>(r.runs_size());
    last = &r;
  }
  if (runs > limits::kMaxHeldRuns) return bad(str(runs) + " runs are over the limit of " + str(limits::kMaxHeldRuns));
  if (ranges > limits::kMaxHeldRanges) {
    return bad(str(ranges) + " ranges are over the limit of " + str(limits::kMaxHeldRanges));
  }
  return {};
}

Status validate(const wire::LinkBroken& b) {
  if (Status s = member_generation(b.generation()); !s.ok()) return s;
  if (Status s = rank_in_any_world("peer", b.peer()); !s.ok()) return s;
  if (b.peer_incarnation() == 0) return bad("no peer incarnation");
  return text_is_printable("evidence", b.evidence(), limits::kMaxReasonBytes);
}

Status validate(const wire::RoundFailed& f) {
  if (Status s = member_generation(f.generation()); !s.ok()) return s;
  if (Status s = known_code(f.code()); !s.ok()) return s;
  if (f.reason().empty()) return bad("no reason");
  if (Status s = validate(f.about()); !s.ok()) return s;
  return text_is_printable("reason", f.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Stopped& s) {
  return member_generation(s.generation());
}

Status validate(const wire::Leave& l) {
  // A worker that gives up before the first plan has no generation yet.
  if (Status s = in_range("generation", l.generation(), l.finalize() ? 1 : 0, kMaxGeneration); !s.ok()) return s;
  if (l.finalize() && l.preempted()) return bad("it finalizes, and is preempted");
  if (Status s = in_range("version", l.version(), 0, l.finalize() ? kOfClaims.count : 0); !s.ok()) return s;
  if (Status s = in_range("time for which it serves", l.serves_ms(), 0, limits::kMaxDrainMs); !s.ok()) return s;
  if (l.serves_ms() != 0 && !l.preempted()) return bad("it serves, and is not preempted");
  if (l.serves_ms() == 0 && (l.has_logged() || l.setups_size() != 0)) {
    return bad("it does not serve, and says how far it has come");
  }
  if (Status s = validate_logged(l.logged()); !s.ok()) return s.because_of_this("how far it has come");
  if (l.logged().setups_size() != 0 || l.logged().lives_size() != 0) {
    return bad("it has left, and speaks of more than rounds");
  }
  if (Status s = validate_setups(l.setups(), limits::kMaxSetups, limits::kMaxSetupRangesPerReport); !s.ok()) return s;
  return text_is_printable("reason", l.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Report& r) {
  if (Status s = member_generation(r.generation()); !s.ok()) return s;
  if (Status s = in_range("version", r.version(), 0, kOfClaims.count); !s.ok()) return s;
  if (r.plan_generation() >= r.generation()) {
    return bad("it reports from generation " + str(r.plan_generation()) + " to the interrupt of generation " +
               str(r.generation()));
  }
  if (Status s =
          validate_committed(r.committed_version() != 0, r.committed_version(), r.committed_timeline(), kOfClaims);
      !s.ok()) {
    return s;
  }
  if (Status s = validate_timeline(r.timeline(), kOfClaims); !s.ok()) return s;
  if (r.timeline() != 0 && r.committed_timeline() > r.timeline())
    return bad("a version was committed in a later timeline");
  if (Status s = validate_positions(r.positions(), limits::kMaxRangesPerReport, kOfClaims); !s.ok()) return s;
  for (const wire::Position& p : r.positions()) {
    if (p.version() > r.version()) return bad(name_of(p) + ": the report says that it was not begun");
    if (p.version() < r.version() && p.final_size() != 0) {
      return bad(name_of(p) + ": a later version was begun, and a round is in flight");
    }
  }
  if (Status s = validate_logged(r.logged()); !s.ok()) return s.because_of_this("what memory holds");
  if (Status s = validate_given_up(r.given_up()); !s.ok()) return s;
  return validate_setups(r.setups(), limits::kMaxSetups, limits::kMaxSetupRangesPerReport);
}

Status validate(const wire::Vote& v) {
  if (Status s = member_generation(v.generation()); !s.ok()) return s;
  if (Status s = in_range("version", v.version(), kFirstCommit.value, kOfClaims.count); !s.ok()) return s;
  if (Status s = validate_positions(v.positions(), 0, kOfClaims); !s.ok()) return s;
  for (const wire::Position& p : v.positions()) {
    if (p.version() >= v.version() || !p.closed()) return bad(name_of(p) + ": it is not over where the vote stands");
  }
  if (v.has_state()) {
    if (Status s = validate_state(v.state()); !s.ok()) return s.because_of_this("what the vote says of the state");
  } else if (v.lacks()) {
    return bad("it is no vote, and tells of no state");
  }
  if (static_cast<std::size_t>(v.copies_size()) > limits::kMaxLocalCopies) {
    return bad(str(v.copies_size()) + " copies of local states");
  }
  std::int64_t before = -1;
  for (const wire::LocalCopy& c : v.copies()) {
    if (c.rank() >= limits::kMaxWorldSize || c.rank() <= before || c.hash() == 0) {
      return bad("the copy of rank " + str(c.rank()) + "'s local state has no hash, or is out of order");
    }
    before = c.rank();
  }
  return validate_setups(v.setups(), limits::kMaxSetups, 0);
}

Status validate(const wire::LogGap& g) {
  if (Status s = member_generation(g.generation()); !s.ok()) return s;
  if (g.reason().empty()) return bad("no reason");
  if (g.has_setup()) {
    google::protobuf::RepeatedPtrField<wire::Setup> one;
    *one.Add() = g.setup();
    if (Status s = validate_setups(one, 1, 0); !s.ok()) return s;
  }
  if (g.has_checkpoint()) {
    if (g.has_setup()) return bad("a set-up round is missing, and a checkpoint");
    if (Status s = validate(g.checkpoint()); !s.ok()) return s;
  }
  return text_is_printable("reason", g.reason(), limits::kMaxReasonBytes);
}

Status validate(const wire::Known& k) {
  if (Status s = member_generation(k.generation()); !s.ok()) return s;
  if (Status s = in_range("plan's generation", k.plan_generation(), 0, k.generation()); !s.ok()) return s;
  if (k.has_plan()) {
    if (Status s = check_plan(k.plan(), kOfClaims); !s.ok()) return s.because_of_this("bad plan");
    if (k.plan().generation() != k.plan_generation())
      return bad("the plan is of another generation than it is said to be");
  }
  if (Status s = validate_setups(k.setups(), limits::kMaxSetups, 0); !s.ok()) return s;
  return validate_committed(k.committed(), k.committed_version(), k.committed_timeline(), kOfClaims);
}

Status validate(const wire::Tell& t) {
  return in_range("generation", t.generation(), 0, kMaxGeneration);
}

Status validate(const wire::Called& c) {
  return member_generation(c.generation());
}

}  // namespace warren
