// rabit.h over the process' one node.
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "rabit/internal/engine.h"
#include "rabit/rabit.h"
#include "worker/rabit/kill_points.h"
#include "worker/rabit/node.h"
#include "worker/rabit/types.h"

namespace rabit {
namespace {

using layer::Node;
using layer::Outcome;

enum class Phase { kBefore, kJoined, kFailed, kAfter };

struct Process {
  Phase phase = Phase::kBefore;
  std::unique_ptr<Node> node = std::make_unique<Node>(layer::Parameters());
};
// Never destroyed: threads of the program may call until the end.
Process& process() {
  static Process* const the_process = new Process;
  return *the_process;
}

// For what any process may ask at any time: before Init and after Finalize it is a world of one. A process that could
// not join must not take itself for that.
Node& node_for_questions() {
  Process& p = process();
  utils::Check(p.phase != Phase::kFailed, "rabit: Init has failed: this process is no part of its job");
  return *p.node;
}
Node& node() {
  Node& n = node_for_questions();
  utils::Check(process().phase != Phase::kAfter, "rabit: a call after Finalize");
  return n;
}

void require(const Outcome& outcome) {
  if (!outcome.ok()) utils::Error("rabit: %s", outcome.why().c_str());
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
  for (const std::string& note : parameters.notes) std::fprintf(stderr, "rabit: %s\n", note.c_str());
  auto joined = std::make_unique<Node>(std::move(parameters));
  outcome = joined->join();
  if (outcome.ok()) process().node = std::move(joined);
  return outcome;
}

}  // namespace

namespace engine {

bool Init(int argc, char* argv[]) {
  Process& p = process();
  if (p.phase == Phase::kJoined) return true;
  const std::size_t count = argv == nullptr || argc < 0 ? 0 : static_cast<std::size_t>(argc);
  const Outcome outcome = init({argv, count});
  p.phase = outcome.ok() ? Phase::kJoined : Phase::kFailed;
  if (!outcome.ok()) std::fprintf(stderr, "rabit: %s\n", outcome.why().c_str());
  return outcome.ok();
}

bool Finalize() {
  Process& p = process();
  if (p.phase == Phase::kBefore || p.phase == Phase::kAfter) return true;
  require(node().finalize());
  p.node = std::make_unique<Node>(layer::Parameters());
  p.phase = Phase::kAfter;
  return true;
}

void Allreduce(void* sendrecvbuf, size_t count, mpi::DataType type, mpi::OpType op, PrepareFunction* prepare,
               void* prepare_arg, const Place& place) {
  require(node().allreduce(sendrecvbuf, count, warren_type_of(type), warren_op_of(op), {prepare, prepare_arg},
                           place_of(place)));
}

void AllreduceCustom(void* sendrecvbuf, size_t element_bytes, size_t count, ReduceFunction* reduce,
                     PrepareFunction* prepare, void* prepare_arg, const Place& place) {
  require(node().allreduce_custom(sendrecvbuf, element_bytes, count, reduce, {prepare, prepare_arg}, place_of(place)));
}

void Broadcast(void* sendrecv_data, size_t bytes, int root, const Place& place) {
  require(node().broadcast(sendrecv_data, bytes, root, place_of(place)));
}

void Allgather(void* sendrecvbuf, size_t total_bytes, size_t first_byte, size_t slice_bytes, size_t previous_bytes,
               const Place& place) {
  require(node().allgather(sendrecvbuf, total_bytes, first_byte, slice_bytes, previous_bytes, place_of(place)));
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
  require(node().load_checkpoint(loader(global_model, load), loader(local_model, load), version));
  return version;
}

void CheckPoint(const void* global_model, const void* local_model, SaveFunction* save) {
  require(node().checkpoint(saver(global_model, save), saver(local_model, save)));
}

void LazyCheckPoint(const void* global_model, SaveFunction* save) {
  require(node().lazy_checkpoint(saver(global_model, save)));
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
  utils::Check(gethostname(name.data(), name.size() - 1) == 0, "rabit: this machine has no name");
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
