#include "chaos/sim/program.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "chaos/sim/program_maker.h"
#include "chaos/sim/results.h"
#include "recovery/base/check.h"

namespace warren::chaos {
namespace {

constexpr std::uint64_t kMostStateBytes = 3000;

}  // namespace

Program::Program(Random& random, const Shape& shape)
    : seed_(random.next()), made_(ProgramMaker(random, shape, seed_).make()) {}

std::vector<std::size_t> Program::made_again(ProgramStep::Inferred when) const {
  std::vector<std::size_t> steps;
  for (const ProgramStep& s : made_.steps) {
    if (s.inferred == when) steps.push_back(s.index);
  }
  return steps;
}

bool Program::infers() const {
  return std::ranges::any_of(made_.steps,
                             [](const ProgramStep& s) { return s.inferred != ProgramStep::Inferred::kNot; });
}

bool Program::makes_once_rounds(Version version) const {
  const std::uint64_t v = version.value - version_of_program(0).value;
  return v >= made_.once_in && (v - made_.once_in) % made_.versions_an_iteration == 0;
}

bool Program::has_made_once_rounds_before(Version loaded) const {
  return loaded > version_of_program(made_.once_in);
}

bool Program::has_messages() const {
  return std::any_of(made_.steps.begin(), made_.steps.end(), [](const ProgramStep& step) {
    return step.kind == StepKind::kRound && step.collective == Collective::kPoint;
  });
}

bool Program::loads() const {
  return std::any_of(made_.steps.begin(), made_.steps.end(),
                     [](const ProgramStep& step) { return step.kind == StepKind::kLoad; });
}

bool Program::one_group() const {
  return made_.groups.size() == 1 && !has_messages();
}

std::size_t Program::position_after_load(Version version) const {
  for (const ProgramStep& step : made_.steps) {
    if (step.kind == StepKind::kCheckpoint && step.version == version) return step.index + 1;
    if (step.kind == StepKind::kLoad && version == version_of_program(0)) return step.index + 1;
  }
  WARREN_UNREACHABLE("no version is loaded that the program does not have");
}

std::uint64_t Program::result_bytes(bool lasting) const {
  std::uint64_t bytes = 0;
  for (const ProgramStep& step : made_.steps) {
    if (step.kind == StepKind::kCheckpoint) bytes += 2 * kMostStateBytes;
    if (!lasting || step.setup) bytes += result_bytes(step);
  }
  return bytes;
}

std::uint64_t Program::most_result_bytes(std::size_t steps) const {
  std::uint64_t most = 0, sum = 0;
  for (std::size_t i = 0; i < made_.steps.size(); ++i) {
    sum += result_bytes(made_.steps[i]);
    if (i >= steps) sum -= result_bytes(made_.steps[i - steps]);
    most = std::max(most, sum);
  }
  return most;
}

std::uint64_t Program::result_bytes(const ProgramStep& step) const {
  if (step.kind != StepKind::kRound || step.collective == Collective::kBarrier) return 0;
  std::uint64_t bytes = 0;
  const auto size = static_cast<std::int32_t>(members(step).size());
  const bool shared = shared_result(step.collective);
  for (std::int32_t place = 0; place < (shared ? 1 : size); ++place) bytes += out_count(step, place) * width_of(step);
  return bytes;
}

std::vector<std::size_t> Program::order_of(Rank rank) const {
  std::vector<std::size_t> order(made_.steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const Burst& burst : made_.reversed) {
    if (burst.receiver != rank) continue;
    std::reverse(order.begin() + static_cast<std::ptrdiff_t>(burst.first),
                 order.begin() + static_cast<std::ptrdiff_t>(burst.end));
  }
  return order;
}

std::optional<std::int32_t> Program::place(const ProgramStep& step, Rank rank) const {
  const auto& ranks = members(step);
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) return std::nullopt;
  const auto place = static_cast<std::int32_t>(at - ranks.begin());
  if (step.collective == Collective::kPoint && place != step.root && place != step.receiver) return std::nullopt;
  return place;
}

std::vector<std::uint64_t> Program::sent_by(const ProgramStep& step, std::int32_t place) const {
  return chaos::sent_by(step, members(step).size(), place);
}

