// A first-in first-out queue in one block of memory that grows and never shrinks: posting on the data path allocates
// only while a queue is longer than it ever was.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "recovery/base/check.h"

namespace warren::worker {

template <class T>
class RingQueue {
 public:
  RingQueue() : slots_(8) {}
  [[nodiscard]] bool empty() const { return head_ == tail_; }
  [[nodiscard]] std::size_t size() const { return tail_ - head_; }
  [[nodiscard]] T& front() {
    WARREN_CHECK(!empty(), "front() of an empty queue");
    return slots_[head_ & (slots_.size() - 1)];
  }
  // The new last element, holding whatever the slot held before.
  T& push() {
    if (size() == slots_.size()) grow();
    return slots_[tail_++ & (slots_.size() - 1)];
  }
  void pop() {
    WARREN_CHECK(!empty(), "pop() of an empty queue");
    head_++;
  }
  template <class Visit>
  void for_each(Visit visit) {
    for (std::size_t i = head_; i != tail_; i++) visit(slots_[i & (slots_.size() - 1)]);
  }
  void clear() { head_ = tail_; }
  // Takes back what was pushed last.
  void drop_back(std::size_t count) {
    WARREN_CHECK(count <= size(), "drop_back() of more than there is");
    tail_ -= count;
  }

 private:
  void grow() {
    std::vector<T> bigger(slots_.size() * 2);
    const std::size_t n = size();
    for (std::size_t i = 0; i < n; i++) bigger[i] = std::move(slots_[(head_ + i) & (slots_.size() - 1)]);
    slots_ = std::move(bigger);
    head_ = 0;
    tail_ = n;
  }
  std::vector<T> slots_;  // a power of two
  std::size_t head_ = 0, tail_ = 0;
};

}  // namespace warren::worker
