#include "chaos/sim/judge.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "recovery/wire/codec.h"
#include "recovery/wire/plan_changes.h"
#include "worker/rounds/call.h"

namespace warren::chaos {
namespace {

std::string describe(const ProgramStep& step) {
  Fingerprint f;
  f.collective = step.collective;
  f.type = step.type;
  f.op = step.op;
  f.root = step.root;
  f.count = step.count;
  return "step " + std::to_string(step.index) + ", " + to_string(f);
}

std::string names(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank r : ranks) text += (text.empty() ? " " : ", ") + std::to_string(r.value);
  return text.empty() ? " nobody" : text;
}

}  // namespace

const wire::JobRecord& Judge::read(const std::string* durable) {
  const std::string_view bytes = durable == nullptr ? std::string_view() : *durable;
  if (bytes == record_bytes_) return record_;
  record_bytes_ = bytes;
  if (!record_.ParseFromString(record_bytes_)) record_.Clear();
  return record_;
}

void Judge::heard(const LogEvent& event) {
  if (event.name == "mirror_used") mirror_used_ = true;
  stragglers_.heard(event, plan_);
}

void Judge::announced(const wire::Envelope& e, const std::string* durable) {
  if (lost_for_good_) {
    // All are to hear of it, or one of them has what was missing, and they go on: no more is judged.
    finished_ = finished_ || e.has_finished();
    return;
  }
  const wire::JobRecord& record = read(durable);
  if (record.has_interrupt() && !record.interrupt().resume()) rolled_back_ = true;
  look_at_end(record);
  if (e.has_interrupt() && e.interrupt().generation() > plan_.generation()) contributors_.interrupted();
  // A tracker may have died after it had stored a plan and before it announced it; what was stored is in force.
  if (record.plan().generation() > plan_.generation()) made(record.plan());
  if (e.has_plan()) {
    const std::string generation = std::to_string(e.plan().generation());
    wire::Plan plan = e.plan();
    if (plan.base_generation() != 0) {
      wire::Plan base;
      const auto known = plans_.find(plan.base_generation());
      if (known == plans_.end() || !base.ParseFromString(known->second)) {
        return world_.violated("I6",
                               "the plan of generation " + generation + " was told by changes to one that nobody has");
      }
      auto whole = with_changes(base, plan);
      if (!whole.ok()) return world_.violated("I6", whole.status().describe());
      plan = std::move(whole).value();
    }
    const std::string bytes = plan.SerializeAsString();
    if (record.generation() < plan.generation() || record.plan().SerializeAsString() != bytes) {
      return world_.violated("I6", "the plan of generation " + generation + " was announced before it was durable");
    }
    const auto [known, fresh] = plans_.try_emplace(plan.generation(), bytes);
    if (!fresh && known->second != bytes) return world_.violated("I6", "generation " + generation + " names two plans");
    if (fresh && plan.generation() < newest_generation_)
      return world_.violated("I6", "generations fell to " + generation);
    if (fresh) {
      if (plan.generation() > plan_.generation()) made(plan);
      sign();
    }
    newest_generation_ = std::max(newest_generation_, plan.generation());
  } else if (e.has_committed()) {
    const wire::Committed& c = e.committed();
    if (!record.committed() || record.committed_version() < c.version()) {
      return world_.violated("I5",
                             "version " + std::to_string(c.version()) + " was called committed before it was durable");
    }
    announce_commit(Version(c.version()), Timeline(c.timeline()));
  } else if (e.has_loaded()) {
    const wire::Loaded& l = e.loaded();
    if (l.committed() != record.committed() || l.version() != record.committed_version() ||
        l.timeline() != record.committed_timeline()) {
      return world_.violated("I5", "version " + std::to_string(l.version()) + " is given to be loaded, and version " +
                                       std::to_string(record.committed_version()) + " is durable");
    }
  } else if (e.has_interrupt()) {
    if (record.generation() < e.interrupt().generation()) {
      return world_.violated(
          "I6", "generation " + std::to_string(e.interrupt().generation()) + " was announced before it was durable");
    }
    if (e.interrupt().generation() > newest_generation_ && !e.interrupt().resume() && plan_.settings().replicas() > 0) {
      ++rollbacks_;
      if (!rollback_excused_ && !unprotected()) {
        return world_.violated("I4", "a rollback that nothing explains: " + e.interrupt().reason());
      }
    }
    newest_generation_ = std::max(newest_generation_, e.interrupt().generation());
  } else if (e.has_finished()) {
    if (!record.finished() && !forgotten_)
      return world_.violated("I6", "the end of the job was announced before it was durable");
    finished_ = true;
  }
}

