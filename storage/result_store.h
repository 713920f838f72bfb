// The results and checkpoints that a host keeps on disk, so that the job outlives all of its processes
// (docs/storage.md). Memory first (storage/host_log.h); a thread writes behind it (storage/write_behind.h).
//
// Each life writes into a place of its own, and reads those of the lives before it, its own worker's and others' under
// the same data directory: so a life that was taken for dead disturbs nobody (fencing), and nothing is ever
// overwritten.
//
// Guarantees, for every implementation:
//  - put() that returned success: every record of the batch survives the loss of power;
//  - put() under way when the process or the machine died, or that failed: any of its records may be there, each whole
//    or not at all;
//  - a record that was damaged since is found out by its checksum, is not held, and is told by take_warnings();
//  - drop() and finish() are not awaited by anything: after a crash, dropped records may be there again.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/limits.h"
#include "recovery/base/result.h"
#include "recovery/decide/held.h"
#include "storage/host_log.h"

namespace warren::storage {

// Records to be written together: their payloads in one buffer. Reused, it allocates nothing.
class RecordBatch {
 public:
  static constexpr std::size_t kDefaultBytes = std::size_t{32} << 20;

  struct Item {
    RecordKey key;
    RecordInfo info;
    std::uint64_t first_byte = 0;
    std::uint32_t payload_bytes = 0;
    std::size_t at = 0;
  };

  // Room for so many bytes of payload, and records without any counted as 64.
  explicit RecordBatch(std::size_t bytes = kDefaultBytes);

  [[nodiscard]] bool fits(std::size_t payload_bytes) const { return used_ + cost(payload_bytes) <= bytes_; }
  // Room for the payload of a record, to be filled before put(). Must fit (checked).
  std::span<std::byte> add(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                           std::uint32_t payload_bytes);
  // Takes the last record back: what it was copied from is gone.
  void take_back();
  void clear();

  [[nodiscard]] const std::vector<Item>& items() const { return items_; }
  [[nodiscard]] std::span<const std::byte> payload(const Item& item) const {
    return {buffer_.get() + item.at, item.payload_bytes};
  }
  [[nodiscard]] std::size_t payload_bytes() const { return end_; }
  [[nodiscard]] bool empty() const { return items_.empty(); }

 private:
  static std::size_t cost(std::size_t payload_bytes) { return payload_bytes < 64 ? 64 : payload_bytes; }

  std::size_t bytes_, used_ = 0, end_ = 0;
  std::unique_ptr<std::byte[]> buffer_;
  std::vector<Item> items_;
};

// A record of a state, of whatever version.
struct StatePiece {
  RecordKind kind{};
  Sequence sequence{};
  std::uint64_t first_byte = 0;
  std::uint32_t payload_bytes = 0;
  friend constexpr auto operator<=>(const StatePiece&, const StatePiece&) = default;
};

// What nobody needs any more.
struct Horizon {
  struct Checkpoint {
    Timeline timeline;
    Version version;
    friend constexpr auto operator<=>(const Checkpoint&, const Checkpoint&) = default;
  };
  // The oldest timeline that is in use: what older ones hold was undone, but for the committed checkpoint and set-up
  // rounds that are done.
  Timeline timeline;
  // Rounds and messages of versions below this one go, except the preamble's.
  Version rounds_from;
  // The newest committed checkpoint; older ones go.
  std::optional<Checkpoint> committed;
  SetupsInUse setups{};

  [[nodiscard]] bool obsolete(const RecordKey& key) const;
};

// Threads: put(), worn(), note(), drop() and finish() from one thread at a time; the rest from any.
class ResultStore {
 public:
  virtual ~ResultStore() = default;

