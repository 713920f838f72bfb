// Which connection leads to which incarnation of one job: where its last message came from. One connection serves one
// incarnation at a time. Bounded: whoever has been silent the longest is forgotten first, and is known again with its
// next message.
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "recovery/base/ids.h"

namespace warren::tracker {

class Routes {
 public:
  // Lowering the limit forgets nobody by itself; the next learn() does.
  void set_limit(std::size_t limit) { limit_ = limit; }
  void learn(Incarnation who, std::string_view connection);
  void forget(Incarnation who);
  // Null: not known. Good until the next call that changes anything.
  [[nodiscard]] const std::string* find(Incarnation who) const;
  [[nodiscard]] std::size_t size() const { return by_incarnation_.size(); }
  [[nodiscard]] const std::list<Incarnation>& all() const { return by_age_; }

 private:
  struct Route {
    std::string connection;
    std::list<Incarnation>::iterator age;
  };
  std::size_t limit_ = 64;
  std::unordered_map<Incarnation, Route> by_incarnation_;
  std::unordered_map<std::string, Incarnation> by_connection_;
  std::list<Incarnation> by_age_;  // the longest silent first
};

}  // namespace warren::tracker
