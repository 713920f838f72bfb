// Draws the program of a simulated job from a seed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "chaos/sim/program.h"
#include "chaos/sim/random.h"

namespace warren::chaos {

class ProgramMaker {
 public:
  // `seed`: the program's own, beside what is drawn.
  ProgramMaker(Random& random, const Program::Shape& shape, std::uint64_t seed)
      : random_(random), shape_(shape), seed_(seed) {}
  // Once.
  [[nodiscard]] Program::Made make();

 private:
  [[nodiscard]] std::size_t length(std::int64_t most);
  void draw_versions();
  void draw_rounds_of(std::int64_t v, std::int64_t period, std::int64_t most);
  void draw_checkpoint(Version version, bool local);
  void draw_version(Version version, std::size_t length);
  void draw_inferred(Version version, ProgramStep::Inferred what);
  void draw_setup(Version version);
  void draw_empty(Version version);
  [[nodiscard]] bool draw_repeat(Version version);
  void draw_groups(std::size_t first, std::size_t length);
  void draw_messages(std::size_t group, Version version);
  void append(ProgramStep step);
  [[nodiscard]] ProgramStep draw_step(const Program::Shape& shape, std::size_t group);
  void draw_on_gpus(const Program::Shape& shape, ProgramStep& step);
  void draw_reduction(const Program::Shape& shape, std::uint64_t size, ProgramStep& step);
  void draw_sizes(const Program::Shape& shape, std::uint64_t size, ProgramStep& step);
  static void vary(Random random, const Program::Shape& shape, std::uint64_t size, std::uint64_t most,
                   ProgramStep& step);

  Random& random_;
  const Program::Shape& shape_;
  const std::uint64_t seed_;
  Program::Made made_;
};

}  // namespace warren::chaos
