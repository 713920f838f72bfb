// A worker whose large allreduces are made of inputs that the ranks of its host lend each other on the fake device, or
// on the CPU: the same program and the same bits.
//   loan_worker cpu|gpu|mixed|apart|nccl|nccl-mixed|nccl-async ROUNDS OUT_FOLDER WHO WHERE AFTER
//   kill|error|hang|late|stop|abort|flip
// `mixed`: worker 1 has its buffers on the CPU in most rounds. `apart`: worker 2 is on another host. `nccl`: each
// worker is on a host of its own, and NCCL is to move the bytes; `nccl-async`: while the program is in no call. The
// first life of worker WHO meets a fault at the AFTER-th run of WHERE on the fake device: it dies, the call fails,
// hangs for ever, hangs for a while, the whole process stands still for a while, NCCL aborts with nobody told, or flips
// a bit. Writes OUT_FOLDER/WORKER_ID at the end, and what was done on the device to OUT_FOLDER/WORKER_ID.count.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/device/fake_gpu.h"
#include "warren/warren.h"

namespace {

using warren::Op;
using warren::test::Array;
using warren::test::fake_gpu;
using warren::test::FakeFault;

constexpr std::size_t kState = 3'001;
constexpr std::size_t kLarge = 2'200'003;  // three pieces, with a wire type too
constexpr int kExitAgain = 75;

// Without a division for each element: tests run this worker dozens of times, and wait for it.
std::vector<float> input_of(const std::vector<float>& state, int rank, int round) {
  constexpr std::size_t kParts = 7;
  float parts[kParts];
  for (std::size_t i = 0; i < kParts; i++) parts[i] = static_cast<float>(rank + 1) / static_cast<float>(i + 3);
  std::vector<float> input(kLarge);
  for (std::size_t at = 0, block = static_cast<std::size_t>(round); at < kLarge; at += kState, block++) {
    const auto more = static_cast<float>(block % 11);
    for (std::size_t i = 0, part = at % kParts; i < std::min(kState, kLarge - at); i++) {
      input[at + i] = state[i] * 0.25f + parts[part] + more;
      part = part + 1 == kParts ? 0 : part + 1;
    }
  }
  return input;
}

void run(const std::string& mode, int rounds, const std::string& out_file) {
  warren::Communicator comm = warren::Communicator::create();
  const int rank = comm.rank();
  std::vector<float> state(kState);
  for (std::size_t i = 0; i < kState; i++) state[i] = static_cast<float>(i % 17) + 0.1f;
  const auto loaded = comm.load_checkpoint_into({std::span(state)});
  for (int round = static_cast<int>(loaded.version) * 3; round < rounds; round++) {
    const bool mixed = mode == "mixed" || mode == "nccl-mixed";
    const bool async = mode == "nccl-async";
    const bool on_gpu =
        mode == "gpu" || mode == "apart" || mode == "nccl" || async || (mixed && (rank != 1 || round % 3 == 0));
    const bool in_place = round % 2 == 0;
    Array<float> in(on_gpu, input_of(state, rank, round)), out(on_gpu, std::vector<float>(in_place ? 0 : kLarge));
    const Op op = round % 3 == 0 ? Op::sum : round % 3 == 1 ? Op::average : Op::max;
    warren::Calls calls = comm.wire(round % 4 == 3 ? warren::Wire::bf16 : warren::Wire::f32);
    if (async) {
      auto call = in_place ? calls.allreduce_async(in.span(), op) : calls.allreduce_async(in.span(), out.span(), op);
      std::promise<void> done;
      call.on_complete([&](const warren::Error* error) {
        if (error == nullptr) return done.set_value();
        done.set_exception(std::make_exception_ptr(*error));
      });
      done.get_future().get();
      call.wait();
    } else if (in_place) {
      calls.allreduce(in.span(), op);
    } else {
      calls.allreduce(in.span(), out.span(), op);
    }
    const auto result = (in_place ? in : out).read();
    const float part = op == Op::sum ? 1.0f / 256.0f : 1.0f / 128.0f;
    for (std::size_t at = 0; at < kLarge; at += kState) {
      for (std::size_t i = 0; i < std::min(kState, kLarge - at); i++) state[i] = (state[i] + result[at + i]) * part;
    }
    if (round % 3 == 2) comm.checkpoint(std::span<const float>(state));
  }
  std::ofstream(out_file + ".finals") << comm.finals_from_gpus();
  std::ofstream(out_file + ".exchanged") << comm.rounds_exchanged();
  comm.finalize();
  std::ofstream(out_file, std::ios::binary)
      .write(reinterpret_cast<const char*>(state.data()), static_cast<std::streamsize>(state.size() * sizeof(float)));
  std::ofstream(out_file + ".count") << fake_gpu().controls.calls("stream.reduce");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  const std::string worker = std::getenv("WARREN_WORKER_ID"), attempt = std::getenv("WARREN_ATTEMPT");
  const std::string fault = argv[7];
  if (std::string(argv[1]).starts_with("nccl")) {
    const std::string host = "host-" + worker;
    setenv("WARREN_HOST_ID", host.c_str(), 1);
    setenv("WARREN_DOMAIN_ID", host.c_str(), 1);
    setenv("WARREN_NCCL", "1", 1);
  }
  if (std::string(argv[1]) == "apart") {
    const std::string host = worker == "2" ? "other" : "one";
    setenv("WARREN_HOST_ID", host.c_str(), 1);
    setenv("WARREN_DOMAIN_ID", host.c_str(), 1);
  }
  if (worker == argv[4] && attempt == "0") {
    const FakeFault meets = fault == "kill"    ? FakeFault::kKill
                            : fault == "error" ? FakeFault::kError
                            : fault == "stop"  ? FakeFault::kStop
                            : fault == "abort" ? FakeFault::kAbort
                            : fault == "flip"  ? FakeFault::kFlip
                                               : FakeFault::kHang;
    fake_gpu().controls.arm(argv[5], std::atoi(argv[6]), meets);
    if (fault == "late") {
      std::thread([where = std::string(argv[5]), after = std::strtoull(argv[6], nullptr, 10)] {
        while (fake_gpu().controls.calls(where.c_str()) <= after)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        // For less than a round timeout, also where the machine is slow: nobody is to be lost.
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        fake_gpu().controls.release();
      }).detach();
    }
  }
  try {
    run(argv[1], std::atoi(argv[2]), std::string(argv[3]) + "/" + worker);
  } catch (const warren::Error& e) {
    std::fprintf(stderr, "worker %s, attempt %s: %s\n", worker.c_str(), attempt.c_str(), e.what());
    std::_Exit(attempt == "0" ? kExitAgain : 1);
  }
  return 0;
}
