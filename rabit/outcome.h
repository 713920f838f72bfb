// How a call went. This library is linked into programs beside libwarren and shares nothing with it but warren/c_api.h.
#pragma once

#include <string>
#include <utility>

namespace rabit::layer {

class [[nodiscard]] Outcome {
 public:
  Outcome() = default;
  // A failure; `why` is for people, and not empty.
  explicit Outcome(std::string why) : why_(std::move(why)) {}
  [[nodiscard]] bool ok() const { return why_.empty(); }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  std::string why_;
};

}  // namespace rabit::layer
