// Trains softmax regression on handwritten digits by synchronous minibatch SGD: each worker holds a share of the
// images, and an allreduce sums the gradients of every minibatch. A checkpoint is taken after every epoch: a worker
// that is killed and started again gets the newest one and, from the log, the sums since, and ends with the same
// weights.
//
//   warren run -n 4 -- digits [--data=DIR] [--epochs=N] [--batch=N] [--json_file=PATH] [--weights_file=PATH]
//
// Rank 0 reports, and writes the weights as they are in memory. At the end it checks what is claimed: the weights are
// the same bits on all workers, they are those of the same minibatches in one process to 1e-5, and the model has
// learned. The last line is one JSON object (in PATH too, if given). Exit code: 0; 1 if a claim is wrong or something
// failed; 2 for a wrong command line.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "examples/digits_data.h"
#include "examples/softmax.h"
#include "warren/warren.h"

namespace {

constexpr std::size_t kTestImages = 360;
constexpr std::uint64_t kSplitSeed = 1;
constexpr double kLeastAccuracy = 0.94;
constexpr double kMostDifference = 1e-5;

struct Flags {
  std::string data = "examples/data";
  std::string json_file, weights_file;
  std::size_t checkpoint_every = 1;  // epochs
  digits::Plan plan;
};

bool parse_count(std::string_view text, std::size_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= 100'000;
}

bool parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto value_of = [&](std::string_view name, std::string_view& value) {
      if (!argument.starts_with(name)) return false;
      value = argument.substr(name.size());
      return true;
    };
    std::string_view value;
    bool good = true;
    if (value_of("--data=", value)) {
      flags.data = value;
    } else if (value_of("--json_file=", value)) {
      flags.json_file = value;
    } else if (value_of("--weights_file=", value)) {
      flags.weights_file = value;
    } else if (value_of("--epochs=", value)) {
      good = parse_count(value, flags.plan.epochs);
    } else if (value_of("--checkpoint_every=", value)) {
      good = parse_count(value, flags.checkpoint_every);
    } else if (value_of("--batch=", value)) {
      good = parse_count(value, flags.plan.batch);
    } else {
      good = false;
    }
    if (!good) {
      std::fprintf(stderr,
                   "cannot use the argument %s\n"
                   "usage: digits [--data=DIR] [--epochs=N] [--batch=N] [--checkpoint_every=N] [--json_file=PATH] "
                   "[--weights_file=PATH]   (N: 1 to 100000; checkpoint_every: epochs)\n",
                   argv[i]);
      return false;
    }
  }
  return true;
}

bool same_bits_everywhere(warren::Communicator& comm, const digits::Weights& weights) {
  const auto* first = reinterpret_cast<const std::byte*>(weights.data());
  const std::vector<std::byte> mine(first, first + sizeof(weights));
  const std::vector<std::byte> all = comm.allgather(mine);
  for (auto at = all.begin(); at != all.end(); at += static_cast<std::ptrdiff_t>(mine.size())) {
    if (!std::equal(mine.begin(), mine.end(), at)) return false;
  }
  return true;
}

int run(const Flags& flags) {
  using Clock = std::chrono::steady_clock;
  const digits::Split images = digits::split(digits::load(flags.data + "/digits.csv.gz"), kTestImages, kSplitSeed);
  if (images.train.empty()) {
    throw std::runtime_error(flags.data + "/digits.csv.gz: " + std::to_string(kTestImages) +
                             " images are held out and none are left to train on");
  }

  warren::Communicator comm = warren::Communicator::create();
  const bool reports = comm.rank() == 0;
  const auto ranks = static_cast<std::size_t>(comm.world_size());
  const digits::Shard shard(images.train, static_cast<std::size_t>(comm.rank()), ranks);
  if (reports) {
    std::printf("%zu images to train on over %zu workers, %zu held out\n", images.train.size(), ranks,
                images.test.size());
  }

  digits::Training training;
  const warren::Communicator::Checkpoint loaded = comm.load_checkpoint();
  if (loaded.version > 0) training = loaded.global_as<digits::Training>().at(0);
  std::printf("rank %d is process %d and begins after epoch %llu\n", comm.rank(), getpid(),
              static_cast<unsigned long long>(training.epochs));
  std::fflush(stdout);
  const std::size_t rounds_before = training.rounds;
  const std::size_t say_every = std::max<std::size_t>(1, flags.plan.epochs / 16);
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  digits::train(
      training, shard, flags.plan, [&](std::span<double> sums) { comm.allreduce(sums); },
      [&](const digits::Epoch& epoch) {
        // The epoch is in the state, so a life that begins anew goes on from it, however many epochs a checkpoint
        // holds.
        if (epoch.number % flags.checkpoint_every == 0) comm.checkpoint(std::as_bytes(std::span(&training, 1)));
        if (reports && (epoch.number % say_every == 0 || epoch.number == flags.plan.epochs)) {
          std::printf("epoch %3zu of %zu: loss %.4f, training accuracy %.4f, %.0f rounds/s\n", epoch.number,
                      flags.plan.epochs, epoch.loss, epoch.accuracy,
                      static_cast<double>(epoch.rounds - rounds_before) / elapsed());
          std::fflush(stdout);
        }
      });
  const double seconds = elapsed();
  const digits::Weights& weights = training.weights;
  const bool weights_equal = same_bits_everywhere(comm, weights);

  const std::size_t rounds = training.rounds;

  // All leave with rank 0's verdict.
  std::int32_t failed = 0;
  if (reports) {
    digits::Training sequential;
    digits::train(
        sequential, digits::Shard(images.train, 0, 1), flags.plan, [](std::span<double>) {},
        [](const digits::Epoch&) {});
    const double difference = digits::max_relative_difference(weights, sequential.weights);
    const double test_accuracy = digits::accuracy(weights, images.test);
    std::printf("test accuracy %.4f; %zu rounds, the last %zu in %.2f s\n", test_accuracy, rounds,
                rounds - rounds_before, seconds);
    std::printf(
        "weights are %s bit for bit on all workers; the same minibatches in one process differ by at most %.2g\n",
        weights_equal ? "equal" : "NOT equal", difference);
    const auto claim = [&](bool holds, const char* what) {
      if (holds) return;
      failed = 1;
      std::fprintf(stderr, "the demo failed: %s\n", what);
    };
    claim(weights_equal, "the weights differ between workers");
    claim(difference <= kMostDifference, "the weights are not those of one process to 1e-5");
    claim(test_accuracy >= kLeastAccuracy, "the test accuracy is below 0.94");

    nlohmann::ordered_json result;
    result["demo"] = "digits";
    result["workers"] = ranks;
    result["test_accuracy"] = test_accuracy;
    result["weights_equal"] = weights_equal;
    result["sequential_max_rel_diff"] = difference;
    result["rounds"] = rounds;
    result["seconds"] = seconds;
    const auto write_file = [&](const std::string& path, std::string_view bytes) {
      if (path.empty()) return;
      std::ofstream file(path, std::ios::binary);
      file << bytes << std::flush;
      if (file) return;
      std::fprintf(stderr, "cannot write %s\n", path.c_str());
      failed = 1;
    };
    write_file(flags.weights_file, {reinterpret_cast<const char*>(weights.data()), sizeof(weights)});
    write_file(flags.json_file, result.dump() + "\n");
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
    std::fprintf(stderr, "digits: %s\n", error.what());
    return 1;
  }
}
