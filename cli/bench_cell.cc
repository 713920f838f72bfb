#include "cli/bench_cell.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace warren::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRoot = 0;
constexpr std::byte kPoison{0xa5};

Status outcome(warren_code code, std::string_view what) {
  if (code == WARREN_OK) return {};
  return Status(static_cast<Code>(code), warren_last_error()).because_of_this(std::string(what) + " failed");
}

// One of a rank's two buffers.
class Memory {
 public:
  Memory() = default;
  ~Memory() {
    if (gpu_ != nullptr) gpu_->give_back(buffer_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] Status take(worker::ProgramGpu* gpu, std::size_t bytes) {
    bytes_ = bytes;
    if (gpu == nullptr) {
      own_.resize(bytes);
      return {};
    }
    auto buffer = gpu->take(bytes);
    if (!buffer.ok()) return buffer.status();
    buffer_ = buffer.value();
    gpu_ = gpu;
    return {};
  }
  // As the CPU sees it, on a GPU from fetch() to send().
  [[nodiscard]] std::span<std::byte> host() { return {gpu_ == nullptr ? own_.data() : buffer_.host, bytes_}; }
  // What a call is given for a place in host(); null if it is in the other buffer.
  [[nodiscard]] std::byte* given(std::byte* at) {
    const std::span<std::byte> all = host();
    if (at < all.data() || at >= all.data() + all.size()) return nullptr;
    return gpu_ == nullptr ? at : buffer_.device + (at - buffer_.host);
  }
  [[nodiscard]] bool holds(std::byte* at) { return given(at) != nullptr; }
  // And waits: what is timed next begins with the buffers as they are.
  [[nodiscard]] Status send() {
    if (gpu_ == nullptr) return {};
    const Status sent = gpu_->send(buffer_, bytes_);
    return sent.ok() ? gpu_->wait() : sent;
  }
  [[nodiscard]] Status fetch() { return gpu_ == nullptr ? Status() : gpu_->fetch(buffer_, bytes_); }

 private:
  std::vector<std::byte> own_;
  worker::ProgramGpu* gpu_ = nullptr;
  worker::ProgramGpu::Buffer buffer_;
  std::size_t bytes_ = 0;
};

// A cell on one rank: its buffers, how they are filled, the call, and what must come out.
class Bench {
 public:
  Bench(warren_comm* comm, const Cell& cell, const BenchData& data)
      : comm_(comm),
        cell_(cell),
        data_(data),
        rank_(warren_rank(comm)),
        ranks_(warren_world_size(comm)),
        element_(cell.type.bytes) {
    const auto ranks = static_cast<std::size_t>(ranks_);
    const std::size_t whole = std::max<std::size_t>(1, cell.bytes / element_);
    const std::size_t share = std::max<std::size_t>(1, cell.bytes / element_ / ranks);
    switch (cell.collective.collective) {
      case BenchCollective::kAllreduce:
      case BenchCollective::kReduce:
      case BenchCollective::kBroadcast:
      case BenchCollective::kSendRecv: count_ = in_ = out_ = whole; break;
      case BenchCollective::kBarrier: count_ = in_ = out_ = 0; break;
      case BenchCollective::kAllgather:
      case BenchCollective::kGather: count_ = in_ = share, out_ = share * ranks; break;
      case BenchCollective::kAllgatherv:
        for (std::size_t r = 0; r < ranks; ++r) counts_.push_back(share + r % 2), out_ += counts_.back();
        count_ = in_ = counts_[static_cast<std::size_t>(rank_)];
        break;
      case BenchCollective::kReduceScatter:
      case BenchCollective::kScatter: count_ = out_ = share, in_ = share * ranks; break;
      case BenchCollective::kAllToAll: count_ = share, in_ = out_ = share * ranks; break;
    }
    larger_ = std::max(in_, out_);
  }

