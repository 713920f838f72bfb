// One process in a job, as rabit's functions see it: the operations of rabit made of Warren's, counted for kill points,
// with set-up rounds served (setup_rounds.h). One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>

#include "rabit/outcome.h"
#include "rabit/parameters.h"
#include "rabit/setup_rounds.h"
#include "warren/c_api.h"

namespace rabit::layer {

// What fills a call's buffer; not called where the result is replayed.
struct Prepare {
  void (*function)(void* argument) = nullptr;
  void* argument = nullptr;
};

class Node {
 public:
  // A world of one until join().
  explicit Node(Parameters parameters);
  // Leaves the job; without finalize(), the other ranks learn that this one has gone.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Joins the job, unless this process is alone, and waits until all of it is there.
  Outcome join();
  Outcome finalize();
  // Without finalize(): the other ranks wait for this process' next life. No operation may follow; who this was can be
  // asked as before. Not within an operation.
  void leave();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  [[nodiscard]] bool distributed() const { return distributed_; }
  [[nodiscard]] int version() const { return static_cast<int>(version_); }

  // Failures say what was called, and where. What a prepare function throws, or a model that is saved or loaded, the
  // call throws. After either no operation may follow.
  Outcome allreduce(void* buffer, std::size_t count, warren_type type, warren_op op, Prepare prepare,
                    const CallPlace& place);
  // As engine::ReduceFunction.
  Outcome allreduce_custom(void* buffer, std::size_t element_bytes, std::size_t count,
                           void (*reduce)(const void* src, void* dst, std::size_t count, std::size_t element_bytes),
                           Prepare prepare, const CallPlace& place);
  Outcome broadcast(void* buffer, std::size_t bytes, int root, const CallPlace& place);
  // This rank's slice is [first, first + slice) of `total` bytes; `previous`: the size of the slice before it.
  Outcome allgather(void* buffer, std::size_t total, std::size_t first, std::size_t slice, std::size_t previous,
                    const CallPlace& place);

  // Appends a model to a buffer; reads one.
  using Save = std::function<void(std::string& buffer)>;
  using Load = std::function<void(const char* bytes, std::size_t size)>;
  // `version`: how many checkpoints the program had taken. Fills the models unless that is 0. Again in the same life:
  // what the newest checkpoint holds. `local` is not called where no local model was checkpointed.
  Outcome load_checkpoint(const Load& global, const Load& local, int& version);
  // Ends the version. Both models are saved before this returns, and never read later. `name`: the function that the
  // program called, for errors and kill points. `local` empty: none.
  Outcome checkpoint(const char* name, const Save& global, const Save& local);

  static constexpr int kKillPointExitCode = 254;

 private:
  template <class Issue>
  Outcome operate(const char* name, Prepare prepare, std::span<std::byte> result, const CallPlace& place, Issue issue);
  // Whether the job makes the round of such a call now; else `result` is what it gave once.
  Outcome decide(const char* name, const SetupRounds::Call& call, std::span<std::byte> result, const CallPlace& place,
                 bool& met);
  // Of a set-up round that is known: keeps its result for good, or gets it. Rank 0's bytes count.
  warren_code share_setup_round(const SetupRound& round, void* bytes, std::size_t size);
  Outcome gather_slices(std::byte* buffer, std::size_t total, std::span<const std::uint64_t> firsts,
                        std::span<const std::size_t> sizes, const warren_call_options* said);
  Outcome begin_from(StateHead head);
  Outcome end_version(const char* name);
  Outcome look_at_setup_rounds();
  void next_version();
  void die_if_told(const char* name) const;
  // Runs a function of the program's that Warren asked for, and keeps what it throws for failed().
  template <class Function>
  void run_program(Function function);
  // Of a call of Warren's; throws what the program threw in it.
  [[nodiscard]] Outcome failed(const std::string& what, const CallPlace& place = {});
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(world_size()); }

  // Local models are given in every checkpoint or in none.
  enum class Locals { kUnknown, kGiven, kNone };
  Outcome check_locals(const char* name, bool given);

  const Parameters parameters_;
  warren_comm* comm_ = nullptr;
  int rank_ = 0, world_size_ = 1;
  bool distributed_ = false;
  bool counting_ = false;  // a version has begun: its operations count
  std::uint64_t version_ = 0;
  std::uint64_t sequence_ = 0;
  SetupRounds setup_;
  std::string global_, local_;  // the newest checkpoint's states; the global one begins with its head
  std::size_t head_bytes_ = 0;  // of global_
  Locals locals_ = Locals::kUnknown;
  Prepare prepare_;                                   // of the call that is made
  std::exception_ptr thrown_;                         // by the program, within it
  std::vector<std::byte> room_;                       // for slices that lie in another order than ranks
  double allreduce_seconds_ = 0, version_began_ = 0;  // for report_stats
};

}  // namespace rabit::layer
