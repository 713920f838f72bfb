#include "worker/schedule/copies.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

// What arrives for others is published at once.
constexpr std::size_t kKeeperSlots = 4;

// Among at most so many ranks, a center hears of the others and then tells them: two hops, and 2(K - 1) messages.
// Dissemination takes log2 K hops and K log2 K messages. Where ranks outnumber cores, messages are what costs: a reduce
// of 64 bytes among 4 ranks on 2 cores took 14.5 us instead of 17.5, both under load.
constexpr std::int32_t kMostAroundCenter = 8;

constexpr std::uint64_t kMostReadByRoot = std::uint64_t{1} << 20;

std::uint32_t host_of(const Request& request, std::int32_t rank) {
  return request.hosts.empty() ? static_cast<std::uint32_t>(rank) : request.hosts[static_cast<std::size_t>(rank)];
}

std::uint32_t domain_of(const Request& request, std::int32_t rank) {
  return request.domains.empty() ? host_of(request, rank) : request.domains[static_cast<std::size_t>(rank)];
}

bool logs_one_sided(const Request& request) {
  return request.replicas > 0 && request.size > 1 && results_differ(request.collective);
}

// By owner, the ranks that keep copies of its finals. They sit in the domains that follow the owner's, in the order in
// which the ranks' domains first appear, at the owner's place in its own, so that a domain's ranks share the work.
std::vector<std::vector<std::int32_t>> keepers_of(const Request& request) {
  std::unordered_map<std::uint32_t, std::size_t> numbers;
  std::vector<std::vector<std::int32_t>> members;
  std::vector<std::size_t> domain, place;
  for (std::int32_t rank = 0; rank < request.size; ++rank) {
    const auto [at, fresh] = numbers.try_emplace(domain_of(request, rank), members.size());
    if (fresh) members.emplace_back();
    domain.push_back(at->second);
    place.push_back(members[at->second].size());
    members[at->second].push_back(rank);
  }
  const std::size_t copies = std::min<std::size_t>(request.replicas, members.size());
  std::vector<std::vector<std::int32_t>> keepers(static_cast<std::size_t>(request.size));
  for (std::size_t owner = 0; owner < keepers.size(); ++owner) {
    for (std::size_t i = 1; i < copies; ++i) {
      const std::vector<std::int32_t>& there = members[(domain[owner] + i) % members.size()];
      keepers[owner].push_back(there[place[owner] % there.size()]);
    }
  }
  return keepers;
}

bool has_result(const Request& request, std::int32_t rank) {
  const bool at_root = request.collective == Collective::kReduce || request.collective == Collective::kGather;
  return !at_root || rank == request.root;
}

}  // namespace

bool publishes(const Request& request, std::span<const std::int32_t> path, bool everywhere) {
  if (request.replicas == 0) return false;
  const std::uint32_t own = host_of(request, path.back());
  const std::span<const std::int32_t> before = path.first(path.size() - 1);
  std::uint32_t domains = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (host_of(request, before[i]) == own) return false;
    if (everywhere) continue;
    const std::uint32_t domain = domain_of(request, before[i]);
    const bool known = std::any_of(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&](std::int32_t rank) { return domain_of(request, rank) == domain; });
    if (!known && ++domains == request.replicas) return false;
  }
  return true;
}

std::uint64_t result_elements(const Request& request) {
  const auto size = static_cast<std::uint64_t>(request.size);
  switch (request.collective) {
    case Collective::kAllreduce:
    case Collective::kReduce:
    case Collective::kBroadcast: return request.count;
    case Collective::kAllgather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter: return size * request.count;
    case Collective::kAllgatherv:
    case Collective::kReduceScatterv:
    case Collective::kAllToAllv: {
      std::uint64_t total = 0;
      for (const std::uint64_t count : request.counts) total += count;
      return total;
    }
    case Collective::kAllToAll: return size * size * request.count;
    case Collective::kBarrier:
    case Collective::kPoint: return 0;
  }
  return 0;
}

bool results_differ(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kGather || collective == Collective::kScatter ||
         collective == Collective::kAllToAll || collective == Collective::kReduceScatterv ||
         collective == Collective::kAllToAllv;
}

std::uint64_t most_kept_for_others(const Request& request) {
  if (!logs_one_sided(request)) return 0;
  const auto keepers = keepers_of(request);
  std::vector<std::uint64_t> kept(keepers.size());
  for (std::int32_t owner = 0; owner < request.size; ++owner) {
    if (!has_result(request, owner)) continue;
    for (const std::int32_t keeper : keepers[static_cast<std::size_t>(owner)]) ++kept[static_cast<std::size_t>(keeper)];
  }
  return *std::max_element(kept.begin(), kept.end());
}

