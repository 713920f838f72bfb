#include "chaos/process/watch.h"

#include <algorithm>

namespace warren::chaos::process {
namespace {

// New results that are kept in case that a fault is heard of after them.
constexpr std::size_t kRecent = 4096;

}  // namespace

Result<Watch> Watch::open(const std::string& folder, std::uint32_t workers, bool shrinks) {
  Watch watch;
  watch.shrinks_ = shrinks;
  for (std::uint32_t w = 0; w < workers; w++) {
    auto reader = RecordReader::open(records_path(folder, w));
    if (!reader.ok()) return reader.status();
    watch.readers_.push_back(std::move(reader).value());
  }
  watch.workers_.resize(workers);
  return watch;
}

void Watch::look() {
  for (std::uint32_t w = 0; w < workers_.size(); w++) {
    Worker& worker = workers_[w];
    for (const Record& r : readers_[w].take()) {
      switch (static_cast<RecordEvent>(r.event)) {
        case RecordEvent::kStarted:
          worker.lives = std::max(worker.lives, r.life + 1);
          if (r.life > 0) worker.ended_in.emplace(r.life - 1, static_cast<Phase>(r.call));
          break;
        case RecordEvent::kBegin:
          worker.begin_ns = r.at_ns;
          worker.begin_bytes = r.value;
          if (first_ns_ == 0) first_ns_ = r.at_ns;
          break;
        case RecordEvent::kResult: {
          if (worker.begin_bytes > kBigBytes) big_ns_ += r.at_ns - worker.begin_ns;
          worker.begin_ns = r.at_ns;  // of calls in flight, the next goes on from here
          last_ns_ = std::max(last_ns_, r.at_ns);
          const std::uint64_t at = position(r.iteration, r.call);
          if (at < worker.done) {
            worker.replay_ns[r.life] = r.at_ns - worker.loaded_ns;
            break;
          }
          worker.done = at + 1;
          worker.rounds++;
          new_result(w, {r.at_ns, at, r.contributors, r.life});
          break;
        }
        case RecordEvent::kLoaded: worker.loaded_ns = r.at_ns; break;
        case RecordEvent::kJoined: worker.processes.emplace(r.life, r.call); break;
        case RecordEvent::kFinished: worker.finished = true; break;
        case RecordEvent::kFailed: failures_[r.value]++; break;
        default: break;
      }
    }
  }
  close_stalls();
}

void Watch::new_result(std::uint32_t worker, const NewResult& result) {
  Worker& w = workers_[worker];
  w.last_ns = result.at_ns;
  w.recent.push_back(result);
  if (w.recent.size() > kRecent) w.recent.pop_front();
  if (result.position >= newest_) {
    newest_ = result.position + 1;
    newest_ns_ = result.at_ns;
    calls_++;
    if (there_ != result.contributors) changed_ns_ = result.at_ns;
    there_ = result.contributors;
  }
  for (auto s = stalls_.rbegin(); s != stalls_.rend() && s->over_ns == 0; ++s) see(*s, worker, result);
}

void Watch::see(Stall& stall, std::uint32_t worker, const NewResult& result) const {
  if (result.at_ns <= stall.at_ns) {
    stall.before_ns = std::max(stall.before_ns, result.at_ns);
  } else if (!shrinks_) {
    if (stall.after_ns[worker] == 0) stall.after_ns[worker] = result.at_ns;
  } else if (!stall.killed || stall.killed->worker != worker || stall.killed->number != result.life) {
    Stall::Call& call = stall.calls[result.position];
    call.contributors = result.contributors;
    call.have |= Contributors{1} << worker;
    call.last_ns = std::max(call.last_ns, result.at_ns);
  }
}

// Once all that there is was read: workers' records are read one after the other.
void Watch::close_stalls() {
  for (auto s = stalls_.rbegin(); s != stalls_.rend() && s->over_ns == 0; ++s) {
    if (!shrinks_) {
      if (std::ranges::find(s->after_ns, 0u) == s->after_ns.end()) s->over_ns = *std::ranges::max_element(s->after_ns);
      continue;
    }
    for (const auto& [position, call] : s->calls) {
      if ((call.contributors & ~call.have) != 0) continue;
      if (s->over_ns != 0 && call.last_ns >= s->over_ns) continue;
      s->over_ns = call.last_ns;
      s->over_with = call.contributors;
    }
    if (s->over_ns != 0) s->calls.clear();
  }
}

std::size_t Watch::fault(std::uint64_t at_ns, std::optional<Life> killed) {
  Stall stall;
  stall.killed = killed;
  stall.at_ns = at_ns;
  stall.after_ns.resize(workers_.size());
  for (Stall& other : stalls_) {
    if (other.over_ns == 0) other.alone = stall.alone = false;
  }
  for (std::uint32_t w = 0; w < workers_.size(); w++) {
    for (const NewResult& result : workers_[w].recent) see(stall, w, result);
  }
  stalls_.push_back(std::move(stall));
  close_stalls();
  return stalls_.size() - 1;
}

bool Watch::recovering() const {
  return !stalls_.empty() && std::ranges::any_of(stalls_, [](const Stall& s) { return s.over_ns == 0; });
}

std::optional<double> Watch::stall_ms(std::size_t fault) const {
  const Stall& s = stalls_[fault];
  if (s.over_ns == 0 || s.before_ns == 0) return std::nullopt;
  return static_cast<double>(s.over_ns - s.before_ns) / 1e6;
}

std::uint64_t Watch::rounds() const {
  if (shrinks_) return calls_;
  std::uint64_t least = UINT64_MAX;
  for (const Worker& w : workers_) least = std::min(least, w.rounds);
  return least;
}

std::uint64_t Watch::last_progress_ns() const {
  if (shrinks_) return all_there() ? newest_ns_ : changed_ns_;
  std::uint64_t least = UINT64_MAX;
  for (const Worker& w : workers_) least = std::min(least, w.last_ns);
  return least;
}

bool Watch::all_finished() const {
  return std::ranges::all_of(workers_, [](const Worker& w) { return w.finished; });
}

std::uint32_t Watch::lives() const {
  std::uint32_t sum = 0;
  for (const Worker& w : workers_) sum += w.lives;
  return sum;
}

std::optional<Phase> Watch::ended_in(std::uint32_t worker, std::uint32_t life) const {
  const auto at = workers_[worker].ended_in.find(life);
  return at == workers_[worker].ended_in.end() ? std::nullopt : std::optional(at->second);
}

std::optional<std::uint32_t> Watch::process_of(std::uint32_t worker, std::uint32_t life) const {
  const auto at = workers_[worker].processes.find(life);
  return at == workers_[worker].processes.end() ? std::nullopt : std::optional(at->second);
}

double Watch::replay_ms(std::uint32_t worker, std::uint32_t life) const {
  const auto at = workers_[worker].replay_ns.find(life);
  return at == workers_[worker].replay_ns.end() ? 0 : static_cast<double>(at->second) / 1e6;
}

double Watch::big_share() const {
  const auto all = static_cast<double>(last_ns_ - first_ns_) * static_cast<double>(workers_.size());
  return all > 0 ? static_cast<double>(big_ns_) / all : 0;
}

}  // namespace warren::chaos::process
