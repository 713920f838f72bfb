// All groups of one life share this: the means that carry rounds, the knowledge of rounds, and those that hear of them.
// The engine owns it. Groups tell `known` of set-up rounds, `calls` and `trouble` of how rounds end, and `light` whose
// round runs so.
#pragma once

#include "recovery/base/ids.h"
#include "worker/rounds/gpu_exchange.h"
#include "worker/rounds/gpu_work.h"
#include "worker/rounds/known_rounds.h"
#include "worker/rounds/outstanding_calls.h"
#include "worker/rounds/recall.h"
#include "worker/rounds/round_board.h"
#include "worker/rounds/rounds_plan.h"
#include "worker/rounds/trace.h"
#include "worker/rounds/trouble.h"
#include "worker/schedule/costs.h"
#include "worker/transport/round_transport.h"

namespace warren::worker {

class GroupRounds;

struct SharedByGroups {
  SharedByGroups(RoundTransport& links, RoundBoard& shown_on) : transport(links), board(shown_on) {}
  SharedByGroups(const SharedByGroups&) = delete;
  SharedByGroups& operator=(const SharedByGroups&) = delete;

  RoundTransport& transport;
  RoundBoard& board;
  RoundsPlan plan;
  KnownRounds known{plan};
  schedule::Costs costs = schedule::default_costs();
  Recall* recall = nullptr;         // null: nothing is logged
  GpuWork* gpu_work = nullptr;      // null: nothing is lent
  GpuExchange* exchange = nullptr;  // null: GPUs exchange nothing
  Trace* trace = nullptr;           // null: nobody hears of rounds
  Version version = kPreamble;
  bool open = false;             // calls may move
  GroupRounds* light = nullptr;  // whose round runs light; null: no group's
  OutstandingCalls calls;
  Trouble trouble;
};

}  // namespace warren::worker