void Judge::tracker_started(const std::string* durable) {
  if (lost_for_good_) return;
  const wire::JobRecord& record = read(durable);
  if (record.finished()) finished_ = true;  // it died before it could say so
  if (record.generation() < newest_generation_ && !(durable == nullptr && journal_lost_) &&
      !older_journal_.lacks_plans()) {
    world_.violated("I6", "generation " + std::to_string(newest_generation_) +
                              " was announced, and the restarted tracker's journal knows " +
                              std::to_string(record.generation()));
  }
}

void Judge::forget_after(Generation generation, Timeline timeline) {
  std::erase_if(plans_, [&](const auto& plan) { return plan.first > generation.value; });
  std::erase_if(oracles_, [&](const auto& o) { return o.first > timeline; });
  std::erase_if(golden_, [&](const auto& g) { return std::get<0>(g.first) > timeline; });
  std::erase_if(kept_, [&](const auto& k) { return k.first.first > timeline; });
  std::erase_if(ring_orders_, [&](const auto& o) { return o.first > timeline; });
  std::erase_if(ring_orders_used_, [&](const auto& o) { return o.first.first > timeline; });
  contributors_.forget_after(generation, timeline);
  for (auto& [life, last] : life_timelines_) last = std::min(last, timeline);
  newest_generation_ = std::min(newest_generation_, generation.value);
  newest_timeline_ = std::min(newest_timeline_, timeline);
  all_new_ = std::min(all_new_, timeline);
  came_from_.reset();
  if (fallback_) fallback_->lost = std::min(fallback_->lost, newest_timeline_);
}

void Judge::journal_lost(Generation generation, Timeline timeline, std::optional<Version> committed,
                         Timeline committed_timeline) {
  forget_after(generation, timeline);
  journal_lost_ = true;
  committed_ = committed;
  committed_timeline_ = committed_timeline;
  plan_ = plan_of(generation);
}

void Judge::take_up(const wire::Plan& plan) {
  plan_ = plan;
  ranks_.clear();
  for (const wire::Member& m : plan.members()) {
    if (!is_vacant(m)) ranks_[m.worker_id()] = m.rank();
  }
}

void Judge::stored(const std::string& bytes, const std::vector<OlderJournal::Life>& lives) {
  const wire::JobRecord& record = read(&bytes);
  if (!record.has_plan() || lost_for_good_) return;  // of a finished job it keeps neither plan nor commit
  without_frontier_ = without_frontier_ || record.without_frontier();
  if (const auto left = older_journal_.stored(record, lives)) {
    if (left->missed) excuse_loss();  // what lives of the newest plan have kept may not be found
    for (auto p = plans_.upper_bound(left->heard.value); p != plans_.end(); ++p) unheard_plans_.insert(p->second);
    forget_after(left->heard, newest_timeline_);
    completed_.clear();
    const bool newer = !plans_.empty() && plans_.rbegin()->first > left->plan.generation();
    take_up(newer ? plan_of(Generation(plans_.rbegin()->first)) : left->plan);
  }
  // A life that had stood still has told it after all, and the tracker goes by it again.
  std::string plan = record.plan().SerializeAsString();
  if (unheard_plans_.erase(plan) != 0) plans_.try_emplace(record.plan().generation(), std::move(plan));
  if (older_journal_.forgets(committed_, record, plan_, lives)) {
    excuse_loss();  // who was told of it may have dropped what came before
    committed_ = record.committed() ? std::optional(Version(record.committed_version())) : std::nullopt;
    committed_timeline_ = Timeline(record.committed_timeline());
  }
}

