// Puts the final values of a group's round into the log, before anybody sees them, and tells the buffers of its call.
// begin() says under which name. The values come from the executor or a light round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "recovery/base/ids.h"
#include "worker/rounds/call.h"
#include "worker/rounds/publisher.h"
#include "worker/rounds/recall.h"

namespace warren::worker {

class RoundPublisher final : public Publisher, public Landing {
 public:
  // `recall` null: nothing is logged, and the executor is to have no publisher.
  explicit RoundPublisher(Recall* recall) : recall_(recall) {}
  RoundPublisher(const RoundPublisher&) = delete;
  RoundPublisher& operator=(const RoundPublisher&) = delete;

  // Others of this host read its log, for all that is known: they are told places.
  void read_here(bool read) { read_here_ = read; }
  // A round begins whose result has so many bytes, of elements of `width` bytes.
  void begin(const RoundId& round, const Fingerprint& fingerprint, std::uint64_t width, std::uint64_t total_bytes) {
    key_ = result_key(round);
    info_ = {fingerprint, total_bytes};
    width_ = width;
    resumed_ = custom_ = false;
    stream_ = nullptr;
  }
  // The round of this call, whose buffers' stream hears what has landed. `resumed`: this host may hold a part of the
  // result, which is not published again.
  void begin(const Call& call, std::uint64_t total_bytes, bool resumed) {
    begin(call.round, call.fingerprint, element_bytes(call.spec), total_bytes);
    resumed_ = resumed;
    custom_ = call.spec.type == DataType::kCustom;
    stream_ = stream_of(call);
  }
  [[nodiscard]] Publisher* publisher() { return recall_ == nullptr ? nullptr : this; }

  [[nodiscard]] Status publish(std::uint64_t first, std::uint64_t count, const std::byte* values,
                               LogPlace& place) override;
  [[nodiscard]] std::uint64_t newest() const override { return recall_->newest(); }
  [[nodiscard]] bool may_be_seen(std::uint64_t number) const override { return recall_->may_be_seen(number); }
  [[nodiscard]] std::span<std::byte> room(std::uint64_t count) override;
  void publish_room(std::uint64_t first, std::uint64_t count, LogPlace& place) override;

  void landed(std::uint64_t at, std::uint64_t count) override { stream_->landed({at * width_, count * width_}); }
  [[nodiscard]] bool bring(std::uint64_t at, std::uint64_t count, const std::shared_ptr<const FinalOnGpu>& from,
                           std::uint64_t number) override {
    return stream_->bring({at * width_, count * width_}, from, number);
  }

 private:
  Recall* const recall_;
  bool read_here_ = true;
  RecordKey key_;
  RecordInfo info_;
  std::uint64_t width_ = 0;
  bool resumed_ = false, custom_ = false;
  BufferStream* stream_ = nullptr;
};

}  // namespace warren::worker
