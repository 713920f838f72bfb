// The settings that all workers of a job have to agree on: one table. The tracker validates, copies and compares by it,
// and workers fill it in from their own settings (worker/settings/agreed.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "recovery/wire/messages.pb.h"

namespace warren {

// The algorithms that a job can have.
inline constexpr std::array<std::string_view, 6> kAlgorithmNames = {"auto",      "star", "tree",
                                                                    "butterfly", "ring", "direct"};

// One field of wire::JobSettings. Numbers and switches have get and set, texts have text and mutable_text.
struct JobSetting {
  std::string_view name;  // the worker's setting, or what is made of it: as errors call it
  std::uint64_t (*get)(const wire::JobSettings&) = nullptr;
  void (*set)(wire::JobSettings&, std::uint64_t) = nullptr;
  std::uint64_t least = 0, most = 1;  // of a number
  const std::string& (*text)(const wire::JobSettings&) = nullptr;
  std::string* (*mutable_text)(wire::JobSettings&) = nullptr;
  std::size_t most_bytes = 0;                    // of a text, which is printable
  std::span<const std::string_view> words = {};  // what a text can be; empty: anything
  // The value as errors show it.
  std::string (*shown)(const JobSetting&, const wire::JobSettings&) = nullptr;
};

// In the order in which they are compared.
[[nodiscard]] std::span<const JobSetting> job_settings();
// Null: there is none of this name.
[[nodiscard]] const JobSetting* find_job_setting(std::string_view name);

// Setting by setting, so that nothing but what was validated is kept.
[[nodiscard]] wire::JobSettings copy_of(const wire::JobSettings& from);

// The first setting in which `theirs` differs from `ours`, and both values. Empty name: none.
struct JobDifference {
  std::string_view name;
  std::string theirs, ours;
};
[[nodiscard]] JobDifference difference(const wire::JobSettings& theirs, const wire::JobSettings& ours);

}  // namespace warren