bool Judge::rebuilt(const wire::JobRecord& record, Generation newest, Version committed, bool excused) {
  const wire::Plan& plan = record.plan();
  const std::string generation = std::to_string(plan.generation());
  const auto announced = plans_.find(plan.generation());
  const bool verbatim = announced != plans_.end() && announced->second == plan.SerializeAsString();
  if (!verbatim || (record.committed() ? Version(record.committed_version()) : Version()) < committed) {
    const std::string what = verbatim ? "version " + std::to_string(record.committed_version()) + " for committed"
                                      : "generation " + generation + ", which is not what its members know";
    if (!excused) {
      world_.violated("I6", "a tracker whose journal was lost takes " + what + ", and members know of version " +
                                std::to_string(committed.value) + " and generation " + std::to_string(newest.value));
    }
    lost_for_good_ = true;
    return false;
  }
  // A plan that only some have in force counts where the others have heard of its generation.
  const std::uint64_t known = std::max(plan.generation(), newest.value);
  forget_after(Generation(known), Timeline(std::max(plan.timeline(), plan_of(newest).timeline())));
  take_up(plan);
  older_journal_.rebuilt();
  return true;
}

wire::Plan Judge::plan_of(Generation generation) const {
  wire::Plan plan;
  if (const auto known = plans_.find(generation.value); known != plans_.end())
    (void)plan.ParseFromString(known->second);
  return plan;
}

void Judge::job_forgotten() {
  forgotten_ = true;
  plans_.clear();
  ranks_.clear();
  plan_.Clear();
  committed_.reset();
  newest_timeline_ = Timeline();
  life_timelines_.clear();
  newest_generation_ = 0;
  older_journal_.forget();
  unheard_plans_.clear();
}

void Judge::installed(const wire::Plan& plan, Incarnation life, const std::string& worker_id) {
  const std::string generation = std::to_string(plan.generation());
  const auto known = plans_.find(plan.generation());
  // A plan that was on its way when the job ended and was forgotten.
  if (known == plans_.end() && forgotten_) return sign();
  // By a life that has stood still all that time, and goes when it hears of the other plan.
  if (unheard_plans_.contains(plan.SerializeAsString())) return given_up(life);
  if (known == plans_.end() || known->second != plan.SerializeAsString()) {
    return world_.violated("I6", "worker " + worker_id + " installed a plan of generation " + generation +
                                     " that is not the one announced");
  }
  const bool member = std::any_of(plan.members().begin(), plan.members().end(), [&](const wire::Member& m) {
    return m.incarnation() == life.value && m.worker_id() == worker_id && !m.absent();
  });
  if (!member)
    world_.violated("I6", "worker " + worker_id + " installed generation " + generation + ", in which it has no part");
  sign();
}

void Judge::serves(const wire::Plan& plan, Incarnation life) {
  const std::string generation = std::to_string(plan.generation());
  const auto known = plans_.find(plan.generation());
  if (known == plans_.end() && forgotten_) return;
  if (known == plans_.end() || known->second != plan.SerializeAsString()) {
    return world_.violated("I6", "a life serves a plan of generation " + generation + " that is not the one announced");
  }
  const auto is = [&](const wire::Member& m) { return m.incarnation() == life.value; };
  if (!std::ranges::any_of(plan.servers(), is) || std::ranges::any_of(plan.members(), is)) {
    world_.violated("I6",
                    "a life that has left serves generation " + generation + ", in which it has no part, or a rank");
  }
}