Copies::Copies(const Request& request, Builder& builder)
    : request_(request),
      builder_(builder),
      one_sided_(logs_one_sided(request)),
      total_(result_elements(request)),
      settles_((request.settles || request.exchanges) && request.replicas > 0 && request.size > 1),
      everywhere_(request.resumed || request.settles ||
                  (!results_differ(request.collective) && total_ <= kWholeBytes / request.element_bytes)) {
  if (one_sided_ || request.exchanges) keepers_ = keepers_of(request);
  if (!one_sided_) return;
  bool keeps_for_others = false;
  for (std::int32_t owner = 0; owner < request.size; ++owner) {
    if (!has_result(request, owner)) continue;
    const std::vector<std::int32_t>& keepers = keepers_[static_cast<std::size_t>(owner)];
    const bool kept = std::find(keepers.begin(), keepers.end(), request.rank) != keepers.end();
    keeps_for_others |= kept;
    if (kept || owner == request.rank) owners_.push_back(owner);
  }
  // Blocks of all these collectives have `count` elements, or so many.
  std::uint64_t most = 0;
  for (const std::uint64_t count : request.counts.empty() ? std::span(&request.count, 1) : request.counts) {
    most = std::max(most, cut({0, count}, chunks_of(count, request.chunk_elements), 0).count);
  }
  if (keeps_for_others) slots_ = builder.slots(kKeeperSlots, most);
}

bool Copies::keeps(std::span<const std::int32_t> path) const {
  return publishes(request_, path, everywhere_);
}
bool Copies::keeps_own() const {
  return keeps(std::array{request_.rank});
}
bool Copies::keeps_from(std::int32_t owner) const {
  return keeps(std::array{owner, request_.rank});
}

bool Copies::keeps_for(std::int32_t owner) const {
  const std::vector<std::int32_t>& keepers = keepers_[static_cast<std::size_t>(owner)];
  return std::ranges::find(keepers, request_.rank) != keepers.end();
}

StepId Copies::publish(const Operand& a, const Range& result, StepId made) {
  // A result without elements has one record; other pieces without elements need none.
  if (result.count == 0 && (total_ > 0 || published_nothing_)) return made;
  published_nothing_ = total_ == 0;
  const StepId step = builder_.publish(a, result.at, result.count, made);
  if (one_sided_ || settles_) published_.push_back(step);
  return step;
}

bool Copies::source_keeps(std::int32_t owner, std::int32_t source) const {
  return !keepers_[static_cast<std::size_t>(owner)].empty() &&
         domain_of(request_, owner) != domain_of(request_, source);
}

// A final that its owner publishes is copied three times: into the link, out of it, and into the log. This way it is
// copied into the log, and out of it.
//
// Not of a large scatter: the root's share of the log would hold all of it, where each owner's holds its piece. Nor of
// a large gather: the root would be the first to touch all pages of the others' logs. 4 MiB from 4 ranks took 2.3 ms
// so, and 1.0 as they do. Nor of an all_to_allv, which may send all of its bytes from one rank.
bool Copies::source_publishes(std::int32_t owner, std::int32_t source) const {
  if (!one_sided_ || owner == source || host_of(request_, owner) != host_of(request_, source)) return false;
  if (request_.collective == Collective::kScatter) return total_ <= kWholeBytes / request_.element_bytes;
  if (request_.collective == Collective::kAllToAllv) return false;
  if (request_.collective == Collective::kGather) return total_ <= kMostReadByRoot / request_.element_bytes;
  return true;
}

bool Copies::pieces_say_all() const {
  if (!one_sided_ || request_.collective != Collective::kScatter || request_.settles || request_.exchanges ||
      !request_.final.empty() || request_.count > request_.chunk_elements) {
    return false;
  }
  for (std::int32_t rank = 0; rank < request_.size; ++rank) {
    if (rank != request_.root && !source_publishes(rank, request_.root)) return false;
    if (!keepers_[static_cast<std::size_t>(rank)].empty()) return false;
  }
  return true;
}

StepId Copies::publish_received(std::int32_t source, const Operand& a, const Range& result, StepId made) {
  if (!keeps_own()) return made;
  if (!source_publishes(request_.rank, source)) return publish(a, result, made);
  // The source says nothing else: this rank tells the others.
  if (closes_around() && !tells_center(source, request_.rank)) published_.push_back(made);
  return made;
}