  // Before anything else.
  [[nodiscard]] Status take_memory() {
    // In place the two share the larger buffer.
    const bool shared = cell_.in_place && cell_.collective.in_place;
    if (Status s = first_.take(cell_.gpu, (shared ? larger_ : in_) * element_); !s.ok()) return s;
    if (!shared) {
      if (Status s = second_.take(cell_.gpu, out_ * element_); !s.ok()) return s;
    }
    in_at_ = first_.host().data();
    out_at_ = shared ? in_at_ : second_.host().data();
    if (shared) place_shares();
    if (collective() == BenchCollective::kBroadcast) out_at_ = in_at_;
    return {};
  }

  [[nodiscard]] std::uint64_t bytes() const { return larger_ * element_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

  [[nodiscard]] Status fill() {
    std::ranges::fill(first_.host(), kPoison);
    std::ranges::fill(second_.host(), kPoison);
    const bool has_input =
        rank_ == kRoot || (collective() != BenchCollective::kBroadcast && collective() != BenchCollective::kScatter);
    if (has_input) data_.input(rank_).fill({in_at_, in_ * element_}, 0);
    if (Status s = first_.send(); !s.ok()) return s;
    return second_.send();
  }

  [[nodiscard]] warren_code call(const warren_call_options* options) {
    const warren_type t = cell_.type.type;
    const warren_op op = cell_.op.op;
    std::byte* const in = given(in_at_);
    std::byte* const out = given(out_at_);
    switch (collective()) {
      case BenchCollective::kAllreduce: return warren_allreduce(comm_, in, out, count_, t, op, options, nullptr);
      case BenchCollective::kReduce:
        return warren_reduce(comm_, in, at_root(out), count_, t, op, kRoot, options, nullptr);
      case BenchCollective::kBroadcast: return warren_broadcast(comm_, in, count_, t, kRoot, options, nullptr);
      case BenchCollective::kBarrier: return warren_barrier(comm_, options, nullptr);
      case BenchCollective::kAllgather: return warren_allgather(comm_, in, out, count_, t, options, nullptr);
      case BenchCollective::kAllgatherv: return warren_allgatherv(comm_, in, out, counts_.data(), t, options, nullptr);
      case BenchCollective::kReduceScatter:
        return warren_reduce_scatter(comm_, in, out, count_, t, op, options, nullptr);
      case BenchCollective::kGather: return warren_gather(comm_, in, at_root(out), count_, t, kRoot, options, nullptr);
      case BenchCollective::kScatter:
        return warren_scatter(comm_, at_root(in), out, count_, t, kRoot, options, nullptr);
      case BenchCollective::kAllToAll: return warren_all_to_all(comm_, in, out, count_, t, options, nullptr);
      case BenchCollective::kSendRecv: return send_and_receive(in, out);
    }
    return WARREN_INTERNAL;
  }

  // Wrong elements in this rank's result.
  [[nodiscard]] Result<std::uint64_t> errors() {
    if (Status s = (first_.holds(out_at_) ? first_ : second_).fetch(); !s.ok()) return s;
    return errors_on_cpu();
  }

 private:
  [[nodiscard]] std::uint64_t errors_on_cpu() const {
    const auto mine = static_cast<std::size_t>(rank_) * count_;
    switch (collective()) {
      case BenchCollective::kAllreduce: return data_.reduced().errors(result(0, count_), 0);
      case BenchCollective::kReduce: return rank_ == kRoot ? data_.reduced().errors(result(0, count_), 0) : 0;
      case BenchCollective::kBroadcast: return data_.input(kRoot).errors(result(0, count_), 0);
      case BenchCollective::kBarrier: return 0;
      case BenchCollective::kAllgather: return errors_by_block(0);
      case BenchCollective::kGather: return rank_ == kRoot ? errors_by_block(0) : 0;
      case BenchCollective::kAllToAll: return errors_by_block(mine);
      case BenchCollective::kAllgatherv: {
        std::uint64_t wrong = 0;
        std::size_t at = 0;
        for (int r = 0; r < ranks_; ++r) {
          const std::size_t n = counts_[static_cast<std::size_t>(r)];
          wrong += data_.input(r).errors(result(at, n), 0);
          at += n;
        }
        return wrong;
      }
      case BenchCollective::kReduceScatter: return data_.reduced().errors(result(0, count_), mine);
      case BenchCollective::kScatter: return data_.input(kRoot).errors(result(0, count_), mine);
      case BenchCollective::kSendRecv: return data_.input((rank_ + ranks_ - 1) % ranks_).errors(result(0, count_), 0);
    }
    return 1;
  }

  // In place, a rank's share lies inside the whole where the collective wants it.
  void place_shares() {
    std::size_t mine = static_cast<std::size_t>(rank_) * count_;
    switch (collective()) {
      case BenchCollective::kAllgatherv:
        mine = 0;
        for (int r = 0; r < rank_; ++r) mine += counts_[static_cast<std::size_t>(r)];
        [[fallthrough]];
      case BenchCollective::kAllgather:
      case BenchCollective::kGather: in_at_ = first_.host().data() + mine * element_; break;
      case BenchCollective::kReduceScatter:
      case BenchCollective::kScatter: out_at_ = first_.host().data() + mine * element_; break;
      default: break;
    }
  }

  [[nodiscard]] BenchCollective collective() const { return cell_.collective.collective; }
  [[nodiscard]] std::byte* at_root(std::byte* buffer) const { return rank_ == kRoot ? buffer : nullptr; }
  [[nodiscard]] std::span<const std::byte> result(std::size_t from, std::size_t count) const {
    return {out_at_ + from * element_, count * element_};
  }

  [[nodiscard]] std::uint64_t errors_by_block(std::size_t offset) const {
    std::uint64_t wrong = 0;
    for (int r = 0; r < ranks_; ++r) {
      wrong += data_.input(r).errors(result(static_cast<std::size_t>(r) * count_, count_), offset);
    }
    return wrong;
  }

  [[nodiscard]] std::byte* given(std::byte* at) {
    std::byte* const in_first = first_.given(at);
    return in_first != nullptr ? in_first : second_.given(at);
  }

  warren_code send_and_receive(const std::byte* in, std::byte* out) {
    constexpr int kTag = 7;
    warren_handle* sending = nullptr;
    warren_code code = warren_send(comm_, in, count_, cell_.type.type, (rank_ + 1) % ranks_, kTag, nullptr, &sending);
    if (code != WARREN_OK) return code;
    code = warren_recv(comm_, out, count_, cell_.type.type, (rank_ + ranks_ - 1) % ranks_, kTag, nullptr, nullptr);
    const warren_code sent = warren_wait(sending);
    warren_handle_free(sending);
    return code != WARREN_OK ? code : sent;
  }

  warren_comm* comm_;
  const Cell& cell_;
  const BenchData& data_;
  int rank_, ranks_;
  std::size_t element_;
  std::size_t count_ = 0, in_ = 0, out_ = 0, larger_ = 0;
  std::vector<std::size_t> counts_;
  Memory first_, second_;
  std::byte* in_at_ = nullptr;
  std::byte* out_at_ = nullptr;
};

constexpr int kIterationsPerCheckpoint = 16;

Status repeat(warren_comm* comm, const Cell& cell, Bench& bench, std::vector<double>& took_us, CellResult& result) {
  for (int i = -cell.warmup; i < cell.iterations; ++i) {
    // An input is whole again only if the result did not go into it.
    if (cell.check || i == -cell.warmup) {
      if (Status s = bench.fill(); !s.ok()) return s;
    }
    // Results are logged up to the next checkpoint; seldom enough not to cool the caches.
    if ((i + cell.warmup) % kIterationsPerCheckpoint == 0) {
      if (Status s = outcome(warren_checkpoint(comm, nullptr, 0, nullptr, 0), "checkpoint"); !s.ok()) return s;
    }
    if (Status s = outcome(warren_barrier(comm, nullptr, nullptr), "the barrier before an iteration"); !s.ok())
      return s;
    if (i == 0) {
      result.inputs_lent = warren_inputs_lent(comm);
      result.rounds_exchanged = warren_rounds_exchanged(comm);
    }
    const auto begin = Clock::now();
    const warren_code code = bench.call(nullptr);
    const auto end = Clock::now();
    if (Status s = outcome(code, cell.collective.name); !s.ok()) return s;
    if (cell.check) {
      const auto wrong = bench.errors();
      if (!wrong.ok()) return wrong.status();
      result.errors += wrong.value();
    }
    if (i >= 0) took_us.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  return {};
}

// The time of a batch of calls, one of them.
Status time_batch(warren_comm* comm, const Cell& cell, Bench& bench, const std::string& algorithm, int calls,
                  double& one_us) {
  warren_call_options options;
  warren_call_options_init(&options);
  options.algorithm = algorithm.c_str();
  if (Status s = outcome(warren_checkpoint(comm, nullptr, 0, nullptr, 0), "checkpoint"); !s.ok()) return s;
  if (Status s = outcome(warren_barrier(comm, nullptr, nullptr), "the barrier before a batch"); !s.ok()) return s;
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) {
    if (Status s = outcome(bench.call(&options), cell.collective.name); !s.ok()) return s;
  }
  one_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls;
  return {};
}

Status slowest(warren_comm* comm, std::vector<double>& times_us) {
  return outcome(warren_allreduce(comm, times_us.data(), times_us.data(), times_us.size(), WARREN_F64, WARREN_MAX,
                                  nullptr, nullptr),
                 "the exchange of times");
}

// The order of a cycle of turns, the same on all ranks: shuffled, so that nobody is always after the same one, and
// every other time the last one backwards, so that in two cycles all come as late.
std::vector<std::size_t> order_of_turns(std::size_t algorithms, int cycle) {
  std::vector<std::size_t> order(algorithms);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random(static_cast<std::uint32_t>(cycle / 2));
  std::ranges::shuffle(order, random);
  if (cycle % 2 == 1) std::ranges::reverse(order);
  return order;
}

Result<Turns> take_turns(warren_comm* comm, const Cell& cell, const std::vector<std::string>& algorithms,
                         Bench& bench) {
  // Long enough that clocks and the barrier's end do not count.
  constexpr double kBatchUs = 3000;
  constexpr int kMostCalls = 1000;
  Turns turns;
  turns.bytes = bench.bytes();
  turns.times_us.resize(algorithms.size());
  std::vector<double> first_us(algorithms.size());
  for (std::size_t a = 0; a < algorithms.size(); ++a) {
    if (Status s = bench.fill(); !s.ok()) return s;
    double ignored_us = 0;
    if (Status s = time_batch(comm, cell, bench, algorithms[a], 1, ignored_us); !s.ok()) return s;
    const auto wrong = bench.errors();
    if (!wrong.ok()) return wrong.status();
    turns.errors += wrong.value();
  }
  const auto calls_in = [&](double batch_us, double one_us) {
    return static_cast<int>(std::clamp(batch_us / std::max(one_us, 1e-3), 1.0, double{kMostCalls}));
  };
  // A first look at two calls, and a longer one where they are short.
  for (const double look_us : {0.0, kBatchUs / 4}) {
    std::vector<double> looked_us(algorithms.size());
    for (std::size_t a = 0; a < algorithms.size(); ++a) {
      const int calls = look_us == 0 ? 2 : calls_in(look_us, first_us[a]);
      if (Status s = time_batch(comm, cell, bench, algorithms[a], calls, looked_us[a]); !s.ok()) return s;
    }
    if (Status s = slowest(comm, looked_us); !s.ok()) return s;
    first_us = looked_us;
  }
  std::vector<double> times_us;
  for (int i = 0; i < cell.iterations; ++i) {
    for (const std::size_t a : order_of_turns(algorithms.size(), i)) {
      const int calls = calls_in(kBatchUs, first_us[a]);
      double one_us = 0;
      // Each algorithm logs in memory of other ranks: pages that the one before did not touch come first.
      if (Status s = time_batch(comm, cell, bench, algorithms[a], calls, one_us); !s.ok()) return s;
      if (Status s = time_batch(comm, cell, bench, algorithms[a], calls, one_us); !s.ok()) return s;
      times_us.push_back(one_us);
    }
  }
  if (Status s = slowest(comm, times_us); !s.ok()) return s;
  std::size_t at = 0;
  for (int i = 0; i < cell.iterations; ++i) {
    for (const std::size_t a : order_of_turns(algorithms.size(), i)) turns.times_us[a].push_back(times_us[at++]);
  }
  if (Status s =
          outcome(warren_allreduce(comm, &turns.errors, &turns.errors, 1, WARREN_U64, WARREN_SUM, nullptr, nullptr),
                  "the count of errors");
      !s.ok()) {
    return s;
  }
  return turns;
}

}  // namespace

double bus_factor(BenchCollective collective, int ranks) {
  const double others = ranks > 0 ? static_cast<double>(ranks - 1) / ranks : 0;
  switch (collective) {
    case BenchCollective::kAllreduce: return 2 * others;
    case BenchCollective::kAllgather:
    case BenchCollective::kAllgatherv:
    case BenchCollective::kReduceScatter:
    case BenchCollective::kGather:
    case BenchCollective::kScatter:
    case BenchCollective::kAllToAll: return others;
    case BenchCollective::kReduce:
    case BenchCollective::kBroadcast:
    case BenchCollective::kSendRecv: return 1;
    case BenchCollective::kBarrier: return 0;
  }
  return 0;
}

Result<CellResult> run_cell(warren_comm* comm, const Cell& cell) {
  const int ranks = warren_world_size(comm);
  if (cell.collective.collective == BenchCollective::kSendRecv && ranks < 2) {
    return Status(Code::kInvalidArgument, "sendrecv needs two ranks or more");
  }
  const auto data = BenchData::make(cell.type, cell.collective.reduces ? cell.op : kOps[0], ranks);
  if (!data.ok()) return data.status();
  try {
    Bench bench(comm, cell, data.value());
    if (Status s = bench.take_memory(); !s.ok()) return s;
    std::vector<double> took_us;
    CellResult out;
    if (Status s = repeat(comm, cell, bench, took_us, out); !s.ok()) return s;
    out.inputs_lent = warren_inputs_lent(comm) - out.inputs_lent;
    out.rounds_exchanged = warren_rounds_exchanged(comm) - out.rounds_exchanged;
    // An iteration took as long as it took the slowest rank.
    Status s = outcome(warren_allreduce(comm, took_us.data(), took_us.data(), took_us.size(), WARREN_F64, WARREN_MAX,
                                        nullptr, nullptr),
                       "the exchange of times");
    if (s.ok()) {
      s = outcome(warren_allreduce(comm, &out.errors, &out.errors, 1, WARREN_U64, WARREN_SUM, nullptr, nullptr),
                  "the count of errors");
    }
    if (!s.ok()) return s;
    std::ranges::sort(took_us);
    out.bytes = bench.bytes();
    out.count = bench.count();
    out.min_us = took_us.front();
    out.median_us = took_us[took_us.size() / 2];
    out.max_us = took_us.back();
    if (out.median_us > 0) out.algbw_gbs = static_cast<double>(out.bytes) / out.median_us / 1e3;
    out.busbw_gbs = out.algbw_gbs * bus_factor(cell.collective.collective, ranks);
    return out;
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, "no memory for buffers of " + std::to_string(cell.bytes) + " bytes");
  }
}

Result<Turns> run_in_turns(warren_comm* comm, const Cell& cell, const std::vector<std::string>& algorithms) {
  const auto data = BenchData::make(cell.type, cell.collective.reduces ? cell.op : kOps[0], warren_world_size(comm));
  if (!data.ok()) return data.status();
  try {
    Bench bench(comm, cell, data.value());
    if (Status s = bench.take_memory(); !s.ok()) return s;
    return take_turns(comm, cell, algorithms, bench);
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, "no memory for buffers of " + std::to_string(cell.bytes) + " bytes");
  }
}

}  // namespace warren::cli
