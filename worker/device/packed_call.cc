#include "worker/device/packed_call.h"

namespace warren::worker {

PackedCall::~PackedCall() {
  // A GPU that has not come so far, or has failed, may still read or write it.
  if (used_ && !copies_.reached(*ready_)) {
    block_.abandon();
    stream_->abandon();
  }
}

Status PackedCall::prepare() {
  auto event = copies_.make_event();
  if (!event.ok()) return event.status();
  ready_ = std::move(event).value();
  return copies_.record(*ready_, stream_->get());
}

void PackedCall::pack() {
  used_ = true;
  packed_ = copies_.pack(*stream_, block_.data(), inputs_);
  if (packed_.ok()) packed_ = copies_.record(*ready_, stream_->get());
  if (!packed_.ok()) {
    block_.abandon();
    stream_->abandon();
  }
}

Status PackedCall::deliver() {
  Status status = staged_->deliver();
  if (status.ok()) status = copies_.unpack(block_.data(), outputs_, *ready_);
  if (!status.ok()) block_.abandon();
  return status;
}

}  // namespace warren::worker