std::vector<std::uint64_t> Program::got_by(const ProgramStep& step, std::int32_t place) const {
  return chaos::got_by(step, members(step).size(), place);
}

std::uint64_t Program::in_count(const ProgramStep& step, std::int32_t place) const {
  return chaos::in_count(step, members(step).size(), place);
}

std::uint64_t Program::out_count(const ProgramStep& step, std::int32_t place) const {
  return chaos::out_count(step, members(step).size(), place);
}

std::int64_t Program::in_place_at(const ProgramStep& step, std::int32_t place) const {
  return chaos::in_place_at(step, place);
}

std::uint64_t Program::input_key(const ProgramStep& step, std::int32_t place, const ProgramState& state,
                                 std::uint64_t salt) const {
  const std::uint64_t name = Random::mix(step.index * 0x10001 + static_cast<std::uint64_t>(place));
  if (step.once()) return Random::mix(seed_ ^ name);
  return Random::mix(seed_ ^ name ^ Random::mix(state.global + 1) ^ Random::mix(state.local + 2) ^
                     Random::mix(salt + 3) ^ Random::mix(state.setup + 4));
}

std::vector<std::byte> Program::input(const ProgramStep& step, std::int32_t place, std::uint64_t key) const {
  return input_of(step, members(step).size(), place, key);
}

std::vector<std::byte> Program::expected(const ProgramStep& step, std::int32_t place, Keys keys) const {
  return expected_of(step, members(step).size(), place, keys);
}

std::string Program::judge(const ProgramStep& step, std::int32_t place, Keys keys, std::span<const std::byte> got,
                           std::span<const std::byte> expected) const {
  return judge_result(step, members(step).size(), place, keys, got, expected);
}

void Program::fold(const ProgramStep& step, std::span<const std::byte> output, ProgramState& state) {
  // Rounded results are not known before somebody has computed them.
  if (step.values != Values::kExact || output.empty() || step.once()) return;
  const std::uint64_t hash = Random::mix(XXH3_64bits_withSeed(output.data(), output.size(), step.index));
  if (step.setup) {
    if (step.setup == step.index) state.setup += hash;
    return;
  }
  (step.group == 0 && shared_result(step.collective) ? state.global : state.local) += hash;
}

void Program::settle(const ProgramStep& checkpoint, ProgramState& state) {
  if (!checkpoint.local) state.local = 0;
}

namespace {
std::vector<std::byte> saved(std::uint64_t value, std::uint64_t draw) {
  // Short ones too, of less than a byte for each rank.
  const std::uint64_t size = draw % 4 == 0 ? 8 : 8 + draw / 4 % (kMostStateBytes - 8);
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), &value, sizeof value);
  for (std::size_t i = sizeof value; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(Random::mix(value + i / 8) >> (i % 8 * 8));
  }
  return bytes;
}
}  // namespace

std::vector<std::byte> Program::saved_global(Version version, const ProgramState& state) const {
  return saved(state.global, Random::mix(seed_ ^ version.value));
}
std::vector<std::byte> Program::saved_local(Version version, Rank rank, const ProgramState& state) const {
  return saved(state.local, Random::mix(seed_ ^ version.value * 0x10001 ^ static_cast<std::uint64_t>(rank.value + 1)));
}

std::optional<ProgramState> Program::restored(Version version, Rank rank, std::span<const std::byte> global,
                                              std::span<const std::byte> local) const {
  ProgramState state;
  if (global.size() < sizeof state.global) return std::nullopt;
  std::memcpy(&state.global, global.data(), sizeof state.global);
  if (!local.empty()) {
    if (local.size() < sizeof state.local) return std::nullopt;
    std::memcpy(&state.local, local.data(), sizeof state.local);
    const auto right = saved_local(version, rank, state);
    if (!std::equal(right.begin(), right.end(), local.begin(), local.end())) return std::nullopt;
  }
  const auto right = saved_global(version, state);
  if (!std::equal(right.begin(), right.end(), global.begin(), global.end())) return std::nullopt;
  return state;
}

}  // namespace warren::chaos
