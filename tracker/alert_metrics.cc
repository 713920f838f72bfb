#include "tracker/alert_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "tracker/member_state.h"

namespace warren::tracker {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;

// One series, which leaves its family with its job.
template <class Metric>
class OneSeries {
 public:
  OneSeries(Family<Metric>& family, const prometheus::Labels& labels) : family_(family), metric_(family.Add(labels)) {}
  ~OneSeries() { family_.Remove(&metric_); }
  OneSeries(const OneSeries&) = delete;
  OneSeries& operator=(const OneSeries&) = delete;
  Metric* operator->() { return &metric_; }

 private:
  Family<Metric>& family_;
  Metric& metric_;
};

Family<Gauge>& gauge_family(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

struct LogSum {
  std::uint64_t held = 0, budget = 0;
  double fullest = 0;
};
LogSum logs_of(const TrackerMachine::View& view) {
  LogSum sum;
  for (const TrackerMachine::MemberView& m : view.members) {
    if (!m.alive || !m.log || m.log->budget_bytes() == 0) continue;
    sum.held += m.log->held_bytes();
    sum.budget += m.log->budget_bytes();
    sum.fullest =
        std::max(sum.fullest, static_cast<double>(m.log->held_bytes()) / static_cast<double>(m.log->budget_bytes()));
  }
  return sum;
}

double seconds(std::int64_t ms) {
  return static_cast<double>(ms) / 1000;
}

}  // namespace

struct AlertMetrics::Families {
  explicit Families(prometheus::Registry& registry)
      : state(gauge_family(registry, "warren_job_state", "1 for the state that the job is in, 0 for the others.")),
        members(
            gauge_family(registry, "warren_job_members", "Ranks, waiting workers and spares of the job, by state.")),
        round_age(gauge_family(registry, "warren_job_last_round_age_seconds",
                               "Time since a member told of a round that it had finished.")),
        commit_age(gauge_family(registry, "warren_job_last_commit_age_seconds", "Time since a version was committed.")),
        log_held(gauge_family(registry, "warren_job_log_held_bytes", "Bytes that the ranks' logs in memory hold.")),
        log_budget(
            gauge_family(registry, "warren_job_log_budget_bytes", "Bytes that the ranks' logs in memory may hold.")),
        log_fill(gauge_family(registry, "warren_job_log_fill_ratio", "How full the fullest rank's log in memory is.")),
        disk_trouble(gauge_family(registry, "warren_job_disk_troubles", "Ranks whose disk takes no results.")),
        journal_trouble(
            gauge_family(registry, "warren_job_journal_trouble",
                         "1: nothing is announced to the job, as the tracker's journal cannot be written.")),
        restarts(prometheus::BuildCounter()
                     .Name("warren_job_restarts_total")
                     .Help("Lives of the job's ranks beyond the first ones.")
                     .Register(registry)) {}

  Family<Gauge>&state, &members, &round_age, &commit_age, &log_held, &log_budget, &log_fill, &disk_trouble,
      &journal_trouble;
  Family<Counter>& restarts;
};

struct AlertMetrics::Series {
  Series(Families& f, const std::string& job, std::uint64_t its_serial)
      : serial(its_serial),
        round_age(f.round_age, {{kJobLabel, job}}),
        commit_age(f.commit_age, {{kJobLabel, job}}),
        log_held(f.log_held, {{kJobLabel, job}}),
        log_budget(f.log_budget, {{kJobLabel, job}}),
        log_fill(f.log_fill, {{kJobLabel, job}}),
        disk_trouble(f.disk_trouble, {{kJobLabel, job}}),
        journal_trouble(f.journal_trouble, {{kJobLabel, job}}),
        restarts(f.restarts, {{kJobLabel, job}}) {
    const auto in_state = [&](const char* name) -> prometheus::Labels { return {{kJobLabel, job}, {"state", name}}; };
    for (const char* name : kJobStates) state.push_back(std::make_unique<OneSeries<Gauge>>(f.state, in_state(name)));
    for (std::size_t i = 0; i < kMemberStates; ++i) {
      const char* name = to_string(static_cast<MemberState>(i));
      members.push_back(std::make_unique<OneSeries<Gauge>>(f.members, in_state(name)));
    }
  }
  void update(const JobStatus& job) {
    const TrackerMachine::View& view = job.view;
    const std::string_view now = state_of(view);
    for (std::size_t i = 0; i < kJobStates.size(); ++i) (*state[i])->Set(now == kJobStates[i] ? 1 : 0);
    const auto count = members_by_state(view);
    for (std::size_t i = 0; i < kMemberStates; ++i) (*members[i])->Set(count[i]);
    round_age->Set(seconds(view.last_round_ms_ago));
    commit_age->Set(seconds(view.last_commit_ms_ago));
    const LogSum logs = logs_of(view);
    log_held->Set(static_cast<double>(logs.held));
    log_budget->Set(static_cast<double>(logs.budget));
    log_fill->Set(logs.fullest);
    disk_trouble->Set(static_cast<double>(
        std::ranges::count_if(view.members, [](const auto& m) { return m.alive && !m.disk_trouble.empty(); })));
    journal_trouble->Set(job.trouble.empty() ? 0 : 1);
    const double more = static_cast<double>(restarts_of(view)) - restarts->Value();
    if (more > 0) restarts->Increment(more);
  }

  const std::uint64_t serial;
  std::vector<std::unique_ptr<OneSeries<Gauge>>> state, members;  // in the order of their states
  OneSeries<Gauge> round_age, commit_age, log_held, log_budget, log_fill, disk_trouble, journal_trouble;
  OneSeries<Counter> restarts;
};

AlertMetrics::AlertMetrics(prometheus::Registry& registry) : families_(std::make_unique<Families>(registry)) {}
AlertMetrics::~AlertMetrics() = default;

void AlertMetrics::update(const Snapshot& snapshot) {
  std::set<std::string_view> there;
  for (const JobStatus& job : snapshot.jobs) {
    there.insert(job.name);
    std::unique_ptr<Series>& series = jobs_[job.name];
    if (series && series->serial != job.serial) series.reset();  // first: the new ones have the same labels
    if (!series) series = std::make_unique<Series>(*families_, job.name, job.serial);
    series->update(job);
  }
  std::erase_if(jobs_, [&](const auto& entry) { return !there.contains(entry.first); });
}

}  // namespace warren::tracker
