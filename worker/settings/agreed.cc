#include "worker/settings/agreed.h"

#include <variant>

#include "recovery/base/check.h"
#include "recovery/wire/job_settings.h"
#include "worker/settings/table.h"

namespace warren::worker {

wire::JobSettings agreed_settings(const Settings& settings, const std::string& costs, std::uint32_t nccl) {
  wire::JobSettings out;
  for (const Setting& setting : settings_table()) {
    if (setting.agreed != Agreed::kAsItIs) continue;
    const JobSetting* job = find_job_setting(setting.name);
    WARREN_CHECK(job != nullptr, "a setting that workers agree on is one of the job's");
    if (const auto* number = std::get_if<Number>(&setting.value)) {
      job->set(out, number->get(settings));
    } else if (const auto* on_off = std::get_if<Switch>(&setting.value)) {
      job->set(out, settings.*on_off->member ? 1 : 0);
    } else if (const auto* word = std::get_if<Word>(&setting.value)) {
      *job->mutable_text(out) = word->get(settings);
    }
  }
  out.set_costs(costs);
  out.set_nccl(nccl);
  // Another way begins with another generation, which no job without a log survives.
  out.set_rewire(settings.rewire && settings.replicas != 0);
  out.set_reorders(out.rewire() && !settings.deterministic);
  out.set_elastic_start(settings.max_workers != 0);
  return out;
}

}  // namespace warren::worker
