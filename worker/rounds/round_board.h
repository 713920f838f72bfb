// What the data path is doing, for the heartbeat's thread to read without stopping it: a few slots of atomics, each
// guarded by a sequence number. One writer (under the engine's lock), any readers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/wire/frame.h"
#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"

namespace warren::worker {

class RoundBoard {
 public:
  static constexpr std::size_t kSlots = 8;  // rounds shown at once; more groups than that at work go unreported
  static constexpr std::size_t kRanks = 8;  // ranks waited for, of one round

  // Whom a round waits for: bytes of it are due, or bytes for it have not left.
  struct Waited {
    Rank rank;
    bool receives = false, sends = false;
    friend bool operator==(const Waited&, const Waited&) = default;
  };
  struct Entry {
    RoundId round;
    Fingerprint fingerprint;
    std::vector<Waited> waiting_for;
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
  void waits(std::size_t slot, std::span<const Waited> ranks) {
    if (slot >= kSlots) return;
    Slot& s = slots_[slot];
    const std::uint64_t n = open(s);
    const std::size_t count = ranks.size() < kRanks ? ranks.size() : kRanks;
    for (std::size_t i = 0; i < count; i++) {
      const std::uint32_t word = static_cast<std::uint32_t>(ranks[i].rank.value) | (ranks[i].receives ? kReceives : 0) |
                                 (ranks[i].sends ? kSends : 0);
      s.ranks[i].store(word, std::memory_order_release);
    }
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

  // This life can do nothing before another rank begins something (wire::Blocked, but for its time); null: it may. Each
  // change is a new object.
  void show_blocked(std::shared_ptr<const wire::Blocked> blocked) {
    const std::lock_guard lock(blocked_mutex_);
    blocked_ = std::move(blocked);
  }
  [[nodiscard]] std::shared_ptr<const wire::Blocked> blocked() const {
    const std::lock_guard lock(blocked_mutex_);
    return blocked_;
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

  // A generation begins: nothing has moved yet. From the thread that reads, while nobody writes.
  void open_links(std::uint32_t world_size) {
    if (links_.size() != world_size) links_ = std::vector<Link>(world_size);
    for (Link& l : links_) {
      l.sent.store(0, std::memory_order_relaxed);
      l.received.store(0, std::memory_order_relaxed);
    }
  }
  // One writer: no locked instruction.
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  // A round was carried out, and sent so much payload.
  void computed(std::uint64_t bytes_sent) {
    add(bytes_moved, bytes_sent);
    add(rounds_computed, 1);
  }
  // Payload that has left for this rank of the job, or come from it.
  void sent(Rank peer, std::uint64_t bytes) { add(links_[static_cast<std::size_t>(peer.value)].sent, bytes); }
  void received(Rank peer, std::uint64_t bytes) { add(links_[static_cast<std::size_t>(peer.value)].received, bytes); }
  struct Moved {
    std::uint64_t sent = 0, received = 0;
  };
  [[nodiscard]] std::size_t links() const { return links_.size(); }
  [[nodiscard]] Moved moved(std::size_t peer) const {
    return {links_[peer].sent.load(std::memory_order_relaxed), links_[peer].received.load(std::memory_order_relaxed)};
  }

  const HostLog* log = nullptr;              // of which bytes_held() and gives_up() are told; null: nothing is logged
  std::atomic<int> asleep{0};                // threads that sleep until something moves
  std::atomic<int> sleeper{0};               // the id of one of them, or of one that did
  std::atomic<std::uint64_t> yielded_ns{0};  // that threads which wait gave their core away for
  std::atomic<bool> at_once{false};          // a round runs that no slot shows, and is over before it could be read
  std::atomic<bool> replaying{false};        // results are being fetched from logs; as of the last sleep
  std::atomic<std::uint64_t> rounds_finished{0};
  std::atomic<std::uint64_t> rounds_replayed{0};  // of those, numbered ones whose results came from the log
  std::atomic<std::uint64_t> rounds_computed{0};  // of those, the ones that were not replayed from the log
  std::atomic<std::uint64_t> bytes_moved{0};
  std::atomic<std::uint64_t> gpu_readers{0};       // ranks of the host that read this life's memory of a GPU
  std::atomic<std::uint64_t> inputs_lent{0};       // that stayed on the GPU, for others to read them there
  std::atomic<std::uint64_t> finals_from_gpus{0};  // pieces of results that came from another rank's
  std::atomic<std::uint64_t> rounds_exchanged{0};  // that NCCL has moved the bytes of, or was to

 private:
  static constexpr std::uint32_t kReceives = 1U << 30, kSends = 1U << 31, kRankBits = kReceives - 1;

  struct Link {
    std::atomic<std::uint64_t> sent{0}, received{0};
  };
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<bool> busy{false};
    std::array<std::atomic<std::uint64_t>, 8> words{};
    std::atomic<std::uint64_t> waiting{0};
    std::array<std::atomic<std::uint32_t>, kRanks> ranks{};
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
    for (std::size_t i = 0; i < n && i < kRanks; i++) {
      const std::uint32_t word = s.ranks[i].load(std::memory_order_acquire);
      e.waiting_for.push_back(
          {Rank(static_cast<std::int32_t>(word & kRankBits)), (word & kReceives) != 0, (word & kSends) != 0});
    }
    return e;
  }

  std::array<Slot, kSlots> slots_{};
  mutable std::mutex blocked_mutex_;  // held for the copy of a pointer, where nothing has moved for long
  std::shared_ptr<const wire::Blocked> blocked_;
  std::vector<Link> links_;  // by rank of the job
};

// While it lives, the board shows a call that no slot shows.
struct ShownAtOnce {
  explicit ShownAtOnce(RoundBoard& shown_on) : board(shown_on) { board.at_once.store(true, std::memory_order_relaxed); }
  ~ShownAtOnce() { board.at_once.store(false, std::memory_order_relaxed); }
  ShownAtOnce(const ShownAtOnce&) = delete;
  ShownAtOnce& operator=(const ShownAtOnce&) = delete;
  RoundBoard& board;
};

}  // namespace warren::worker
