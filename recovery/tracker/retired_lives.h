// Lives that never come back: they were refused, replaced, or belong to a plan that is over. The newest of them are
// remembered (I8).
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "recovery/base/ids.h"

namespace warren {

class RetiredLives {
 public:
  // Forgets the oldest where `most` are known already.
  void add(Incarnation life, std::size_t most);
  // Forgets the oldest beyond this number.
  void keep(std::size_t most);
  [[nodiscard]] bool contains(Incarnation life) const { return known_.contains(life); }
  [[nodiscard]] std::size_t size() const { return known_.size(); }
  [[nodiscard]] std::vector<Incarnation> oldest_first() const;

 private:
  std::set<Incarnation> known_;
  std::vector<Incarnation> ring_;  // the same, in a ring of their order
  std::size_t oldest_ = 0;         // where the ring begins; beyond its end: at its beginning
};

}  // namespace warren