// A plan that is stored, whether or not anybody has seen it.
void Judge::made(const wire::Plan& plan) {
  for (const wire::Member& m : plan.members()) {
    const auto ranked = is_vacant(m) ? ranks_.end() : ranks_.find(m.worker_id());
    if (ranked != ranks_.end() && ranked->second != m.rank()) {
      return world_.violated("I6", "worker " + m.worker_id() + " had rank " + std::to_string(ranked->second) +
                                       " and has rank " + std::to_string(m.rank()) + " in generation " +
                                       std::to_string(plan.generation()));
    }
    if (m.absent()) continue;
    const auto known = life_timelines_.find(m.incarnation());
    // A journal that was lost knew which lives are over, and an older copy does not: what was said to join for them may
    // arrive once more.
    const bool was_older = world_.fault_counts()[static_cast<std::size_t>(Fault::older_journal)] != 0;
    const bool forgotten = (journal_lost_ || was_older) && m.fresh();
    if (m.fresh() != (known == life_timelines_.end()) && !forgotten) {
      return world_.violated("I6", "a life of worker " + m.worker_id() + " is " +
                                       (m.fresh() ? "new a second time" : "old and was in no plan") +
                                       " in generation " + std::to_string(plan.generation()));
    }
    // With another set of ranks.
    const bool may_rise = shrinks() && known != life_timelines_.end() && known->second < Timeline(plan.timeline());
    if (!m.fresh() && known->second != Timeline(plan.timeline()) && !may_rise) {
      return world_.violated("I6", "worker " + m.worker_id() + " goes on in another timeline");
    }
    if (contributors_.is_over(Incarnation(m.incarnation()))) {
      return world_.violated("I6", "the job has gone on without a life of worker " + m.worker_id() +
                                       ", which is in generation " + std::to_string(plan.generation()));
    }
    life_timelines_[m.incarnation()] = Timeline(plan.timeline());
  }
  const wire::Plan before = plan_;
  // A rollback that the tracker makes and plans for at once is announced to nobody.
  const bool undoes = unprotected();
  take_up(plan);
  *ring_orders_[Timeline(plan.timeline())].mutable_orders() = plan.orders();
  contributors_.look(before, plan, stragglers_);
  check_completed(before, plan);
  if (world_.failed()) return;
  const bool survived = std::ranges::any_of(plan.members(), [](const auto& m) { return !m.absent() && !m.fresh(); });
  const bool other_set = absent_of(plan) != absent_of(before);
  if (Timeline(plan.timeline()) > newest_timeline_ && before.settings().replicas() > 0 && !survived && !other_set &&
      !rolled_back_ && !rollback_excused_ && !undoes && !journal_lost_ && !without_frontier_ &&
      gap_in_ != Generation(before.generation()) && remembered(before)) {
    return world_.violated("I4", "no life has survived, and what its launchers have kept is not used in generation " +
                                     std::to_string(plan.generation()));
  }
  if (Timeline(plan.timeline()) > newest_timeline_) {
    came_from_.reset();
    if (survived) came_from_ = newest_timeline_;
    if (!survived) all_new_ = Timeline(plan.timeline());
  }
  rolled_back_ = without_frontier_ = false;
  contributors_.plan_made();
  begin_timeline(plan);
  mirror_used_ = false;
  if (!survived) {
    for (const wire::Position& p : plan.frontier()) kept_rounds_ += p.rounds();
  }
  if (fallback_ && Timeline(plan.timeline()) > fallback_->lost) fall_back(plan);
  const Version committed(plan.committed_version());
  if (plan.committed() && committed_ && committed < *committed_ && with_mirror_ &&
      before.timeline() < plan.timeline()) {
    // A worker has come back elsewhere, where the disk is empty, after no life had survived: the mirror serves.
    committed_ = committed;
    committed_timeline_ = Timeline(plan.committed_timeline());
  }
  if (plan.committed()) announce_commit(committed, Timeline(plan.committed_timeline()));
}

void Judge::completed(const RoundId& round, Incarnation life) {
  // Of who was given up, and does not know it, the others can know nothing.
  const bool member = std::ranges::any_of(
      plan_.members(), [&](const wire::Member& m) { return !m.absent() && m.incarnation() == life.value; });
  if (round.timeline != newest_timeline_ || !member || given_up_.contains(life)) return;
  completed_.add(round);
}

// I4: what anybody has completed is not computed again in the same timeline as long as all of it is there: the plan
// calls it completed, or final.
void Judge::check_completed(const wire::Plan& before, const wire::Plan& plan) {
  if (shrinks() || job_.replicas() == 0 || before.timeline() != plan.timeline() || before.members().empty()) {
    return completed_.clear();
  }
  const bool excused = loss_excused_ || rollback_excused_ || rolled_back_ || journal_lost_ ||
                       gap_in_ == Generation(before.generation()) || unprotected();
  completed_.check(plan, excused);
}

// Whether launchers hold what the lives of a plan have logged, but for those of as many domains as may be lost; as far
// as the same workers have come back.
bool Judge::remembered(const wire::Plan& plan) const {
  std::set<std::string> domains, lost;
  std::map<std::string, Incarnation> successors;
  for (const wire::Member& m : plan_.members()) {
    if (!m.absent()) successors.emplace(m.worker_id(), Incarnation(m.incarnation()));
  }
  for (const wire::Member& m : plan.members()) {
    if (m.absent()) continue;
    domains.insert(m.domain_id());
    const auto later = successors.find(m.worker_id());
    // A join of a life that was over before may arrive late.
    if (later == successors.end() || !hosts_.keeps(Incarnation(m.incarnation()), later->second)) {
      lost.insert(m.domain_id());
    }
  }
  return lost.size() < std::min<std::size_t>(plan.settings().replicas(), domains.size());
}

