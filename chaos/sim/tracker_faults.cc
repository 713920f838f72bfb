#include "chaos/sim/tracker_faults.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "recovery/base/check.h"

namespace warren::chaos {

void TrackerFaults::lose_journal() {
  if (run_.judge.plan().generation() == 0 || run_.judge.finished()) return;
  wire::Known newest;
  std::set<std::string> domains, told;
  for (const Launchers::Slot& slot : launchers_.slots()) {
    if (slot.spare) continue;
    domains.insert(slot.domain_id);
    const auto disk = run_.disks.find(slot.host_id);
    if (disk == run_.disks.end()) continue;
    for (const auto& [number, life] : disk->second->lives) {
      wire::Known known;
      if (life.run == 0 || !known.ParseFromString(life.note)) continue;
      told.insert(slot.domain_id);
      if (known.plan_generation() > newest.plan_generation()) {
        newest.set_plan_generation(known.plan_generation());
        *newest.mutable_plan() = known.plan();
      }
      if (known.committed_version() > newest.committed_version()) {
        newest.set_committed_version(known.committed_version());
        newest.set_committed_timeline(known.committed_timeline());
      }
    }
  }
  if (const auto held = run_.mirror ? run_.mirror->held() : std::nullopt; held && told.empty()) {
    newest = held->known();
    told = domains;
  }
  // Otherwise the job begins anew, which this run does not know how to judge; so it does when a spare comes before the
  // worker whose disk knows the job, or one whose disk was left out when it was called.
  const bool spares = run_.setting.shrinks() || launchers_.has_spares();
  if (spares || domains.size() - told.size() >= run_.setting.job.replicas() || newest.plan_generation() == 0) return;
  if (run_.world.keeps_transcript()) run_.world.tell("the journal is lost");
  tracker_.lose_journal();
  control_.forget();
  journal_lost_ = true;
  std::optional<Version> committed;
  if (newest.committed_version() != 0) committed = Version(newest.committed_version());
  run_.judge.journal_lost(Generation(newest.plan_generation()), Timeline(newest.plan().timeline()), committed,
                          Timeline(newest.committed_timeline()));
}

void TrackerFaults::crash(bool with_journal, Micros most_us) {
  launchers_.struck();
  tracker_.crash();
  if (with_journal) lose_record();
  run_.world.after(run_.world.random.between(1000, most_us), [this] { tracker_.start(); });
}

// The tracker is down, and an older copy of its disk is put in its place: of the same timeline, as another one must not
// be used (decision 0006).
void TrackerFaults::restore_journal() {
  if (rebuilding_ || journal_lost_ || run_.judge.journal_lacks_something() || !tracker_.may_resume()) return;
  wire::JobRecord newest;
  WARREN_CHECK(newest.ParseFromString(*tracker_.durable()), "the tracker stores records");
  std::vector<std::size_t> copies;
  for (std::size_t i = 0; i < tracker_.records().size(); ++i) {
    wire::JobRecord r;
    WARREN_CHECK(r.ParseFromString(tracker_.records()[i]), "the tracker stores records");
    const bool goes_on = !r.has_interrupt() || r.interrupt().resume();
    if (r.has_plan() && !r.finished() && goes_on && r.plan().run() == newest.plan().run() &&
        r.timeline() == newest.timeline() && tracker_.records()[i] != *tracker_.durable()) {
      copies.push_back(i);
    }
  }
  if (copies.empty()) return;
  run_.world.count(Fault::older_journal);
  const std::size_t copy = copies[run_.world.random.below(copies.size())];
  wire::JobRecord record;
  WARREN_CHECK(record.ParseFromString(tracker_.records()[copy]), "the tracker stores records");
  if (run_.world.keeps_transcript()) {
    run_.world.tell("the tracker's disk is an older copy, of generation " + std::to_string(record.generation()) +
                    ", version " + std::to_string(record.committed_version()));
  }
  tracker_.restore(copy);
  control_.forget();
  run_.judge.journal_restored();
}

// Between two of its effects.
void TrackerFaults::tracker_died() {
  if (run_.options.journal_dies_too || (run_.world.rate(Fault::tracker_loss) > 0 && run_.world.random.chance(0.3)))
    lose_record();
}

// The tracker is down, and its disk goes. Not of a job that has finished: members that have heard it are gone, and the
// others would wait for them. Nor where spares wait: with them and lives that are started again the world may be full
// before a member has said that there is a job, and it begins anew (seed 851001281).
void TrackerFaults::lose_record() {
  const bool spares = launchers_.has_spares();
  if (spares || !tracker_.has_plan() || run_.judge.plan().generation() == 0) return;
  run_.world.count(Fault::tracker_loss);
  if (run_.world.keeps_transcript()) run_.world.tell("the tracker's disk is lost");
  tracker_.lose_journal();
  control_.forget();
  run_.judge.journal_lost();
  rebuilding_.emplace(Rebuilding{run_.world.message_faults(), false});
  watch_rebuilding();
}

// The newest that a living rank has in force.
std::uint64_t TrackerFaults::newest_plan() const {
  std::uint64_t newest = 0;
  for (const auto& life : launchers_.lives()) {
    if (life->can_tell() && life->installed()) newest = std::max(newest, life->generation().value);
  }
  return newest;
}

// More than half of the members of that plan; who has not heard of any knows none.
bool TrackerFaults::members_can_tell() const {
  const wire::Plan plan = run_.judge.plan_of(Generation(newest_plan()));
  const auto tells = [this](const wire::Member& m) {
    const SimWorker* life = launchers_.find(Incarnation(m.incarnation()));
    return life != nullptr && life->can_tell() && life->installed();
  };
  const auto present = [](const wire::Member& m) { return !m.absent(); };
  return 2 * std::count_if(plan.members().begin(), plan.members().end(), tells) >
         std::count_if(plan.members().begin(), plan.members().end(), present);
}

// SimOptions::lone_commit.
bool TrackerFaults::withholds(std::size_t life, const std::string& bytes) const {
  if (!run_.options.lone_commit || lone_commit_done_ || run_.judge.commits() < run_.options.lone_commit->commit)
    return false;
  wire::Envelope e;
  return launchers_.slot_of(life) != run_.options.lone_commit->worker && e.ParseFromString(bytes) && e.has_committed();
}

void TrackerFaults::watch_lone_commit() {
  if (!run_.options.lone_commit || lone_commit_done_ || run_.judge.commits() < run_.options.lone_commit->commit) return;
  const std::optional<std::size_t> life = launchers_.slots()[run_.options.lone_commit->worker].life;
  if (!life || launchers_.life(*life).committed().version < *run_.judge.committed()) return;
  lone_commit_done_ = true;
  crash(true, 10'000);
  launchers_.life(*life).stand_still(1600 * run_.setting.timeout_ms());
}

void TrackerFaults::watch_rebuilding() {
  if (rebuilding_ && !rebuilding_->hopeless) rebuilding_->hopeless = !members_can_tell();
}

void TrackerFaults::stored(const std::string& bytes) {
  if (rebuilding_) has_rebuilt(bytes);
  std::vector<OlderJournal::Life> lives;
  for (const auto& life : launchers_.lives()) {
    if (!life->alive()) continue;
    const bool says_so = life->generation() == life->told_generation() && tracker_.has_heard(life->self());
    lives.push_back({life->self(), life->told_generation(), life->told_commit(), says_so});
  }
  run_.judge.stored(bytes, lives);
}

// The tracker has a journal again.
void TrackerFaults::has_rebuilt(const std::string& bytes) {
  wire::JobRecord record;
  WARREN_CHECK(record.ParseFromString(bytes), "the tracker stores records");
  watch_rebuilding();
  const bool excused = rebuilding_->hopeless || rebuilding_->message_faults != run_.world.message_faults();
  rebuilding_.reset();
  Version told;
  for (const wire::Member& m : record.plan().members()) {
    const SimWorker* life = launchers_.find(Incarnation(m.incarnation()));
    if (life != nullptr && life->can_tell()) told = std::max(told, life->committed().version);
  }
  if (run_.judge.rebuilt(record, Generation(newest_plan()), told, excused)) ++rebuilt_;
}

void TrackerFaults::watch() {
  watch_rebuilding();
  watch_lone_commit();
}

}  // namespace warren::chaos
