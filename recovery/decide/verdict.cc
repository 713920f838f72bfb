#include "recovery/decide/verdict.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "recovery/base/limits.h"

namespace warren {
namespace {

// Shares of a window, in thousandths.
constexpr std::int64_t kWaitsMuch = 400;    // a wait of so much is one that somebody is to blame for
constexpr std::int64_t kHardlyWaits = 250;  // who waits more is a victim
constexpr std::int64_t kMoreThanOthers = 300;
constexpr std::int64_t kSomeWait = 100;
constexpr std::int64_t kMuchWorse = 200;
constexpr std::int64_t kTimesOthersLink = 3;
constexpr double kTimesOthersCost = 4;
// In a row, before a verdict stands and before it is withdrawn.
constexpr int kLooksToStand = 3, kLooksToEnd = 5;
constexpr std::size_t kMostHops = 6;

std::string percent(std::int64_t permille) {
  return std::to_string((permille + 5) / 10) + " %";
}
std::string rank_text(Rank rank) {
  return "rank " + std::to_string(rank.value);
}
std::string rate_text(std::uint64_t bytes_per_s) {
  if (bytes_per_s >= 10'000'000) return std::to_string(bytes_per_s / 1'000'000) + " MB/s";
  if (bytes_per_s >= 10'000) return std::to_string(bytes_per_s / 1000) + " kB/s";
  return std::to_string(bytes_per_s) + " B/s";
}

// Of what is left when these values, which are among the sorted ones, are left out. Nothing: nothing is left.
template <class T>
std::optional<T> median_without(const std::vector<T>& sorted, std::vector<T> out) {
  if (sorted.size() <= out.size()) return std::nullopt;
  std::ranges::sort(out);
  std::size_t middle = (sorted.size() - out.size()) / 2, next = 0;
  for (const T& value : out) {
    const auto at = static_cast<std::size_t>(std::ranges::lower_bound(sorted, value) - sorted.begin());
    next = std::max(at, next) + 1;  // of equal ones the next
    if (next <= middle + 1) ++middle;
  }
  return sorted[middle];
}

bool waits_for(const wire::CurrentRound& round, Rank rank) {
  return std::ranges::find(round.waiting_for(), static_cast<std::uint32_t>(rank.value)) != round.waiting_for().end();
}

const wire::CurrentRound* entered(const Testimony& t, const RoundId& round) {
  const auto found = std::ranges::find_if(t.rounds, [&](const auto& r) { return round_of(r) == round; });
  return found == t.rounds.end() ? nullptr : &*found;
}
// The rank is in a later round of the same group and version, so it has done its part of this one. Set-up rounds have
// no order.
bool has_passed(const Testimony& t, const RoundId& round) {
  return !is_setup(round) && std::ranges::any_of(t.rounds, [&](const auto& r) {
    const RoundId theirs = round_of(r);
    return theirs.group == round.group && theirs.timeline == round.timeline && theirs.version == round.version &&
           !is_setup(theirs) && theirs.sequence > round.sequence;
  });
}

// The bytes of `from` for `to`, as both ends see them.
struct Flow {
  Rank from, to;
  bool within_host = false;
  std::int64_t awaited = 0, blocked = 0;  // thousandths
  std::int64_t awaited_ms = 0;
  std::uint64_t received = 0, usual = 0;  // bytes in the window; bytes a second
  std::uint64_t stuck = 0;                // bytes that were sent before the window began and have not arrived

  // Somebody waits for them, and they cannot leave.
  [[nodiscard]] std::int64_t both() const { return std::min(awaited, blocked); }
  [[nodiscard]] bool suspect() const { return both() >= kWaitsMuch || (stuck != 0 && awaited >= kWaitsMuch); }
  [[nodiscard]] std::uint64_t rate() const {
    const double bytes_per_s =
        static_cast<double>(received) * 1000 / static_cast<double>(std::max<std::int64_t>(1, awaited_ms));
    return static_cast<std::uint64_t>(std::min(bytes_per_s, 1e18));
  }
  // Of the window, by byte, at most; `least`: what a single look stands for, below which nothing is known.
  [[nodiscard]] double cost(std::int64_t least) const {
    return static_cast<double>(std::max(both(), least)) / static_cast<double>(received);
  }
};

class Inquest {
 public:
  Inquest(std::span<const Testimony> all, const StragglerLimits& limits, const RankName& name)
      : all_(all), limits_(limits), name_(name), tells_(all.size()), told_of_(all.size()) {}

  // Linear in the links that are told, but for sorting: a world has thousands of ranks, and this runs once a heartbeat.
  std::vector<Verdict> run() {
    hear();
    look([this](const Testimony& t) { look_at_silence(t); });
    look_at_links();
    look([this](const Testimony& t) { look_at_rank(t); });
    std::ranges::stable_sort(out_, [](const Verdict& a, const Verdict& b) { return a.key() < b.key(); });
    if (out_.size() > limits::kMaxVerdicts) out_.resize(limits::kMaxVerdicts);
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool silent(const Testimony& t) const {
    return t.silent_ms >= suspect_after_ms(limits_, t.longest_gap_ms);
  }
  // It has told enough of this generation to be judged by, and lately.
  [[nodiscard]] bool tells(const Testimony& t) const { return tells_[static_cast<std::size_t>(t.rank.value)]; }
  void hear() {
    for (const Testimony& t : all_) {
      if (t.activity == nullptr || silent(t)) continue;
      for (const wire::LinkActivity& l : t.activity->links()) {
        if (l.peer() < all_.size() && static_cast<std::int64_t>(l.peer()) != t.rank.value)
          told_of_[l.peer()].push_back({&t, &l});
      }
      if (t.activity->window_ms() < limits_.window_ms / 2 || t.finalizing) continue;
      tells_[static_cast<std::size_t>(t.rank.value)] = true;
      aways_.push_back(away(t));
      costs_.push_back(cost(t));
    }
    std::ranges::sort(aways_);
    std::ranges::sort(costs_);
  }
  template <class Look>
  void look(Look look_at) {
    const std::size_t most = out_.size() + limits::kMaxVerdicts;
    for (std::size_t i = 0; i < all_.size() && out_.size() < most; ++i) look_at(all_[i]);
  }
  [[nodiscard]] static std::int64_t share(const Testimony& t, std::int64_t ms) {
    return t.activity->window_ms() == 0 ? 0 : ms * 1000 / t.activity->window_ms();
  }
  [[nodiscard]] static std::int64_t idle(const Testimony& t) { return share(t, t.activity->idle_ms()); }
  [[nodiscard]] static std::int64_t outside(const Testimony& t) { return share(t, t.activity->outside_ms()); }
  [[nodiscard]] static std::int64_t held(const Testimony& t) { return share(t, t.activity->held_ms()); }
  [[nodiscard]] static std::int64_t away(const Testimony& t) { return outside(t) + held(t); }
  [[nodiscard]] static std::int64_t busy(const Testimony& t) {
    const wire::Activity& a = *t.activity;
    return share(t, std::int64_t{a.window_ms()} - a.outside_ms() - a.idle_ms() - a.held_ms());
  }
  // What a byte costs it, within rounds: whoever moves more of them may take longer.
  [[nodiscard]] static double cost(const Testimony& t) {
    return static_cast<double>(busy(t)) / (static_cast<double>(t.activity->moved_bytes()) + 1);
  }
  [[nodiscard]] const Testimony* find(Rank rank) const {
    const auto at = static_cast<std::size_t>(rank.value);
    return at < all_.size() ? &all_[at] : nullptr;
  }
  [[nodiscard]] static const wire::LinkActivity* link(const Testimony& t, Rank peer) {
    if (t.activity == nullptr) return nullptr;
    const auto found =
        std::ranges::find(t.activity->links(), static_cast<std::uint32_t>(peer.value), &wire::LinkActivity::peer);
    return found == t.activity->links().end() ? nullptr : &*found;
  }

  // Silent ranks: their data path is asked too, by way of those that get bytes of it.
  void look_at_silence(const Testimony& t) {
    if (!silent(t)) return;
    Verdict v;
    v.rank = t.rank;
    v.silent = true;
    const Testimony* receiver = nullptr;
    std::int64_t quiet_ms = INT64_MAX;
    for (const auto& [teller, l] : told_of_[static_cast<std::size_t>(t.rank.value)]) {
      const Testimony& other = *teller;
      const bool waits = std::ranges::any_of(other.rounds, [&](const auto& r) { return waits_for(r, t.rank); });
      v.victims += waits ? 1 : 0;
      v.waited_ms = std::max<std::int64_t>(v.waited_ms, l->awaited_ms());
      if (l->received_bytes() == 0) continue;
      const std::int64_t ms = std::int64_t{l->quiet_ms()} + other.silent_ms;
      if (ms >= quiet_ms) continue;
      quiet_ms = ms;
      receiver = &other;
    }
    if (t.finalizing && v.victims == 0) return;  // its word stands
    v.reason = name_(t.rank) + " has not been heard for " + seconds_text(t.silent_ms);
    if (t.longest_gap_ms > 0) {
      v.reason += ", where its heartbeats have lately been at most " + seconds_text(t.longest_gap_ms) + " apart";
    }
    // What arrived may have been on its way for a while.
    if (receiver != nullptr && quiet_ms + 2 * limits_.heartbeat_ms < t.silent_ms) {
      v.blame = Blame::kCutOff;
      v.reason += "; bytes of it have come to " + rank_text(receiver->rank) + " " + seconds_text(quiet_ms) +
                  " ago: it runs, and is cut off from the tracker";
    } else {
      v.blame = Blame::kHung;
      v.reason += receiver == nullptr ? "; no other rank gets bytes of it"
                                      : "; nor have bytes of it come to " + rank_text(receiver->rank) + " for " +
                                            seconds_text(quiet_ms);
      v.reason += ": its process stands still or is gone, or its machine is";
    }
    const std::int64_t left_ms = std::max<std::int64_t>(0, limits_.round_timeout_ms - t.silent_ms);
    v.next = "it counts as lost after " + seconds_text(limits_.round_timeout_ms) + " of silence, in " +
             seconds_text(left_ms) + "; the generation ends then";
    settled_.insert(t.rank);
    out_.push_back(std::move(v));
  }

  void look_at_links() {
    const std::int64_t look = std::max<std::int64_t>(1, limits_.sample_ms * 1000 / limits_.window_ms);
    for (const Testimony& to : all_) {
      if (!tells(to)) continue;
      for (const wire::LinkActivity& in : to.activity->links()) {
        const Testimony* from = find(Rank(static_cast<std::int32_t>(in.peer())));
        if (from == nullptr || from == &to || !tells(*from)) continue;
        const wire::LinkActivity* out = link(*from, to.rank);
        Flow f{from->rank, to.rank, !to.host.empty() && from->host == to.host};
        f.awaited_ms = in.awaited_ms();
        f.awaited = share(to, in.awaited_ms());
        f.received = in.window_received_bytes();
        f.usual = in.usual_bytes_per_s();
        if (out != nullptr) {
          f.blocked = share(*from, out->blocked_ms());
          const std::uint64_t old = out->sent_bytes() - out->window_sent_bytes();
          f.stuck = old > in.received_bytes() ? old - in.received_bytes() : 0;
        }
        flows_.push_back(f);
        Kind& kind = kinds_[f.within_host ? 1 : 0];
        kind.shares.push_back(f.both());
        if (f.received != 0) kind.costs.push_back(f.cost(look));
      }
    }
    for (Kind& kind : kinds_) {
      std::ranges::sort(kind.shares);
      std::ranges::sort(kind.costs);
    }
    std::vector<const Flow*> bad;
    // Of bad ones by the rank whose bytes they are, and by the one to which they come.
    std::map<Rank, std::int64_t> worst_from, worst_to;
    for (const Flow& f : flows_) {
      if (!f.suspect() || !unlike_the_others(f, look) || in_other_calls(*find(f.from), *find(f.to))) continue;
      bad.push_back(&f);
      for (std::int64_t* worst : {&worst_from[f.from], &worst_to[f.to]}) *worst = std::max(*worst, f.both());
    }
    cut_off(bad);
    const std::size_t most = out_.size() + limits::kMaxVerdicts;
    for (const Flow* f : bad) {
      if (settled_.contains(f->from) || settled_.contains(f->to)) continue;
      // Its ends wait because of a link that is worse: bytes that do not leave one of them, or do not come to the
      // other.
      if (std::max(worst_from[f->to], worst_to[f->from]) >= f->both() + kMuchWorse) continue;
      if (out_.size() < most) slow_link(*f);
    }
  }

  // The two wait for each other, in rounds that the other has neither entered nor left behind: bytes leave neither of
  // them, and no link is to blame.
  [[nodiscard]] static bool in_other_calls(const Testimony& a, const Testimony& b) {
    const auto waits_in_vain = [](const Testimony& waiter, const Testimony& other) {
      bool waits = false;
      for (const wire::CurrentRound& r : waiter.rounds) {
        if (!waits_for(r, other.rank)) continue;
        // Of messages it is not known what the other end has begun.
        if (r.collective() == static_cast<std::uint32_t>(Collective::kPoint) || entered(other, round_of(r)) ||
            has_passed(other, round_of(r))) {
          return false;
        }
        waits = true;
      }
      return waits;
    };
    return waits_in_vain(a, b) && waits_in_vain(b, a);
  }

  // Where all links are full, the network is the limit and nobody is to blame, nor is a link that has more to carry:
  // this one stands out, among the others or in its own history.
  [[nodiscard]] bool unlike_the_others(const Flow& f, std::int64_t look) const {
    if (f.stuck != 0) return true;
    const bool unlike_itself = f.usual != 0 && f.rate() <= f.usual / kTimesOthersLink;
    const auto others_share = share_of_others(f);
    if (!others_share) return unlike_itself;
    if (f.both() < kTimesOthersLink * *others_share) return false;
    if (f.received == 0) return true;
    std::vector<double> own;
    for (const Flow* of_pair : {&f, back(f)}) {
      if (of_pair != nullptr && of_pair->received != 0) own.push_back(of_pair->cost(look));
    }
    const auto others_cost = median_without(kinds_[f.within_host ? 1 : 0].costs, own);
    if (!others_cost) return unlike_itself;
    return f.cost(look) >= static_cast<double>(kTimesOthersLink) * *others_cost;
  }
  // Median over links between other ranks; within hosts or between them, as this one.
  [[nodiscard]] std::optional<std::int64_t> share_of_others(const Flow& f) const {
    std::vector<std::int64_t> own = {f.both()};
    if (const Flow* other_way = back(f); other_way != nullptr) own.push_back(other_way->both());
    return median_without(kinds_[f.within_host ? 1 : 0].shares, own);
  }
  [[nodiscard]] const Flow* back(const Flow& f) const {
    const auto at = std::ranges::lower_bound(flows_, std::pair(f.from, f.to), {},
                                             [](const Flow& other) { return std::pair(other.to, other.from); });
    return at != flows_.end() && at->to == f.from && at->from == f.to ? &*at : nullptr;
  }

  // A rank over whose links nothing moves, to several others.
  void cut_off(const std::vector<const Flow*>& bad) {
    std::map<Rank, std::set<Rank>> dead;
    for (const Flow* f : bad) {
      if (f->received != 0) continue;
      dead[f->from].insert(f->to);
      dead[f->to].insert(f->from);
    }
    std::size_t most = 2, said = 0;
    for (const auto& [rank, peers] : dead) most = std::max(most, peers.size());
    for (const auto& [rank, peers] : dead) {
      if (peers.size() < most) continue;
      const Testimony* t = find(rank);
      if (t->activity->moved_bytes() != 0) continue;
      settled_.insert(rank);
      if (++said > limits::kMaxVerdicts) continue;
      Verdict v;
      v.blame = Blame::kCutOff;
      v.rank = rank;
      v.victims = peers.size();
      for (const Flow* f : bad) {
        if (f->from == rank) v.waited_ms = std::max(v.waited_ms, f->awaited_ms);
      }
      v.reason = name_(rank) + " is heard by the tracker, and over none of its links, to " +
                 std::to_string(peers.size()) + " ranks, has a byte moved for " +
                 seconds_text(t->activity->window_ms()) + ", although both ends want to: its data network is cut off";
      v.next = "all wait for it; a link that breaks ends the generation";
      out_.push_back(std::move(v));
    }
  }

  void slow_link(const Flow& f) {
    const Testimony& to = *find(f.to);
    Verdict v;
    v.blame = Blame::kSlowLink;
    v.rank = f.from;
    v.peer = f.to;
    v.victims = 1;
    v.waited_ms = f.awaited_ms;
    v.round = round_of_wait(to, f.from);
    v.reason = "bytes of " + name_(f.from) + " come slowly to " + name_(f.to) + ": of the last " +
               seconds_text(to.activity->window_ms()) + " the one had bytes that did not leave for " +
               percent(f.blocked) + ", the other waited for them for " + percent(f.awaited);
    if (f.stuck != 0) {
      v.reason += "; " + std::to_string(f.stuck) + " bytes that were sent before have not arrived";
    }
    v.reason += "; " + (f.received == 0 ? std::string("none came") : "they came at " + rate_text(f.rate()));
    if (f.usual != 0) v.reason += ", usually at " + rate_text(f.usual);
    if (const auto others = share_of_others(f)) {
      v.reason += std::string("; on the other links ") + (f.within_host ? "within" : "between") +
                  " hosts both ends wanted for " + percent(*others) + " (median)";
    }
    v.next = "nothing but this report: bytes take the same way";
    out_.push_back(std::move(v));
  }

  void look_at_rank(const Testimony& t) {
    if (settled_.contains(t.rank) || !tells(t) || idle(t) > kHardlyWaits) return;
    Verdict v;
    v.blame = Blame::kSlowRank;
    v.rank = t.rank;
    const Testimony* worst = nullptr;
    for (const auto& [teller, l] : told_of_[static_cast<std::size_t>(t.rank.value)]) {
      const Testimony& other = *teller;
      if (!tells(other)) continue;
      // It waits for bytes of this one; or to be rid of bytes that this one does not ask for.
      const wire::LinkActivity* back = link(t, other.rank);
      const bool asks = back != nullptr && share(t, back->awaited_ms()) >= kSomeWait;
      const std::int64_t ms = std::max<std::int64_t>(l->awaited_ms(), asks ? 0 : l->blocked_ms());
      if (share(other, ms) < kWaitsMuch) continue;
      ++v.victims;
      if (ms <= v.waited_ms) continue;
      v.waited_ms = ms;
      worst = &other;
    }
    if (worst == nullptr) return;
    std::string why = at_fault(t);
    if (why.empty()) return;
    v.round = round_of_wait(*worst, t.rank);
    v.reason = name_(t.rank) + " holds up " + rank_text(worst->rank) +
               (v.victims > 1 ? " and " + std::to_string(v.victims - 1) + " more" : "") +
               ", which has waited for it for " + seconds_text(v.waited_ms) + " of the last " +
               seconds_text(worst->activity->window_ms()) + ", and waits itself for " + percent(idle(t)) +
               " of its time: " + why;
    if (v.round && entered(t, *v.round) == nullptr) v.reason += "; it has not entered " + to_string(*v.round);
    v.next = "nothing but this report: all wait for it";
    out_.push_back(std::move(v));
  }

  // What sets it apart from those that have as much to do; empty: nothing does.
  [[nodiscard]] std::string at_fault(const Testimony& t) const {
    const wire::Activity& a = *t.activity;
    if (a.replaying() || a.replayed_rounds() != 0) {
      if (a.replayed_rounds() != 0 || a.moved_bytes() != 0) return {};  // judged by its progress
      return "its replay of logged rounds has not moved for " + seconds_text(a.window_ms());
    }
    // Who gets too little of a CPU is seen at work on its own things, or not running, as it happens.
    const std::int64_t others_away = *median_without(aways_, {away(t)});  // somebody tells that he waits
    if (away(t) >= others_away + kMoreThanOthers) {
      const std::string others = ", those of the others for " + percent(others_away) + " (median)";
      if (held(t) >= kSomeWait) {
        return "its program was outside of calls for " + percent(outside(t)) + ", and its process did not run for " +
               percent(held(t)) + others;
      }
      return "its program was outside of calls for " + percent(outside(t)) + others;
    }
    if (busy(t) >= kWaitsMuch && cost(t) >= kTimesOthersCost * *median_without(costs_, {cost(t)})) {
      return "it was at work in rounds for " + percent(busy(t)) + " with " + std::to_string(a.moved_bytes()) +
             " bytes, over " + std::to_string(static_cast<int>(kTimesOthersCost)) +
             " times as long for each as the others (median)";
    }
    return {};
  }

  [[nodiscard]] static std::optional<RoundId> round_of_wait(const Testimony& waiter, Rank target) {
    for (const wire::CurrentRound& r : waiter.rounds) {
      if (waits_for(r, target)) return round_of(r);
    }
    return std::nullopt;
  }

  std::span<const Testimony> all_;
  const StragglerLimits& limits_;
  const RankName& name_;
  // By rank.
  std::vector<bool> tells_;
  struct Told {
    const Testimony* by;
    const wire::LinkActivity* link;
  };
  std::vector<std::vector<Told>> told_of_;  // by ranks that are heard, of their links to it
  // Sorted, of ranks that tell.
  std::vector<std::int64_t> aways_;
  std::vector<double> costs_;
  std::vector<Flow> flows_;  // by (to, from)
  struct Kind {
    std::vector<std::int64_t> shares;
    std::vector<double> costs;  // where something came
  };
  std::array<Kind, 2> kinds_;  // of flows, sorted: between hosts, within them
  std::vector<Verdict> out_;
  std::set<Rank> settled_;  // who is to blame as a whole
};

// Why a chain of waits ends at this rank.
std::string standing_of(const Testimony& t, const RoundId& round, const StragglerLimits& limits) {
  const std::string finished = std::to_string(t.rounds_finished) + " rounds finished";
  if (t.silent_ms >= suspect_after_ms(limits, t.longest_gap_ms)) {
    return "which has not been heard for " + seconds_text(t.silent_ms);
  }
  if (t.finalizing) return "which has called finalize (" + finished + ")";
  if (entered(t, round) != nullptr) return "which is in it and waits for nobody";
  if (!t.rounds.empty()) {
    return "which has not entered it (it is in " + to_string(round_of(t.rounds.front())) + "; " + finished + ")";
  }
  const bool replays = t.activity != nullptr && t.activity->replaying();
  return std::string("which has not entered it (") + (replays ? "it replays" : "its program computes") + "; " +
         finished + ")";
}

}  // namespace

StragglerLimits straggler_limits(std::int64_t round_timeout_ms) {
  StragglerLimits l;
  l.round_timeout_ms = round_timeout_ms;
  l.heartbeat_ms = heartbeat_interval_ms(round_timeout_ms);
  l.sample_ms = sample_interval_ms(round_timeout_ms);
  l.window_ms = limits::kHeartbeatsPerWindow * l.heartbeat_ms;
  l.suspect_ms = limits::kSuspectHeartbeats * l.heartbeat_ms;
  return l;
}

std::int64_t suspect_after_ms(const StragglerLimits& l, std::int64_t longest_gap_ms) {
  return std::clamp(2 * longest_gap_ms, l.suspect_ms, std::max(l.suspect_ms, l.round_timeout_ms * 4 / 5));
}

std::string describe(const StragglerLimits& l) {
  return "from the round timeout of " + seconds_text(l.round_timeout_ms) + " follow: heartbeats every " +
         std::to_string(l.heartbeat_ms) + " ms; silence is suspect after " + seconds_text(l.suspect_ms) +
         ", or twice the longest gap of a rank's own heartbeats, and ends the generation after " +
         seconds_text(l.round_timeout_ms) + "; each rank looks at what it does every " + std::to_string(l.sample_ms) +
         " ms, and is judged over " + seconds_text(l.window_ms) +
         "; a rank or link is called slow where others wait for it for " + percent(kWaitsMuch) +
         " of that, it stands out among them or in its own history, and does so for " +
         seconds_text(kLooksToStand * l.heartbeat_ms);
}

std::string seconds_text(std::int64_t ms) {
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

const char* to_string(Blame blame) {
  switch (blame) {
    case Blame::kHung: return "hung";
    case Blame::kCutOff: return "cut_off";
    case Blame::kSlowRank: return "slow_rank";
    case Blame::kSlowLink: return "slow_link";
  }
  return "unknown";
}

std::vector<Verdict> find_stragglers(std::span<const Testimony> all, const StragglerLimits& limits,
                                     const RankName& name) {
  return Inquest(all, limits, name).run();
}

std::vector<std::string> explain_waits(std::span<const Testimony> all, const StragglerLimits& limits) {
  // Of each round the one who has waited longest.
  std::map<RoundId, std::pair<const Testimony*, const wire::CurrentRound*>> waiters;
  for (const Testimony& t : all) {
    for (const wire::CurrentRound& r : t.rounds) {
      if (r.waiting_for_size() == 0) continue;
      auto& [who, round] = waiters[round_of(r)];
      if (round != nullptr && round->waited_ms() >= r.waited_ms()) continue;
      who = &t;
      round = &r;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [round, waiter] : waiters) {
    if (lines.size() == limits::kMaxRoundsPerHeartbeat) break;
    const wire::CurrentRound* at = waiter.second;
    std::set<Rank> seen = {waiter.first->rank};
    std::string text = to_string(round) + ": " + rank_text(waiter.first->rank) + " has waited " +
                       seconds_text(static_cast<std::int64_t>(std::min<std::uint64_t>(at->waited_ms(), INT64_MAX)));
    std::string verb = " for ";
    for (std::size_t hop = 0; at != nullptr; ++hop) {
      // Where one of those waits for nobody, the chain ends there.
      const Testimony* next = nullptr;
      const wire::CurrentRound* deeper = nullptr;
      for (const std::uint32_t peer : at->waiting_for()) {
        if (peer >= all.size()) continue;
        const wire::CurrentRound* theirs = entered(all[peer], round);
        const bool ends = theirs == nullptr || theirs->waiting_for_size() == 0;
        if (next != nullptr && !ends) continue;
        next = &all[peer];
        deeper = ends ? nullptr : theirs;
        if (ends) break;
      }
      if (next == nullptr) break;
      text += verb + rank_text(next->rank);
      if (deeper == nullptr) {
        text += ", " + standing_of(*next, round, limits);
      } else if (!seen.insert(next->rank).second) {
        text += ": they wait for each other, so bytes are on their way";
        deeper = nullptr;
      } else if (hop + 1 == kMostHops) {
        text += ", and so on";
        deeper = nullptr;
      }
      verb = ", which waits for ";
      at = deeper;
    }
    lines.push_back(std::move(text));
  }
  return lines;
}

std::vector<StragglerWatch::Change> StragglerWatch::look(const std::vector<Verdict>& found, TimeMs now) {
  std::vector<Change> changes;
  for (const Verdict& v : found) {
    const auto [it, fresh] = cases_.try_emplace(v.key());
    Case& c = it->second;
    if (fresh) c.since = now;
    c.verdict = v;
    c.missed = 0;
    ++c.found;
    // Both are found by a silence or a standstill that has lasted for several looks.
    const bool stands_at_once = v.blame == Blame::kHung || v.blame == Blame::kCutOff;
    if (c.stands || c.found < (stands_at_once ? 1 : kLooksToStand)) continue;
    c.stands = true;
    changes.push_back({true, v, 0});
  }
  for (auto it = cases_.begin(); it != cases_.end();) {
    Case& c = it->second;
    const bool again = std::ranges::any_of(found, [&](const Verdict& v) { return v.key() == it->first; });
    if (!again) {
      c.found = 0;
      ++c.missed;
    }
    // One heartbeat ends a silence. A rank that is cut off may be so again.
    const bool falls_at_once = c.verdict.blame == Blame::kHung;
    if (again || (c.stands && c.missed < (falls_at_once ? 1 : kLooksToEnd))) {
      ++it;
      continue;
    }
    if (c.stands) changes.push_back({false, c.verdict, now - c.since});
    it = cases_.erase(it);
  }
  return changes;
}

std::vector<StragglerWatch::Standing> StragglerWatch::standing() const {
  std::vector<Standing> all;
  for (const auto& [key, c] : cases_) {
    if (c.stands) all.push_back({c.verdict, c.since});
  }
  return all;
}

const Verdict* StragglerWatch::against(Rank rank) const {
  for (const auto& [key, c] : cases_) {
    if (c.stands && c.verdict.rank == rank && c.verdict.blame != Blame::kSlowLink) return &c.verdict;
  }
  return nullptr;
}

}  // namespace warren