void Judge::disks_lost(const std::optional<wire::Held>& mirrored, bool must) {
  excuse_loss();
  mirror_serves_ = false;
  fallback_.reset();
  if (!mirrored) return;
  const wire::Known& known = mirrored->known();
  fallback_ = {Version(known.committed_version()), Timeline(known.committed_timeline()), newest_timeline_, must};
}

void Judge::fall_back(const wire::Plan& plan) {
  const Fallback from = *std::exchange(fallback_, std::nullopt);
  if (plan.committed() && Version(plan.committed_version()) == from.version &&
      Timeline(plan.committed_timeline()) == from.timeline) {
    committed_ = from.version;
    committed_timeline_ = from.timeline;
    mirror_serves_ = true;
    ++from_mirror_;
  } else if (from.must) {
    world_.violated("I5", "all disks were lost, the mirror has version " + std::to_string(from.version.value) +
                              ", and the job goes on from version " + std::to_string(plan.committed_version()));
  }
}

void Judge::begin_timeline(const wire::Plan& plan) {
  const Timeline timeline(plan.timeline());
  if (timeline < newest_timeline_) return world_.violated("I6", "timelines fell");
  // Who lives on has read already what it reads from outside.
  const bool goes_on = came_from_ && timeline > newest_timeline_;
  newest_timeline_ = timeline;
  if (oracles_.contains(timeline)) return;
  const std::uint64_t fresh_salt = salted_ ? Random::mix(timeline.value + 1) : 0;
  const std::uint64_t salt = goes_on ? oracle(*came_from_).salt() : fresh_salt;
  auto kept = kept_setups(plan);
  keep_rounds(plan, kept);
  if (!plan.committed()) {
    oracles_.emplace(timeline, std::make_unique<Oracle>(program_, salt, std::move(kept), std::nullopt, nullptr,
                                                        contributors_.absent(timeline)));
    return;
  }
  // What was done before the checkpoint may be part of it.
  const Version base(plan.committed_version());
  for (const ProgramStep& step : program_.steps()) {
    if (step.setup != step.index || step.index >= program_.position_after_load(base)) continue;
    if (kept.contains(step.index)) continue;
    // A mirror holds checkpoints, and no rounds.
    if (!loss_excused_ && !mirror_used_) {
      return world_.violated("I5", describe(step) + " is a set-up round that a rollback has lost");
    }
    setups_made_again_.insert(timeline);
  }
  Oracle& from = oracle(Timeline(plan.committed_timeline()));
  oracles_.emplace(
      timeline, std::make_unique<Oracle>(program_, salt, std::move(kept), base, &from, contributors_.absent(timeline)));
}

// What its version's end has been committed after is not asked for again.
bool Judge::obsolete(const ProgramStep& step) const {
  return step.version != kPreamble && committed_ && step.version < *committed_;
}

void Judge::check_kept() {
  const auto from = std::exchange(came_from_, std::nullopt);
  if (!from || !shrinks()) return;
  for (const ProgramStep& step : program_.steps()) {
    if (step.kind != StepKind::kRound || obsolete(step)) continue;
    const Timeline name = naming(*from, step);
    if (naming(newest_timeline_, step) == name) continue;
    const auto golden = golden_.lower_bound({name, step.index, INT32_MIN, {}});
    const bool seen =
        golden != golden_.end() && std::get<0>(golden->first) == name && std::get<1>(golden->first) == step.index;
    if (seen && !rollback_excused_) {
      return world_.violated("I1", describe(step) + " has been returned in timeline " + std::to_string(name.value) +
                                       ", and is run again in timeline " + std::to_string(newest_timeline_.value));
    }
  }
}

// A life that has been given up returns what others, who know nothing of it, have computed with other contributors:
// only where one copy of a result is enough, and that was its own.
bool Judge::lives_on_elsewhere(const Return& how) const {
  std::set<std::string> domains;
  bool member = false;
  for (const wire::Member& m : plan_.members()) {
    if (!m.absent()) domains.insert(m.domain_id());
    member = member || (!m.absent() && m.incarnation() == how.life.value);
  }
  return !member && std::min<std::size_t>(job_.replicas(), domains.size()) < 2;
}

