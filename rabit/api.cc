// rabit.h over the process' one node.
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rabit/internal/engine.h"
#include "rabit/kill_points.h"
#include "rabit/node.h"
#include "rabit/rabit.h"
#include "rabit/types.h"

namespace rabit {

namespace utils {
bool STOP_PROCESS_ON_ERROR = true;

namespace {
void end_or_throw(const char* message) {
  if (!STOP_PROCESS_ON_ERROR) throw std::runtime_error(message);
  EndProcess(255);
}
}  // namespace

[[gnu::weak]] void HandleAssertError(const char* message) {
  std::fprintf(stderr, "AssertError:%s\n", message);
  end_or_throw(message);
}
[[gnu::weak]] void HandleCheckError(const char* message) {
  std::fprintf(stderr, "%s\n", message);
  end_or_throw(message);
}
[[gnu::weak]] void HandlePrint(const char* message) {
  std::printf("%s", message);
}
[[gnu::weak]] void HandleLogInfo(const char* format, ...) {
  std::string message(kPrintBuffer, '\0');
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message.data(), message.size(), format, arguments);
  va_end(arguments);
  std::printf("%s", message.c_str());
  std::fflush(stdout);
}
}  // namespace utils

namespace {

using layer::Node;
using layer::Outcome;

enum class Phase { kBefore, kJoined, kFailed, kOver, kAfter };

struct Process {
  Phase phase = Phase::kBefore;
  std::string why_over;  // kOver
  int calls = 0;         // under way: a function of the program's may make one within one, which fails
  std::unique_ptr<Node> node = std::make_unique<Node>(layer::Parameters());
};
// Never destroyed: threads of the program may call until the end.
Process& process() {
  static Process* const the_process = new Process;
  return *the_process;
}

// No call is made from here on. The other ranks may have made the one that failed here, or this process may not know
// how far it has come in it: nothing that it did now would be part of the job.
void end_life(const std::string& why) {
  Process& p = process();
  if (p.phase != Phase::kBefore && p.phase != Phase::kJoined) return;
  p.phase = Phase::kOver;
  p.why_over = why;
}

// Not even where the program's own handler of errors (RABIT_CUSTOMIZE_MSG_) returns, a call goes on.
[[noreturn]] void fail(const std::string& why) {
  end_life(why);
  utils::Error("rabit: %s", why.c_str());
  utils::EndProcess(255);
}

// For what any process may ask at any time: before Init and after Finalize it is a world of one. A process that could
// not join must not take itself for that.
Node& node_for_questions() {
  Process& p = process();
  if (p.phase == Phase::kFailed) fail("Init has failed: this process is no part of its job");
  return *p.node;
}
Node& node() {
  Node& n = node_for_questions();
  if (process().phase == Phase::kAfter) fail("a call after Finalize");
  if (process().phase == Phase::kOver) {
    fail("this process is no part of its job any more: " + process().why_over);
  }
  return n;
}

// Leaves the job where the life is over, but not within a call, whose communicator is in use.
class CallUnderWay {
 public:
  CallUnderWay() { ++process().calls; }
  ~CallUnderWay() {
    Process& p = process();
    if (--p.calls == 0 && p.phase == Phase::kOver) p.node->leave();
  }
  CallUnderWay(const CallUnderWay&) = delete;
  CallUnderWay& operator=(const CallUnderWay&) = delete;
};

// Makes a call of the node's. What cannot be done, and in a job what the program's functions throw, ends the life.
template <class Body>
void call(Body body) {
  const CallUnderWay here;
  Node& n = node();
  const auto thrown = [&](const std::string& what) {
    if (n.distributed()) end_life("a call has thrown: " + what);
  };
  Outcome outcome;
  try {
    outcome = body(n);
  } catch (const std::exception& e) {
    thrown(e.what());
    throw;
  } catch (...) {
    thrown("something that is no std::exception");
    throw;
  }
  if (!outcome.ok()) fail(outcome.why());
}

layer::CallPlace place_of(const engine::Place& place) {
  return {place.file, place.line, place.caller};
}

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): Init comes before threads
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

Outcome init(std::span<const char* const> arguments) {
  layer::Parameters parameters;
  Outcome outcome = layer::read_parameters(arguments, variable, layer::kServesKillPoints, parameters);
  if (!outcome.ok()) return outcome;
  if (parameters.not_a_worker) {
    std::fprintf(stderr, "rabit: DMLC_ROLE says that this process is no worker: nothing to do\n");
    std::exit(0);
  }
  utils::STOP_PROCESS_ON_ERROR = parameters.stop_process_on_error;
  const std::vector<std::string> notes = parameters.notes;
  auto joined = std::make_unique<Node>(std::move(parameters));
  outcome = joined->join();
  // Once a job.
  if (!outcome.ok() || joined->rank() == 0) {
    for (const std::string& note : notes) std::fprintf(stderr, "rabit: %s\n", note.c_str());
  }
  if (outcome.ok()) process().node = std::move(joined);
  return outcome;
}

}  // namespace

