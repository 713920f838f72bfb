// Memory for what a round holds between its steps.
#pragma once

#include <cstddef>

namespace warren::worker {

// Memory that survives from round to round, faulted in once. Aligned to 64 bytes.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  // At least `bytes`; what was in it is lost when it grows.
  [[nodiscard]] std::byte* reserve(std::size_t bytes);
  // reserve() of as much as a program asks for; null: the system gives no more, and what was there is lost.
  [[nodiscard]] std::byte* try_reserve(std::size_t bytes);
  void give_back();
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace warren::worker