// What the set-up rounds that a plan calls done have given, each in the timeline in which it was begun.
Oracle::Kept Judge::kept_setups(const wire::Plan& plan) {
  Oracle::Kept kept;
  for (const wire::Setup& s : plan.setups()) {
    for (const ProgramStep& step : program_.steps()) {
      if (!s.done() || step.setup != step.index || program_.groups()[step.group].id.value != s.group() ||
          worker::setup_sequence(Program::setup_name(step.index)).value != s.name()) {
        continue;
      }
      const Oracle::Expected* e = oracle(Timeline(s.timeline())).expected(step.index);
      if (e != nullptr) kept.emplace(step.index, *e);
    }
  }
  return kept;
}

// Rounds that keep the names of older timelines keep their results too.
void Judge::keep_rounds(const wire::Plan& plan, Oracle::Kept& kept) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> sequence;  // by (group, version): of the next round
  Version version = kPreamble;
  for (const ProgramStep& step : program_.steps()) {
    // All ranks agree on a split's channel, in a round of the world; members that make a group alone, in its first
    // round.
    for (std::size_t g = 1; g < program_.groups().size(); ++g) {
      const ProgramGroup& group = program_.groups()[g];
      if (group.made_at != step.index) continue;
      if (group.by_members) {
        sequence[{group.id.value, version.value}]++;
      } else if (group.split == g) {
        sequence[{kWorldGroup.value, version.value}]++;
      }
    }
    if (step.kind != StepKind::kRound) version = step.kind == StepKind::kLoad ? version_of_program(0) : step.version;
    if (step.kind != StepKind::kRound || step.collective == Collective::kPoint || step.setup) continue;
    const std::uint64_t group = program_.groups()[step.group].id.value;
    // The round before that of its data tells the counts.
    if (step.collective == Collective::kAllToAllv) sequence[{group, step.version.value}]++;
    const std::uint64_t at = sequence[{group, step.version.value}]++;
    const auto k = std::find_if(plan.kept().begin(), plan.kept().end(), [&](const wire::Kept& candidate) {
      return candidate.group() == group && candidate.version() == step.version.value && at < candidate.rounds();
    });
    if (k == plan.kept().end()) continue;
    kept_[{Timeline(plan.timeline()), step.index}] = Timeline(k->timeline());
    const Oracle::Expected* e = oracle(Timeline(k->timeline())).expected(step.index);
    if (e != nullptr) kept.emplace(step.index, *e);
  }
}

// Under which timeline's name the results are remembered: all lives of a program that is not salted get the same, until
// set-up rounds are made again with what a checkpoint has brought.
Timeline Judge::naming(Timeline timeline, const ProgramStep& step) const {
  if (const auto kept = kept_.find({timeline, step.index}); kept != kept_.end()) timeline = kept->second;
  if (salted_ || shrinks() || step.values == Values::kFresh) return timeline;
  const auto after = setups_made_again_.upper_bound(timeline);
  return after == setups_made_again_.begin() ? Timeline() : *std::prev(after);
}

std::vector<Rank> Judge::ring_order(Timeline timeline, const ProgramStep& step) const {
  const auto told = ring_orders_.find(timeline);
  const wire::RingOrder* newest = nullptr;
  if (step.collective == Collective::kAllreduce && !step.setup && told != ring_orders_.end()) {
    for (const wire::RingOrder& o : told->second.orders()) {
      if (o.from_version() <= step.version.value) newest = &o;
    }
  }
  std::vector<Rank> ranks;
  for (int i = 0; newest != nullptr && i < newest->ranks_size(); ++i) {
    const Rank rank(static_cast<std::int32_t>(newest->ranks(i)));
    if (std::ranges::find(program_.members(step), rank) != program_.members(step).end()) ranks.push_back(rank);
  }
  return ranks;
}

