// Who computes which samples of an epoch where workers come and go: each is used exactly once, without a message. All
// ranks keep the same Deal, as each of its steps follows from the one before and from whose inputs were in its sum.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace digits {

class Deal {
 public:
  // `left`: the samples that are still to be used, in the order in which they are dealt out, about `batch` a step.
  // `ranks`: who is dealt some, rising; not empty.
  Deal(std::vector<std::size_t> left, std::vector<int> ranks, std::size_t batch);

  // What this rank computes in the next step; nothing for one that is not among `ranks`.
  [[nodiscard]] std::span<const std::size_t> share(int rank) const;
  // The step is over, with the inputs of these ranks (rising, not empty) in its sum: their shares are used up, those of
  // others are dealt out again, and the next step is for these ranks. Returns how many samples are dealt out again.
  std::size_t close_step(std::vector<int> contributors);

  [[nodiscard]] const std::vector<std::size_t>& left() const { return left_; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<std::size_t> left_;
  std::vector<int> ranks_;
  std::size_t batch_;
};

}  // namespace digits
