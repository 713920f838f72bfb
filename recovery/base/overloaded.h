// One visitor of a variant, made of a lambda for each of its alternatives.
#pragma once

namespace warren {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
// C++20 deduces this by itself; Clang 14 does not.
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace warren
