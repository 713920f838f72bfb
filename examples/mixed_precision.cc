// Trains the digits (digits.cc) with 16-bit weights and gradients, as large models are trained: forward and backward
// passes use f16 copies of the weights; gradients are multiplied by a loss scale, so that small ones do not vanish in
// f16, and travel in f16, half the bytes; the step is made on an f32 master copy, after the scale is taken out again.
// Where a sum is beyond f16, the step is left out on all ranks (they have the same bits, so they agree without asking)
// and the scale is halved; after a while without that it is doubled.
//
//   warren run -n 4 -- mixed_precision [--data=DIR] [--epochs=N] [--wire=f16|bf16|f32] [--master_file=PATH]
//
// Master weights, velocities and scale are checkpointed after each epoch: a worker that is killed and started again
// ends with the same bits. Rank 0 checks what is claimed: the master weights are the same bits on all workers, they are
// near those of f64 without any of this, scales were lowered and raised, and the model has learned. The last line is
// one JSON object. Exit code: 0; 1 if a claim is wrong or something failed; 2 for a wrong command line.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "examples/digits_data.h"
#include "examples/softmax.h"
#include "warren/warren.h"

namespace {

using digits::kWeights;

constexpr std::size_t kTestImages = 360;
constexpr std::uint64_t kSplitSeed = 1;
constexpr double kLeastAccuracy = 0.94;
// Of the master weights to those of f64, as a part of these: |a - b| / |b|, Euclidean. With 3
// workers: 0.006 (f16, whose first steps are left out), 0.0004 (bf16).
constexpr double kMostDistance = 0.03;
constexpr float kFirstScale = 0x1p20f, kMostScale = 0x1p24f;  // the first ones are beyond f16
constexpr std::uint64_t kStepsBeforeRaise = 200;

struct Flags {
  std::string data = "examples/data", master_file;
  warren::Wire wire = warren::Wire::f16;
  std::string wire_name = "f16";
  digits::Plan plan;
};

bool parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto value_of = [&](std::string_view name) { return argument.substr(name.size()); };
    bool good = true;
    if (argument.starts_with("--data=")) {
      flags.data = value_of("--data=");
    } else if (argument.starts_with("--master_file=")) {
      flags.master_file = value_of("--master_file=");
    } else if (argument.starts_with("--epochs=")) {
      const std::string_view text = value_of("--epochs=");
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), flags.plan.epochs);
      good = error == std::errc() && end == text.data() + text.size() && flags.plan.epochs >= 1 &&
             flags.plan.epochs <= 100'000;
    } else if (argument == "--wire=f16" || argument == "--wire=bf16" || argument == "--wire=f32") {
      flags.wire_name = value_of("--wire=");
      flags.wire = flags.wire_name == "f16"    ? warren::Wire::f16
                   : flags.wire_name == "bf16" ? warren::Wire::bf16
                                               : warren::Wire::f32;
    } else {
      good = false;
    }
    if (good) continue;
    std::fprintf(stderr,
                 "cannot use the argument %s\nusage: mixed_precision [--data=DIR] [--epochs=N] [--wire=f16|bf16|f32] "
                 "[--master_file=PATH]   (N: 1 to 100000)\n",
                 argv[i]);
    return false;
  }
  return true;
}

// What a checkpoint holds. Plain bytes.
struct Training {
  std::array<float, kWeights> master{}, velocity{};
  float scale = kFirstScale;
  std::uint32_t reserved = 0;
  std::uint64_t epochs = 0, good_steps = 0;  // good ones since the scale was changed
  std::uint64_t lowered = 0, raised = 0;
};

digits::Weights widened(const std::array<float, kWeights>& weights) {
  digits::Weights wide;
  std::ranges::copy(weights, wide.begin());
  return wide;
}

// One minibatch; its f16 copy of the weights is what the gradient is computed with.
void step(warren::Communicator& comm, Training& t, const digits::Shard& shard, const Flags& flags,
          std::span<const std::size_t> batch) {
  digits::Weights working;
  for (std::size_t i = 0; i < kWeights; ++i) working[i] = static_cast<float>(warren::float16(t.master[i]));
  digits::BatchSums sums;
  for (const std::size_t index : batch) {
    if (const digits::Image* image = shard.find(index)) digits::accumulate(working, *image, sums);
  }
  std::array<float, kWeights> gradient;
  const float loss_scale = t.scale / static_cast<float>(batch.size());
  for (std::size_t i = 0; i < kWeights; ++i) gradient[i] = static_cast<float>(sums.gradient()[i]) * loss_scale;
  comm.wire(flags.wire).allreduce(std::span(gradient));
  if (!std::ranges::all_of(gradient, [](float g) { return std::isfinite(g); })) {
    t.scale /= 2;
    t.good_steps = 0;
    ++t.lowered;
    return;
  }
  const auto rate = static_cast<float>(flags.plan.learning_rate), momentum = static_cast<float>(flags.plan.momentum);
  for (std::size_t i = 0; i < kWeights; ++i) {
    t.velocity[i] = momentum * t.velocity[i] - rate * (gradient[i] / t.scale);
    t.master[i] += t.velocity[i];
  }
  if (++t.good_steps == kStepsBeforeRaise && t.scale < kMostScale) {
    t.scale *= 2;
    t.good_steps = 0;
    ++t.raised;
  }
}

