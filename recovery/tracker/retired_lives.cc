#include "recovery/tracker/retired_lives.h"

#include <algorithm>

namespace warren {

void RetiredLives::add(Incarnation life, std::size_t most) {
  if (!known_.insert(life).second) return;
  if (ring_.size() < most) {
    ring_.push_back(life);
    return;
  }
  oldest_ %= ring_.size();
  known_.erase(ring_[oldest_]);
  ring_[oldest_++] = life;
}

void RetiredLives::keep(std::size_t most) {
  if (ring_.size() <= most) return;
  ring_ = oldest_first();
  const auto end = ring_.end() - static_cast<std::ptrdiff_t>(most);
  for (auto life = ring_.begin(); life != end; ++life) known_.erase(*life);
  ring_.erase(ring_.begin(), end);
  oldest_ = 0;
}

std::vector<Incarnation> RetiredLives::oldest_first() const {
  std::vector<Incarnation> lives = ring_;
  if (lives.empty()) return lives;
  std::rotate(lives.begin(), lives.begin() + static_cast<std::ptrdiff_t>(oldest_ % lives.size()), lives.end());
  return lives;
}

}  // namespace warren
