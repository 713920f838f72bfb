#include "python/src/lightgbm.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "python/src/call_site.h"
#include "python/src/failure.h"
#include "python/src/group.h"
#include "warren/c_api.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

// LightGBM's types, from its meta.h. Sizes and starts of blocks are in bytes.
using Reducer = void (*)(const char* input, char* output, int type_size, std::int32_t bytes);
using ReduceScatter = void (*)(char* input, std::int32_t input_bytes, int type_size, const std::int32_t* starts,
                               const std::int32_t* lengths, int blocks, char* output, std::int32_t output_bytes,
                               const Reducer& reducer);
using Allgather = void (*)(char* input, std::int32_t input_bytes, const std::int32_t* starts,
                           const std::int32_t* lengths, int blocks, char* output, std::int32_t output_bytes);

struct Reduction {
  Reducer reducer;
  int type_size;
  std::size_t element_bytes;

  static std::int32_t run(const void* a, void* inout, std::size_t n, void* context) {
    const auto& of = *static_cast<const Reduction*>(context);
    // Elements are parts of blocks, whose bytes LightGBM counts in 32 bits.
    of.reducer(static_cast<const char*>(a), static_cast<char*>(inout), of.type_size,
               static_cast<std::int32_t>(n * of.element_bytes));
    return 0;
  }
};

// One communicator as the network of the thread that LightGBM runs on. LightGBM keeps the two functions by thread, and
// gives them no context.
class LightGbmNetwork {
 public:
  explicit LightGbmNetwork(const Group& group)
      : job_(group.job),
        comm_(group.open()),
        rank_(static_cast<std::size_t>(group.rank())),
        size_(static_cast<std::size_t>(group.size())),
        site_(call_site()) {}
  LightGbmNetwork(const LightGbmNetwork&) = delete;
  LightGbmNetwork& operator=(const LightGbmNetwork&) = delete;
  ~LightGbmNetwork() { leave(); }

  // This thread's LightGBM talks through this network from here on, until leave().
  void enter() { current_ = this; }
  void leave() {
    if (current_ == this) current_ = nullptr;
  }
  // Calls from here on are set-up rounds of these names, numbered; empty: they are rounds like any other.
  void name_rounds(std::string prefix) {
    prefix_ = std::move(prefix);
    named_ = 0;
  }
  // Throws what a call has failed with, if one has: LightGBM's own error knows the text alone.
  void raise_failure() {
    const warren_code code = std::exchange(failed_, WARREN_OK);
    if (code != WARREN_OK) job_->check(code);
  }

  static void reduce_scatter(char* input, std::int32_t input_bytes, int type_size, const std::int32_t* starts,
                             const std::int32_t* lengths, int blocks, char* output, std::int32_t output_bytes,
                             const Reducer& reducer) {
    LightGbmNetwork& self = current();
    self.take_blocks(starts, lengths, blocks, input_bytes);
    if (type_size < 1) throw std::runtime_error("warren: LightGBM's elements have no bytes");
    if (lengths[self.rank_] > output_bytes) throw std::runtime_error("warren: LightGBM's output is too small");
    // LightGBM's reducers of quantized histograms add pairs of numbers of this size. A whole number of pairs is a whole
    // number of elements of any other kind.
    const auto pair = 2 * static_cast<std::size_t>(type_size);
    const bool pairs = std::ranges::all_of(self.counts_, [&](std::size_t bytes) { return bytes % pair == 0; });
    Reduction reduction{reducer, type_size, pairs ? pair : static_cast<std::size_t>(type_size)};
    for (std::size_t& count : self.counts_) {
      if (count % reduction.element_bytes != 0)
        throw std::runtime_error("warren: a block of LightGBM's is no whole number of elements");
      count /= reduction.element_bytes;
    }
    self.call([&](const warren_call_options& options) {
      return warren_reduce_scatterv_custom(self.comm_, input, output, self.counts_.data(), reduction.element_bytes,
                                           Reduction::run, &reduction, &options, nullptr);
    });
  }

