// Workers' promises to this tracker: to obey it, and no tracker of a lower term. A tracker that knows a plan decides
// nothing before more than half of the plan's workers have promised (docs/invariants.md, "Trackers").
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"

namespace warren {

class Promises {
 public:
  // Whose promise it is, by the newest plan.
  enum class From : std::uint8_t {
    kMember,
    kSilentMember,  // it has called finalize where nothing is logged, and has nothing left to promise
    kAbsentMember,  // the plan goes on without it
    kStranger,      // a worker that the plan does not know
  };
  // Those whose promise counts.
  struct Members {
    std::size_t asked = 0;   // members that are neither silent nor absent
    std::size_t absent = 0;  // places that a stranger may have come for
    std::function<From(const std::string& worker)> from;
  };

  // The tracker asks from now on.
  void ask(TimeMs now) { asked_ = now; }
  // The term has risen: nobody has promised anything yet.
  void renew(TimeMs now);
  // Those of lives for which `stays` is true. Nobody asks for another world size there.
  [[nodiscard]] Promises of(const std::function<bool(Incarnation life)>& stays) const;

  void take(const std::string& worker, Incarnation life, TimeMs now);
  // Of a worker that wants a world of this size, as all members have gone.
  void take_for_size(const std::string& worker, Incarnation life, std::uint32_t world_size);

  // Whether those who have promised suffice. A stranger that has come for a free place counts after `timeout_ms`. So do
  // as many workers as a world of another size has, if no member has come in the meantime.
  [[nodiscard]] bool suffice(const Members& members, TimeMs now, std::int64_t timeout_ms) const;
  // Nobody asks for another world size, and the promises are at most half of `present`: too few, whoever they are from.
  [[nodiscard]] bool too_few(std::size_t present) const { return 2 * lives_.size() <= present && resizers_.empty(); }

  [[nodiscard]] bool contains(const std::string& worker) const { return lives_.contains(worker); }
  [[nodiscard]] std::size_t size() const { return lives_.size(); }
  // By worker: the life that said so last.
  [[nodiscard]] const std::map<std::string, Incarnation>& lives() const { return lives_; }
  [[nodiscard]] TimeMs asked() const { return asked_; }
  [[nodiscard]] TimeMs heard() const { return heard_; }  // the newest of them

 private:
  std::map<std::string, Incarnation> lives_;     // by worker
  std::map<std::string, Incarnation> resizers_;  // likewise, that want a world of resizers_size_
  std::uint32_t resizers_size_ = 0;
  TimeMs asked_, heard_;
};

}  // namespace warren
