#include "chaos/process/judge.h"

#include <algorithm>

namespace warren::chaos::process {

std::string describe(std::uint32_t worker, const Record& record) {
  return "worker " + std::to_string(worker) + ", life " + std::to_string(record.life) + ", iteration " +
         std::to_string(record.iteration) + ", call " + std::to_string(record.call);
}

Judge::Judge(const Program& program) : program_(program), oracle_(program), workers_(program.shape().ranks) {
  if (program.shape().shrinks()) agreement_.emplace(program);
}

bool Judge::all_finished() const {
  return std::ranges::all_of(workers_, [](const Worker& w) { return w.progress.finished; });
}

std::optional<std::string> Judge::conclude() const {
  return agreement_ ? agreement_->missing() : std::nullopt;
}

std::size_t Judge::calls_of(std::uint64_t iteration) {
  return agreement_ ? agreement_->calls(iteration) : oracle_.iteration(iteration).size();
}

std::optional<std::string> Judge::take(std::uint32_t worker, const Record& record) {
  const auto wrong = [&](const std::string& why) { return describe(worker, record) + ": " + why; };
  Worker& w = workers_[worker];
  switch (static_cast<RecordEvent>(record.event)) {
    case RecordEvent::kStarted:
      if (!w.lives.emplace(record.life, Life{}).second) return wrong("two lives have one number");
      w.progress.lives = std::max(w.progress.lives, record.life + 1);
      return std::nullopt;
    case RecordEvent::kJoined: {
      if (record.value >= program_.shape().ranks) return wrong("rank " + std::to_string(record.value));
      const auto rank = static_cast<std::uint32_t>(record.value);
      const auto known = worker_of_.emplace(rank, worker).first;
      if (known->second != worker) {
        return wrong("has rank " + std::to_string(rank) + ", which is that of worker " + std::to_string(known->second));
      }
      w.lives[record.life].rank = rank;
      return std::nullopt;
    }
    case RecordEvent::kPreamble: {
      if (agreement_) {
        auto why = agreement_->preamble(record.value, record.contributors);
        return why ? std::optional(wrong(*why)) : std::nullopt;
      }
      const std::uint64_t want = oracle_.preamble()[record.rank];
      if (record.value != want) return wrong("preamble: digest " + hex(record.value) + ", not " + hex(want));
      return std::nullopt;
    }
    case RecordEvent::kSetup: {
      const auto setups = oracle_.setups();
      if (record.call >= setups.size()) return wrong("set-up round " + std::to_string(record.call));
      const std::uint64_t want = setups[record.call][record.rank];
      if (record.value != want) {
        return wrong("set-up round " + std::to_string(record.call) + ": digest " + hex(record.value) + ", not " +
                     hex(want));
      }
      return std::nullopt;
    }
    case RecordEvent::kLoaded:
    case RecordEvent::kLoadedLocal: {
      auto why = judge_load(w, w.lives[record.life], record);
      return why ? std::optional(wrong("load: " + *why)) : std::nullopt;
    }
    case RecordEvent::kResult: {
      auto why = judge_result(w, w.lives[record.life], record);
      return why ? std::optional(wrong(*why)) : std::nullopt;
    }
    case RecordEvent::kCheckpointed:
      w.progress.version = std::max(w.progress.version, record.iteration);
      return std::nullopt;
    case RecordEvent::kPrepared:
      // After a rollback nothing is replayed.
      if (rolled_back_ && record.value == 1) return std::nullopt;
      return wrong(record.value == 1 ? "its input was prepared, and its result was there to be replayed"
                                     : "its input was prepared " + std::to_string(record.value) + " times");
    case RecordEvent::kFinished: w.progress.finished = true; return std::nullopt;
    case RecordEvent::kBegin:
    case RecordEvent::kCheckpoint:
    case RecordEvent::kFinalizing:
    case RecordEvent::kFailed: return std::nullopt;
  }
  return wrong("a record of kind " + std::to_string(record.event));
}

std::optional<std::string> Judge::judge_load(Worker& worker, Life& life, const Record& record) {
  const std::uint64_t version = record.iteration;
  const bool global = record.event == static_cast<std::uint32_t>(RecordEvent::kLoaded);
  const std::uint64_t before = worker.progress.loaded;
  if (global) {
    worker.progress.loaded = version;
    life.loaded = true;
    life.iteration = program_.first_iteration(version);
    life.call = 0;
  }
  // Those that other workers have loaded say nothing here: their records may be read in another order.
  if (global && version < before && !rolled_back_) {
    return "version " + std::to_string(version) + ", though " + std::to_string(before) + " was committed";
  }
  if (version == 0) return std::nullopt;
  if (agreement_) return agreement_->loaded(version, record.value);
  const Oracle::StateDigests& states = oracle_.version(version);
  const std::uint64_t want = global ? states.global : states.local[record.rank];
  if (record.value == want) return std::nullopt;
  return std::string(global ? "global" : "local") + " state of version " + std::to_string(version) + " has digest " +
         hex(record.value) + ", not " + hex(want);
}

std::optional<std::string> Judge::judge_result(Worker& worker, Life& life, const Record& record) {
  if (!life.loaded) return "a result before load";
  if (record.iteration != life.iteration || record.call != life.call) {
    return "iteration " + std::to_string(life.iteration) + ", call " + std::to_string(life.call) + " is missing";
  }
  const std::uint64_t at = position(life.iteration, life.call);
  if (++life.call == calls_of(life.iteration)) {
    life.call = 0;
    life.iteration++;
  }
  Progress& p = worker.progress;
  if (at >= p.done) {
    p.done = at + 1;
    p.rounds++;
  } else {
    p.replayed++;
  }
  if (agreement_) return agreement_->result(record.iteration, record.call, record.value, record.contributors);
  const bool decision = program_.shape().iterations == 0 && record.call == 0;
  const std::uint64_t want = decision ? decisions_.emplace(record.iteration, record.value).first->second
                                      : oracle_.iteration(record.iteration)[record.call][record.rank];
  if (record.value == want || (decision && rolled_back_ && record.value <= 1)) return std::nullopt;
  return "digest " + hex(record.value) + ", not " + hex(want);
}

}  // namespace warren::chaos::process