StepId Copies::publish_sent(std::int32_t owner, const Operand& a, const Range& result) {
  if (source_publishes(owner, request_.rank)) return publish(a, result, kNoStep);
  if (!one_sided_ || !source_keeps(owner, request_.rank)) return kNoStep;
  const StepId step = publish(a, result, kNoStep);
  return closes_around() && !tells_center(request_.rank, owner) ? step : kNoStep;
}

void Copies::back_up(std::int32_t owner, std::int32_t source, const Range& result, std::uint64_t output_at,
                     StepId published) {
  if (!one_sided_) return;
  std::span<const std::int32_t> keepers = keepers_[static_cast<std::size_t>(owner)];
  // What was taken from the log nobody sent in this attempt.
  std::int32_t spared = owner;
  if (source_keeps(owner, source) && !left_out(request_, result)) {
    const auto there = std::find_if(keepers.begin(), keepers.end(), [&](std::int32_t keeper) {
      return domain_of(request_, keeper) == domain_of(request_, source);
    });
    spared = there == keepers.end() ? keepers.back() : *there;
  }
  for (const std::int32_t keeper : keepers) {
    if (keeper == spared) continue;
    if (request_.rank == owner) {
      builder_.send(keeper, output(output_at), result.count, {published});
    } else if (request_.rank == keeper) {
      const Operand received = slots_.next().as(Form::kValue);
      builder_.recv(owner, received, result.count);
      publish(received, result, kNoStep);
    }
  }
}

// Whether this rank tells the center that it has published. After a reduce or gather only keepers do. Another source
// publishes its piece before it sends it, so the piece itself says so.
bool Copies::tells_center(std::int32_t rank, std::int32_t center) const {
  if (rank == center) return false;
  if (has_result(request_, rank)) return true;
  const std::vector<std::int32_t>& keepers = keepers_[static_cast<std::size_t>(center)];
  return std::ranges::find(keepers, rank) != keepers.end();
}

// Whether the round ends around a center: the root, or rank 0. Two ranks that both have a result tell each other.
bool Copies::closes_around() const {
  const bool at_root = !has_result(request_, modulo(request_.root + 1, request_.size));
  return !request_.settles && !request_.exchanges && (at_root || request_.size > 2) &&
         request_.size <= kMostAroundCenter;
}

void Copies::close() {
  if ((!one_sided_ && !settles_) || pieces_say_all()) return;
  std::vector<StepId> published = published_;
  if (request_.settles || request_.exchanges) {
    // What this rank has it got from its host's log, where all of it is then: whoever looks there after another rank
    // has returned finds the whole result. Or from GPUs: then nobody returns before all have had all words of turns.
    const std::vector<StepId> finals = builder_.finals();
    published.insert(published.end(), finals.begin(), finals.end());
    std::ranges::sort(published);
    published.erase(std::unique(published.begin(), published.end()), published.end());
  }
  if (closes_around()) {
    close_around(request_.root, published);
  } else {
    disseminate(published);
  }
}

void Copies::close_around(std::int32_t center, const std::vector<StepId>& published) {
  const auto tell = [&](std::int32_t rank, const std::vector<StepId>& after) {
    builder_.send(rank, input(0), 0, after);
  };
  const auto hear = [&](std::int32_t rank) {
    Slot slot = builder_.slot(0);
    return builder_.recv(rank, slot.as(Form::kValue), 0);
  };
  if (request_.rank != center) {
    if (tells_center(request_.rank, center)) tell(center, joined(published));
    hear(center);
    return;
  }
  std::vector<StepId> heard = joined(published);
  for (std::int32_t rank = 0; rank < request_.size; ++rank) {
    if (tells_center(rank, center)) heard.push_back(hear(rank));
  }
  heard = joined(heard);
  for (std::int32_t rank = 0; rank < request_.size; ++rank) {
    if (rank != center) tell(rank, heard);
  }
}

std::vector<StepId> Copies::joined(const std::vector<StepId>& steps) {
  return steps.size() < 2 ? steps : std::vector<StepId>{builder_.join(steps)};
}

// After round i a rank has heard of 2^(i + 1) ranks, itself included.
void Copies::disseminate(const std::vector<StepId>& published) {
  std::vector<StepId> heard = joined(published);
  for (std::int32_t distance = 1; distance < request_.size; distance *= 2) {
    builder_.send(modulo(request_.rank + distance, request_.size), input(0), 0, heard);
    Slot slot = builder_.slot(0);
    heard.push_back(builder_.recv(modulo(request_.rank - distance, request_.size), slot.as(Form::kValue), 0));
  }
}

}  // namespace warren::schedule
