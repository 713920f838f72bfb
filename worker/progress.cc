#include "worker/progress.h"

#include <algorithm>
#include <utility>

namespace warren::worker {

WorkerMachine::Progress ProgressReporter::read(const RoundBoard& board, TimeMs now) {
  WorkerMachine::Progress progress;
  progress.rounds_finished = board.rounds_finished.load(std::memory_order_relaxed);
  progress.bytes_moved = board.bytes_moved.load(std::memory_order_relaxed);
  std::map<GroupId, WaitingRound> waiting;
  for (const RoundBoard::Entry& entry : board.read()) {
    const auto before = waiting_.find(entry.round.group);
    const bool same = before != waiting_.end() && before->second.round == entry.round &&
                      before->second.moves == entry.fingerprint.shape;
    const WaitingRound w{entry.round, entry.fingerprint.shape, same ? before->second.since : now};
    waiting.emplace(entry.round.group, w);
    wire::CurrentRound& r = progress.rounds.emplace_back();
    r.set_timeline(entry.round.timeline.value);
    r.set_group(entry.round.group.value);
    r.set_version(entry.round.version.value);
    r.set_sequence(entry.round.sequence.value);
    r.set_collective(static_cast<std::uint32_t>(entry.fingerprint.collective));
    r.set_type(static_cast<std::uint32_t>(entry.fingerprint.type));
    r.set_op(static_cast<std::uint32_t>(entry.fingerprint.op));
    r.set_algorithm(entry.fingerprint.algorithm);
    r.set_root(entry.fingerprint.root);
    r.set_count(entry.fingerprint.count);
    r.set_shape(entry.fingerprint.shape);
    r.set_site(entry.fingerprint.site);
    for (const Rank rank : entry.waiting_for) r.add_waiting_for(static_cast<std::uint32_t>(rank.value));
    r.set_waited_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(now - w.since, 0)));
  }
  waiting_ = std::move(waiting);
  return progress;
}

}  // namespace warren::worker
