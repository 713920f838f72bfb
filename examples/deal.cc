#include "examples/deal.h"

#include <algorithm>
#include <utility>

namespace digits {

Deal::Deal(std::vector<std::size_t> left, std::vector<int> ranks, std::size_t batch)
    : left_(std::move(left)), ranks_(std::move(ranks)), batch_(batch) {}

std::span<const std::size_t> Deal::share(int rank) const {
  const auto at = std::ranges::lower_bound(ranks_, rank);
  if (at == ranks_.end() || *at != rank) return {};
  const std::size_t each = (batch_ + ranks_.size() - 1) / ranks_.size();
  const std::size_t begin = std::min(left_.size(), static_cast<std::size_t>(at - ranks_.begin()) * each);
  return std::span(left_).subspan(begin, std::min(each, left_.size() - begin));
}

std::size_t Deal::close_step(std::vector<int> contributors) {
  std::vector<std::size_t> left;
  std::size_t dealt = 0;
  for (const int rank : ranks_) {
    const auto samples = share(rank);
    dealt += samples.size();
    if (!std::ranges::binary_search(contributors, rank)) left.insert(left.end(), samples.begin(), samples.end());
  }
  const std::size_t again = left.size();
  left.insert(left.end(), left_.begin() + static_cast<std::ptrdiff_t>(dealt), left_.end());
  left_ = std::move(left);
  ranks_ = std::move(contributors);
  return again;
}

}  // namespace digits
