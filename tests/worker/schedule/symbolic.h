// Runs the schedules of all ranks together on symbols: every element is an expression that says which contributors were
// combined in which order. What comes out is compared with what docs/algorithms.md promises, expression by expression.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/schedule/schedule.h"

namespace warren::schedule::symbolic {

using Expression = std::uint32_t;
inline constexpr Expression kNothing = UINT32_MAX;

// Equal expressions have equal numbers.
class Expressions {
 public:
  Expression input(std::int32_t rank, std::uint64_t element);
  Expression combine(Expression a, Expression b);
  Expression finish(Expression a);
  // The ranks whose inputs are in an expression, in the order in which they stand there.
  [[nodiscard]] std::vector<std::int32_t> contributors(Expression expression) const;
  // "final((in[1][7] + in[0][7]))", where 7 is the element.
  [[nodiscard]] std::string to_string(Expression expression) const;

 private:
  enum class Kind : std::uint8_t { kInput, kCombine, kFinish };
  struct Node {
    Kind kind{};
    std::uint64_t a = 0, b = 0;
  };
  Expression number(Kind kind, std::uint64_t a, std::uint64_t b);

  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, Expression> numbers_;
};

// One collective on all ranks.
struct World {
  Collective collective{};
  Algorithm algorithm{};
  std::int32_t size = 1;
  std::int32_t root = 0;
  std::uint64_t count = 0;
  std::uint64_t chunk_elements = 1;
  bool in_place = false;
  std::vector<std::uint64_t> counts;  // allgatherv

  [[nodiscard]] Request request(std::int32_t rank) const;
  [[nodiscard]] std::string describe() const;
};

// In which order what can happen does happen. In all of them a send waits until its receive is posted.
enum class Order {
  kInOrder,    // what could happen first happens first
  kRandom,     // anything, by seed
  kLateSends,  // anything, but a send completes only when nothing else can happen
  kLateLocal,  // anything, but reductions and copies begin and end only when nothing else can happen
};

// The schedules of all ranks. The request must be valid.
[[nodiscard]] std::vector<Schedule> make_all(const World& world);

// The three checks return what is wrong, or nothing.
//
// The form of the schedules: indices, ordinals and counts that agree on both ends, places inside their buffers, rules 2
// and 3 of schedule.h, operands that overlap the destination only where a kernel allows it.
[[nodiscard]] std::string check_form(const World& world, const std::vector<Schedule>& schedules);
// That any two steps of a rank that touch the same element, one of them writing, are ordered by the rank's own
// dependencies, so that no timing can make them meet: a send reads until it completes, a receive owns its slot from its
// posting. What other ranks do is not counted on.
[[nodiscard]] std::string check_races(const World& world, const std::vector<Schedule>& schedules);
// Runs them: everything finishes, no two steps in flight touch the same element, whatever is written to an output is
// its documented final value, and in the end all of it is there.
[[nodiscard]] std::string check_run(const World& world, const std::vector<Schedule>& schedules, Order order,
                                    std::uint64_t seed);
// All three.
[[nodiscard]] std::string check(const World& world, const std::vector<Schedule>& schedules, Order order,
                                std::uint64_t seed);

// The longest chain of messages from the first to the last step of any rank.
[[nodiscard]] std::uint32_t hops(const std::vector<Schedule>& schedules);

}  // namespace warren::schedule::symbolic
