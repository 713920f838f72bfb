// Log lines that the program takes from a queue.
#include "worker/session/log_queue.h"

#include <memory>
#include <string>
#include <utility>

#include "worker/api/handles.h"

using warren::Code;
using warren::Status;
using namespace warren::api;

extern "C" {

warren_code warren_log_queue_create(size_t lines, warren_log_queue** queue) {
  if (queue == nullptr) return report(Status(Code::kInvalidArgument, "log_queue_create: a pointer is NULL"));
  *queue = nullptr;
  return report(caught([&]() -> Status {
    if (lines == 0 || lines > LogQueue::kMostLines) {
      return {Code::kInvalidArgument, "log_queue_create: " + std::to_string(lines) + " lines are outside 1 to " +
                                          std::to_string(LogQueue::kMostLines)};
    }
    count_forks();
    auto made = std::make_unique<warren_log_queue>();
    made->queue = std::make_shared<LogQueue>(lines);
    made->fork_number = warren::api::fork_number.load();
    *queue = made.release();
    return {};
  }));
}

warren_code warren_next_log(warren_log_queue* queue, int64_t timeout_ms, warren_log_level* level, const char** text) {
  if (queue == nullptr || level == nullptr || text == nullptr) {
    return report(Status(Code::kInvalidArgument, "next_log: a pointer is NULL"));
  }
  return report(caught([&]() -> Status {
    // Another thread of the parent may have held its lock.
    if (queue->fork_number != warren::api::fork_number.load())
      return {Code::kClosed, "this log queue was made before a fork"};
    auto line = queue->queue->take(timeout_ms);
    if (!line.ok()) return line.status();
    queue->text = std::move(line.value().text);
    *level = line.value().level;
    *text = queue->text.c_str();
    return {};
  }));
}

void warren_log_queue_free(warren_log_queue* queue) {
  if (queue == nullptr || queue->fork_number != warren::api::fork_number.load()) return;
  (void)report(caught([&]() -> Status {
    (void)queue->queue->divert();
    return {};
  }));
  delete queue;
}

}  // extern "C"
