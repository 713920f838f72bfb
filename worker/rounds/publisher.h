// To whom a round tells its final values: the log, before anybody else sees them, and the program's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "recovery/base/result.h"
#include "worker/transport/transport.h"

namespace warren::worker {

// Where final values go before anybody sees them.
class Publisher {
 public:
  virtual ~Publisher() = default;
  // Values [first, first + count) of the whole result, published when it returns. `place`: where, if they lie in one
  // piece.
  [[nodiscard]] virtual Status publish(std::uint64_t first, std::uint64_t count, const std::byte* values,
                                       LogPlace& place) = 0;
  // A number for what was published last. 0: that may be seen at once. The executor asks may_be_seen() of any other
  // number again, until the answer is yes.
  [[nodiscard]] virtual std::uint64_t newest() const { return 0; }
  [[nodiscard]] virtual bool may_be_seen(std::uint64_t /*number*/) const { return true; }
  // Where `count` values will lie that are published next: written there, they need not be copied. Empty: publish() is
  // the way. Nothing else is asked for between the two.
  [[nodiscard]] virtual std::span<std::byte> room(std::uint64_t count) {
    (void)count;
    return {};
  }
  virtual void publish_room(std::uint64_t first, std::uint64_t count, LogPlace& place) {
    (void)first, (void)count, (void)place;
  }
};

// Hears of final values.
class Landing {
 public:
  virtual ~Landing() = default;
  // Elements of the output: they stand there, and stay.
  virtual void landed(std::uint64_t at, std::uint64_t count) = 0;
  // Elements that are final on a peer's GPU, too, and may go from there to where the output is wanted; then
  // on_brought() of this number. The output itself is left as it is. False: they come by way of the output.
  [[nodiscard]] virtual bool bring(std::uint64_t at, std::uint64_t count, const std::shared_ptr<const FinalOnGpu>& from,
                                   std::uint64_t number) {
    (void)at, (void)count, (void)from, (void)number;
    return false;
  }
};

}  // namespace warren::worker