double distance(const digits::Weights& a, const digits::Weights& b) {
  double apart = 0, length = 0;
  for (std::size_t i = 0; i < kWeights; ++i) {
    apart += (a[i] - b[i]) * (a[i] - b[i]);
    length += b[i] * b[i];
  }
  return std::sqrt(apart / length);
}

int run(const Flags& flags) {
  const digits::Split images = digits::split(digits::load(flags.data + "/digits.csv.gz"), kTestImages, kSplitSeed);
  warren::Communicator comm = warren::Communicator::create();
  const auto ranks = static_cast<std::size_t>(comm.world_size());
  const digits::Shard shard(images.train, static_cast<std::size_t>(comm.rank()), ranks);
  Training t;
  const auto loaded = comm.load_checkpoint();
  if (loaded.version > 0) t = loaded.global_as<Training>().at(0);
  std::printf("rank %d is process %d and begins after epoch %llu\n", comm.rank(), getpid(),
              static_cast<unsigned long long>(t.epochs));
  std::fflush(stdout);
  while (t.epochs < flags.plan.epochs) {
    const std::vector<std::size_t> order = digits::permutation(shard.total(), flags.plan.seed + t.epochs);
    for (std::size_t begin = 0; begin < order.size(); begin += flags.plan.batch) {
      step(comm, t, shard, flags, std::span(order).subspan(begin, std::min(flags.plan.batch, order.size() - begin)));
    }
    ++t.epochs;
    comm.checkpoint(std::as_bytes(std::span(&t, 1)));
  }

  const std::vector<float> mine(t.master.begin(), t.master.end());
  const std::vector<float> all = comm.allgather(mine);
  std::int32_t failed = 0;
  if (comm.rank() == 0) {
    bool equal = true;
    for (std::size_t r = 0; r < ranks; ++r) {
      equal = equal && std::memcmp(all.data() + r * kWeights, mine.data(), kWeights * sizeof(float)) == 0;
    }
    digits::Training wide;
    digits::train(
        wide, digits::Shard(images.train, 0, 1), flags.plan, [](std::span<double>) {}, [](const digits::Epoch&) {});
    const double apart = distance(widened(t.master), wide.weights);
    const double accuracy = digits::accuracy(widened(t.master), images.test);
    const auto claim = [&](bool holds, const char* what) {
      if (holds) return;
      failed = 1;
      std::fprintf(stderr, "the example failed: %s\n", what);
    };
    claim(equal, "the master weights differ between workers");
    claim(accuracy >= kLeastAccuracy, "the test accuracy is below 0.94");
    claim(apart <= kMostDistance, "the master weights are far from those of f64");
    claim(t.raised > 0, "the scale was never raised");
    // Only f16 has so short a range.
    claim(flags.wire != warren::Wire::f16 || t.lowered > 0, "no sum was beyond f16, and the scale was never lowered");
    if (!flags.master_file.empty()) {
      std::ofstream file(flags.master_file, std::ios::binary);
      file.write(reinterpret_cast<const char*>(mine.data()), static_cast<std::streamsize>(kWeights * sizeof(float)));
      claim(static_cast<bool>(file.flush()), "cannot write the master weights");
    }
    nlohmann::ordered_json result;
    result["example"] = "mixed_precision";
    result["wire"] = flags.wire_name;
    result["workers"] = ranks;
    result["test_accuracy"] = accuracy;
    result["weights_equal"] = equal;
    result["distance_to_f64"] = apart;
    result["scale"] = t.scale;
    result["steps_left_out"] = t.lowered;
    result["scale_raised"] = t.raised;
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
  }
  failed = comm.broadcast(failed, 0);
  comm.finalize();
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Flags flags;
    if (!parse(argc, argv, flags)) return 2;
    return run(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mixed_precision: %s\n", error.what());
    return 1;
  }
}
