#include "cli/costs_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

namespace warren::cli {
namespace {

using schedule::Algorithm;
using schedule::Case;
using schedule::Costs;
using schedule::Measured;
using schedule::Network;

constexpr std::size_t kTerms = 5;
using Terms = std::array<double, kTerms>;

// What one nanosecond for each hop, message and byte makes of a call.
Terms terms_of(const Timing& timing, Network where) {
  where.hop_ns = where.message_ns = where.shared_message_ns = 1;
  where.byte_ps = where.reduced_byte_ps = where.logged_byte_ps = 1000;
  const schedule::Estimate e = estimate(timing.what, timing.algorithm, where);
  return {e.hops, e.messages, e.bytes, e.reduced, e.logged};
}

// Least squares of Σ rates · terms − 1, where terms are relative to the time, without negative rates: each rate in turn
// takes its best value given the others, until none changes.
Terms solve(const std::vector<Terms>& rows) {
  constexpr int kMostSweeps = 20'000;
  constexpr double kStill = 1e-9;
  std::array<Terms, kTerms> products{};
  Terms sums{};
  for (const Terms& row : rows) {
    for (std::size_t i = 0; i < kTerms; ++i) {
      sums[i] += row[i];
      for (std::size_t j = 0; j < kTerms; ++j) products[i][j] += row[i] * row[j];
    }
  }
  Terms rates{};
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double change = 0;
    for (std::size_t i = 0; i < kTerms; ++i) {
      if (products[i][i] <= 0) continue;
      double rest = sums[i];
      for (std::size_t j = 0; j < kTerms; ++j) rest -= j == i ? 0 : products[i][j] * rates[j];
      const double better = std::max(0.0, rest / products[i][i]);
      change = std::max(change, std::abs(better - rates[i]) / std::max(better, 1e-12));
      rates[i] = better;
    }
    if (change < kStill) break;
  }
  return rates;
}

std::uint32_t rounded(double rate) {
  return static_cast<std::uint32_t>(std::clamp(std::round(rate), 0.0, 1e9));
}

bool same_case(const Timing& a, const Timing& b) {
  return std::tuple(a.what.collective, a.what.size, a.what.bytes) ==
         std::tuple(b.what.collective, b.what.size, b.what.bytes);
}

}  // namespace

Network fit_rates(std::span<const Timing> timings, const Network& where) {
  std::vector<Terms> rows;
  Terms seen{};
  for (const Timing& t : timings) {
    if (t.median_us <= 0) continue;
    Terms row = terms_of(t, where);
    for (std::size_t i = 0; i < kTerms; ++i) {
      row[i] /= t.median_us * 1e3;
      seen[i] = std::max(seen[i], row[i]);
    }
    rows.push_back(row);
  }
  const Terms rates = solve(rows);
  Network fitted = where;
  const bool shared = where.cores != 0;
  std::uint32_t& message_ns = shared ? fitted.shared_message_ns : fitted.message_ns;
  constexpr double kPsPerNs = 1e3;
  if (seen[0] > 0) fitted.hop_ns = rounded(rates[0]);
  if (seen[1] > 0) message_ns = rounded(rates[1]);
  if (seen[2] > 0) fitted.byte_ps = rounded(rates[2] * kPsPerNs);
  if (seen[3] > 0) fitted.reduced_byte_ps = rounded(rates[3] * kPsPerNs);
  if (seen[4] > 0) fitted.logged_byte_ps = rounded(rates[4] * kPsPerNs);
  // Nobody who has a core of its own is woken more slowly.
  if (shared) {
    fitted.message_ns = std::min(fitted.message_ns, fitted.shared_message_ns);
  } else {
    fitted.shared_message_ns = std::max(fitted.message_ns, fitted.shared_message_ns);
  }
  return fitted;
}

std::vector<Measured> measured_better(std::span<const Timing> timings, const Costs& costs) {
  constexpr double kWorthIt = 1.1;
  // What was measured of the largest size says as much of sizes below this multiple of it, and nothing of larger ones.
  constexpr std::uint64_t kBeyond = 4;
  std::vector<Measured> out;
  for (std::size_t first = 0, end = 0; first < timings.size(); first = end) {
    const Case& what = timings[first].what;
    const Algorithm chosen = choose(what, costs);
    const Timing* best = nullptr;
    const Timing* ours = nullptr;
    for (end = first; end < timings.size() && same_case(timings[first], timings[end]); ++end) {
      const Timing& t = timings[end];
      if (best == nullptr || t.median_us < best->median_us) best = &t;
      if (t.algorithm == chosen) ours = &t;
    }
    const bool better = ours != nullptr && best->median_us * kWorthIt < ours->median_us &&
                        best->high_us < ours->median_us && best->median_us < ours->low_us;
    const Algorithm algorithm = better ? best->algorithm : Algorithm::kAuto;
    const bool continues = !out.empty() && out.back().collective == what.collective && out.back().size == what.size;
    if (algorithm != (continues ? out.back().algorithm : Algorithm::kAuto)) {
      out.push_back({what.collective, what.size, what.bytes, algorithm});
    }
    const bool last =
        end == timings.size() || timings[end].what.collective != what.collective || timings[end].what.size != what.size;
    if (last && algorithm != Algorithm::kAuto && what.bytes > 0) {
      out.push_back({what.collective, what.size, kBeyond * what.bytes, Algorithm::kAuto});
    }
  }
  return out;
}

}  // namespace warren::cli
