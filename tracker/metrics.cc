#include "tracker/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <string_view>

#include "tracker/alert_metrics.h"
#include "tracker/member_state.h"

namespace warren::tracker {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

Family<Counter>& counters(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
Family<Gauge>& gauges(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

const Histogram::BucketBoundaries kHandleSeconds = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1};
const Histogram::BucketBoundaries kPersistSeconds = {1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10};

// A total that is kept elsewhere.
void raise_to(Counter& counter, std::uint64_t total) {
  const double by = static_cast<double>(total) - counter.Value();
  if (by > 0) counter.Increment(by);
}

}  // namespace

struct Metrics::Families {
  prometheus::Registry registry;
  AlertMetrics alerts{registry};
  Family<Gauge>& jobs = gauges(registry, "warren_jobs", "Jobs that the tracker holds, by state.");
  Family<Gauge>& alive = gauges(registry, "warren_job_members_alive", "Ranks of the job whose workers are heard.");
  Family<Gauge>& world = gauges(registry, "warren_job_world_size", "Ranks of the job.");
  Family<Gauge>& generation = gauges(registry, "warren_job_generation", "Generation of the job.");
  Family<Gauge>& timeline = gauges(registry, "warren_job_timeline", "Timeline of the job: raised by each rollback.");
  Family<Gauge>& committed = gauges(registry, "warren_job_committed_version",
                                    "Version that the job would start from: checkpoints that are safe; 0: none is.");
  Family<Gauge>& stragglers = gauges(registry, "warren_job_stragglers",
                                     "Verdicts on slow, hung or cut off ranks and links that stand, by kind.");
  Family<Counter>& verdicts =
      counters(registry, "warren_job_verdicts_total", "Such verdicts that have begun to stand, by kind.");
  Family<Gauge>& detours = gauges(registry, "warren_job_detours", "Links whose bytes go by way of other ranks.");
  Family<Gauge>& idle =
      gauges(registry, "warren_job_idle_ratio", "Share of the newest window that ranks slept in calls, as their mean.");
  Family<Gauge>& outside = gauges(registry, "warren_job_outside_ratio",
                                  "Share of the newest window that programs were outside of calls, as their mean.");
  Family<Gauge>& unprotected = gauges(registry, "warren_job_unprotected",
                                      "1: a full log has given up results, and a loss undoes what is not committed.");
  Family<Gauge>& rounds = gauges(registry, "warren_job_rounds_finished",
                                 "Rounds finished, as the member that finished the most in its present life reports.");
  Family<Gauge>& gpu_readers = gauges(registry, "warren_job_gpu_readers",
                                      "Ranks that read another's memory of a GPU, as a sum over those whose it is.");
  Family<Counter>& inputs_lent = counters(registry, "warren_job_inputs_lent_total",
                                          "Inputs that ranks left on their GPUs for others of the host.");
  Family<Counter>& finals_from_gpus = counters(registry, "warren_job_finals_from_gpus_total",
                                               "Pieces of results that came to a rank from another one's GPU.");
  Family<Counter>& rounds_exchanged = counters(registry, "warren_job_rounds_exchanged_total",
                                               "Rounds whose bytes NCCL was to move, once for each of their ranks.");
  Family<Counter>& joins = counters(registry, "warren_job_joins_total", "Joins that were taken.");
  Family<Counter>& interrupts = counters(registry, "warren_job_interrupts_total", "Interrupts of the job.");
  Family<Counter>& refusals = counters(registry, "warren_job_refusals_total", "Messages that the job refused.");
  Family<Gauge>& spares = gauges(registry, "warren_job_spares", "Workers that wait for the place of one that is lost.");
  Family<Counter>& spares_used =
      counters(registry, "warren_job_spares_used_total", "Spares that have taken the place of a rank that was lost.");
  Family<Counter>& preemptions = counters(registry, "warren_job_preemptions_total",
                                          "Members that left because their places were needed elsewhere.");

