// The C++ façade over a C interface that only records: what it passes on, what it refuses, who frees what.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "warren/warren.h"

namespace {

struct Call {
  std::string name;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  int type = 0;
  int op = 0;
  int peer = -1;  // or root
  int tag = -1;
  bool async = false;
  std::string said{};  // beside its arguments
  const void* site = nullptr;
};

// What the C interface does for the test that runs, on one rank of a job that is made up.
struct Fake {
  int rank = 1, size = 4;
  warren_code next = WARREN_OK;  // the result of the next call
  std::string error = "allreduce of round 0.7 failed: rank 2 is gone";
  std::vector<Call> calls;
  std::vector<std::string> freed;
  std::string created_with;
  warren_options options{};
  bool finished = true;
  std::int64_t waited_ms = -1;
  std::vector<int> contributors{0, 1, 3};
  warren_callback callback = nullptr;
  void* callback_context = nullptr;
  warren_custom_reduce custom = nullptr;
  void* custom_context = nullptr;
  std::size_t custom_bytes = 0;
  warren_serialize serialize = nullptr;
  void* serialize_context = nullptr;

  Call& last() { return calls.back(); }
};
Fake* fake = nullptr;

}  // namespace

struct warren_comm {
  std::string name;
};
struct warren_handle {
  warren_code code;
};

namespace {

// "once sketch, wire 8, by ring", as far as it is said.
std::string text_of(const warren_call_options* said) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (said == nullptr) return text;
  if (said->once != nullptr) add(std::string("once ") + said->once);
  if (said->wire != 0 && said->wire != WARREN_F32) add("wire " + std::to_string(said->wire));
  if (said->algorithm != nullptr) add(std::string("by ") + said->algorithm);
  if (said->timeout_ms != 0) add("within " + std::to_string(said->timeout_ms) + " ms");
  return text;
}

warren_code record(Call call, const warren_call_options* said, warren_handle** handle, const void* site) {
  call.said = text_of(said);
  call.async = handle != nullptr;
  call.site = site;
  fake->calls.push_back(std::move(call));
  const warren_code code = std::exchange(fake->next, WARREN_OK);
  if (handle != nullptr && code == WARREN_OK) *handle = new warren_handle{WARREN_OK};
  return code;
}

}  // namespace

#define SITE __builtin_return_address(0)

