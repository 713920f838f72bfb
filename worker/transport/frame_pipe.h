// Frames through a pipe of shared memory. Each begins on a cache line with a head, which is its header and the place of
// its payload. The payload follows, unless it is read at that place. Small frames that differ from the newest head in
// their number alone go as notes.
//
// The caller looks after each move whether the other end must be woken: must_wake_reader() after put() and send_now(),
// must_wake_writer() after all others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "worker/transport/frames_at_once.h"
#include "worker/transport/host_pipe.h"
#include "worker/transport/posted_frame.h"
#include "worker/transport/view.h"

namespace warren::worker {

class FramePipe {
 public:
  using Now = FramesAtOnce::Now;

  explicit FramePipe(std::unique_ptr<HostPipe> pipe) : pipe_(std::move(pipe)) {}
  [[nodiscard]] HostPipe& pipe() { return *pipe_; }

  enum class Put : std::uint8_t {
    kNothing,  // there is no room
    kPiece,
    kFrame,    // `out` has left
    kDamaged,  // the other end's counters cannot be
  };
  // Puts a piece of the frame in. The next call is for the same frame, or after kFrame for the one behind it. Drops the
  // places of `out` that hold no longer.
  [[nodiscard]] Put put(Outgoing& out);

  // The place of a payload that its sender has told.
  struct Told {
    LogPlace logged;
    MemoryPlace memory;  // instead, or beside it
  };
  enum class Taken : std::uint8_t {
    kNothing,  // too little has come; payloads may have moved out of its way
    kPiece,
    kFrame,    // `in` is whole: in its buffer, or where `view` says
    kTold,     // the payload lies where told() says, and the head stays until take_head()
    kRefused,  // another frame than the one that is due, as refusal() says
    kDamaged,
  };
  // Takes up to one piece of the frame that is due. The next call is for the same frame, or after kFrame and
  // take_head() for the one behind it. `view` is an empty one.
  [[nodiscard]] Taken take(const Incoming& in, View& view);
  [[nodiscard]] const Told& told() const { return told_; }
  [[nodiscard]] const Status& refusal() const { return refusal_; }
  void take_head();
  // Lets go of a payload that is read in place; false: this pipe holds no such view.
  [[nodiscard]] bool release(const View& view);

  [[nodiscard]] bool must_wake_reader() { return pipe_->must_wake_reader(); }
  // Asks only after room was made, as a fence may come with the question.
  [[nodiscard]] bool must_wake_writer() { return std::exchange(made_room_, false) && pipe_->must_wake_writer(); }

  // As in FramesAtOnce, where nothing is posted.
  [[nodiscard]] Now send_now(const FrameHeader& header, std::span<const std::byte> payload);
  [[nodiscard]] Now recv_now(const FrameHeader& expected, std::span<std::byte> payload);

  // Whether something of the frame in front could move. For a look before a sleep.
  [[nodiscard]] bool can_put() const;
  [[nodiscard]] bool can_take(const Incoming& in) const;

 private:
  // A payload that is read where it lies.
  struct Held {
    const std::byte* payload = nullptr;  // null: free
    const std::byte* frame = nullptr;    // in the pipe; null: the payload was moved to the buffer
    std::span<std::byte> buffer;         // that was posted
  };

  [[nodiscard]] std::size_t needed_to_take(const Incoming& in) const;
  [[nodiscard]] bool take_note(std::span<const std::byte> note, const FrameHeader& expected,
                               std::span<std::byte> payload);
  // A frame has been taken, or its head.
  void end_frame();
  // Where nothing more can come because of payloads that are read in place: moves them to the buffers that were posted.
  void make_room();

  const std::unique_ptr<HostPipe> pipe_;
  // Of the newest frame whose header went through the ring, or came: notes refer to it.
  FrameHeader said_, heard_;
  std::size_t put_ = 0;     // of the frame in front that leaves, with its head and padding
  std::size_t taken_ = 0;   // of the one that comes
  bool made_room_ = false;  // since must_wake_writer()
  bool checked_ = false;    // the header of the frame in front is what was due
  bool whole_ = false;      // and its payload is read where it lies
  Told told_;
  Status refusal_;
  std::array<Held, 16> views_;
};

}  // namespace warren::worker