namespace engine {

bool Init(int argc, char* argv[]) {
  Process& p = process();
  if (p.phase == Phase::kJoined) return true;
  if (p.phase == Phase::kOver) (void)node();  // says why there is no way back
  const std::size_t count = argv == nullptr || argc < 0 ? 0 : static_cast<std::size_t>(argc);
  const Outcome outcome = init({argv, count});
  p.phase = outcome.ok() ? Phase::kJoined : Phase::kFailed;
  if (!outcome.ok()) std::fprintf(stderr, "rabit: %s\n", outcome.why().c_str());
  return outcome.ok();
}

bool Finalize() {
  Process& p = process();
  if (p.phase == Phase::kBefore || p.phase == Phase::kAfter) return true;
  call([](Node& n) { return n.finalize(); });
  p.node = std::make_unique<Node>(layer::Parameters());
  p.phase = Phase::kAfter;
  return true;
}

void Allreduce(void* sendrecvbuf, size_t count, mpi::DataType type, mpi::OpType op, PrepareFunction* prepare,
               void* prepare_arg, const Place& place) {
  call([&](Node& n) {
    return n.allreduce(sendrecvbuf, count, warren_type_of(type), warren_op_of(op), {prepare, prepare_arg},
                       place_of(place));
  });
}

void AllreduceCustom(void* sendrecvbuf, size_t element_bytes, size_t count, ReduceFunction* reduce,
                     PrepareFunction* prepare, void* prepare_arg, const Place& place) {
  call([&](Node& n) {
    return n.allreduce_custom(sendrecvbuf, element_bytes, count, reduce, {prepare, prepare_arg}, place_of(place));
  });
}

void Broadcast(void* sendrecv_data, size_t bytes, int root, const Place& place) {
  call([&](Node& n) { return n.broadcast(sendrecv_data, bytes, root, place_of(place)); });
}

void Allgather(void* sendrecvbuf, size_t total_bytes, size_t first_byte, size_t slice_bytes, size_t previous_bytes,
               const Place& place) {
  call([&](Node& n) {
    return n.allgather(sendrecvbuf, total_bytes, first_byte, slice_bytes, previous_bytes, place_of(place));
  });
}

namespace {
Node::Save saver(const void* model, SaveFunction* save) {
  if (model == nullptr) return nullptr;
  return [=](std::string& buffer) { save(model, &buffer); };
}
Node::Load loader(void* model, LoadFunction* load) {
  if (model == nullptr) return nullptr;
  return [=](const char* bytes, size_t size) { load(model, bytes, size); };
}
}  // namespace

int LoadCheckPoint(void* global_model, void* local_model, LoadFunction* load) {
  int version = 0;
  call([&](Node& n) { return n.load_checkpoint(loader(global_model, load), loader(local_model, load), version); });
  return version;
}

void CheckPoint(const void* global_model, const void* local_model, SaveFunction* save) {
  call([&](Node& n) { return n.checkpoint("CheckPoint", saver(global_model, save), saver(local_model, save)); });
}

void LazyCheckPoint(const void* global_model, SaveFunction* save) {
  call([&](Node& n) { return n.checkpoint("LazyCheckPoint", saver(global_model, save), nullptr); });
}

void Fail(const std::string& why) {
  const CallUnderWay here;
  fail(why);
}

}  // namespace engine

bool Init(int argc, char* argv[]) {
  return engine::Init(argc, argv);
}
bool Finalize() {
  return engine::Finalize();
}

int GetRank() {
  return node_for_questions().rank();
}
int GetWorldSize() {
  return node_for_questions().world_size();
}
bool IsDistributed() {
  return node_for_questions().distributed();
}
int VersionNumber() {
  return node_for_questions().version();
}
int GetRingPrevRank() {
  const Node& n = node_for_questions();
  return (n.rank() + n.world_size() - 1) % n.world_size();
}

std::string GetProcessorName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) engine::Fail("this machine has no name");
  return name.data();
}

void TrackerPrint(const std::string& message) {
  std::fputs(message.c_str(), stdout);
  std::fflush(stdout);
}

void TrackerPrintf(const char* format, ...) {
  std::string message(utils::kPrintBuffer, '\0');
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message.data(), message.size(), format, arguments);
  va_end(arguments);
  TrackerPrint(message.c_str());
}

void Broadcast(void* sendrecv_data, size_t size, int root, const char* file, int line, const char* caller) {
  engine::Broadcast(sendrecv_data, size, root, {file, line, caller});
}

void Broadcast(std::string* sendrecv_data, int root, const char* file, int line, const char* caller) {
  size_t size = sendrecv_data->size();
  engine::Broadcast(&size, sizeof size, root, {file, line, caller});
  if (sendrecv_data->size() != size) sendrecv_data->resize(size);
  if (size != 0) engine::Broadcast(sendrecv_data->data(), size, root, {file, line, caller});
}

}  // namespace rabit
