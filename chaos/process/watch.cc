#include "chaos/process/watch.h"

#include <algorithm>

#include "chaos/process/program.h"

namespace warren::chaos::process {
namespace {

// New results that are kept in case that a fault is heard of after them.
constexpr std::size_t kRecent = 4096;

}  // namespace

Result<Watch> Watch::open(const std::string& folder, std::uint32_t workers) {
  Watch watch;
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
          if (at < worker.done) break;
          worker.done = at + 1;
          worker.rounds++;
          new_result(w, r.at_ns);
          break;
        }
        case RecordEvent::kFinished: worker.finished = true; break;
        case RecordEvent::kFailed: failures_[r.value]++; break;
        default: break;
      }
    }
  }
}

void Watch::new_result(std::uint32_t worker, std::uint64_t at_ns) {
  Worker& w = workers_[worker];
  w.last_ns = at_ns;
  w.recent_ns.push_back(at_ns);
  if (w.recent_ns.size() > kRecent) w.recent_ns.pop_front();
  for (auto s = stalls_.rbegin(); s != stalls_.rend() && !s->over(); ++s) see(*s, worker, at_ns);
}

void Watch::see(Stall& stall, std::uint32_t worker, std::uint64_t at_ns) {
  if (at_ns <= stall.at_ns) {
    stall.before_ns = std::max(stall.before_ns, at_ns);
  } else if (stall.after_ns[worker] == 0) {
    stall.after_ns[worker] = at_ns;
  }
}

bool Watch::Stall::over() const {
  return std::ranges::all_of(after_ns, [](std::uint64_t ns) { return ns != 0; });
}

std::size_t Watch::fault(std::uint64_t at_ns) {
  Stall stall;
  stall.at_ns = at_ns;
  stall.after_ns.resize(workers_.size());
  for (std::uint32_t w = 0; w < workers_.size(); w++) {
    for (const std::uint64_t ns : workers_[w].recent_ns) see(stall, w, ns);
  }
  stalls_.push_back(std::move(stall));
  return stalls_.size() - 1;
}

bool Watch::recovering() const {
  return !stalls_.empty() && std::ranges::any_of(stalls_, [](const Stall& s) { return !s.over(); });
}

std::optional<double> Watch::stall_ms(std::size_t fault) const {
  const Stall& s = stalls_[fault];
  if (!s.over() || s.before_ns == 0) return std::nullopt;
  return static_cast<double>(*std::ranges::max_element(s.after_ns) - s.before_ns) / 1e6;
}

std::uint64_t Watch::rounds() const {
  std::uint64_t least = UINT64_MAX;
  for (const Worker& w : workers_) least = std::min(least, w.rounds);
  return least;
}

std::uint64_t Watch::last_progress_ns() const {
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

double Watch::big_share() const {
  const auto all = static_cast<double>(last_ns_ - first_ns_) * static_cast<double>(workers_.size());
  return all > 0 ? static_cast<double>(big_ns_) / all : 0;
}

}  // namespace warren::chaos::process
