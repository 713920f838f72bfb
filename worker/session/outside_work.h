// Work that a thread does without the session's lock: functions of the program, buffers of calls, GPUs, and states of a
// checkpoint. The thread that drives the engine asks for it again and again.
//
// Where some of it fails, this life is over: the thread carries out the effects of the life afterwards.
//
// Threads: all functions are called under the session's lock, and let go of it meanwhile.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "worker/life/life.h"
#include "worker/rounds/call.h"
#include "worker/session/gpus.h"
#include "worker/session/inside.h"
#include "worker/session/states_under_way.h"
#include "worker/session/trace_file.h"

namespace warren::worker {

// For people: a call of the rank whose plan this is.
[[nodiscard]] std::string describe(const Call& call, Rank self);

class OutsideWork {
 public:
  OutsideWork(const SessionMark& session, Life& life, Gpus& gpus, StatesUnderWay& states)
      : session_(session), life_(life), gpus_(gpus), states_(states) {}
  OutsideWork(const OutsideWork&) = delete;
  OutsideWork& operator=(const OutsideWork&) = delete;
  // Shows what is done; outlives this. Before the first call.
  void use(TraceFile& trace) { trace_ = &trace; }

  enum class Done : std::uint8_t {
    kNothing,
    kLooked,  // nothing has come; the life may have effects
    kWorked,  // a thread that sleeps may wait for this
    kMoved    // a thread that sleeps may wait for this, and more of it comes soon
  };
  // Does what there is.
  [[nodiscard]] Done go_on(std::unique_lock<std::mutex>& lock);
  // Sees to the end of the buffers that move when the engine has stopped.
  void end_moves(std::unique_lock<std::mutex>& lock);

  // Something moves that wakes no thread.
  [[nodiscard]] bool moves() const;
  // There is work that no outstanding call waits for. What GPUs do for a round that is no more is part of it, because
  // it holds memory that the next calls may need.
  [[nodiscard]] bool goes_on_alone() const;
  [[nodiscard]] bool states_move() const { return states_.any(); }

 private:
  bool prepare(std::unique_lock<std::mutex>& lock);
  bool deliver(std::unique_lock<std::mutex>& lock);
  bool move(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Engine& engine() { return life_.engine(); }
  [[nodiscard]] std::string describe(const Call& call) const {
    return worker::describe(call, life_.engine().plan().self);
  }

  const SessionMark& session_;
  Life& life_;
  Gpus& gpus_;
  StatesUnderWay& states_;
  TraceFile* trace_ = nullptr;  // null: nobody wants it
};

}  // namespace warren::worker
