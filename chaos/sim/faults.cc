#include "chaos/sim/faults.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace warren::chaos {

const FaultInfo& info(Fault fault) {
  using enum RateMeaning;
  static constexpr FaultInfo kInfo[] = {
#define WARREN_X(name, meaning, rate) {#name, meaning, rate},
      WARREN_FAULTS(WARREN_X)
#undef WARREN_X
  };
  return kInfo[static_cast<std::size_t>(fault)];
}

bool FaultPlan::any() const {
  return std::any_of(rates.begin(), rates.end(), [](double rate) { return rate > 0; });
}

FaultPlan FaultPlan::draw(Random& random, bool logged) {
  FaultPlan plan;
  if (random.below(12) == 0) return plan;
  static constexpr double kIntensities[] = {0.3, 1.0, 3.0};
  const std::uint64_t kinds = 1 + random.below(6);
  for (std::uint64_t i = 0; i < kinds; ++i) {
    const auto fault = static_cast<Fault>(random.below(kFaults - kFaultsDrawnApart));
    const double rate = info(fault).rate * random.pick(kIntensities);
    plan.set(fault, info(fault).meaning == RateMeaning::kPerChance ? std::min(rate, 0.9) : rate);
  }
  if (!logged) return plan;
  static constexpr Fault kDeaths[] = {Fault::death,           Fault::death,           Fault::silent_death,
                                      Fault::death_at_send,   Fault::death_at_return, Fault::death_at_completion,
                                      Fault::host_loss,       Fault::domain_loss,     Fault::death_at_checkpoint,
                                      Fault::death_at_recall, Fault::link_cut};
  for (int i = 0; i < 3; ++i) {
    const Fault fault = random.pick(kDeaths);
    // A job without faults takes a tenth of a second.
    static constexpr double kMore[] = {1.0, 5.0, 20.0};
    const double rate = info(fault).rate * random.pick(kMore);
    plan.set(fault, info(fault).meaning == RateMeaning::kPerChance ? std::min(rate, 0.2) : rate);
  }
  plan.set(Fault::second_strike, random.chance(0.3) ? 0.3 : 0.9);
  return plan;
}

Recipe recipe(std::size_t which) {
  using enum Fault;
  Recipe r;
  const auto rates = [&r](std::initializer_list<std::pair<Fault, double>> all) {
    for (const auto& [fault, rate] : all) r.faults.set(fault, rate);
  };
  switch (which) {
    case 0:  // some ranks are in finalize for long, and die there
      rates({{slow_finalize, 0.5}, {death, 0.3}, {silent_death, 0.3}, {gave_up, 0.2}, {twin_life, 0.2}});
      r.long_safety = true;
      break;
    case 1:  // the same without a tracker now and then
      rates({{slow_finalize, 0.5}, {tracker_crash, 0.5}, {link_cut, 1.0}, {death, 0.1}, {twin_life, 0.2}});
      r.long_safety = r.short_join_timeout = true;
      break;
    case 2:  // plans and interrupts of others
      rates({{message_misdirected, 100.0}, {death, 1.0}, {message_replayed, 5.0}});
      r.long_safety = true;
      break;
    case 3:  // more who want to join than places, and places that stay empty
      rates({{absent_worker, 0.3}, {spare_worker, 1.0}, {gave_up, 1.0}, {wrong_settings, 0.3}, {death, 1.0}});
      r.long_safety = true;
      break;
    case 4:  // all ranks wait for a slow one
      rates({{slow_rank, 0.3}, {pause, 0.1}, {connection_drop, 0.2}});
      r.long_safety = true;
      break;
    case 5:  // somebody is missing for long
      rates({{absent_worker, 0.5}, {slow_start, 0.5}});
      r.long_safety = true;
      break;
    case 6:  // ranks give up in finalize
      rates({{slow_finalize, 0.8}, {gave_up, 2.0}, {death, 2.0}, {message_late, 0.3}});
      r.long_safety = true;
      break;
    case 7:  // machines go, and what is said of it gets lost
      rates({{host_loss, 30.0}, {death, 5.0}, {message_lost, 0.3}});
      r.beyond_copies = true;
      break;
    case 8:  // the tracker's machine goes with its disk, while ranks are being replaced
      rates({{tracker_loss, 3.0}, {death, 3.0}, {death_at_checkpoint, 0.1}, {second_strike, 0.6}, {slow_stop, 0.3}});
      break;
    case 9:  // some workers go to another tracker for a while
      rates({{second_tracker, 5.0}, {death, 0.5}, {connection_drop, 0.5}});
      r.long_safety = true;
      break;
    default:  // everybody gives up at once
      rates({{gave_up, 3.0}, {message_late, 0.2}, {slow_stop, 0.5}});
      break;
  }
  return r;
}

}  // namespace warren::chaos
