// Data-parallel training in the manner of a dependency engine: the program says which operations read and write which
// variables, and an engine runs each as soon as what it reads is there. So the allreduce of a layer's gradient goes on
// while the layer before is computed, the step of a layer waits for its own gradient alone, and the next forward pass
// begins with the layers whose steps are done.
//
//   warren run -n 2 --timeline=trace.json -- overlap [--layers=N] [--elements=N] [--steps=N] [--compute_us=N]
//
// The layers' computing is a wait, as for a device that computes (the sums are real). The same steps are made three
// times: one operation after the other; by the engine; and by the engine with small gradients put together. Rank 0 says
// how long each took and checks that the weights are the same bits, on all ranks and in all three. The last line is one
// JSON object. Exit code: 0; 1 if the weights differ or something failed; 2 for a wrong command line. In a timeline
// (docs/timeline.md) the spans of the program stand beside the calls and rounds.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "warren/warren.h"

namespace {

struct Flags {
  std::size_t layers = 16, elements = 20'000, steps = 10, compute_us = 500;
};

bool parse(int argc, char** argv, Flags& flags) {
  const std::pair<std::string_view, std::size_t*> known[] = {{"--layers=", &flags.layers},
                                                             {"--elements=", &flags.elements},
                                                             {"--steps=", &flags.steps},
                                                             {"--compute_us=", &flags.compute_us}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    bool good = false;
    for (const auto& [name, value] : known) {
      if (!argument.starts_with(name)) continue;
      const char* const end = argument.data() + argument.size();
      const auto [at, error] = std::from_chars(argument.data() + name.size(), end, *value);
      good = error == std::errc() && at == end && *value >= 1 && *value <= 10'000'000;
    }
    if (good) continue;
    std::fprintf(
        stderr,
        "cannot use the argument %s\nusage: overlap [--layers=N] [--elements=N] [--steps=N] [--compute_us=N]   "
        "(N: 1 to 10000000)\n",
        argv[i]);
    return false;
  }
  return true;
}

// Runs operations in the order that their variables allow: one waits for the last one before it that wrote what it
// reads or writes, and for those since that have read what it writes. All run on the thread that calls run(), the
// oldest of those that are ready first; an operation may go on elsewhere after its function has returned, until `done`
// is called, from any thread.
class Engine {
 public:
  using Variable = std::size_t;
  using Done = std::function<void()>;
  using Function = std::function<void(Done done)>;

  void push(std::vector<Variable> reads, const std::vector<Variable>& writes, Function function) {
    const std::size_t id = operations_.size();
    operations_.push_back({std::move(function), 0, {}});
    const auto after = [&](std::size_t before) {
      operations_[before].followers.push_back(id);
      ++operations_[id].waits_for;
    };
    for (const Variable v : reads) {
      if (const auto it = states_.find(v); it != states_.end() && it->second.writer) after(*it->second.writer);
      states_[v].readers.push_back(id);
    }
    for (const Variable v : writes) {
      State& state = states_[v];
      if (state.writer) after(*state.writer);
      for (const std::size_t reader : state.readers) {
        if (reader != id) after(reader);
      }
      state = {id, {}};
    }
    if (operations_[id].waits_for == 0) ready_.push_back(id);
  }

  // Until all operations are done.
  void run() {
    std::unique_lock lock(mutex_);
    for (std::size_t left = operations_.size(); left > 0;) {
      changed_.wait(lock, [&] { return !ready_.empty() || !finished_.empty(); });
      for (; !finished_.empty(); finished_.pop_front(), --left) {
        for (const std::size_t follower : operations_[finished_.front()].followers) {
          if (--operations_[follower].waits_for == 0) {
            ready_.insert(std::ranges::lower_bound(ready_, follower), follower);
          }
        }
      }
      if (ready_.empty()) continue;
      const std::size_t id = ready_.front();
      ready_.pop_front();
      lock.unlock();
      operations_[id].function([this, id] {
        const std::lock_guard done(mutex_);
        finished_.push_back(id);
        changed_.notify_one();
      });
      lock.lock();
    }
    operations_.clear();
    states_.clear();
  }

 private:
  struct Operation {
    Function function;
    std::size_t waits_for = 0;
    std::vector<std::size_t> followers;
  };
  struct State {
    std::optional<std::size_t> writer;  // the newest
    std::vector<std::size_t> readers;   // since
  };
  std::vector<Operation> operations_;
  std::map<Variable, State> states_;
  std::deque<std::size_t> ready_;  // the oldest first
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::size_t> finished_;
};

struct Model {
  Model(std::size_t layers, std::size_t elements)
      : weights(layers, std::vector<float>(elements, 1.0f)), gradients(layers, std::vector<float>(elements)) {}
  std::vector<std::vector<float>> weights, gradients;
};

class Trainer {
 public:
  Trainer(warren::Communicator& comm, const Flags& flags)
      : comm_(comm), flags_(flags), model_(flags.layers, flags.elements) {}

  void forward(std::size_t layer) { computes("forward", layer, flags_.compute_us / 2); }
  // Whole numbers, so that sums are exact in any order and all three ways must come to the same bits.
  void backward(std::size_t layer, std::size_t step) {
    computes("backward", layer, flags_.compute_us);
    auto& gradient = model_.gradients[layer];
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>((i * 7 + layer * 3 + step + static_cast<std::size_t>(comm_.rank())) % 5);
    }
  }
  void apply(std::size_t layer) {
    const auto span = comm_.span("step of layer " + std::to_string(layer));
    auto& weights = model_.weights[layer];
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= model_.gradients[layer][i];
  }

