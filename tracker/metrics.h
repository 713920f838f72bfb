// The tracker's metrics, in Prometheus' format. docs/metrics.md lists them. Everything but text() belongs to the loop
// thread; text() may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "recovery/base/result.h"
#include "storage/journal.h"
#include "tracker/job_table.h"
#include "tracker/status.h"

namespace warren::tracker {

class Metrics {
 public:
  explicit Metrics(const std::string& version);
  ~Metrics();

  void message_in(std::size_t bytes);
  void message_out(std::size_t bytes);
  void message_handled(double seconds);
  void persisted(double seconds);
  // What is kept elsewhere as totals: taken over as it is.
  void update(const TableCounts& counts, const Snapshot& snapshot);

  [[nodiscard]] std::string text() const;

 private:
  struct Families;
  struct JobSeries;
  static void show_stragglers(JobSeries& series, const TrackerMachine::View& view);
  static void show_gpus(JobSeries& series, const TrackerMachine::View& view);
  std::unique_ptr<Families> families_;
  std::map<std::string, std::unique_ptr<JobSeries>> jobs_;
};

// A journal that measures how long another one takes to write.
class TimedJournal final : public storage::Journal {
 public:
  // Both outlive this one.
  TimedJournal(storage::Journal& journal, Metrics& metrics) : journal_(journal), metrics_(metrics) {}

  Result<std::map<std::string, std::string>> load() override { return journal_.load(); }
  Result<std::optional<std::string>> get(std::string_view job) override { return journal_.get(job); }
  Status put(std::string_view job, std::string_view bytes) override;
  Status erase(std::string_view job) override;

 private:
  storage::Journal& journal_;
  Metrics& metrics_;
};

}  // namespace warren::tracker
