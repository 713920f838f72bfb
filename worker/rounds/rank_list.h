// Ranks as lines name them.
#pragma once

#include <string>
#include <vector>

#include "recovery/base/ids.h"

namespace warren::worker {

// "0, 3".
[[nodiscard]] inline std::string list_of(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r.value);
  return text;
}

}  // namespace warren::worker
