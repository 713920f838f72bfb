#include "tracker/routes.h"

namespace warren::tracker {

void Routes::learn(Incarnation who, std::string_view connection) {
  if (const auto known = by_incarnation_.find(who); known != by_incarnation_.end()) {
    Route& route = known->second;
    if (route.connection == connection) {
      by_age_.splice(by_age_.end(), by_age_, route.age);
      return;
    }
    forget(who);
  }
  std::string key(connection);
  if (const auto user = by_connection_.find(key); user != by_connection_.end()) forget(Incarnation(user->second));
  while (by_incarnation_.size() >= limit_ && !by_age_.empty()) forget(Incarnation(by_age_.front()));
  by_age_.push_back(who);
  by_connection_.emplace(key, who);
  by_incarnation_.emplace(who, Route{std::move(key), std::prev(by_age_.end())});
}

void Routes::forget(Incarnation who) {
  const auto known = by_incarnation_.find(who);
  if (known == by_incarnation_.end()) return;
  by_connection_.erase(known->second.connection);
  by_age_.erase(known->second.age);
  by_incarnation_.erase(known);
}

const std::string* Routes::find(Incarnation who) const {
  const auto known = by_incarnation_.find(who);
  return known == by_incarnation_.end() ? nullptr : &known->second.connection;
}

}  // namespace warren::tracker
