// A table of chances: which features and faults a seed gives its run, beside the numbers that it draws in turn. Each
// row draws by its name alone. So any two may come together, and one more row changes no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "chaos/sim/random.h"

namespace warren::chaos {

// NAME, and that one seed in so many has it.
#define WARREN_CHANCES(X)                                                                 \
  X(large_world, 250)    /* A plan that is announced in several steps, and no log. */     \
  X(recipe, 3)           /* Faults that belong together, instead of drawn ones. */        \
  X(recipe_of, 11)       /* Of those: which, a pick. */                                   \
  X(lends, 7)            /* Allreduces so long that ranks of a host lend their inputs. */ \
  X(one_host, 2)         /* Of those, and with GPUs: on one. */                           \
  X(disks, 5)            /* Hosts have them. */                                           \
  X(mirror, 2)           /* Of those: the job has a mirror of its checkpoints. */         \
  X(spills, 2)           /* Of those: logs in memory are small. */                        \
  X(keeps_processes, 3)  /* Of those: nothing takes all processes at once. */             \
  X(inferred, 20)        /* Set-up rounds that nobody names, where no disks are. */       \
  X(full_logs, 6)        /* Logs without room for all results, in memory and on disks. */ \
  X(repeats, 2)          /* Small calls come several times in a row. */                   \
  X(spares, 4)           /* Workers beyond the world size wait. */                        \
  X(spares_more, 3)      /* Of those: how many more than one, a pick of three. */         \
  X(spares_at, 256)      /* Of those: where, a pick. */                                   \
  X(follows, 2)          /* Of those: they hold the newest checkpoint. */                 \
  X(replaces, 2)         /* Of those: they replace whoever is slow. */                    \
  X(stays_wired, 3)      /* Nothing goes around slow links. */                            \
  X(reorders, 2)         /* Rings go around them. */                                      \
  X(process_stays, 4)    /* A process outlives its life, and the program hears why. */    \
  X(launcher_each, 2)    /* Each worker has a launcher of its own. */                     \
  X(sees, 3)             /* What workers can tell of their host: a pick of three. */      \
  X(shrinks, 10)         /* The job goes on without lost ranks. */                        \
  X(shrinks_on_disks, 3) /* Of those: hosts have disks. */                                \
  X(shrinks_often, 2)    /* Of those: deaths are frequent. */                             \
  X(gpus, 13)            /* Workers have them. */                                         \
  X(gpus_together, 3)    /* Of those: on one host, or two. */                             \
  X(gpus_on_two, 2)      /* Of these: on two. */                                          \
  X(gpus_read, 2)        /* Of these: without NCCL. */                                    \
  X(gpus_algorithm, 3)   /* Of the others: which algorithm. */                            \
  X(gpus_few_bytes, 4)   /* Small messages. */                                            \
  X(gpus_unsaid, 8)      /* Workers do not say that they have one. */                     \
  X(gpus_fail, 2)        /* NCCL's calls fail and GPUs stall, now and then. */            \
  X(all_die, 4)          /* The rest are faults beside those that are drawn in turn. */   \
  X(preempted, 7)                                                                         \
  X(machine_taken, 4)                                                                     \
  X(link_silent, 9)                                                                       \
  X(first_plan_lost, 6)                                                                   \
  X(older_journal, 7)                                                                     \
  X(other_state, 8)

enum class Chance : std::uint8_t {
#define WARREN_X(name, one_in) name,
  WARREN_CHANCES(WARREN_X)
#undef WARREN_X
};
#define WARREN_X(name, one_in) +1  // NOLINT(bugprone-macro-parentheses): a term of a sum
inline constexpr std::size_t kChances = 0 WARREN_CHANCES(WARREN_X);
#undef WARREN_X

struct ChanceInfo {
  std::string_view name;
  std::uint64_t one_in;
};
inline constexpr ChanceInfo kChanceInfo[] = {
#define WARREN_X(name, one_in) {#name, one_in},
    WARREN_CHANCES(WARREN_X)
#undef WARREN_X
};

class Chances {
 public:
  // The rows that a run has, each with its pick, instead of those that its seed gives. Tests keep seeds so that found
  // something once.
  using Kept = std::map<Chance, std::uint64_t>;
  explicit Chances(std::uint64_t seed, std::optional<Kept> kept = std::nullopt) : seed_(seed), kept_(std::move(kept)) {}

  [[nodiscard]] bool has(Chance chance) const {
    return kept_ ? kept_->contains(chance) : pick(chance, info(chance).one_in) == 0;
  }
  // 0 … n − 1.
  [[nodiscard]] std::uint64_t pick(Chance chance, std::uint64_t n) const {
    if (!kept_) return Random::mix(seed_ ^ salt(info(chance).name)) % n;
    const auto found = kept_->find(chance);
    return found == kept_->end() ? 0 : found->second % n;
  }

 private:
  [[nodiscard]] static constexpr const ChanceInfo& info(Chance chance) {
    return kChanceInfo[static_cast<std::size_t>(chance)];
  }
  // FNV-1a, mixed: close seeds and close names have nothing in common.
  [[nodiscard]] static constexpr std::uint64_t salt(std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return Random::mix(hash);
  }

  std::uint64_t seed_;
  std::optional<Kept> kept_;
};

}  // namespace warren::chaos
