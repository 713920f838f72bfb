// The sign on a rank's board that its calls wait for what other ranks have not begun (wire::Blocked). The tracker finds
// circles of such ranks.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <utility>

#include "recovery/wire/messages.pb.h"
#include "worker/rounds/round_board.h"

namespace warren::worker {

class BlockedSign {
 public:
  explicit BlockedSign(RoundBoard& board) : board_(board) {}
  BlockedSign(const BlockedSign&) = delete;
  BlockedSign& operator=(const BlockedSign&) = delete;

  void show(wire::Blocked blocked) {
    if (shown_ != nullptr && shown_->SerializeAsString() == blocked.SerializeAsString()) return;
    shown_ = std::make_shared<const wire::Blocked>(std::move(blocked));
    board_.show_blocked(shown_);
  }
  void take_away() {
    if (shown_ == nullptr) return;
    shown_ = nullptr;
    board_.show_blocked(nullptr);
  }

 private:
  RoundBoard& board_;
  std::shared_ptr<const wire::Blocked> shown_;  // null: nothing is shown
};

}  // namespace warren::worker
