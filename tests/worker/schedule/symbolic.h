// Runs the schedules of all ranks together on symbols: every element is an expression that says which contributors were
// combined in which order. What comes out is compared with what docs/algorithms.md promises, expression by expression.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
  std::vector<std::uint64_t> counts = {};  // allgatherv
  std::uint32_t replicas = 0;
  std::vector<std::uint32_t> hosts = {}, domains = {};  // by rank; empty: all apart
  Host on = {};                                         // of those hosts of which several ranks are
  std::int32_t owner = 0;
  std::uint64_t element_bytes = 1;
  bool resumed = false;
  Ranges final = {};
  std::vector<std::uint32_t> order = {};  // of the ring; empty: that of ranks
  bool exchanges = false;

  [[nodiscard]] std::uint32_t host(std::int32_t rank) const;
  [[nodiscard]] std::uint32_t domain(std::int32_t rank) const;
  [[nodiscard]] Request request(std::int32_t rank) const;
  [[nodiscard]] std::string describe() const;
};

// In which order what can happen does happen. In all of them a send waits until its receive is posted.
enum class Order {
  kInOrder,      // what could happen first happens first
  kRandom,       // anything, by seed
  kLateSends,    // anything, but a send completes only when nothing else can happen
  kLateLocal,    // anything, but local steps begin and end only when nothing else can happen
  kLatePublish,  // anything, but some ranks publish only when nothing else can happen, and then what came last
  // Anything, and a send completes once it is posted, as where the operating system has taken the bytes: they arrive
  // when they please, or never.
  kEagerSends,
};

// A round between two attempts: what is in the ranks' memory, and what hosts have published.
struct State {
  Expressions expressions;
  std::vector<std::vector<Expression>> user;        // by rank: input and output
  std::vector<std::vector<bool>> final;             // by rank: elements of the output that stand final there
  std::vector<bool> finished;                       // by rank
  std::map<std::uint32_t, std::vector<bool>> logs;  // by host: elements of the whole result; where it has none, one
};
[[nodiscard]] State start_of(const World& world);

// The schedules of all ranks. The request must be valid.
[[nodiscard]] std::vector<Schedule> make_all(const World& world);

// The checks return what is wrong, or nothing.
//
// The form of the schedules: indices, ordinals and counts that agree on both ends, places inside their buffers, rules 2
// and 3 of schedule.h, operands that overlap the destination only where a kernel allows it.
[[nodiscard]] std::string check_form(const World& world, const std::vector<Schedule>& schedules);
// That any two steps of a rank that touch the same element, one of them writing, are ordered by the rank's own
// dependencies, so that no timing can make them meet: a send reads until it completes, a receive owns its slot from its
// posting. What other ranks do is not counted on.
[[nodiscard]] std::string check_races(const World& world, const std::vector<Schedule>& schedules);
// That in a logged round, whatever the timing, nobody sends a final on or finishes before the copies are there that
// must be (docs/invariants.md, "Finals"): as far as it can know from its own steps and from what the messages it
// received imply. A send completes once it is posted.
[[nodiscard]] std::string check_publication(const World& world, const std::vector<Schedule>& schedules);
// Runs them: everything finishes, no two steps in flight touch the same element, whatever is written to an output is
// its documented final value, and in the end all of it is there. Where the round is logged, only finals are published,
// and the copies are there that must be when somebody sends a final or finishes. What is lent is read in the lender's
// memory as it is then, and never after the lender has finished. What is received in a turn is nothing that anybody may
// read until its word has come, which leaves when what it speaks of has finished.
[[nodiscard]] std::string check_run(const World& world, const std::vector<Schedule>& schedules, Order order,
                                    std::uint64_t seed);
// The same from this state on, and at most so many events; `state` becomes what is there then, and `events` how many
// there were.
[[nodiscard]] std::string run_from(const World& world, const std::vector<Schedule>& schedules, Order order,
                                   std::uint64_t seed, State& state, std::uint64_t& events);
// All of them.
[[nodiscard]] std::string check(const World& world, const std::vector<Schedule>& schedules, Order order,
                                std::uint64_t seed);

// The longest chain of messages from the first to the last step of any rank.
[[nodiscard]] std::uint32_t hops(const std::vector<Schedule>& schedules);

}  // namespace warren::schedule::symbolic