std::string Judge::judge(const ProgramStep& step, const Return& how, const Oracle::Expected& expected,
                         const std::vector<Rank>& order, std::span<const std::byte> output) const {
  // What a ring makes shows its order; other algorithms go by ranks.
  const bool by_ring = job_.algorithm() == "ring" && !order.empty();
  const auto& of = expected.of(how.place);
  std::string wrong = by_ring ? "" : program_.judge(step, how.place, expected.contributed, output, of);
  if (order.empty() || (!by_ring && (wrong.empty() || job_.algorithm() != "auto"))) return wrong;
  std::vector<std::uint64_t> keys;
  for (const Rank rank : order) {
    const auto at = std::ranges::find(expected.contributors, rank);
    if (at == expected.contributors.end()) continue;
    keys.push_back(expected.contributed[static_cast<std::size_t>(at - expected.contributors.begin())]);
  }
  return program_.judge(step, how.place, keys, output, of);
}

Oracle& Judge::oracle(Timeline timeline) {
  const auto found = oracles_.find(timeline);
  if (found != oracles_.end()) return *found->second;
  // Of a life that is late.
  return *oracles_.emplace(timeline, std::make_unique<Oracle>(program_, 0)).first->second;
}

void Judge::announce_commit(Version version, Timeline timeline) {
  if (committed_ && version < *committed_) {
    if (older_journal_.lacks_commit()) return sign();
    return world_.violated("I5", "version " + std::to_string(version.value) + " is called committed after version " +
                                     std::to_string(committed_->value));
  }
  if (committed_ == version) {
    if (timeline != committed_timeline_) world_.violated("I5", "a commit has moved to another timeline");
    return;
  }
  committed_ = version;
  committed_timeline_ = timeline;
  mirror_serves_ = false;
  ++commits_;
  sign();
}

void Judge::told_committed(Version version, Timeline timeline) {
  if (forgotten_) return;
  if (!committed_ || version > *committed_ || (version == *committed_ && timeline != committed_timeline_)) {
    world_.violated("I5", "a life believes that version " + std::to_string(version.value) + " is committed");
  }
}

void Judge::loaded(std::optional<Version> version, Timeline timeline) {
  if (forgotten_) return;
  if (version) told_committed(*version, timeline);
}

void Judge::restored(const std::string& who, Timeline timeline, Version version, Rank rank, const ProgramState& state) {
  const ProgramState* right = oracle(timeline).state_at(version, rank);
  if (right == nullptr || right->global != state.global || right->local != state.local) {
    world_.violated("I5", who + " has loaded a state of version " + std::to_string(version.value) + " that never was");
  }
}

void Judge::load_failed(const std::string& who, const Status& why) {
  sign();
  if (world_.keeps_transcript()) world_.tell(who + ": " + why.describe());
  if (why.code() == Code::kDesync && rollback_excused_) return;
  if (!loss_excused_ || mirror_serves_) return world_.violated("I5", who + " cannot load: " + why.describe());
  lost_for_good_ = load_failed_ = true;
}

// Nobody need be left to whom it is announced.
void Judge::look_at_end(const wire::JobRecord& record) {
  const wire::Interrupt& end = record.interrupt();
  if (lost_for_good_ || !end.ends_job() || Code(end.code()) != Code::kExhausted) return;
  if (record.committed() || !unprotected()) {
    return world_.violated("I4", "a job is ended that could go on: " + end.reason());
  }
  lost_for_good_ = load_failed_ = true;
}

bool Judge::unprotected() const {
  Timeline oldest(plan_.timeline());
  for (const wire::Kept& k : plan_.kept()) oldest = std::min(oldest, Timeline(k.timeline()));
  return std::any_of(gone_from_logs_.lower_bound(oldest), gone_from_logs_.end(),
                     [this](const auto& g) { return !g.second->obsolete(committed_); });
}

void Judge::memory_lost(const std::string& host) {
  for (auto& [key, golden] : golden_) {
    if (golden.hosts.erase(host) != 0 && golden.hosts.empty()) golden.bytes.reset();
  }
}

void Judge::sends(const ProgramStep& step, Timeline timeline, const std::string& host) {
  Golden& golden = golden_[{naming(timeline, step), step.index, step.receiver, {}}];
  if (!golden.hosts.contains(host)) golden.bytes.reset();
  golden.hosts = {host};
}