extern "C" {
void warren_options_init_sized(warren_options* options, size_t) {
  *options = warren_options{};
  options->struct_size = sizeof(*options);
  options->log_level = -1;
  options->replicas = -1;
  options->fusion_bytes = -1;
  options->replace_after_ms = -1;
  options->grace_ms = -1;
}
void warren_call_options_init_sized(warren_call_options* options, size_t) {
  *options = warren_call_options{};
  options->struct_size = sizeof(*options);
}
warren_code warren_options_set(warren_options* options, const char* name, const char* value) {
  options->settings[options->settings_count++] = {name, value};
  return WARREN_OK;
}
const char* warren_version(void) {
  return "0.1.0";
}
void warren_last_failure_sized(warren_failure* failure, size_t) {
  *failure = {WARREN_INTERNAL, fake->rank, 2, "0.7", fake->error.c_str()};
}
const char* warren_last_error(void) {
  return fake->error.c_str();
}
struct warren_log_queue {
  int lines = 0;
};
warren_code warren_log_queue_create(size_t, warren_log_queue** queue) {
  *queue = new warren_log_queue;
  return WARREN_OK;
}
warren_code warren_next_log(warren_log_queue*, int64_t timeout_ms, warren_log_level* level, const char** text) {
  *level = WARREN_LOG_ERROR;
  *text = "rank 3 is lost";
  return timeout_ms < 0 ? WARREN_OK : timeout_ms == 0 ? WARREN_TIMEOUT : WARREN_CLOSED;
}
void warren_log_queue_free(warren_log_queue* queue) {
  delete queue;
}
warren_code warren_create(const warren_options* options, warren_comm** comm) {
  fake->options = *options;
  if (options->tracker != nullptr) fake->created_with = options->tracker;
  if (options->log_sink != nullptr) options->log_sink(WARREN_LOG_WARNING, "waiting for rank 3", options->log_context);
  const warren_code code = std::exchange(fake->next, WARREN_OK);
  if (code == WARREN_OK) *comm = new warren_comm{"job"};
  return code;
}
warren_code warren_finalize(warren_comm*) {
  return record({.name = "finalize"}, nullptr, nullptr, SITE);
}
void warren_destroy(warren_comm* comm) {
  if (comm == nullptr) return;
  fake->freed.push_back(comm->name);
  delete comm;
}
int32_t warren_rank(const warren_comm*) {
  return fake->rank;
}
int32_t warren_world_size(const warren_comm*) {
  return fake->size;
}
int32_t warren_min_workers(const warren_comm*) {
  return 2;
}
warren_code warren_contributors(warren_comm*, int32_t* ranks, size_t capacity, size_t* count) {
  *count = fake->contributors.size();
  for (size_t i = 0; i < std::min(capacity, *count); i++) ranks[i] = fake->contributors[i];
  return std::exchange(fake->next, WARREN_OK);
}
warren_code warren_handle_contributors(const warren_handle*, int32_t* ranks, size_t capacity, size_t* count) {
  return warren_contributors(nullptr, ranks, capacity, count);
}
int32_t warren_local_rank(const warren_comm*) {
  return 0;
}
int32_t warren_local_size(const warren_comm*) {
  return 2;
}
uint64_t warren_rounds_finished(const warren_comm*) {
  return 12;
}
uint64_t warren_bytes_sent(const warren_comm*) {
  return 34;
}
uint64_t warren_gpu_readers(const warren_comm*) {
  return 3;
}
uint64_t warren_inputs_lent(const warren_comm*) {
  return 56;
}
uint64_t warren_finals_from_gpus(const warren_comm*) {
  return 78;
}
uint64_t warren_rounds_exchanged(const warren_comm*) {
  return 90;
}
warren_code warren_split(warren_comm*, int32_t color, int32_t key, warren_comm** out) {
  *out = color < 0 ? nullptr : new warren_comm{"group " + std::to_string(color)};
  return record({.name = "split", .peer = color, .tag = key}, nullptr, nullptr, SITE);
}
warren_code warren_fusion_begin(warren_comm*, int64_t bytes) {
  return record({.name = "fusion " + std::to_string(bytes)}, nullptr, nullptr, SITE);
}
warren_code warren_fusion_end(warren_comm*) {
  return record({.name = "end of fusion"}, nullptr, nullptr, SITE);
}
warren_code warren_span_begin(warren_comm*, const char* name) {
  return record({.name = std::string("span ") + name}, nullptr, nullptr, SITE);
}
warren_code warren_span_end(warren_comm*) {
  return record({.name = "end of span"}, nullptr, nullptr, SITE);
}
warren_code warren_lazy_checkpoint(warren_comm*, warren_serialize serialize, void* context) {
  fake->serialize = serialize;
  fake->serialize_context = context;
  return record({.name = "lazy_checkpoint"}, nullptr, nullptr, SITE);
}
warren_code warren_allocate(warren_comm*, size_t bytes, void** memory) {
  const warren_code code = record({.name = "allocate", .count = bytes}, nullptr, nullptr, SITE);
  if (code == WARREN_OK) *memory = std::calloc(1, bytes);
  return code;
}
warren_code warren_free(warren_comm* comm, void* memory) {
  fake->freed.push_back("memory of " + comm->name);
  std::free(memory);
  return WARREN_OK;
}
warren_code warren_allreduce(warren_comm*, const void* in, void* out, size_t count, warren_type type, warren_op op,
                             const warren_call_options* said, warren_handle** handle) {
  // As the library: where a function of the program's fails, so does the call.
  const void* state = nullptr;
  std::size_t bytes = 0;
  std::int32_t failed = 0;
  if (const auto serialize = std::exchange(fake->serialize, nullptr)) {
    failed = serialize(&state, &bytes, fake->serialize_context);
  }
  if (said != nullptr && said->prepare != nullptr) failed |= said->prepare(said->prepare_context);
  if (failed != 0) fake->next = WARREN_INTERNAL;
  return record({.name = "allreduce", .in = in, .out = out, .count = count, .type = type, .op = op}, said, handle,
                SITE);
}
warren_code warren_allreduce_custom(warren_comm*, const void* in, void* out, size_t count, size_t element_bytes,
                                    warren_custom_reduce reduce, void* context, const warren_call_options* said,
                                    warren_handle** handle) {
  fake->custom = reduce;
  fake->custom_context = context;
  fake->custom_bytes = element_bytes;
  // As if one other rank had given the same elements: a ⊕ a, at odd addresses.
  if (handle == nullptr) {
    std::vector<std::byte> a(count * element_bytes + 1), b(a);
    std::memcpy(a.data() + 1, in, count * element_bytes);
    std::memcpy(b.data() + 1, in, count * element_bytes);
    try {
      if (reduce(a.data() + 1, b.data() + 1, count, context) != 0) fake->next = WARREN_INTERNAL;
    } catch (...) {
      fake->next = WARREN_INTERNAL;
    }
    std::memcpy(out, b.data() + 1, count * element_bytes);
  }
  return record({.name = "allreduce_custom", .in = in, .out = out, .count = count}, said, handle, SITE);
}
warren_code warren_reduce(warren_comm*, const void* in, void* out, size_t count, warren_type type, warren_op op,
                          int32_t root, const warren_call_options* said, warren_handle** handle) {
  return record({.name = "reduce", .in = in, .out = out, .count = count, .type = type, .op = op, .peer = root}, said,
                handle, SITE);
}
warren_code warren_broadcast(warren_comm*, void* buffer, size_t count, warren_type type, int32_t root,
                             const warren_call_options* said, warren_handle** handle) {
  return record({.name = "broadcast", .out = buffer, .count = count, .type = type, .peer = root}, said, handle, SITE);
}
warren_code warren_barrier(warren_comm*, const warren_call_options* said, warren_handle** handle) {
  return record({.name = "barrier"}, said, handle, SITE);
}
warren_code warren_allgather(warren_comm*, const void* in, void* out, size_t count, warren_type type,
                             const warren_call_options* said, warren_handle** handle) {
  return record({.name = "allgather", .in = in, .out = out, .count = count, .type = type}, said, handle, SITE);
}
warren_code warren_allgatherv(warren_comm*, const void* in, void* out, const size_t* counts, warren_type type,
                              const warren_call_options* said, warren_handle** handle) {
  return record({.name = "allgatherv", .in = in, .out = out, .count = counts[fake->rank], .type = type}, said, handle,
                SITE);
}
warren_code warren_reduce_scatter(warren_comm*, const void* in, void* out, size_t count, warren_type type, warren_op op,
                                  const warren_call_options* said, warren_handle** handle) {
  return record({.name = "reduce_scatter", .in = in, .out = out, .count = count, .type = type, .op = op}, said, handle,
                SITE);
}
warren_code warren_reduce_scatterv(warren_comm*, const void* in, void* out, const size_t* counts, warren_type type,
                                   warren_op op, const warren_call_options* said, warren_handle** handle) {
  return record({.name = "reduce_scatterv", .in = in, .out = out, .count = counts[fake->rank], .type = type, .op = op},
                said, handle, SITE);
}
warren_code warren_reduce_scatterv_custom(warren_comm*, const void* in, void* out, const size_t* counts,
                                          size_t element_bytes, warren_custom_reduce reduce, void* context,
                                          const warren_call_options* said, warren_handle** handle) {
  fake->custom = reduce;
  fake->custom_context = context;
  fake->custom_bytes = element_bytes;
  return record({.name = "reduce_scatterv_custom", .in = in, .out = out, .count = counts[fake->rank]}, said, handle,
                SITE);
}
warren_code warren_all_to_allv(warren_comm*, const void* in, const size_t* counts_to, void* out,
                               const size_t* counts_from, warren_type type, const warren_call_options* said,
                               warren_handle** handle) {
  // The first of each.
  return record(
      {.name = "all_to_allv", .in = in, .out = out, .count = 100 * counts_to[0] + counts_from[0], .type = type}, said,
      handle, SITE);
}
warren_code warren_gather(warren_comm*, const void* in, void* out, size_t count, warren_type type, int32_t root,
                          const warren_call_options* said, warren_handle** handle) {
  return record({.name = "gather", .in = in, .out = out, .count = count, .type = type, .peer = root}, said, handle,
                SITE);
}
warren_code warren_scatter(warren_comm*, const void* in, void* out, size_t count, warren_type type, int32_t root,
                           const warren_call_options* said, warren_handle** handle) {
  return record({.name = "scatter", .in = in, .out = out, .count = count, .type = type, .peer = root}, said, handle,
                SITE);
}
warren_code warren_all_to_all(warren_comm*, const void* in, void* out, size_t count, warren_type type,
                              const warren_call_options* said, warren_handle** handle) {
  return record({.name = "all_to_all", .in = in, .out = out, .count = count, .type = type}, said, handle, SITE);
}
warren_code warren_send(warren_comm*, const void* buffer, size_t count, warren_type type, int32_t peer, int32_t tag,
                        const warren_call_options* said, warren_handle** handle) {
  return record({.name = "send", .in = buffer, .count = count, .type = type, .peer = peer, .tag = tag}, said, handle,
                SITE);
}
warren_code warren_recv(warren_comm*, void* buffer, size_t count, warren_type type, int32_t peer, int32_t tag,
                        const warren_call_options* said, warren_handle** handle) {
  return record({.name = "recv", .out = buffer, .count = count, .type = type, .peer = peer, .tag = tag}, said, handle,
                SITE);
}
warren_code warren_wait(warren_handle* handle) {
  return handle->code;
}
warren_code warren_wait_for(warren_handle* handle, int64_t timeout_ms, int32_t* finished) {
  fake->waited_ms = timeout_ms;
  *finished = fake->finished ? 1 : 0;
  return fake->finished ? handle->code : WARREN_OK;
}
warren_code warren_abort(warren_comm*, const char* reason) {
  return record({.name = std::string("abort: ") + reason}, nullptr, nullptr, SITE);
}
warren_code warren_test(warren_handle*, int32_t* finished) {
  *finished = fake->finished ? 1 : 0;
  return WARREN_OK;
}
warren_code warren_on_complete(warren_handle*, warren_callback callback, void* context) {
  const warren_code code = std::exchange(fake->next, WARREN_OK);
  if (code != WARREN_OK) return code;
  fake->callback = callback;
  fake->callback_context = context;
  return WARREN_OK;
}
void warren_handle_free(warren_handle* handle) {
  if (handle == nullptr) return;
  fake->freed.push_back("handle");
  delete handle;
}
}  // extern "C"

