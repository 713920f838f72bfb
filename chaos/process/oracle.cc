#include "chaos/process/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>

namespace warren::chaos::process {
namespace {

// What travels as bf16 is rounded to it, to nearest even: here of finite values.
template <class T>
T on_wire(const Call& call, T value) {
  if constexpr (std::is_same_v<T, float>) {
    if (call.wire == CallWire::kBF16) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
    }
  }
  return value;
}

// A result that travels as i8: of each 256 values of a share the first is the largest, and comes out as 127 steps.
template <class T>
void blocks_on_wire(const Call& call, std::vector<T>& shares) {
  if constexpr (std::is_same_v<T, float>) {
    if (call.wire != CallWire::kI8) return;
    float step = 0, factor = 0;
    for (std::size_t j = 0; j < shares.size(); j++) {
      if (j % call.count % kBlockValues == 0) {
        step = shares[j] / 127.0f;
        factor = 127.0f / shares[j];
      }
      shares[j] = std::nearbyint(shares[j] * factor) * step;
    }
  }
}

// What a rank's input contributes.
template <class T>
std::vector<T> input(const Call& call, std::uint64_t base, std::size_t count) {
  std::vector<T> out(count);
  for (std::size_t j = 0; j < count; j++) out[j] = on_wire(call, input_at<T>(call, base, j));
  return out;
}

template <class T>
T combined(CallOp op, T a, T b) {
  if (op == CallOp::kMax) return std::max(a, b);
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
}

template <class T>
std::uint64_t digest(std::span<const T> values) {
  return digest_of(std::as_bytes(values));
}

// By position among the members, of the inputs that begin at `bases`.
template <class T>
std::vector<std::uint64_t> results(const Call& call, std::span<const std::uint64_t> bases) {
  const std::size_t size = bases.size(), n = call.count;
  std::vector<std::uint64_t> out(size, 0);
  const bool reduces = call.kind == CallKind::kAllreduce || call.kind == CallKind::kReduce ||
                       call.kind == CallKind::kReduceScatter || call.kind == CallKind::kReduceScatterv;
  const auto sum_of = [](const std::vector<std::size_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  };
  if (reduces) {
    const std::size_t whole = call.kind == CallKind::kReduceScatter    ? n * size
                              : call.kind == CallKind::kReduceScatterv ? sum_of(counts_to(call, size, 0))
                                                                       : n;
    std::vector<T> sum = input<T>(call, bases[0], whole);
    for (std::size_t r = 1; r < size; r++) {
      for (std::size_t j = 0; j < whole; j++) {
        sum[j] = combined(call.op, sum[j], on_wire(call, input_at<T>(call, bases[r], j)));
      }
    }
    for (T& value : sum) {
      if constexpr (std::is_floating_point_v<T>) {
        if (call.op == CallOp::kAverage) value /= static_cast<T>(size);
      }
      value = on_wire(call, value);
    }
    blocks_on_wire(call, sum);
    const std::span<const T> all(sum);
    if (call.kind == CallKind::kAllreduce) std::ranges::fill(out, digest(all));
    if (call.kind == CallKind::kReduce) out[call.root] = digest(all);
    if (call.kind == CallKind::kReduceScatter) {
      for (std::size_t r = 0; r < size; r++) out[r] = digest(all.subspan(r * n, n));
    }
    if (call.kind == CallKind::kReduceScatterv) {
      std::size_t at = 0;
      for (std::size_t r = 0; r < size; at += uneven_count(call, 0, r++)) {
        out[r] = digest(all.subspan(at, uneven_count(call, 0, r)));
      }
    }
  } else if (call.kind == CallKind::kAllToAllv) {
    for (std::size_t r = 0; r < size; r++) {
      std::vector<T> mine;
      for (std::size_t from = 0; from < size; from++) {
        std::size_t at = 0;
        for (std::size_t to = 0; to < r; to++) at += uneven_count(call, from, to);
        for (std::size_t j = 0; j < uneven_count(call, from, r); j++) {
          mine.push_back(element_at<T>(bases[from], at + j));
        }
      }
      out[r] = digest(std::span<const T>(mine));
    }
  } else if (call.kind == CallKind::kBroadcast) {
    std::ranges::fill(out, digest(std::span<const T>(input<T>(call, bases[call.root], n))));
  } else if (call.kind == CallKind::kAllgather || call.kind == CallKind::kGather) {
    std::vector<T> all;
    for (const std::uint64_t base : bases) {
      const std::vector<T> one = input<T>(call, base, n);
      all.insert(all.end(), one.begin(), one.end());
    }
    if (call.kind == CallKind::kGather) {
      out[call.root] = digest(std::span<const T>(all));
    } else {
      std::ranges::fill(out, digest(std::span<const T>(all)));
    }
  } else if (call.kind == CallKind::kScatter) {
    const std::vector<T> all = input<T>(call, bases[call.root], n * size);
    for (std::size_t r = 0; r < size; r++) out[r] = digest(std::span<const T>(all).subspan(r * n, n));
  } else if (call.kind == CallKind::kExchange) {
    for (std::size_t r = 0; r < size && size > 1; r++) {
      out[r] = digest(std::span<const T>(input<T>(call, bases[(r + size - 1) % size], n)));
    }
  } else if (call.kind == CallKind::kAllToAll) {
    for (std::size_t r = 0; r < size; r++) {
      std::vector<T> mine;
      for (std::size_t from = 0; from < size; from++) {
        for (std::size_t j = r * n; j < (r + 1) * n; j++) mine.push_back(element_at<T>(bases[from], j));
      }
      out[r] = digest(std::span<const T>(mine));
    }
  }
  return out;
}

std::vector<std::uint64_t> results_of(const Call& call, std::span<const std::uint64_t> bases) {
  switch (call.type) {
    case ElementType::kU8: return results<std::uint8_t>(call, bases);
    case ElementType::kI32: return results<std::int32_t>(call, bases);
    case ElementType::kI64: return results<std::int64_t>(call, bases);
    case ElementType::kU64: return results<std::uint64_t>(call, bases);
    case ElementType::kF32: return results<float>(call, bases);
    case ElementType::kF64: return results<double>(call, bases);
  }
  return {};
}

}  // namespace

