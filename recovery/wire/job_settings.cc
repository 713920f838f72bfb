#include "recovery/wire/job_settings.h"

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "recovery/base/limits.h"

namespace warren {
namespace {

std::string as_number(const JobSetting& setting, const wire::JobSettings& s) {
  return std::to_string(setting.get(s));
}
std::string as_switch(const JobSetting& setting, const wire::JobSettings& s) {
  return setting.get(s) != 0 ? "on" : "off";
}
std::string as_opposite(const JobSetting& setting, const wire::JobSettings& s) {
  return setting.get(s) != 0 ? "off" : "on";
}
std::string as_text(const JobSetting& setting, const wire::JobSettings& s) {
  return setting.text(s);
}
// Costs begin with their name, of eight digits.
std::string as_costs(const JobSetting& setting, const wire::JobSettings& s) {
  constexpr std::size_t kNameBytes = 8;
  const std::string& costs = setting.text(s);
  return costs.empty() ? "none" : costs.substr(0, std::min(kNameBytes, costs.find(' ')));
}
// 22809 -> "2.28.9"
std::string as_nccl(const JobSetting& setting, const wire::JobSettings& s) {
  const std::uint64_t version = setting.get(s);
  if (version == 0) return "off";
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

using Shown = decltype(JobSetting::shown);

template <auto kGet, auto kSet>
JobSetting number(std::string_view name, std::uint64_t least, std::uint64_t most, Shown shown = as_number) {
  using Field = std::remove_cvref_t<decltype((std::declval<const wire::JobSettings&>().*kGet)())>;
  JobSetting out;
  out.name = name;
  out.get = [](const wire::JobSettings& s) -> std::uint64_t { return (s.*kGet)(); };
  out.set = [](wire::JobSettings& s, std::uint64_t value) { (s.*kSet)(static_cast<Field>(value)); };
  out.least = least;
  out.most = most;
  out.shown = shown;
  return out;
}
template <auto kGet, auto kSet>
JobSetting on_off(std::string_view name, Shown shown = as_switch) {
  return number<kGet, kSet>(name, 0, 1, shown);
}
template <auto kGet, auto kMutable>
JobSetting text(std::string_view name, std::size_t most_bytes, std::span<const std::string_view> words,
                Shown shown = as_text) {
  JobSetting out;
  out.name = name;
  out.text = [](const wire::JobSettings& s) -> const std::string& { return (s.*kGet)(); };
  out.mutable_text = [](wire::JobSettings& s) { return (s.*kMutable)(); };
  out.most_bytes = most_bytes;
  out.words = words;
  out.shown = shown;
  return out;
}

}  // namespace

std::span<const JobSetting> job_settings() {
  using S = wire::JobSettings;
  static const JobSetting kTable[] = {
      number<&S::world_size, &S::set_world_size>("world_size", 1, limits::kMaxWorldSize),
      number<&S::round_timeout_ms, &S::set_round_timeout_ms>("round_timeout_ms", limits::kMinRoundTimeoutMs,
                                                             limits::kMaxRoundTimeoutMs),
      text<&S::algorithm, &S::mutable_algorithm>("algorithm", 0, kAlgorithmNames),
      text<&S::costs, &S::mutable_costs>("costs", limits::kMaxCostsBytes, {}, as_costs),
      number<&S::chunk_bytes, &S::set_chunk_bytes>("chunk_bytes", limits::kMinChunkBytes, limits::kMaxChunkBytes),
      number<&S::streams, &S::set_streams>("streams", 1, limits::kMaxStreams),
      on_off<&S::checksums, &S::set_checksums>("checksums"),
      on_off<&S::check_call_sites, &S::set_check_call_sites>("check_call_sites"),
      number<&S::replicas, &S::set_replicas>("replicas", 0, limits::kMaxReplicas),
      number<&S::replace_after_ms, &S::set_replace_after_ms>("replace_after_ms", 0, limits::kMaxReplaceAfterMs),
      // 0: the job waits for all.
      number<&S::min_workers, &S::set_min_workers>("min_workers", 0, limits::kMaxWorldSize),
      number<&S::grace_ms, &S::set_grace_ms>("grace_ms", 0, limits::kMaxGraceMs),
      on_off<&S::elastic_start, &S::set_elastic_start>("beginning with fewer workers (max_workers)"),
      number<&S::nccl, &S::set_nccl>("nccl", 0, limits::kMaxNcclVersion, as_nccl),
      on_off<&S::rewire, &S::set_rewire>("rewire"),
      on_off<&S::reorders, &S::set_reorders>("deterministic", as_opposite),
  };
  return kTable;
}

const JobSetting* find_job_setting(std::string_view name) {
  const auto all = job_settings();
  const auto at = std::ranges::find(all, name, &JobSetting::name);
  return at == all.end() ? nullptr : &*at;
}

wire::JobSettings copy_of(const wire::JobSettings& from) {
  wire::JobSettings to;
  for (const JobSetting& setting : job_settings()) {
    if (setting.text != nullptr) {
      *setting.mutable_text(to) = setting.text(from);
    } else {
      setting.set(to, setting.get(from));
    }
  }
  return to;
}

JobDifference difference(const wire::JobSettings& theirs, const wire::JobSettings& ours) {
  for (const JobSetting& setting : job_settings()) {
    const bool same =
        setting.text != nullptr ? setting.text(theirs) == setting.text(ours) : setting.get(theirs) == setting.get(ours);
    if (!same) return {setting.name, setting.shown(setting, theirs), setting.shown(setting, ours)};
  }
  return {};
}

}  // namespace warren