namespace warren {
namespace {

class FacadeTest : public testing::Test {
 protected:
  FacadeTest() { fake = &fake_; }
  ~FacadeTest() override { fake = nullptr; }

  template <class F>
  static ErrorCode code_of(F f) {
    try {
      f();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode{0};
  }

  Fake fake_;
};

TEST_F(FacadeTest, PassesOptionsOn) {
  std::vector<std::string> lines;
  Options options;
  options.tracker = "head:7000";
  options.world_size = 4;
  options.round_timeout_ms = std::chrono::seconds(3);
  options.check_call_sites = true;
  options.no_rewire = true;
  options.nondeterministic = true;
  options.replicas = 0;
  options.data_dir = "/data";
  options.log_lag_ms = std::chrono::seconds(4);
  options.replace_after_ms = std::chrono::seconds(5);
  options.mode = "shrink";
  options.min_workers = 3;
  options.max_workers = 9;
  options.grace_ms = std::chrono::milliseconds(0);
  options.settings = {{"attempt", "3"}, {"rewire", "1"}};
  options.log_sink = [&](LogLevel level, std::string_view text) {
    EXPECT_EQ(level, LogLevel::warning);
    lines.emplace_back(text);
    throw std::runtime_error("a broken sink");
  };
  const Communicator comm = Communicator::create(options);
  EXPECT_EQ(fake_.created_with, "head:7000");
  EXPECT_EQ(fake_.options.world_size, 4);
  EXPECT_EQ(fake_.options.round_timeout_ms, 3000);
  EXPECT_EQ(fake_.options.check_call_sites, 1);
  EXPECT_EQ(fake_.options.no_rewire, 1);
  EXPECT_EQ(fake_.options.settings_count, 2u);
  EXPECT_EQ(fake_.options.nondeterministic, 1);
  EXPECT_EQ(fake_.options.replicas, 0);
  EXPECT_STREQ(fake_.options.data_dir, "/data");
  EXPECT_EQ(fake_.options.log_lag_ms, 4000);
  EXPECT_EQ(fake_.options.replace_after_ms, 5000);
  EXPECT_STREQ(fake_.options.mode, "shrink");
  EXPECT_EQ(fake_.options.min_workers, 3);
  EXPECT_EQ(fake_.options.max_workers, 9);
  EXPECT_EQ(fake_.options.grace_ms, 0);
  EXPECT_EQ(fake_.options.on_rollback, nullptr);
  EXPECT_EQ(fake_.options.job, nullptr) << "what is empty is taken from the environment";
  EXPECT_EQ(fake_.options.log_level, -1);
  EXPECT_EQ(fake_.options.struct_size, sizeof(warren_options));
  EXPECT_EQ(lines, std::vector<std::string>{"waiting for rank 3"});
}

TEST_F(FacadeTest, TakesLogLinesFromAQueue) {
  LogQueue queue(10);
  Options options;
  options.log_queue = &queue;
  const Communicator comm = Communicator::create(options);
  EXPECT_EQ(fake_.options.log_queue, queue.get());
  const auto line = queue.next();
  ASSERT_TRUE(line);
  EXPECT_EQ(line->level, LogLevel::error);
  EXPECT_EQ(line->text, "rank 3 is lost");
  EXPECT_FALSE(queue.next(std::chrono::milliseconds(-7))) << "does not wait without end";
  EXPECT_FALSE(queue.next(std::chrono::seconds(1)));
}

TEST_F(FacadeTest, SaysWhoAndWhereItIs) {
  const Communicator comm = Communicator::create();
  EXPECT_EQ(comm.rank(), 1);
  EXPECT_EQ(comm.world_size(), 4);
  EXPECT_EQ(comm.local_rank(), 0);
  EXPECT_EQ(comm.local_size(), 2);
  EXPECT_EQ(comm.rounds_finished(), 12u);
  EXPECT_EQ(comm.bytes_sent(), 34u);
  EXPECT_EQ(comm.gpu_readers(), 3u);
  EXPECT_EQ(comm.inputs_lent(), 56u);
  EXPECT_EQ(comm.finals_from_gpus(), 78u);
  EXPECT_EQ(comm.rounds_exchanged(), 90u);
}

TEST_F(FacadeTest, SaysWhoseInputsAreInAResult) {
  Communicator comm = Communicator::create();  // of 4 ranks
  EXPECT_EQ(fake_.options.grace_ms, -1);
  EXPECT_EQ(comm.min_workers(), 2);
  EXPECT_EQ(comm.contributors(), (std::vector{0, 1, 3}));
  Handle handle = comm.barrier_async();
  fake_.contributors = {1, 2};
  EXPECT_EQ(handle.contributors(), (std::vector{1, 2}));
  fake_.next = WARREN_INVALID_ARGUMENT;
  EXPECT_EQ(code_of([&] { (void)handle.contributors(); }), ErrorCode::invalid_argument);
  fake_.next = WARREN_INVALID_ARGUMENT;
  EXPECT_EQ(code_of([&] { (void)comm.contributors(); }), ErrorCode::invalid_argument);
}

TEST_F(FacadeTest, NamesEveryType) {
  Communicator comm = Communicator::create();
  const auto type_of = [&]<class T>(T value) {
    (void)comm.allreduce(value);
    return fake_.last().type;
  };
  EXPECT_EQ(type_of(std::int8_t{}), WARREN_I8);
  EXPECT_EQ(type_of(std::uint8_t{}), WARREN_U8);
  EXPECT_EQ(type_of(std::int32_t{}), WARREN_I32);
  EXPECT_EQ(type_of(std::uint32_t{}), WARREN_U32);
  EXPECT_EQ(type_of(std::int64_t{}), WARREN_I64);
  EXPECT_EQ(type_of(std::uint64_t{}), WARREN_U64);
  EXPECT_EQ(type_of(0LL), WARREN_I64);
  EXPECT_EQ(type_of(0UL), WARREN_U64);
  EXPECT_EQ(type_of(float16(1.0f)), WARREN_F16);
  EXPECT_EQ(type_of(bfloat16(1.0f)), WARREN_BF16);
  EXPECT_EQ(type_of(1.0f), WARREN_F32);
  EXPECT_EQ(type_of(1.0), WARREN_F64);
  EXPECT_EQ(type_of(std::byte{}), WARREN_U8);
  EXPECT_EQ(type_of(std::int16_t{}), WARREN_I16);
  EXPECT_EQ(type_of(std::uint16_t{}), WARREN_U16);
  EXPECT_EQ(type_of(true), WARREN_BOOL);
  std::array<bool, 3> flags{true, false, true};
  comm.allreduce(std::span(flags), Op::bit_and);
  EXPECT_EQ(fake_.last().in, flags.data());
  static_assert(Element<bool> && !InputRange<std::vector<bool>> && !Element<wchar_t> && !Element<char16_t> &&
                !Element<const float> && !Element<long double> && !Element<void*>);
}

TEST_F(FacadeTest, WhatIsSaidOfACallGoesWithItAndWithNoOther) {
  Communicator comm = Communicator::create();
  std::vector<float> v{1};
  (void)comm.once("sketch").allreduce(1);
  comm.wire(Wire::bf16).algorithm("ring").allreduce(std::span(v));
  (void)comm.wire(Wire::f16).reduce_scatter(std::vector<float>(4));
  const auto as_i8 = comm.wire(Wire::i8);
  comm.allreduce(std::span(v));
  Calls(as_i8).allreduce_async(std::span(v)).wait();
  ASSERT_EQ(fake_.calls.size(), 5u);
  EXPECT_EQ(fake_.calls[0].said, "once sketch");
  EXPECT_EQ(fake_.calls[1].said, "wire " + std::to_string(WARREN_BF16) + ", by ring");
  EXPECT_EQ(fake_.calls[1].type, WARREN_F32);
  EXPECT_EQ(fake_.calls[2].said, "wire " + std::to_string(WARREN_F16));
  EXPECT_EQ(fake_.calls[2].name, "reduce_scatter");
  EXPECT_EQ(fake_.calls[3].said, "");
  EXPECT_EQ(fake_.calls[4].said, "wire " + std::to_string(WARREN_I8));
}

TEST_F(FacadeTest, AMessageMayHaveATimeoutAsAnyOtherCall) {
  Communicator comm = Communicator::create();
  std::vector<float> v{1};
  comm.within(std::chrono::seconds(3)).recv(v, 2);
  comm.within(std::chrono::milliseconds(7)).once("sketch").allreduce(std::span(v));
  EXPECT_EQ(fake_.calls[0].said, "within 3000 ms");
  EXPECT_EQ(fake_.calls[1].said, "once sketch, within 7 ms");
}

TEST_F(FacadeTest, AWaitMayBeForSoLongAlone) {
  Communicator comm = Communicator::create();
  std::vector<float> v{1};
  Handle handle = comm.allreduce_async(std::span(v));
  fake_.finished = false;
  EXPECT_FALSE(handle.wait_for(std::chrono::milliseconds(20)));
  EXPECT_EQ(fake_.waited_ms, 20);
  fake_.finished = true;
  EXPECT_TRUE(handle.wait_for(std::chrono::milliseconds(-5)));
  EXPECT_EQ(fake_.waited_ms, 0);
}

TEST_F(FacadeTest, TheProgramIsAskedAndWhatItThrowsMeansStop) {
  int asked = 0;
  Options options;
  options.interrupt = [&] {
    if (++asked == 3) throw std::runtime_error("Ctrl-C");
    return asked == 2;
  };
  Communicator comm = Communicator::create(options);
  const auto ask = [&] { return fake_.options.interrupt(fake_.options.interrupt_context); };
  EXPECT_EQ(ask(), 0);
  EXPECT_EQ(ask(), 1);
  EXPECT_EQ(ask(), 1);
  comm.abort("the user has had enough");
  EXPECT_EQ(fake_.last().name, "abort: the user has had enough");
}

TEST_F(FacadeTest, ASpanEndsOnceWithItsObject) {
  Communicator comm = Communicator::create();
  {
    Span outer = comm.span("backward");
    const Span moved = std::move(outer);
    (void)comm.allreduce(1);
  }
  ASSERT_EQ(fake_.calls.size(), 3u);
  EXPECT_EQ(fake_.calls[0].name, "span backward");
  EXPECT_EQ(fake_.calls[1].name, "allreduce");
  EXPECT_EQ(fake_.calls[2].name, "end of span");
}

TEST_F(FacadeTest, AFusionEndsOnceWithItsObject) {
  Communicator comm = Communicator::create();
  {
    Fusion fusion = comm.fuse();
    const Fusion moved = std::move(fusion);
    std::vector<float> v{1};
    comm.allreduce_async(std::span(v)).wait();
  }
  { const Fusion fusion = comm.fuse(1000); }
  ASSERT_EQ(fake_.calls.size(), 5u);
  EXPECT_EQ(fake_.calls[0].name, "fusion -1");
  EXPECT_EQ(fake_.calls[2].name, "end of fusion");
  EXPECT_EQ(fake_.calls[3].name, "fusion 1000");
  fake_.next = WARREN_INVALID_ARGUMENT;
  EXPECT_THROW((void)comm.fuse(), Error);
}

TEST_F(FacadeTest, ALazyCheckpointKeepsWhatSerializesUntilItHasServed) {
  Communicator comm = Communicator::create();
  auto model = std::make_shared<std::vector<float>>(3, 1.5f);
  const std::weak_ptr<std::vector<float>> alive = model;
  comm.lazy_checkpoint([m = std::move(model)] { return *m; });
  ASSERT_FALSE(alive.expired());
  const void* bytes = nullptr;
  std::size_t size = 0;
  fake_.serialize(&bytes, &size, fake_.serialize_context);
  EXPECT_EQ(size, 3 * sizeof(float));
  EXPECT_EQ(std::memcmp(bytes, alive.lock()->data(), size), 0);
  fake_.next = WARREN_EXHAUSTED;
  EXPECT_THROW(comm.lazy_checkpoint([] { return std::vector<int>{}; }), Error);
  EXPECT_FALSE(alive.expired()) << "a checkpoint that was refused replaces nothing";
}

TEST_F(FacadeTest, WhatAPrepareFunctionThrowsReachesItsCaller) {
  Communicator comm = Communicator::create();
  std::vector<float> v(3);
  comm.allreduce(std::span(v), Op::sum, [&] { v = {1, 2, 3}; });
  EXPECT_EQ(v, (std::vector<float>{1, 2, 3}));
  try {
    comm.allreduce(std::span(v), Op::sum, [] { throw std::out_of_range("row 7"); });
    FAIL() << "nothing was thrown";
  } catch (const std::out_of_range& e) {
    EXPECT_STREQ(e.what(), "row 7");
  }
  EXPECT_THROW(comm.allreduce(std::span(v), Op::sum, [] { throw 7; }), int);
  // A failure of the call itself is the library's.
  fake_.next = WARREN_PEER_LOST;
  EXPECT_THROW(comm.allreduce(std::span(v), Op::sum, [] {}), Error);
}

TEST_F(FacadeTest, WhatALazyCheckpointsFunctionThrowsReachesTheCallThatAskedForIt) {
  Communicator comm = Communicator::create();
  comm.lazy_checkpoint([]() -> std::vector<float> { throw std::out_of_range("no model"); });
  std::vector<float> v(3);
  EXPECT_THROW(comm.allreduce(std::span(v)), std::out_of_range);
  fake_.next = WARREN_INTERNAL;
  EXPECT_THROW(comm.allreduce(std::span(v)), Error) << "once";
}

TEST_F(FacadeTest, AllreducesInEveryShape) {
  Communicator comm = Communicator::create();
  std::vector<float> v{1, 2, 3}, w(3);
  comm.allreduce(std::span(v), Op::max);
  EXPECT_EQ(fake_.last().in, v.data());
  EXPECT_EQ(fake_.last().out, v.data());
  EXPECT_EQ(fake_.last().count, 3u);
  EXPECT_EQ(fake_.last().op, WARREN_MAX);
  EXPECT_FALSE(fake_.last().async);

  comm.allreduce(v, w, Op::average);
  EXPECT_EQ(fake_.last().in, v.data());
  EXPECT_EQ(fake_.last().out, w.data());
  EXPECT_EQ(fake_.last().op, WARREN_AVERAGE);
  comm.allreduce(std::span<const float>(v), std::span(w));
  EXPECT_EQ(fake_.last().op, WARREN_SUM);

  EXPECT_EQ(comm.allreduce(std::vector<int>{1, 2, 3}), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(comm.allreduce({4.0, 5.0}), (std::vector<double>{4, 5}));
  EXPECT_EQ(comm.allreduce(std::array<std::int64_t, 2>{6, 7}), (std::array<std::int64_t, 2>{6, 7}));
  EXPECT_EQ(comm.allreduce(8), 8);

  const std::vector<float> untouched = v;
  (void)comm.allreduce(v);
  EXPECT_NE(fake_.last().in, v.data()) << "a vector is taken by value";
  EXPECT_EQ(v, untouched);
}

TEST_F(FacadeTest, ReducesByAFunction) {
  struct Odd {  // 3 bytes, so that elements are not aligned to anything
    std::uint8_t a, b, c;
  };
  Communicator comm = Communicator::create();
  std::vector<Odd> v{{1, 2, 3}, {4, 5, 6}};
  const int weight = 10;
  comm.allreduce(std::span(v), [&](const Odd& x, const Odd& y) {
    return Odd{static_cast<std::uint8_t>(weight * x.a + y.a), y.b, x.c};
  });
  EXPECT_EQ(fake_.custom_bytes, 3u);
  EXPECT_EQ(v[0].a, 11);
  EXPECT_EQ(v[1].a, 44);
  EXPECT_EQ(v[1].c, 6);

  std::vector<double> d{2, 3};
  const auto factor = std::make_shared<double>(10);
  {
    const Handle handle = comm.allreduce_async(std::span(d), [factor](double x, double y) { return *factor * x + y; });
    EXPECT_TRUE(fake_.last().async);
    ASSERT_EQ(factor.use_count(), 2) << "the function lives as long as the handle";
    std::vector<double> a{1, 2}, b{3, 4};
    fake_.custom(a.data(), b.data(), 2, fake_.custom_context);
    EXPECT_EQ(b, (std::vector<double>{13, 24}));
  }
  EXPECT_EQ(factor.use_count(), 1);
  EXPECT_EQ(fake_.freed, std::vector<std::string>{"handle"});

  // The library makes a failure of what a function throws; who called throws the same.
  const auto fails = [](double, double) -> double { throw std::out_of_range("row 7"); };
  EXPECT_THROW(comm.allreduce(std::span(d), fails), std::out_of_range);
}

TEST_F(FacadeTest, SharesOutputsOnlyAtTheRoot) {
  Communicator comm = Communicator::create();  // rank 1 of 4
  std::vector<int> in(6), all(24), one(6), none;
  comm.reduce(in, one, 1, Op::min);
  EXPECT_EQ(fake_.last().out, one.data());
  EXPECT_EQ(fake_.last().peer, 1);
  EXPECT_EQ(fake_.last().op, WARREN_MIN);
  comm.reduce(in, one, 2);
  EXPECT_EQ(fake_.last().out, nullptr);
  comm.reduce(in, none, 2);
  comm.reduce(std::span(in), 1);
  EXPECT_EQ(fake_.last().out, in.data());
  EXPECT_EQ(comm.reduce(in, 1).size(), 6u);
  EXPECT_EQ(comm.reduce(in, 3).size(), 0u);

  comm.gather(in, all, 1);
  EXPECT_EQ(fake_.last().count, 6u);
  EXPECT_EQ(fake_.last().out, all.data());
  comm.gather(in, all, 0);
  EXPECT_EQ(fake_.last().out, nullptr);
  comm.gather(in, none, 0);
  EXPECT_EQ(comm.gather(in, 1).size(), 24u);
  EXPECT_EQ(comm.gather(in, 0).size(), 0u);

  comm.scatter(all, one, 1);
  EXPECT_EQ(fake_.last().in, all.data());
  EXPECT_EQ(fake_.last().count, 6u);
  comm.scatter(all, one, 0);
  EXPECT_EQ(fake_.last().in, nullptr);
  comm.scatter(none, one, 0);
}

TEST_F(FacadeTest, SharesAmongAll) {
  Communicator comm = Communicator::create();
  std::vector<int> in(6), all(24), ten(10);
  comm.broadcast(in, 2);
  EXPECT_EQ(fake_.last().out, in.data());
  EXPECT_EQ(comm.broadcast(5, 2), 5);
  comm.barrier();
  comm.allgather(in, all);
  EXPECT_EQ(fake_.last().count, 6u);
  EXPECT_EQ(comm.allgather(in).size(), 24u);
  EXPECT_EQ(comm.allgather(1.5).size(), 4u);
  const std::array<std::size_t, 4> counts{1, 6, 0, 3};
  comm.allgatherv(in, ten, counts);
  EXPECT_EQ(fake_.last().count, 6u);
  EXPECT_EQ(comm.allgatherv(in, counts).size(), 10u);
  comm.reduce_scatter(all, in, Op::bit_or);
  EXPECT_EQ(fake_.last().count, 6u);
  EXPECT_EQ(fake_.last().op, WARREN_BIT_OR);
  EXPECT_EQ(comm.reduce_scatter(all).size(), 6u);
  comm.reduce_scatterv(ten, in, counts, Op::max);
  EXPECT_EQ(fake_.last().count, 6u);
  EXPECT_EQ(fake_.last().op, WARREN_MAX);
  EXPECT_EQ(comm.reduce_scatterv(ten, counts).size(), 6u);
  std::vector<int> other(24);
  comm.all_to_all(all, other);
  EXPECT_EQ(fake_.last().count, 6u);
  EXPECT_EQ(comm.all_to_all(all).size(), 24u);
  const std::array<std::size_t, 4> comes{2, 6, 5, 0};
  std::vector<int> thirteen(13);
  comm.all_to_allv(ten, counts, thirteen, comes);
  EXPECT_EQ(fake_.last().in, ten.data());
  EXPECT_EQ(fake_.last().out, thirteen.data());
  EXPECT_EQ(fake_.last().count, 102u);
  EXPECT_EQ(comm.all_to_allv(ten, counts, comes).size(), 13u);
  struct Pair {
    int key;
    float value;
  };
  const std::vector<Pair> pairs(10);
  std::vector<Pair> mine(6);
  comm.reduce_scatterv(pairs, mine, counts, [](const Pair& a, const Pair& b) { return a.value < b.value ? a : b; });
  EXPECT_EQ(fake_.last().count, 6u);
  EXPECT_EQ(fake_.custom_bytes, sizeof(Pair));
  comm.send(in, 3, 17);
  EXPECT_EQ(fake_.last().peer, 3);
  EXPECT_EQ(fake_.last().tag, 17);
  comm.recv(in, 0);
  EXPECT_EQ(fake_.last().tag, 0);
}

TEST_F(FacadeTest, RefusesSizesThatCannotBeRight) {
  Communicator comm = Communicator::create();
  std::vector<int> six(6), seven(7), all(24), odd(25), none;
  const auto expect_refused = [&](auto call) {
    const std::size_t before = fake_.calls.size();
    EXPECT_EQ(code_of(call), ErrorCode::invalid_argument);
    EXPECT_EQ(fake_.calls.size(), before) << "something was sent";
  };
  const std::array<std::size_t, 4> counts{1, 6, 0, 3}, huge{~std::size_t{0}, 6, 0, 3};
  const std::array<std::size_t, 3> too_few{1, 6, 0};
  expect_refused([&] { comm.allreduce(six, seven); });
  expect_refused([&] { (void)comm.allreduce_async(six, seven); });
  expect_refused([&] { comm.reduce(six, seven, 1); });
  expect_refused([&] { comm.allgather(six, odd); });
  expect_refused([&] { comm.allgather(seven, all); });
  expect_refused([&] { comm.allgatherv(six, seven, counts); });
  expect_refused([&] { comm.allgatherv(seven, all, counts); });
  expect_refused([&] { comm.allgatherv(six, all, too_few); });
  expect_refused([&] { comm.allgatherv(six, all, huge); });
  expect_refused([&] { (void)comm.allgatherv(six, huge); });
  expect_refused([&] { comm.reduce_scatter(odd, six); });
  expect_refused([&] { (void)comm.reduce_scatter(odd); });
  expect_refused([&] { comm.reduce_scatter(all, seven); });
  expect_refused([&] { comm.gather(six, none, 1); });
  expect_refused([&] { comm.scatter(none, six, 1); });
  expect_refused([&] { comm.all_to_all(six, six); });
  expect_refused([&] { comm.all_to_all(all, six); });
  std::vector<int> ten(10);
  expect_refused([&] { comm.reduce_scatterv(seven, six, counts); });
  expect_refused([&] { comm.reduce_scatterv(ten, seven, counts); });
  expect_refused([&] { comm.reduce_scatterv(ten, six, too_few); });
  expect_refused([&] { comm.reduce_scatterv(ten, six, huge); });
  expect_refused([&] { (void)comm.reduce_scatterv(ten, too_few); });
  expect_refused([&] { comm.reduce_scatterv(seven, six, counts, [](int a, int b) { return a + b; }); });
  expect_refused([&] { comm.all_to_allv(seven, counts, ten, counts); });
  expect_refused([&] { comm.all_to_allv(ten, counts, seven, counts); });
  expect_refused([&] { comm.all_to_allv(ten, too_few, ten, counts); });
  expect_refused([&] { comm.all_to_allv(ten, counts, ten, too_few); });
  expect_refused([&] { (void)comm.all_to_allv(ten, counts, huge); });
}

TEST_F(FacadeTest, ThrowsWhatTheLibrarySays) {
  Communicator comm = Communicator::create();
  fake_.next = WARREN_PEER_LOST;
  try {
    comm.barrier();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    EXPECT_STREQ(error.what(), fake_.error.c_str());
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.peer(), 2);
    EXPECT_EQ(error.round(), "0.7");
  }
  fake_.next = WARREN_REFUSED;
  EXPECT_EQ(code_of([] { (void)Communicator::create(); }), ErrorCode::refused);
  Communicator moved = std::move(comm);
  EXPECT_EQ(code_of([&] { comm.barrier(); }), ErrorCode::closed);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(code_of([&] { (void)comm.rank(); }), ErrorCode::closed);
  moved.barrier();
}

TEST_F(FacadeTest, EveryAsynchronousCallGivesAHandle) {
  Communicator comm = Communicator::create();
  std::vector<int> in(6), all(24), other(24), ten(10), one(6);
  const std::array<std::size_t, 4> counts{1, 6, 0, 3};
  std::vector<Handle> handles;
  handles.push_back(comm.allreduce_async(std::span(in)));
  handles.push_back(comm.allreduce_async(in, one, Op::product));
  handles.push_back(comm.reduce_async(in, one, 1));
  handles.push_back(comm.broadcast_async(in, 0));
  handles.push_back(comm.barrier_async());
  handles.push_back(comm.allgather_async(in, all));
  handles.push_back(comm.allgatherv_async(in, ten, counts));
  handles.push_back(comm.reduce_scatter_async(all, in));
  handles.push_back(comm.reduce_scatterv_async(ten, in, counts));
  handles.push_back(comm.reduce_scatterv_async(ten, in, counts, [](int a, int b) { return a * b; }));
  handles.push_back(comm.all_to_allv_async(ten, counts, ten, counts));
  handles.push_back(comm.gather_async(in, all, 1));
  handles.push_back(comm.scatter_async(all, in, 1));
  handles.push_back(comm.all_to_all_async(all, other));
  handles.push_back(comm.send_async(in, 2, 5));
  handles.push_back(comm.recv_async(in, 2, 5));
  std::set<std::string> names;
  for (const Call& call : fake_.calls) {
    EXPECT_TRUE(call.async) << call.name;
    names.insert(call.name);
  }
  EXPECT_EQ(names.size(), 15u);
  for (Handle& handle : handles) handle.wait();
  handles.clear();
  EXPECT_EQ(fake_.freed, std::vector<std::string>(16, "handle"));
}

TEST_F(FacadeTest, HandlesAreFreedOnceAndBeforeTheirCommunicator) {
  std::vector<int> v(3);
  Handle kept;
  EXPECT_FALSE(kept.valid());
  EXPECT_EQ(code_of([&] { kept.wait(); }), ErrorCode::invalid_argument);
  {
    Communicator comm = Communicator::create();
    Handle handle = comm.allreduce_async(std::span(v));
    kept = std::move(handle);
    EXPECT_FALSE(handle.valid());  // NOLINT(bugprone-use-after-move)
    kept = comm.barrier_async();   // waits for the first one and frees it
    EXPECT_EQ(fake_.freed, std::vector<std::string>{"handle"});
  }
  EXPECT_EQ(fake_.freed, std::vector<std::string>{"handle"}) << "the communicator waits for its handles";
  fake_.finished = false;
  EXPECT_FALSE(kept.test());
  fake_.finished = true;
  EXPECT_TRUE(kept.test());
  kept = Handle();
  EXPECT_EQ(fake_.freed, (std::vector<std::string>{"handle", "handle", "job"}));
}

TEST_F(FacadeTest, MemoryIsARangeAndFreedBeforeItsCommunicator) {
  std::optional<Memory<double>> kept;
  {
    Communicator comm = Communicator::create();
    Memory<double> memory = allocate<double>(comm, 5);
    EXPECT_EQ(fake_.last().count, 40u);
    EXPECT_EQ(memory.size(), 5u);
    memory[3] = 7;
    EXPECT_EQ(std::vector<double>(memory.begin(), memory.end()), (std::vector<double>{0, 0, 0, 7, 0}));
    comm.allreduce(std::span(memory));
    EXPECT_EQ(fake_.last().in, memory.data());
    EXPECT_EQ(fake_.last().count, 5u);
    Memory<double> other = allocate<double>(comm, 2);
    std::vector<double> result(5);
    comm.allreduce(memory, result);
    EXPECT_EQ(fake_.last().in, memory.data());
    other = std::move(memory);
    EXPECT_EQ(fake_.freed, std::vector<std::string>{"memory of job"});
    EXPECT_EQ(memory.size(), 0u);  // NOLINT(bugprone-use-after-move)
    kept = std::move(other);
    EXPECT_EQ((*kept)[3], 7);
    fake_.next = WARREN_EXHAUSTED;
    EXPECT_EQ(code_of([&] { (void)allocate<double>(comm, 1); }), ErrorCode::exhausted);
    EXPECT_EQ(code_of([&] { (void)allocate<double>(comm, SIZE_MAX / 4); }), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(fake_.freed.size(), 1u);
  kept.reset();
  EXPECT_EQ(fake_.freed, (std::vector<std::string>{"memory of job", "memory of job", "job"}));
}

TEST_F(FacadeTest, CallsBackOnce) {
  Communicator comm = Communicator::create();
  std::vector<std::string> heard;
  const auto listen = [&](const Error* error) { heard.emplace_back(error == nullptr ? "done" : error->what()); };
  Handle first = comm.barrier_async(), second = comm.barrier_async();
  first.on_complete(listen);
  fake_.callback(WARREN_OK, nullptr, fake_.callback_context);
  second.on_complete(listen);
  fake_.callback(WARREN_TIMEOUT, "rank 2 did not enter round 0.3 within 10 s", fake_.callback_context);
  EXPECT_EQ(heard, (std::vector<std::string>{"done", "rank 2 did not enter round 0.3 within 10 s"}));
  fake_.next = WARREN_INVALID_ARGUMENT;  // a second callback: refused, and not leaked
  EXPECT_EQ(code_of([&] { second.on_complete(listen); }), ErrorCode::invalid_argument);
}

TEST_F(FacadeTest, GroupsAreFreedBeforeWhatTheyWereSplitFrom) {
  std::optional<Communicator> group;
  {
    Communicator comm = Communicator::create();
    group = comm.split(1, 7);
    EXPECT_EQ(fake_.last().peer, 1);
    EXPECT_EQ(fake_.last().tag, 7);
    EXPECT_FALSE(comm.split(-1).has_value());
  }
  EXPECT_TRUE(fake_.freed.empty());
  group->barrier();
  group.reset();
  EXPECT_EQ(fake_.freed, (std::vector<std::string>{"group 1", "job"}));
}

// The library names a call by its return address: it must be the caller's, not one inside the header.
TEST_F(FacadeTest, CallSitesAreTheUsers) {
  Communicator comm = Communicator::create();
  std::vector<int> v(4), w(4), all(16);
  for (int i = 0; i < 2; ++i) {
    comm.allreduce(std::span(v));
    comm.allreduce(std::span(v));
    comm.allreduce(v, w);
    comm.allreduce(v, w);
    (void)comm.allreduce(v);
    (void)comm.allreduce(v);
    (void)comm.allreduce({1, 2});
    (void)comm.allreduce({1, 2});
    (void)comm.allreduce_async(std::span(v));
    (void)comm.allreduce_async(std::span(v));
    comm.reduce(v, w, 0);
    comm.reduce(v, w, 0);
    comm.broadcast(v, 0);
    comm.broadcast(v, 0);
    (void)comm.broadcast(1, 0);
    (void)comm.broadcast(1, 0);
    comm.barrier();
    comm.barrier();
    comm.allgather(v, all);
    comm.allgather(v, all);
    (void)comm.allgather(v);
    (void)comm.allgather(v);
    comm.reduce_scatter(all, v);
    comm.reduce_scatter(all, v);
    comm.gather(v, all, 0);
    comm.gather(v, all, 0);
    comm.scatter(all, v, 0);
    comm.scatter(all, v, 0);
    comm.all_to_all(v, w);
    comm.all_to_all(v, w);
    (void)comm.split(0);
    (void)comm.split(0);
  }
  const std::size_t each = fake_.calls.size() / 2;
  std::set<const void*> sites;
  for (std::size_t i = 0; i < each; ++i) {
    EXPECT_EQ(fake_.calls[i].site, fake_.calls[i + each].site) << fake_.calls[i].name << " in a loop";
    sites.insert(fake_.calls[i].site);
  }
  EXPECT_EQ(sites.size(), each);
}

TEST(HalfTest, ConvertsExactlyAndRoundsToEven) {
  static_assert(sizeof(float16) == 2 && std::is_trivial_v<float16> && std::is_trivial_v<bfloat16>);
  static_assert(float(float16(1.5f)) == 1.5f);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const float half = float16::from_bits(b), brain = bfloat16::from_bits(b);
    if (std::isnan(half)) {
      EXPECT_EQ(float16(half).bits, b | 0x200) << bits;
    } else {
      EXPECT_EQ(float16(half).bits, b) << bits;
    }
    EXPECT_EQ(bfloat16(brain).bits, std::isnan(brain) ? b | 0x40 : b) << bits;
  }
  EXPECT_EQ(float(float16::from_bits(0x0001)), 0x1p-24f);
  EXPECT_EQ(float(float16::from_bits(0x03ff)), 0x3ffp-24f);
  EXPECT_EQ(float(float16::from_bits(0x7bff)), 65504.0f);
  EXPECT_EQ(float16(65519.9f).bits, 0x7bff);
  EXPECT_EQ(float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(float16(1.0f + 0x1p-11f).bits, 0x3c00) << "a tie goes to even";
  EXPECT_EQ(float16(1.0f + 3 * 0x1p-11f).bits, 0x3c02);
  EXPECT_EQ(float16(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(float16(0x1.000002p-25f).bits, 0x0001);
  EXPECT_EQ(float16(0x1.8p-24f).bits, 0x0002);
  EXPECT_EQ(bfloat16(1.0f + 0x1p-8f).bits, 0x3f80);
  EXPECT_EQ(bfloat16(1.0f + 3 * 0x1p-8f).bits, 0x3f82);
  EXPECT_EQ(bfloat16(0x1.ffp127f).bits, 0x7f80);
}

}  // namespace
}  // namespace warren
