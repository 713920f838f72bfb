// The input of a group's active call: the order in which it comes, and a copy. Mode `shrink` keeps a copy of an input
// whose memory the result takes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/rounds/call.h"
#include "worker/rounds/prepared_schedule.h"
#include "worker/rounds/scratch.h"

namespace warren::worker {

class RoundInput {
 public:
  // Keeps a copy where input and output are the same memory: the round may have to run again with other inputs beside
  // this one. Again, the copy stays. kExhausted: there is no memory.
  [[nodiscard]] Status keep(const Call& call);
  // The copy; null: the input is where the program has it.
  [[nodiscard]] const std::byte* kept() { return is_kept_ ? copy_.reserve(0) : nullptr; }
  // The call is over. A small copy's memory stays for the next round, faulted in.
  void forget();

  // The input is a stream's: tells it in which order the schedule wants the pieces. Without a schedule the call was
  // issued when the log was to serve it.
  void order(const Call& call, const GroupShape& shape, const PreparedSchedule* prepared);
  // The order that was told, of all of the input.
  [[nodiscard]] std::span<const InputPiece> pieces() const { return pieces_; }

 private:
  Scratch copy_;
  bool is_kept_ = false;
  std::vector<InputPiece> pieces_;
};

// The collective's one buffer is this rank's input.
[[nodiscard]] bool is_root_of_broadcast(const CallSpec& spec, std::int32_t rank);

}  // namespace warren::worker
