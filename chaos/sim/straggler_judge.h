// Judges the stragglers that a simulated tracker names, and asks to leave, by the rank that really is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "chaos/sim/world.h"
#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"

namespace warren::chaos {

class StragglerJudge {
 public:
  explicit StragglerJudge(World& world) : world_(world) {}

  // A line of the tracker's. `plan`: the newest.
  void heard(const LogEvent& event, const wire::Plan& plan);
  // A rank that was asked to leave its place to a spare has left it in time. Called after every event.
  void check_replaced(const wire::Plan& plan);
  // This life was asked last to leave, because it is slow, and nobody has withdrawn that.
  [[nodiscard]] bool told_to_leave(Incarnation life) const { return told_to_leave_ == life; }
  [[nodiscard]] std::uint64_t named() const { return named_; }
  [[nodiscard]] std::uint64_t replaced() const { return replaced_; }

 private:
  [[nodiscard]] bool is_right(const LogEvent& event, const wire::Plan& plan) const;
  void asked_to_leave(std::size_t rank, const wire::Plan& plan);
  void rewired(Rank a, Rank b, const wire::Plan& plan);

  // The life that was asked last to leave its place, and until when it should have.
  struct Asked {
    Incarnation life;
    std::size_t rank;
    Micros at_us, until_us;
    bool left = false;
  };
  World& world_;
  std::optional<Asked> asked_;
  std::optional<Micros> rewired_at_us_;
  Incarnation told_to_leave_;
  std::uint64_t named_ = 0, replaced_ = 0;
};

}  // namespace warren::chaos