  Counter& in = counters(registry, "warren_messages_received_total", "Control messages received.").Add({});
  Counter& in_bytes =
      counters(registry, "warren_messages_received_bytes_total", "Bytes of control messages received.").Add({});
  Counter& out = counters(registry, "warren_messages_sent_total", "Control messages sent.").Add({});
  Counter& out_bytes =
      counters(registry, "warren_messages_sent_bytes_total", "Bytes of control messages sent.").Add({});
  Counter& bad = counters(registry, "warren_bad_messages_total",
                          "Messages that are malformed or of another protocol "
                          "version.")
                     .Add({});
  Counter& wrong_secrets =
      counters(registry, "warren_wrong_secrets_total", "Messages for a job whose secret the sender does not have.")
          .Add({});
  Counter& failed_handshakes = counters(registry, "warren_failed_handshakes_total",
                                        "Connections refused in their handshake: without a key of this tracker's.")
                                   .Add({});
  Counter& refused = counters(registry, "warren_refused_total", "Messages refused before they reached a job.").Add({});
  Counter& unsent =
      counters(registry, "warren_unsent_total", "Answers that found no connection or a full one.").Add({});
  Counter& persist_failures =
      counters(registry, "warren_persist_failures_total", "Writes to the journal that failed.").Add({});
  Histogram& handled = prometheus::BuildHistogram()
                           .Name("warren_message_handling_seconds")
                           .Help("Time from a message's receipt until its effects are carried out.")
                           .Register(registry)
                           .Add({}, kHandleSeconds);
  Histogram& persisted = prometheus::BuildHistogram()
                             .Name("warren_persist_seconds")
                             .Help("Time that a durable write to the journal takes.")
                             .Register(registry)
                             .Add({}, kPersistSeconds);
};

// The series of one job; they go with it.
struct Metrics::JobSeries {
  JobSeries(Families& f, const std::string& job, std::uint64_t its_serial)
      : serial(its_serial),
        families(f),
        alive(f.alive.Add({{kJobLabel, job}})),
        world(f.world.Add({{kJobLabel, job}})),
        generation(f.generation.Add({{kJobLabel, job}})),
        timeline(f.timeline.Add({{kJobLabel, job}})),
        committed(f.committed.Add({{kJobLabel, job}})),
        unprotected(f.unprotected.Add({{kJobLabel, job}})),
        rounds(f.rounds.Add({{kJobLabel, job}})),
        idle(f.idle.Add({{kJobLabel, job}})),
        outside(f.outside.Add({{kJobLabel, job}})),
        spares(f.spares.Add({{kJobLabel, job}})),
        detours(f.detours.Add({{kJobLabel, job}})),
        gpu_readers(f.gpu_readers.Add({{kJobLabel, job}})),
        joins(f.joins.Add({{kJobLabel, job}})),
        interrupts(f.interrupts.Add({{kJobLabel, job}})),
        refusals(f.refusals.Add({{kJobLabel, job}})),
        preemptions(f.preemptions.Add({{kJobLabel, job}})),
        spares_used(f.spares_used.Add({{kJobLabel, job}})),
        inputs_lent(f.inputs_lent.Add({{kJobLabel, job}})),
        finals_from_gpus(f.finals_from_gpus.Add({{kJobLabel, job}})),
        rounds_exchanged(f.rounds_exchanged.Add({{kJobLabel, job}})) {
    for (std::size_t i = 0; i < kBlames; ++i) {
      const std::string kind = to_string(static_cast<Blame>(i));
      stragglers[i] = &f.stragglers.Add({{kJobLabel, job}, {"kind", kind}});
      verdicts[i] = &f.verdicts.Add({{kJobLabel, job}, {"kind", kind}});
    }
  }
  ~JobSeries() {
    for (Gauge* gauge : stragglers) families.stragglers.Remove(gauge);
    for (Counter* counter : verdicts) families.verdicts.Remove(counter);
    families.idle.Remove(&idle);
    families.outside.Remove(&outside);
    families.alive.Remove(&alive);
    families.world.Remove(&world);
    families.generation.Remove(&generation);
    families.timeline.Remove(&timeline);
    families.committed.Remove(&committed);
    families.unprotected.Remove(&unprotected);
    families.rounds.Remove(&rounds);
    families.joins.Remove(&joins);
    families.interrupts.Remove(&interrupts);
    families.refusals.Remove(&refusals);
    families.preemptions.Remove(&preemptions);
    families.spares.Remove(&spares);
    families.detours.Remove(&detours);
    families.spares_used.Remove(&spares_used);
    families.gpu_readers.Remove(&gpu_readers);
    families.inputs_lent.Remove(&inputs_lent);
    families.finals_from_gpus.Remove(&finals_from_gpus);
    families.rounds_exchanged.Remove(&rounds_exchanged);
  }
  JobSeries(const JobSeries&) = delete;
  JobSeries& operator=(const JobSeries&) = delete;

