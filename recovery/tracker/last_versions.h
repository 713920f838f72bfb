// The versions in which the ranks of one generation have called finalize. None of them takes another checkpoint.
#pragma once

#include <cstddef>
#include <optional>

#include "recovery/base/ids.h"

namespace warren {

class LastVersions {
 public:
  struct Last {
    std::size_t rank = 0;
    Version version;
  };

  void note(std::size_t rank, Version version);
  void clear() { oldest_ = newest_ = std::nullopt; }

  // Nothing: nobody has called finalize.
  [[nodiscard]] const std::optional<Last>& oldest() const { return oldest_; }
  [[nodiscard]] const std::optional<Last>& newest() const { return newest_; }

 private:
  std::optional<Last> oldest_, newest_;
};

}  // namespace warren