  void one_after_the_other() {
    for (std::size_t step = 0; step < flags_.steps; ++step) {
      for (std::size_t layer = 0; layer < flags_.layers; ++layer) forward(layer);
      for (std::size_t layer = flags_.layers; layer-- > 0;) {
        backward(layer, step);
        comm_.allreduce(std::span(model_.gradients[layer]));
      }
      for (std::size_t layer = 0; layer < flags_.layers; ++layer) apply(layer);
    }
  }

  // Variables: of each layer its weights, its gradient, and what it passes on; the batch, what the backward pass hands
  // down, and the order in which allreduces are issued, which is the same on all ranks.
  void by_dependencies(std::int64_t fusion_bytes) {
    const std::size_t n = flags_.layers;
    const auto weights = [](std::size_t layer) { return 3 * layer; };
    const auto gradient = [](std::size_t layer) { return 3 * layer + 1; };
    const auto passed = [](std::size_t layer) { return 3 * layer + 2; };
    const auto batch = 3 * n, slope = 3 * n + 1, order = 3 * n + 2;
    Engine engine;
    std::optional<warren::Fusion> fusion;
    std::vector<warren::Handle> handles(n);
    for (std::size_t step = 0; step < flags_.steps; ++step) {
      for (std::size_t layer = 0; layer < n; ++layer) {
        engine.push({weights(layer), layer == 0 ? batch : passed(layer - 1)}, {passed(layer)},
                    [this, layer](const Engine::Done& done) {
                      forward(layer);
                      done();
                    });
      }
      for (std::size_t layer = n; layer-- > 0;) {
        engine.push({weights(layer), passed(layer)}, {gradient(layer), slope},
                    [this, layer, step](const Engine::Done& done) {
                      backward(layer, step);
                      done();
                    });
        engine.push({}, {gradient(layer), order}, [&, layer](const Engine::Done& done) {
          if (layer + 1 == n) fusion.emplace(comm_.fuse(fusion_bytes));
          handles[layer] = comm_.allreduce_async(std::span(model_.gradients[layer]));
          // Nothing follows that could be put together with these.
          if (layer == 0) fusion.reset();
          done();
        });
        // Goes on without this thread until the allreduce has finished.
        engine.push({}, {gradient(layer)}, [&, layer](const Engine::Done& done) {
          handles[layer].on_complete([this, done](const warren::Error* error) {
            if (error != nullptr) failed_ = true;
            done();
          });
        });
        engine.push({gradient(layer)}, {weights(layer)}, [&, layer](const Engine::Done& done) {
          if (failed_) handles[layer].wait();  // throws what went wrong
          apply(layer);
          done();
        });
      }
    }
    engine.run();
  }

  [[nodiscard]] std::vector<float> all_weights() const {
    std::vector<float> all;
    for (const auto& w : model_.weights) all.insert(all.end(), w.begin(), w.end());
    return all;
  }

 private:
  void computes(const char* what, std::size_t layer, std::size_t us) {
    const auto span = comm_.span(std::string(what) + " of layer " + std::to_string(layer));
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }

  warren::Communicator& comm_;
  const Flags flags_;
  Model model_;
  std::atomic<bool> failed_{false};
};

int run(const Flags& flags) {
  using Clock = std::chrono::steady_clock;
  warren::Communicator comm = warren::Communicator::create();
  (void)comm.load_checkpoint();
  std::vector<std::vector<float>> weights;
  const auto timed = [&](auto train) {
    Trainer trainer(comm, flags);
    comm.barrier();
    const auto start = Clock::now();
    train(trainer);
    comm.barrier();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    weights.push_back(trainer.all_weights());
    return seconds;
  };
  const double one = timed([](Trainer& t) { t.one_after_the_other(); });
  const double overlapped = timed([](Trainer& t) { t.by_dependencies(0); });
  const auto quarter = static_cast<std::int64_t>(std::max<std::size_t>(1, flags.layers / 4) * flags.elements * 4);
  const double fused = timed([&](Trainer& t) { t.by_dependencies(quarter); });
  bool equal = weights[0] == weights[1] && weights[0] == weights[2];
  std::vector<float> least = comm.allreduce(weights[0], warren::Op::min);
  equal = equal && least == comm.allreduce(weights[0], warren::Op::max);
  const std::int32_t failed = comm.allreduce(equal ? 0 : 1, warren::Op::max);
  if (comm.rank() == 0) {
    if (failed != 0) std::fprintf(stderr, "the example failed: the weights differ\n");
    std::printf("one after the other %.3f s, overlapped %.3f s, overlapped and put together %.3f s\n", one, overlapped,
                fused);
    nlohmann::ordered_json result;
    result["example"] = "overlap";
    result["workers"] = comm.world_size();
    result["layers"] = flags.layers;
    result["weights_equal"] = failed == 0;
    result["seconds"] = one;
    result["seconds_overlapped"] = overlapped;
    result["seconds_fused"] = fused;
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
  }
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
    std::fprintf(stderr, "overlap: %s\n", error.what());
    return 1;
  }
}
