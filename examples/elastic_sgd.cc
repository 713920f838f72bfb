// Trains the digits (digits.cc) with as many workers as there are: in mode shrink the job goes on without one that is
// lost and takes it in again when it is back, and no sample is lost or used twice by that. Each minibatch is dealt out
// to the ranks whose inputs were in the last sum (deal.h); samples whose rank is not among the contributors of this one
// are dealt out again.
//
//   warren run -n 4 --mode=shrink -- elastic_sgd [--data=DIR] [--epochs=N] [--batch=N]
//
// Beside the gradient the ranks sum how often each sample is in it, so that what is claimed of an epoch is seen in the
// sums themselves, and not in the books: each sample was used exactly once. The lowest rank that is there reports, and
// at the end all check that the model has learned and is the same bits on all ranks. The last line is one JSON object.
// Exit code: 0; 1 if a claim is wrong or something failed; 2 for a wrong command line.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "examples/deal.h"
#include "examples/digits_data.h"
#include "examples/softmax.h"
#include "warren/warren.h"

namespace {

using digits::kWeights;

constexpr std::size_t kTestImages = 360;
constexpr std::uint64_t kSplitSeed = 1;
constexpr double kLeastAccuracy = 0.94;
constexpr std::uint64_t kStepsBetweenCheckpoints = 8;  // who comes back comes in after one

struct Flags {
  std::string data = "examples/data";
  digits::Plan plan;
};

bool parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto count = [&](std::string_view name, std::size_t& value) {
      if (!argument.starts_with(name)) return false;
      const char* const end = argument.data() + argument.size();
      const auto [at, error] = std::from_chars(argument.data() + name.size(), end, value);
      return error == std::errc() && at == end && value >= 1 && value <= 100'000;
    };
    bool good = argument.starts_with("--data=");
    if (good) flags.data = argument.substr(std::string_view("--data=").size());
    good = good || count("--epochs=", flags.plan.epochs) || count("--batch=", flags.plan.batch);
    if (good) continue;
    std::fprintf(stderr,
                 "cannot use the argument %s\nusage: elastic_sgd [--data=DIR] [--epochs=N] [--batch=N]   "
                 "(N: 1 to 100000)\n",
                 argv[i]);
    return false;
  }
  return true;
}

// Where a training stands, the same on all ranks. Of the epoch under way `deal` knows what is left, `uses` how often
// each sample was in a sum; `loss` is the sum over these.
struct Training {
  digits::Weights weights{}, velocity{};
  std::uint64_t epochs = 0, steps = 0, dealt_again = 0;
  double loss = 0;
  std::vector<double> uses;
  digits::Deal deal{{}, {}, 1};
};

// What a checkpoint holds: numbers that a double has exactly, and the model.
std::vector<double> packed(const Training& t) {
  std::vector<double> out(t.weights.begin(), t.weights.end());
  const auto append = [&out](const auto& values) { out.insert(out.end(), values.begin(), values.end()); };
  append(t.velocity);
  append(std::vector{t.epochs, t.steps, t.dealt_again, std::uint64_t{t.deal.ranks().size()}});
  out.push_back(t.loss);
  append(t.uses);
  append(t.deal.ranks());
  append(t.deal.left());
  return out;
}

Training unpacked(std::span<const double> from, std::size_t samples, std::size_t batch) {
  Training t;
  const auto take = [&from](std::size_t count) {
    const auto values = from.first(count);
    from = from.subspan(count);
    return values;
  };
  std::ranges::copy(take(kWeights), t.weights.begin());
  std::ranges::copy(take(kWeights), t.velocity.begin());
  const auto counts = take(4);
  t.epochs = static_cast<std::uint64_t>(counts[0]);
  t.steps = static_cast<std::uint64_t>(counts[1]);
  t.dealt_again = static_cast<std::uint64_t>(counts[2]);
  t.loss = take(1).front();
  const auto uses = take(samples);
  t.uses.assign(uses.begin(), uses.end());
  const auto ranks = take(static_cast<std::size_t>(counts[3]));
  t.deal = digits::Deal(std::vector<std::size_t>(from.begin(), from.end()),
                        std::vector<int>(ranks.begin(), ranks.end()), batch);
  return t;
}

