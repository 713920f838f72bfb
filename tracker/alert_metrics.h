// The metrics of jobs that alerts are made of: states, ages, how full logs are, restarts. docs/alerts.yml has the
// rules.
//
// Threads: those of tracker::Metrics.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tracker/status.h"

namespace prometheus {
class Registry;
}

namespace warren::tracker {

class AlertMetrics {
 public:
  // `registry` outlives this.
  explicit AlertMetrics(prometheus::Registry& registry);
  ~AlertMetrics();

  void update(const Snapshot& snapshot);

 private:
  struct Families;
  struct Series;
  std::unique_ptr<Families> families_;
  std::map<std::string, std::unique_ptr<Series>> jobs_;  // by name
};

}  // namespace warren::tracker
