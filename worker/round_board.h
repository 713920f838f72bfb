// What the data path is doing, for the heartbeat's thread to read without stopping it: a few slots of atomics, each
// guarded by a sequence number. One writer (under the engine's lock), any readers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "recovery/frame.h"
#include "recovery/ids.h"

namespace warren::worker {

class RoundBoard {
 public:
  static constexpr std::size_t kSlots = 8;  // rounds shown at once; more groups than that at work go unreported
  static constexpr std::size_t kRanks = 8;  // ranks waited for, of one round

  struct Entry {
    RoundId round;
    Fingerprint fingerprint;
    std::vector<Rank> waiting_for;
  };

  void begin(std::size_t slot, const RoundId& round, const Fingerprint& fingerprint) {
    if (slot >= kSlots) return;
    Slot& s = slots_[slot];
    const std::uint64_t n = open(s);
    const std::uint64_t words[] = {round.timeline.value,
                                   round.group.value,
                                   round.version.value,
                                   round.sequence.value,
                                   std::uint64_t{static_cast<std::uint8_t>(fingerprint.collective)} |
                                       std::uint64_t{static_cast<std::uint8_t>(fingerprint.type)} << 8 |
                                       std::uint64_t{static_cast<std::uint8_t>(fingerprint.op)} << 16 |
                                       std::uint64_t{fingerprint.algorithm} << 24 |
                                       std::uint64_t{static_cast<std::uint32_t>(fingerprint.root)} << 32,
                                   fingerprint.count,
                                   fingerprint.shape,
                                   fingerprint.site};
    for (std::size_t i = 0; i < std::size(words); i++) s.words[i].store(words[i], std::memory_order_release);
    s.waiting.store(0, std::memory_order_release);
    s.busy.store(true, std::memory_order_release);
    close(s, n);
  }
  void waits(std::size_t slot, std::span<const Rank> ranks) {
    if (slot >= kSlots) return;
    Slot& s = slots_[slot];
    const std::uint64_t n = open(s);
    const std::size_t count = ranks.size() < kRanks ? ranks.size() : kRanks;
    for (std::size_t i = 0; i < count; i++) s.ranks[i].store(ranks[i].value, std::memory_order_release);
    s.waiting.store(count, std::memory_order_release);
    close(s, n);
  }
  void end(std::size_t slot) {
    if (slot >= kSlots) return;
    Slot& s = slots_[slot];
    const std::uint64_t n = open(s);
    s.busy.store(false, std::memory_order_release);
    close(s, n);
  }

  // Rounds under way. A slot that is being written is skipped after a few tries: the next heartbeat shows it.
  [[nodiscard]] std::vector<Entry> read() const {
    std::vector<Entry> entries;
    for (const Slot& s : slots_) {
      for (int attempt = 0; attempt < 16; attempt++) {
        const std::uint64_t before = s.sequence.load(std::memory_order_acquire);
        if (before % 2 != 0) continue;
        const std::optional<Entry> entry = copy(s);
        if (s.sequence.load(std::memory_order_acquire) != before) continue;
        if (entry) entries.push_back(*entry);
        break;
      }
    }
    return entries;
  }

  std::atomic<std::uint64_t> rounds_finished{0};
  std::atomic<std::uint64_t> rounds_computed{0};  // of those, the ones that were not replayed from the log
  std::atomic<std::uint64_t> bytes_moved{0};

 private:
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<bool> busy{false};
    std::array<std::atomic<std::uint64_t>, 8> words{};
    std::atomic<std::uint64_t> waiting{0};
    std::array<std::atomic<std::int32_t>, kRanks> ranks{};
  };

  static std::uint64_t open(Slot& s) {
    const std::uint64_t n = s.sequence.load(std::memory_order_relaxed) + 1;
    s.sequence.store(n, std::memory_order_release);
    return n;
  }
  static void close(Slot& s, std::uint64_t n) { s.sequence.store(n + 1, std::memory_order_release); }

  static std::optional<Entry> copy(const Slot& s) {
    if (!s.busy.load(std::memory_order_acquire)) return std::nullopt;
    std::array<std::uint64_t, 8> w{};
    for (std::size_t i = 0; i < w.size(); i++) w[i] = s.words[i].load(std::memory_order_acquire);
    Entry e;
    e.round = {Timeline(static_cast<std::uint32_t>(w[0])), GroupId(w[1]), Version(w[2]), Sequence(w[3])};
    e.fingerprint.collective = static_cast<Collective>(w[4] & 255);
    e.fingerprint.type = static_cast<DataType>(w[4] >> 8 & 255);
    e.fingerprint.op = static_cast<ReduceOp>(w[4] >> 16 & 255);
    e.fingerprint.algorithm = static_cast<std::uint8_t>(w[4] >> 24 & 255);
    e.fingerprint.root = static_cast<std::int32_t>(w[4] >> 32);
    e.fingerprint.count = w[5];
    e.fingerprint.shape = w[6];
    e.fingerprint.site = w[7];
    const std::uint64_t n = s.waiting.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < n && i < kRanks; i++)
      e.waiting_for.emplace_back(s.ranks[i].load(std::memory_order_acquire));
    return e;
  }

  std::array<Slot, kSlots> slots_{};
};

}  // namespace warren::worker