// One minibatch, of the samples whose ranks are still there when it is summed.
void step(warren::Communicator& comm, Training& t, const std::vector<digits::Image>& images, const Flags& flags) {
  digits::BatchSums sums;
  std::vector<double> buffer(sums.values.size() + images.size());
  for (const std::size_t sample : t.deal.share(comm.rank())) {
    digits::accumulate(t.weights, images[sample], sums);
    buffer[sums.values.size() + sample] += 1;
  }
  std::ranges::copy(sums.values, buffer.begin());
  comm.allreduce(std::span(buffer));
  std::copy_n(buffer.begin(), sums.values.size(), sums.values.begin());
  const auto used = std::span<const double>(buffer).subspan(sums.values.size());
  for (std::size_t i = 0; i < used.size(); ++i) t.uses[i] += used[i];
  t.dealt_again += t.deal.close_step(comm.contributors());
  ++t.steps;
  const double count = std::accumulate(used.begin(), used.end(), 0.0);
  if (count == 0) return;  // all who were dealt some are gone, and those who sum now have just come
  const double scale = flags.plan.learning_rate / count;
  for (std::size_t i = 0; i < kWeights; ++i) {
    t.velocity[i] = flags.plan.momentum * t.velocity[i] - scale * sums.gradient()[i];
    t.weights[i] += t.velocity[i];
  }
  t.loss += sums.loss();
}

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : " ") + std::to_string(rank);
  return text;
}

bool same_bits_everywhere(warren::Communicator& comm, const digits::Weights& weights) {
  std::vector<std::uint64_t> bits(kWeights);
  std::memcpy(bits.data(), weights.data(), sizeof weights);
  return comm.allreduce(bits, warren::Op::min) == comm.allreduce(bits, warren::Op::max);
}

int run(const Flags& flags) {
  const digits::Split images = digits::split(digits::load(flags.data + "/digits.csv.gz"), kTestImages, kSplitSeed);
  const std::size_t samples = images.train.size();
  warren::Communicator comm = warren::Communicator::create();
  const auto begin_epoch = [&](Training& t, const std::vector<int>& ranks) {
    t.uses.assign(samples, 0);
    t.loss = 0;
    t.deal = digits::Deal(digits::permutation(samples, flags.plan.seed + t.epochs), ranks, flags.plan.batch);
  };
  Training t;
  const auto loaded = comm.load_checkpoint();
  if (loaded.version > 0) {
    t = unpacked(loaded.global_as<double>(), samples, flags.plan.batch);
  } else {
    std::vector<int> all(static_cast<std::size_t>(comm.world_size()));
    std::iota(all.begin(), all.end(), 0);
    begin_epoch(t, all);
  }
  std::printf("rank %d is process %d and begins after epoch %llu\n", comm.rank(), getpid(),
              static_cast<unsigned long long>(t.epochs));
  std::fflush(stdout);
  while (t.epochs < flags.plan.epochs) {
    step(comm, t, images.train, flags);
    if (t.deal.left().empty()) {
      if (!std::ranges::all_of(t.uses, [](double uses) { return uses == 1; })) {
        std::fprintf(stderr, "the example failed: a sample was lost or used twice\n");
        return 1;
      }
      ++t.epochs;
      if (comm.rank() == t.deal.ranks().front()) {
        std::printf("epoch %llu of %zu: %zu samples once each, loss %.4f, %llu dealt out again so far, ranks %s\n",
                    static_cast<unsigned long long>(t.epochs), flags.plan.epochs, samples,
                    t.loss / static_cast<double>(samples), static_cast<unsigned long long>(t.dealt_again),
                    list(t.deal.ranks()).c_str());
        std::fflush(stdout);
      }
      const std::vector<int> ranks = t.deal.ranks();
      begin_epoch(t, ranks);
    }
    if (t.steps % kStepsBetweenCheckpoints == 0) comm.checkpoint(packed(t));
  }
  // All compute the same verdict.
  const bool equal = same_bits_everywhere(comm, t.weights);
  const double accuracy = digits::accuracy(t.weights, images.test);
  if (!equal) std::fprintf(stderr, "the example failed: the weights differ between workers\n");
  if (accuracy < kLeastAccuracy) std::fprintf(stderr, "the example failed: the test accuracy is below 0.94\n");
  if (comm.rank() == comm.contributors().front()) {
    nlohmann::ordered_json result;
    result["example"] = "elastic_sgd";
    result["workers"] = comm.contributors().size();
    result["test_accuracy"] = accuracy;
    result["weights_equal"] = equal;
    result["steps"] = t.steps;
    result["dealt_again"] = t.dealt_again;
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
  }
  comm.finalize();
  return equal && accuracy >= kLeastAccuracy ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Flags flags;
    if (!parse(argc, argv, flags)) return 2;
    return run(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "elastic_sgd: %s\n", error.what());
    return 1;
  }
}