void Judge::returned(const ProgramStep& step, std::span<const std::byte> output, const Return& how) {
  const Timeline timeline = how.timeline;
  const std::int32_t place = how.place;
  ++rounds_;
  sign();
  world_.note(std::string_view(reinterpret_cast<const char*>(output.data()), output.size()));
  const Oracle::Expected* e = oracle(timeline).expected(step.index);
  if (e == nullptr) return world_.violated("I5", describe(step) + " belongs to a version that was undone");
  const std::vector<Rank>& contributors = how.contributors == nullptr ? program_.members(step) : *how.contributors;
  if (contributors != e->contributors) {
    return world_.violated("I2", "group rank " + std::to_string(place) + " is told that the contributors of " +
                                     describe(step) + " are" + names(contributors) + " and not" +
                                     names(e->contributors));
  }
  const std::vector<Rank> order = ring_order(timeline, step);
  if (step.collective == Collective::kAllreduce && step.group == 0 && !step.setup) {
    const auto [used, first] = ring_orders_used_.try_emplace({timeline, step.version}, order);
    if (!first && used->second != order) {
      return world_.violated("I1", "the order of the ring changes within the version of " + describe(step));
    }
  }
  if (!order.empty()) ++reordered_rounds_;
  const std::string wrong = judge(step, how, *e, order, output);
  if (!wrong.empty()) {
    return world_.violated("I2", wrong + " at group rank " + std::to_string(place) + " in " + describe(step));
  }
  if (shrinks() && timeline >= all_new_ && timeline < newest_timeline_ && !obsolete(step) && !rollback_excused_ &&
      naming(newest_timeline_, step) != naming(timeline, step) && !lives_on_elsewhere(how)) {
    return world_.violated("I1", "group rank " + std::to_string(place) + " returns " + describe(step) +
                                     " of timeline " + std::to_string(timeline.value) +
                                     ", which is run again in timeline " + std::to_string(newest_timeline_.value));
  }
  // Ranks that share a result share the place under which it is remembered.
  const std::int32_t key = shared_result(step.collective) ? -1 : place;
  Golden& golden = golden_[{naming(timeline, step), step.setup.value_or(step.index), key, order}];
  const bool excused = step.values == Values::kFresh && loss_excused_;  // all copies have gone
  if (!golden.bytes || excused) golden.bytes.emplace(output.begin(), output.end());
  if (step.values == Values::kFresh && step.collective != Collective::kPoint) golden.hosts.insert(how.host);
  if (!std::equal(output.begin(), output.end(), golden.bytes->begin(), golden.bytes->end())) {
    world_.violated(
        "I1", "group rank " + std::to_string(place) + " has other bytes than an earlier result of " + describe(step));
  }
}

void Judge::interrupted(const ProgramStep& step, std::int32_t place, std::span<const std::byte> before,
                        std::span<const std::byte> output, Timeline timeline) {
  if (step.values != Values::kExact || step.collective == Collective::kPoint) return;
  const Oracle::Expected* e = oracle(timeline).expected(step.index);
  if (e == nullptr) return;
  // Where a round is run again with other contributors, its inputs are kept elsewhere, and finals of an attempt before
  // may stand in the output.
  std::vector<const std::vector<std::byte>*> finals{&e->of(place)};
  for (const auto& [t, o] : oracles_) {
    const Oracle::Expected* other = shrinks() && t < timeline ? o->expected(step.index) : nullptr;
    if (other != nullptr) finals.push_back(&other->of(place));
  }
  const std::size_t width = width_of(step);
  for (std::size_t at = 0; at < output.size(); at += width) {
    const auto is = [&](const std::byte* bytes) { return std::memcmp(output.data() + at, bytes + at, width) == 0; };
    if (is(before.data()) || std::ranges::any_of(finals, [&](const auto* f) { return is(f->data()); })) continue;
    return world_.violated("Input", "element " + std::to_string(at / width) + " at group rank " +
                                        std::to_string(place) + " is neither as it was nor final after " +
                                        describe(step) + " was interrupted");
  }
}

void Judge::check_silence(bool anybody_waits) {
  if (!anybody_waits) return sign();
  const Micros limit_us = (2 * kWaitLogIntervalMs + static_cast<std::int64_t>(job_.round_timeout_ms()) + 1000) * 1000;
  if (world_.now_us() - last_sign_us_ > limit_us) {
    world_.violated("I7", "nothing has been said for " + std::to_string((world_.now_us() - last_sign_us_) / 1'000'000) +
                              " s although somebody waits");
  }
}

}  // namespace warren::chaos