  // Makes the records durable. kExhausted: the disk is full, or the budget is used up, and the message names its flag;
  // states, set-up rounds and the preamble alone pass beyond the budget, as it takes a checkpoint to free it.
  // kUnavailable: the disk refuses for another reason. The call may be repeated: it works again once the cause is gone.
  [[nodiscard]] virtual Status put(const RecordBatch& batch) = 0;
  // The states of this checkpoint have all been put. What of them is to be put once more, before it is committed, so
  // that the store need not keep for it what older ones have written; a put() of these that fails costs nothing else.
  [[nodiscard]] virtual std::vector<StatePiece> worn(Timeline, Version) { return {}; }
  // What the job has told this life: its run, and bytes that the store does not look into. Durable on success; replaces
  // the one before. It comes before the first put(), so that nothing is there without it, and before the drop() of what
  // the one before names.
  struct Note {
    std::uint64_t run = 0;
    std::string text;
  };
  [[nodiscard]] virtual Status note(const Note& note) = 0;
  // Those of other lives that are over, and of this worker's.
  [[nodiscard]] virtual std::vector<Note> notes() = 0;
  // Only what lives of this run have left is read from now on.
  virtual void belong(std::uint64_t run) = 0;
  // Puts what lives of other runs have left out of everybody's way; says where to.
  [[nodiscard]] virtual std::vector<std::string> set_others_aside() = 0;
  // What another life has left, over or not, is read and reported no more, by no store, if `stale` holds of it and its
  // note: durable on success. drop() removes it once that life is over. Errors as for put(); it may be repeated.
  using Stale = std::function<bool(Incarnation life, const Note& note)>;
  [[nodiscard]] virtual Status leave_out(const Stale& stale) = 0;
  // Forgets what is obsolete: in this life's place, and in those of lives that are over. A place of theirs in which
  // nothing else is left goes; the preamble and set-up rounds in use are taken over first. Errors as for put(); it may
  // be repeated, and is made up for by the next one.
  [[nodiscard]] virtual Status drop(const Horizon& horizon) = 0;
  // The job is finished: removes this life's place and those of lives that are over. Nothing else is called after it.
  [[nodiscard]] virtual Status finish() = 0;

  // What this life's place and those of this worker's earlier lives take; compared with the budget.
  [[nodiscard]] virtual std::uint64_t bytes_on_disk() const = 0;

  // Reads what this life has put and what other lives' places held when they were first looked at, or at the last
  // refresh(). One for each thread; it may outlive the store, and then sees nothing of this life.
  // held_by() counts only what this life has put, if it is among those that live: other processes do not see it.
  [[nodiscard]] virtual std::unique_ptr<HostLogReader> reader() = 0;
  // Other lives' places are looked at again when a reader next needs them: all but those of the living, whether they
  // are over or fenced, and not yet aware of it.
  virtual void refresh(std::span<const Incarnation> living) = 0;
  // All of it. `verify`: reads every payload, so that what is damaged is not reported; else that is found out later.
  [[nodiscard]] virtual HeldReport report(bool verify) = 0;

  // Both are called once when the process exits, unless what call_at_exit() returns has gone. All that are registered
  // in a process share one deadline, and all have begun before one is waited for.
  struct AtExit {
    std::function<void()> begin;  // returns at once
    std::function<void(std::chrono::steady_clock::time_point deadline)> wait;
  };
  // From then on the store takes nothing and reads nothing, but for note() and finish(). Null: the store works until
  // the process is gone.
  [[nodiscard]] virtual std::shared_ptr<void> call_at_exit(const AtExit& /*hooks*/) { return nullptr; }

  // What was found damaged since the last call, for people; at most 100 at a time.
  [[nodiscard]] virtual std::vector<std::string> take_warnings() = 0;
};

// Reads from both: `memory` first, `disk` for what it does not hold.
[[nodiscard]] std::unique_ptr<HostLogReader> combined_reader(std::unique_ptr<HostLogReader> memory,
                                                             std::unique_ptr<HostLogReader> disk);

// For HeldRun::call.
[[nodiscard]] std::uint64_t call_hash(const Fingerprint& fingerprint);

}  // namespace warren::storage