  static void allgather(char* input, std::int32_t /*input_bytes*/, const std::int32_t* starts,
                        const std::int32_t* lengths, int blocks, char* output, std::int32_t output_bytes) {
    LightGbmNetwork& self = current();
    self.take_blocks(starts, lengths, blocks, output_bytes);
    const auto own = static_cast<std::size_t>(lengths[self.rank_]);
    const char* from = input;
    // LightGBM gathers what a reduce-scatter has left at the beginning of the output, which is not where it belongs.
    if (input < output + output_bytes && output < input + own && input != output + starts[self.rank_]) {
      self.moved_.assign(input, input + own);
      from = self.moved_.data();
    }
    self.call([&](const warren_call_options& options) {
      return warren_allgatherv(self.comm_, from, output, self.counts_.data(), WARREN_U8, &options, nullptr);
    });
  }

 private:
  // LightGBM turns exceptions into errors of its C interface.
  static LightGbmNetwork& current() {
    if (current_ == nullptr) throw std::runtime_error("warren: LightGBM calls from another thread than train()'s");
    return *current_;
  }

  // The blocks' bytes into counts_, if they lie one after the other, in `bytes` of memory.
  void take_blocks(const std::int32_t* starts, const std::int32_t* lengths, int blocks, std::int32_t bytes) {
    if (static_cast<std::size_t>(blocks) != size_) throw std::runtime_error("warren: LightGBM has other ranks");
    counts_.clear();
    std::int64_t end = 0;
    for (int i = 0; i < blocks; i++) {
      if (lengths[i] < 0 || starts[i] != end) throw std::runtime_error("warren: LightGBM's blocks have holes");
      end += lengths[i];
      counts_.push_back(static_cast<std::size_t>(lengths[i]));
    }
    if (end > bytes) throw std::runtime_error("warren: LightGBM's blocks have more bytes than their buffer");
  }

  template <class Function>
  void call(const Function& function) {
    warren_call_options options;
    warren_call_options_init(&options);
    options.site = site_;
    std::string name;
    if (!prefix_.empty()) {
      name = prefix_ + "/" + std::to_string(named_++);
      options.once = name.c_str();
    }
    const warren_code code = function(options);
    if (code == WARREN_OK) return;
    failed_ = code;
    throw std::runtime_error(warren_last_error());
  }

  static thread_local LightGbmNetwork* current_;

  std::shared_ptr<Job> job_;
  warren_comm* comm_;
  std::size_t rank_, size_;
  std::uint64_t site_;  // of the program's call of train()
  std::string prefix_;
  int named_ = 0;
  std::vector<std::size_t> counts_;
  std::vector<char> moved_;
  warren_code failed_ = WARREN_OK;
};

thread_local LightGbmNetwork* LightGbmNetwork::current_ = nullptr;

template <class Function>
std::uintptr_t address_of(Function* function) {
  return reinterpret_cast<std::uintptr_t>(function);
}

}  // namespace

void bind_lightgbm(nb::module_& module) {
  nb::class_<LightGbmNetwork>(module, "LightGbmNetwork")
      .def(nb::init<const Group&>(), nb::arg("group"))
      .def("enter", &LightGbmNetwork::enter)
      .def("leave", &LightGbmNetwork::leave)
      .def("name_rounds", &LightGbmNetwork::name_rounds, nb::arg("prefix"))
      .def("raise_failure", &LightGbmNetwork::raise_failure)
      .def_prop_ro_static("reduce_scatter", [](nb::handle) { return address_of(&LightGbmNetwork::reduce_scatter); })
      .def_prop_ro_static("allgather", [](nb::handle) { return address_of(&LightGbmNetwork::allgather); });
  static_assert(std::is_same_v<decltype(&LightGbmNetwork::reduce_scatter), ReduceScatter>);
  static_assert(std::is_same_v<decltype(&LightGbmNetwork::allgather), Allgather>);
}

}  // namespace warren_python
