#include "chaos/process/judge.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace warren::chaos::process {
namespace {

std::string hex(std::uint64_t v) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, v);
  return text;
}

}  // namespace

std::string describe(std::uint32_t worker, const Record& record) {
  return "worker " + std::to_string(worker) + ", life " + std::to_string(record.life) + ", iteration " +
         std::to_string(record.iteration) + ", call " + std::to_string(record.call);
}

Judge::Judge(const Program& program) : program_(program), oracle_(program), workers_(program.shape().ranks) {}

bool Judge::all_finished() const {
  return std::ranges::all_of(workers_, [](const Worker& w) { return w.progress.finished; });
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
      const std::uint64_t want = oracle_.preamble()[record.rank];
      if (record.value != want) return wrong("preamble: digest " + hex(record.value) + ", not " + hex(want));
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
  const std::vector<Oracle::Digests>& iteration = oracle_.iteration(life.iteration);
  const std::uint64_t at = position(life.iteration, life.call);
  const bool decision = program_.shape().iterations == 0 && life.call == 0;
  const std::uint64_t want =
      decision ? decisions_.emplace(life.iteration, record.value).first->second : iteration[life.call][record.rank];
  if (++life.call == iteration.size()) {
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
  if (record.value == want || (decision && rolled_back_ && record.value <= 1)) return std::nullopt;
  return "digest " + hex(record.value) + ", not " + hex(want);
}

}  // namespace warren::chaos::process
