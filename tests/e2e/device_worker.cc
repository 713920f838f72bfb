// A worker whose buffers lie on the fake device, or on the CPU: the same program and the same bits.
//   device_worker cpu|gpu ROUNDS OUT_FOLDER WHO_DIES WHERE AFTER
// Each round makes every kind of collective of what the rounds before gave; every third is followed by a checkpoint of
// the state. The first life of worker WHO_DIES is killed (SIGKILL) at the AFTER-th run of WHERE on the fake device,
// such as "stream.to_host": in the middle of a round. Writes OUT_FOLDER/WORKER_ID at the end.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/device/fake_gpu.h"
#include "warren/warren.h"

namespace {

using warren::Op;
using warren::test::Array;
using warren::test::fake_gpu;

constexpr std::size_t kCount = 3'000;
constexpr std::size_t kLarge = 1'500'001;  // moves in pieces, while its round runs
constexpr std::size_t kWire = 2'200'003;   // likewise, with a wire type: three pieces

void run(bool on_gpu, int rounds, const std::string& out_file) {
  warren::Communicator comm = warren::Communicator::create();
  const auto ranks = static_cast<std::size_t>(comm.world_size()), rank = static_cast<std::size_t>(comm.rank());
  std::vector<float> state(kCount);
  for (std::size_t i = 0; i < kCount; i++) state[i] = static_cast<float>(i % 17) + 0.1f;
  Array<float> kept(on_gpu, state), other_half(on_gpu, std::vector<float>(kCount));
  const auto loaded = comm.load_checkpoint_into({kept.span(), other_half.span()});
  if (loaded.version != 0) state = kept.read();
  for (int round = static_cast<int>(loaded.version) * 3; round < rounds; round++) {
    std::vector<float> mine(kCount);
    for (std::size_t i = 0; i < kCount; i++) {
      mine[i] = state[i] * 0.25f +
                static_cast<float>(rank + 1) / static_cast<float>(i % 7 + 3 + static_cast<std::size_t>(round));
    }
    Array<float> in(on_gpu, mine), sum(on_gpu, std::vector<float>(kCount));
    comm.allreduce(in.span(), sum.span());
    Array<float> top(on_gpu, mine);
    comm.allreduce(top.span(), Op::max, [&] { top.write(mine); });
    std::vector<warren::bfloat16> narrow(kCount);
    for (std::size_t i = 0; i < kCount; i++) narrow[i] = warren::bfloat16(mine[i]);
    Array<warren::bfloat16> half(on_gpu, narrow);
    auto averaged = comm.allreduce_async(half.span(), Op::average);
    Array<float> all(on_gpu, std::vector<float>(ranks * kCount));
    comm.allgather(in.span(), all.span());
    averaged.wait();
    Array<float> part(on_gpu, std::vector<float>(kCount));
    comm.reduce_scatter(all.span(), part.span());
    const int root = round % comm.world_size();
    comm.broadcast(part.span(), root);
    Array<float> message(on_gpu, std::vector<float>(kCount));
    auto sent = comm.send_async(sum.span(), static_cast<int>((rank + 1) % ranks));
    comm.recv(message.span(), static_cast<int>((rank + ranks - 1) % ranks));
    sent.wait();
    std::vector<float> more(kCount);
    if (round % 3 == 1) {
      std::vector<float> spread(kLarge);
      for (std::size_t i = 0; i < kLarge; i++) spread[i] = mine[i % kCount] + static_cast<float>(i / kCount);
      Array<float> wide(on_gpu, spread);
      comm.allreduce(wide.span());
      const auto wider = wide.read();
      for (std::size_t i = 0; i < kLarge; i++) more[i % kCount] = (more[i % kCount] + wider[i]) / 256.0f;
    }
    if (round % 3 == 0 && round > 0) {
      std::vector<float> spread(kWire);
      for (std::size_t i = 0; i < kWire; i++) spread[i] = mine[i % kCount] + static_cast<float>(i / kCount % 7);
      Array<float> wide(on_gpu, spread), few(on_gpu, mine);
      comm.wire(warren::Wire::bf16).allreduce(wide.span(), Op::average);
      comm.wire(warren::Wire::f16).allreduce(few.span());
      const auto wider = wide.read(), fewer = few.read();
      for (std::size_t i = 0; i < kWire; i++) more[i % kCount] = (more[i % kCount] + wider[i]) / 256.0f;
      for (std::size_t i = 0; i < kCount; i++) more[i] += fewer[i] / 32.0f;
    }
    if (round >= 5) {
      Array<float> first(on_gpu, mine), second(on_gpu, std::vector<float>(kCount)), third(on_gpu, {1.5f});
      {
        auto fusion = comm.fuse();
        auto one = comm.allreduce_async(first.span());
        auto two = comm.allreduce_async(in.span(), second.span());
        auto three = comm.allreduce_async(third.span());
        for (auto* call : {&one, &two, &three}) call->wait();
      }
      const auto x = first.read(), y = second.read(), z = third.read();
      for (std::size_t i = 0; i < kCount; i++) more[i] += (x[i] - 0.5f * y[i] + z[0]) / 64.0f;
    }
    const auto s = sum.read(), t = top.read(), a = all.read(), p = part.read(), m = message.read();
    const auto h = half.read();
    for (std::size_t i = 0; i < kCount; i++) {
      state[i] = 0.5f * s[i] + t[i] + static_cast<float>(h[i]) + a[i + kCount] / 3.0f + p[i] / 64.0f - m[i] + more[i];
      state[i] = state[i] / 8.0f;
    }
    if (round % 3 == 2) {
      kept.write(state);
      comm.checkpoint_places({kept.span(), other_half.span()});
      // They are the program's again.
      kept.write(std::vector<float>(kCount, -1.0f));
    }
  }
  comm.finalize();
  std::ofstream(out_file, std::ios::binary)
      .write(reinterpret_cast<const char*>(state.data()), static_cast<std::streamsize>(state.size() * sizeof(float)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const std::string worker = std::getenv("WARREN_WORKER_ID"), attempt = std::getenv("WARREN_ATTEMPT");
  if (worker == argv[4] && attempt == "0") {
    fake_gpu().controls.arm(argv[5], std::atoi(argv[6]), warren::test::FakeFault::kKill);
  }
  try {
    run(std::strcmp(argv[1], "gpu") == 0, std::atoi(argv[2]), std::string(argv[3]) + "/" + worker);
  } catch (const warren::Error& e) {
    std::fprintf(stderr, "worker %s, attempt %s: %s\n", worker.c_str(), attempt.c_str(), e.what());
    return 1;
  }
  return 0;
}