Oracle::Oracle(const Program& program) : program_(program) {
  for (std::uint32_t r = 0; r < program.shape().ranks; r++) states_.push_back(program.initial(r));
}

Oracle::Digests Oracle::from_the_beginning(const Call& call, std::uint32_t number) const {
  std::vector<std::uint64_t> bases;
  for (std::uint32_t r = 0; r < program_.shape().ranks; r++) {
    bases.push_back(program_.input_base(0, number, r, program_.initial(r)));
  }
  return results_of(call, bases);
}

Oracle::Digests Oracle::preamble() const {
  return from_the_beginning(program_.preamble(), kPreambleCall);
}

std::vector<Oracle::Digests> Oracle::setups() const {
  std::vector<Digests> all;
  for (const Call& call : program_.setups()) {
    all.push_back(from_the_beginning(call, kFirstSetupCall + static_cast<std::uint32_t>(all.size())));
  }
  return all;
}

const std::vector<Oracle::Digests>& Oracle::iteration(std::uint64_t index) {
  while (iterations_.size() <= index) next();
  return iterations_[index];
}

const Oracle::StateDigests& Oracle::version(std::uint64_t version) {
  while (versions_.size() < version) next();
  return versions_[version - 1];
}

void Oracle::next() {
  const std::uint64_t index = iterations_.size();
  const std::uint32_t ranks = program_.shape().ranks;
  const std::vector<Call> calls = program_.iteration(index);
  std::vector<Digests> out;
  std::size_t folded = 0;
  const auto fold_until = [&](std::size_t end) {
    for (; folded < end; folded++) {
      for (std::uint32_t r = 0; r < ranks; r++) program_.fold(calls[folded], out[folded][r], 0, states_[r]);
    }
  };
  for (std::size_t i = 0; i < calls.size(); i++) {
    const Call& call = calls[i];
    // Results of calls in flight are known only when they are awaited.
    if (!call.in_flight) fold_until(i);
    Digests digests(ranks, 0);
    std::vector<std::uint64_t> bases(ranks);
    for (std::uint32_t r = 0; r < ranks; r++) {
      bases[r] = program_.input_base(index, static_cast<std::uint32_t>(i), r, states_[r]);
    }
    if (call.on_group || call.on_own_group) {
      for (const std::uint32_t color : {0u, 1u}) {
        const std::vector<std::uint32_t> members = program_.members(color);
        if (members.empty()) continue;
        std::vector<std::uint64_t> theirs;
        for (const std::uint32_t r : members) theirs.push_back(bases[r]);
        const auto got = results_of(call, theirs);
        for (std::size_t m = 0; m < members.size(); m++) digests[members[m]] = got[m];
      }
    } else if (!call.decision) {
      digests = results_of(call, bases);
    }
    out.push_back(std::move(digests));
    if (!call.in_flight) fold_until(i + 1);
  }
  fold_until(calls.size());
  iterations_.push_back(std::move(out));
  if (!program_.checkpoint_after(index)) return;
  StateDigests states;
  const std::uint64_t version = (index + 1) / program_.shape().checkpoint_every;
  for (std::uint32_t r = 0; r < ranks; r++) {
    states.global = digest_of(program_.global_state(version, states_[r]));
    states.local.push_back(digest_of(program_.local_state(version, r, states_[r])));
  }
  versions_.push_back(std::move(states));
}

ShrinkOracle::ShrinkOracle(const Program& program) : program_(program), calls_(program.iteration(0)) {
  for (std::uint32_t r = 0; r < program.shape().ranks; r++) states_.push_back(program.initial(r));
}

std::uint64_t ShrinkOracle::preamble(Contributors contributors) const {
  std::vector<std::uint64_t> bases;
  for (std::uint32_t r = 0; r < program_.shape().ranks; r++) {
    if ((contributors >> r & 1) != 0) bases.push_back(program_.input_base(0, kPreambleCall, r, program_.initial(r)));
  }
  return results_of(program_.preamble(), bases)[0];
}

std::uint64_t ShrinkOracle::next(Contributors contributors) {
  const Call& call = calls_[at_];
  if (!call.in_flight) fold_all();
  std::vector<std::uint64_t> bases;
  for (std::uint32_t r = 0; r < states_.size(); r++) {
    if ((contributors >> r & 1) != 0) {
      bases.push_back(program_.input_base(iteration_, static_cast<std::uint32_t>(at_), r, states_[r]));
    }
  }
  const std::uint64_t digest = call.decision ? 0 : results_of(call, bases)[0];
  unfolded_.push_back({digest, contributors});
  const bool in_flight = call.in_flight;
  at_++;
  if (!in_flight || at_ == calls_.size()) fold_all();
  if (at_ == calls_.size()) {
    calls_ = program_.iteration(++iteration_);
    at_ = 0;
  }
  return digest;
}

void ShrinkOracle::fold_all() {
  for (; !unfolded_.empty(); unfolded_.pop_front()) {
    const Call& call = calls_[at_ - unfolded_.size()];
    for (ProgramState& state : states_) {
      program_.fold(call, unfolded_.front().digest, unfolded_.front().contributors, state);
    }
  }
}

}  // namespace warren::chaos::process
