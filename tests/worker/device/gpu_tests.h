// Names that all tests of GPUs use: the fake device, sizes, and limits of time.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <thread>

#include "tests/worker/device/fake_gpu.h"
#include "worker/rounds/call.h"

namespace warren::worker {

using test::DeviceArray;
using test::fake_gpu;
using test::FakeFault;
using ::testing::HasSubstr;

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::int64_t kPatienceMs = 60'000;

// Moves until nothing does, or something fails. `moves` says whether there is more.
Status move_all(auto& mover, auto moves) {
  while (moves()) {
    const auto moved = mover.move();
    if (!moved.ok()) return moved.status();
    std::this_thread::yield();
  }
  return {};
}
inline Status move_all(BufferStream& stream) {
  return move_all(stream, [&] { return stream.moves(); });
}

}  // namespace warren::worker