  const std::uint64_t serial;
  Families& families;
  Gauge &alive, &world, &generation, &timeline, &committed, &unprotected, &rounds, &idle, &outside, &spares, &detours,
      &gpu_readers;
  std::array<Gauge*, kBlames> stragglers{};
  std::array<Counter*, kBlames> verdicts{};
  Counter &joins, &interrupts, &refusals, &preemptions, &spares_used, &inputs_lent, &finals_from_gpus,
      &rounds_exchanged;
};

void Metrics::show_stragglers(JobSeries& series, const TrackerMachine::View& v) {
  std::array<int, kBlames> standing{};
  for (const StragglerWatch::Standing& s : v.verdicts) ++standing[static_cast<std::size_t>(s.verdict.blame)];
  double idle = 0, outside = 0;
  int told = 0;
  for (const TrackerMachine::MemberView& m : v.members) {
    if (!m.activity || m.activity->window_ms() == 0) continue;
    ++told;
    idle += static_cast<double>(m.activity->idle_ms()) / m.activity->window_ms();
    outside += static_cast<double>(m.activity->outside_ms()) / m.activity->window_ms();
  }
  series.idle.Set(told == 0 ? 0 : idle / told);
  series.outside.Set(told == 0 ? 0 : outside / told);
  for (std::size_t i = 0; i < kBlames; ++i) {
    series.stragglers[i]->Set(standing[i]);
    raise_to(*series.verdicts[i], v.verdicts_ever[i]);
  }
}

void Metrics::show_gpus(JobSeries& series, const TrackerMachine::View& v) {
  series.gpu_readers.Set(static_cast<double>(v.gpu.readers));
  raise_to(series.inputs_lent, v.gpu.inputs_lent);
  raise_to(series.finals_from_gpus, v.gpu.finals_from_gpus);
  raise_to(series.rounds_exchanged, v.gpu.rounds_exchanged);
}

Metrics::Metrics(const std::string& version) : families_(std::make_unique<Families>()) {
  gauges(families_->registry, "warren_build_info", "Always 1; the label says which version runs.")
      .Add({{"version", version}})
      .Set(1);
}
Metrics::~Metrics() = default;

void Metrics::message_in(std::size_t bytes) {
  families_->in.Increment();
  families_->in_bytes.Increment(static_cast<double>(bytes));
}
void Metrics::message_out(std::size_t bytes) {
  families_->out.Increment();
  families_->out_bytes.Increment(static_cast<double>(bytes));
}
void Metrics::message_handled(double seconds) {
  families_->handled.Observe(seconds);
}
void Metrics::persisted(double seconds) {
  families_->persisted.Observe(seconds);
}

void Metrics::update(const TableCounts& counts, const Snapshot& snapshot) {
  raise_to(families_->bad, counts.bad_messages);
  raise_to(families_->wrong_secrets, counts.wrong_secrets);
  raise_to(families_->failed_handshakes, counts.failed_handshakes);
  raise_to(families_->refused, counts.refused_by_table);
  raise_to(families_->unsent, counts.unsent);
  raise_to(families_->persist_failures, counts.persist_failures);
  families_->alerts.update(snapshot);
  std::map<std::string_view, int> by_state;
  std::set<std::string_view> there;
  for (const JobStatus& job : snapshot.jobs) {
    const TrackerMachine::View& v = job.view;
    ++by_state[state_of(v)];
    there.insert(job.name);
    std::unique_ptr<JobSeries>& series = jobs_[job.name];
    if (series && series->serial != job.serial) series.reset();  // first: the new ones have the same labels
    if (!series) series = std::make_unique<JobSeries>(*families_, job.name, job.serial);
    std::uint64_t rounds = 0;
    for (const auto& m : v.members) rounds = std::max(rounds, m.rounds_finished);
    series->alive.Set(members_alive(v));
    series->world.Set(v.world_size);
    series->generation.Set(static_cast<double>(v.generation.value));
    series->timeline.Set(v.timeline.value);
    series->committed.Set(v.committed ? static_cast<double>(v.committed->value - 1) : 0);
    series->unprotected.Set(v.unprotected.empty() ? 0 : 1);
    series->rounds.Set(static_cast<double>(rounds));
    show_stragglers(*series, v);
    show_gpus(*series, v);
    raise_to(series->joins, v.joins);
    raise_to(series->interrupts, v.interrupts);
    raise_to(series->refusals, v.refusals);
    raise_to(series->preemptions, v.preemptions);
    series->spares.Set(static_cast<double>(v.spares.size()));
    series->detours.Set(static_cast<double>(v.detours.size()));
    raise_to(series->spares_used, v.spares_used);
  }
  for (const char* state : kJobStates) families_->jobs.Add({{"state", state}}).Set(by_state[state]);
  std::erase_if(jobs_, [&](const auto& entry) { return !there.contains(entry.first); });
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(families_->registry.Collect());
}

namespace {
template <class Write>
Status timed(Metrics& metrics, Write&& write) {
  const auto begin = std::chrono::steady_clock::now();
  Status s = write();
  metrics.persisted(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return s;
}
}  // namespace

Status TimedJournal::put(std::string_view job, std::string_view bytes) {
  return timed(metrics_, [&] { return journal_.put(job, bytes); });
}
Status TimedJournal::erase(std::string_view job) {
  return timed(metrics_, [&] { return journal_.erase(job); });
}

}  // namespace warren::tracker
