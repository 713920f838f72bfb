// An allreduce among several hosts: the ranks of a host combine what they have there, what crosses to another host is a
// whole host's partial result, and finals cross once a host and are handed out inside. Pieces, owners and bracketing
// are those of the ring or the butterfly, so bits do not depend on where ranks sit, and a round that was interrupted in
// one placement is finished in another. A reduce_scatter is the first half of it, by ring or direct, an allgather the
// second.
//
// Each host has a leader for each piece. On the owner's host that is the owner; the owners of other hosts are shared
// out among its ranks, so that all of them lead for their share and drive links to other hosts. What a piece's final is
// made of is a tree of sums, which stays as it is; each sum is placed on a rank:
//   ring, direct: in the host of its right operand. The partial result walks from host to host and takes up the inputs
//   of each. Where it ends at another host than the owner's, the owner gets the last one and finishes it.
//   butterfly: sums of one host's inputs at its leader, all others at the owner.
// What a rank adds up in a row, or as a whole tree, it combines in one step, as host.cc does, on a GPU where the inputs
// are there. The final walks over the hosts from leader to leader, so that the first min(R, domains) hosts publish it;
// where the algorithm is the direct one, whose hops are few, its owner sends it to all leaders, each of which does.
//
// Inputs go straight to the rank that sums them. It reads them before anybody can make the final: they are lent, in a
// reduce_scatter where the round is logged (host.cc).
//
// A unit is what is cut into one piece for each owner (host.cc). A stage is what can be done at once, and begins one
// turn after the stage before, so that what crosses between hosts has a turn's time while later units are under way.
#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "recovery/base/check.h"
#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

// A leader talks to all ranks of its host, and to leaders of all hosts.
constexpr std::size_t kMostHosts = 1024, kMostRanksOfAHost = 128;
// The most ranks of a host that do not map each other's memory: each two of them have a connection.
constexpr std::size_t kMostRanksByConnections = 16;
// One where they are side by side; a rank whose next life is elsewhere makes two.
constexpr std::size_t kMostChangesAHost = 2;
// As host.cc's: what 16 ranks have of a block of the default size.
constexpr std::uint64_t kLeastBlockPieceBytes = std::uint64_t{16} << 10;
// Of a peer, two messages may be on their way while a third is read.
constexpr std::size_t kSlotsPerPeer = 3;
// What comes from a peer in one turn waits for other peers, and must not keep the next turn's from coming.
constexpr std::size_t kMostSlotsOfATurn = 5;
// The most bytes of all slots of a rank, which has some for each peer of its host and of two neighbours. Messages that
// are places in memory of others leave them empty.
constexpr std::uint64_t kMostSlotBytes = std::uint64_t{1} << 30;
// Partial results that have left may still be read by the transport.
constexpr std::size_t kSparePartials = 2;

[[nodiscard]] std::size_t index(std::int32_t rank) {
  return static_cast<std::size_t>(rank);
}

class Hosts {
 public:
  explicit Hosts(const Request& request) {
    std::map<std::uint32_t, std::size_t> numbers;
    for (std::int32_t rank = 0; rank < request.size; ++rank) {
      const auto [at, fresh] = numbers.try_emplace(request.hosts[index(rank)], members_.size());
      if (fresh) members_.emplace_back();
      host_.push_back(at->second);
      number_.push_back(members_[at->second].size());
      members_[at->second].push_back(rank);
    }
    std::map<std::size_t, std::size_t> of_size;
    for (const std::vector<std::int32_t>& members : members_) ordinal_.push_back(of_size[members.size()]++);
    neighbours_.assign(host_.size(), 1);
    for (std::size_t i = 2 * host_.size(); i-- > 0;) {
      const std::size_t rank = i % host_.size(), next = (rank + 1) % host_.size();
      if (host_[rank] != host_[next]) continue;
      neighbours_[rank] = std::min(neighbours_[next] + 1, request.size);
    }
  }

  [[nodiscard]] std::size_t size() const { return members_.size(); }
  [[nodiscard]] std::size_t of(std::int32_t rank) const { return host_[index(rank)]; }
  [[nodiscard]] bool together(std::int32_t a, std::int32_t b) const { return of(a) == of(b); }
  [[nodiscard]] const std::vector<std::int32_t>& members(std::size_t host) const { return members_[host]; }
  // The length of the run of ranks of one host that begins with this one. Rank 0 comes after the last one.
  [[nodiscard]] std::int32_t neighbours(std::int32_t rank) const { return neighbours_[index(rank)]; }
  // The ranks of each other host are shared out among a host's, in their order. Rank i of a host talks to rank i of
  // hosts of the same size, and to ranks beside it of hosts that are a little larger. So wide hosts need not link each
  // rank with each. A remainder falls on other ranks from host to host.
  [[nodiscard]] std::int32_t leader(std::size_t host, std::int32_t owner) const {
    const std::size_t owners = of(owner);
    if (owners == host) return owner;
    const std::vector<std::int32_t>& here = members_[host];
    return here[(number_[index(owner)] * here.size() + ordinal_[owners] % here.size()) / members_[owners].size()];
  }

 private:
  std::vector<std::size_t> host_;                   // by rank
  std::vector<std::size_t> number_;                 // by rank: among those of its host
  std::vector<std::int32_t> neighbours_;            // by rank
  std::vector<std::vector<std::int32_t>> members_;  // by host
  std::vector<std::size_t> ordinal_;                // by host: among those of as many ranks
};

// A rank's input, or a sum.
struct Term {
  std::int32_t rank = 0;  // who has it
  bool is_sum = false;
  std::uint32_t stage = 0;               // of a sum: in which it is made
  std::vector<std::int32_t> operands{};  // of a sum, in their order; none: the viewer has no part in it
  Bracketing bracketing = Bracketing::kChain;
  // The operands are two or more, and inputs, but for the first one of a chain, perhaps.
  bool combines = false;
  [[nodiscard]] Form form() const { return is_sum ? Form::kPartial : Form::kValue; }
};

// Of what an owner's final is made: the sums that one rank, the viewer, makes or has operands of. Operands come before
// their sums. Each owner has an expression, and an expression takes O(hosts). So 8,192 ranks on 1,024 hosts plan an
// allreduce in 0.13 s. With the terms of all ranks they took 7 s (2026-12-01).
class Expression {
 public:
  static constexpr std::int32_t kNobody = -1;

  Expression(const Request& request, const Hosts& hosts, std::int32_t owner, std::int32_t viewer)
      : hosts_(hosts), owner_(owner), viewer_(viewer) {
    if (request.algorithm == Algorithm::kRing) {
      chain(owner + 1, request.size);
    } else if (request.algorithm == Algorithm::kDirect) {
      chain(0, request.size);
    } else {
      const auto positions = static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(request.size)));
      last_stage_ = terms_[index(balanced(0, positions, request.size - positions))].stage;
    }
  }

  [[nodiscard]] const std::vector<Term>& terms() const { return terms_; }
  [[nodiscard]] std::uint32_t last_stage() const { return last_stage_; }
  // Messages between hosts for a piece of this owner, on the way in.
  [[nodiscard]] std::uint64_t values_that_cross() const { return values_; }
  [[nodiscard]] std::uint64_t partials_that_cross() const { return partials_; }

 private:
  // A rank's input or a sum, which may be an operand at another rank.
  struct Part {
    std::int32_t rank = 0;
    bool is_sum = false;
    std::uint32_t stage = 0;
    std::int32_t number = -1;  // of its term; -1: the viewer has had no part in it
  };

  std::int32_t add(Term term) {
    terms_.push_back(std::move(term));
    return static_cast<std::int32_t>(terms_.size()) - 1;
  }
  std::int32_t leaf(std::int32_t rank) { return add({.rank = rank}); }
  std::int32_t number_of(const Part& part) {
    return part.number >= 0 ? part.number : add({part.rank, part.is_sum, part.stage});
  }

  void count(const Part& operand, std::int32_t summed_by) {
    if (hosts_.together(operand.rank, summed_by)) return;
    ++(operand.is_sum ? partials_ : values_);
  }
  // The stage of a sum of this operand.
  [[nodiscard]] static std::uint32_t stage_after(const Part& operand, std::int32_t summed_by) {
    return operand.is_sum ? operand.stage + (operand.rank == summed_by ? 0 : 1) : 0;
  }

  // ((in[first] + in[first+1]) + …) + in[first-1].
  void chain(std::int32_t first, std::int32_t size) {
    const auto rank_at = [&](std::int32_t i) { return modulo(first + i, size); };
    const bool ends_here = hosts_.together(rank_at(size - 1), owner_);
    std::optional<Part> partial;
    for (std::int32_t begin = 0, end = 0; begin < size; begin = end) {
      const std::int32_t head = rank_at(begin);
      end = std::min(begin + hosts_.neighbours(head), size);
      // Whose input alone is taken up takes it up itself.
      const std::int32_t at = end == size && ends_here ? owner_
                              : end - begin == 1       ? head
                                                       : hosts_.leader(hosts_.of(head), owner_);
      if (!partial && end - begin == 1) {
        partial = Part{head};
        continue;
      }
      Part made{at, true};
      bool seen = at == viewer_ || (viewer_ != kNobody && modulo(viewer_ - head, size) < end - begin);
      if (partial) {
        count(*partial, at);
        made.stage = stage_after(*partial, at);
        seen = seen || partial->rank == viewer_;
      }
      if (seen) {
        std::vector<std::int32_t> operands;
        if (partial) operands.push_back(number_of(*partial));
        for (std::int32_t i = begin; i < end; ++i) operands.push_back(leaf(rank_at(i)));
        const bool combines = operands.size() > 1;
        made.number = add({at, true, made.stage, std::move(operands), Bracketing::kChain, combines});
      }
      partial = made;
    }
    if (!ends_here) {
      count(*partial, owner_);
      const Part made{owner_, true, stage_after(*partial, owner_)};
      if (owner_ == viewer_ || partial->rank == viewer_) {
        const std::int32_t operand = number_of(*partial);
        add({owner_, true, made.stage, {operand}, Bracketing::kChain, false});
      }
      partial = made;
    }
    last_stage_ = partial->stage;
  }

  // As in butterfly.cc: positions in the order of ranks, the first `pairs` of which are pairs.
  std::int32_t balanced(std::int32_t first, std::int32_t width, std::int32_t pairs) {
    const auto rank_at = [&](std::int32_t position) { return position + std::min(position, pairs); };
    const std::int32_t begin = rank_at(first), end = rank_at(first + width);
    if (end - begin == 1) return leaf(begin);
    if (hosts_.neighbours(begin) >= end - begin) {
      // The tree of so many operands by itself.
      const std::int32_t at = hosts_.leader(hosts_.of(begin), owner_);
      std::vector<std::int32_t> inputs;
      if (at == viewer_ || (begin <= viewer_ && viewer_ < end)) {
        for (std::int32_t rank = begin; rank < end; ++rank) inputs.push_back(leaf(rank));
      }
      return add({at, true, 0, std::move(inputs), Bracketing::kBalanced, true});
    }
    // A sum of several hosts' is at the owner, and so is what it is added to.
    const std::int32_t half = width / 2;
    const std::int32_t left = width == 1 ? leaf(begin) : balanced(first, half, pairs);
    const std::int32_t right = width == 1 ? leaf(begin + 1) : balanced(first + half, half, pairs);
    Term made{.rank = owner_, .is_sum = true, .operands = {left, right}, .combines = true};
    bool seen = owner_ == viewer_;
    for (const std::int32_t operand : {left, right}) {
      const Term& term = terms_[index(operand)];
      const Part part{term.rank, term.is_sum, term.stage};
      count(part, owner_);
      made.stage = std::max(made.stage, stage_after(part, owner_));
      made.combines = made.combines && (!term.is_sum || operand == left);
      seen = seen || term.rank == viewer_;
    }
    if (!seen) made.operands.clear();
    return add(std::move(made));
  }

  const Hosts& hosts_;
  std::int32_t owner_, viewer_;
  std::vector<Term> terms_;
  std::uint32_t last_stage_ = 0;
  std::uint64_t values_ = 0, partials_ = 0;  // that cross
};

// Whether the butterfly's halves, exchanged by partners, cross between hosts less often than what is summed there.
bool partners_cross_less(const Request& request, const Hosts& hosts) {
  const auto positions = static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(request.size)));
  const std::int32_t pairs = request.size - positions;
  const auto rank_of = [&](std::int32_t position) { return position < pairs ? 2 * position : position + pairs; };
  const auto pieces = static_cast<std::uint64_t>(positions);
  std::uint64_t by_partners = 0, by_leaders = 0;
  for (std::int32_t position = 0; position < positions; ++position) {
    const Expression expression(request, hosts, rank_of(position), Expression::kNobody);
    by_leaders += expression.values_that_cross() + expression.partials_that_cross() + hosts.size() - 1;
    for (std::int32_t bit = 1; bit < positions; bit *= 2) {
      const bool crosses = !hosts.together(rank_of(position), rank_of(position ^ bit));
      by_partners += crosses ? pieces / static_cast<std::uint64_t>(bit) : 0;
    }
    if (position < pairs && !hosts.together(2 * position, 2 * position + 1)) by_partners += 2 * pieces;
  }
  return by_partners < by_leaders;
}

// Whether less crosses where every rank sends its input to the owner than where partial results do, which may be wider.
bool inputs_cross_less(const Request& request, const Hosts& hosts) {
  std::uint64_t by_inputs = 0, by_leaders = 0;
  for (std::int32_t owner = 0; owner < request.size; ++owner) {
    const Expression expression(request, hosts, owner, Expression::kNobody);
    by_inputs += (index(request.size) - hosts.members(hosts.of(owner)).size()) * request.element_bytes;
    by_leaders += expression.values_that_cross() * request.element_bytes +
                  expression.partials_that_cross() * request.partial_bytes;
  }
  return by_inputs < by_leaders;
}

// Whether the pieces of a butterfly's block are worth a message to each other rank.
bool blocks_are_large(const Request& request) {
  const auto units = units_of(request);
  std::uint64_t largest = 0;
  for (const Range& piece : units.front()) largest = std::max(largest, piece.count);
  return largest * request.element_bytes >= kLeastBlockPieceBytes;
}

// The bytes of slots of a rank whose host has so many ranks, at most.
std::uint64_t slot_bytes(const Request& request, std::size_t ranks_of_host) {
  const auto units = units_of(request);
  std::uint64_t largest = 0;
  for (const Range& piece : units.front()) largest = std::max(largest, piece.count);
  return (ranks_of_host + 2) * (kMostSlotsOfATurn + kSlotsPerPeer) * largest * request.partial_bytes;
}

// Whether a ring, or the order of ranks, changes hosts so often that its partial results would take many stages, and
// all of what is in flight.
bool scattered(const Request& request, const Hosts& hosts) {
  std::size_t changes = 0;
  for (std::int32_t rank = 0; rank < request.size; ++rank) {
    changes += hosts.together(rank, modulo(rank + 1, request.size)) ? 0 : 1;
  }
  return changes > kMostChangesAHost * hosts.size();
}

class Hierarchical {
 public:
  Hierarchical(const Request& request, Builder& builder, Copies& copies)
      : request_(request),
        builder_(builder),
        copies_(copies),
        rank_(request.rank),
        reduces_(!gathers_only(request.collective)),
        gathers_(!scatters_only(request.collective)),
        hosts_(request),
        units_(units_of(request)) {
    const std::uint64_t own_at = segments_of(request)[index(rank_)].at;
    if (!reduces_) input_at_ = own_at;
    if (!gathers_) output_at_ = own_at;
    std::vector<bool> owns(index(request.size), false);
    for (const std::vector<Range>& unit : units_) {
      for (std::size_t owner = 0; owner < unit.size(); ++owner) {
        owns[owner] = owns[owner] || is_piece(request, unit[owner]);
        largest_ = std::max(largest_, unit[owner].count);
      }
    }
    for (std::int32_t owner = 0; owner < request.size; ++owner) {
      if (owns[index(owner)]) plan(owner);
    }
    if (!gathers_) plan_back_ups();
    // Sums of a stage come before finals of the same one, at all ranks alike.
    sums_.resize(std::max(sums_.size(), finals_.size()));
    finals_.resize(sums_.size());
    make_slots();
  }

  void run() {
    const std::size_t stages = sums_.size();
    in_flight_.resize(stages);
    for (std::size_t turn = 0; turn < units_.size() + stages - 1; ++turn) {
      for (std::size_t stage = 0; stage < stages && stage <= turn; ++stage) {
        const std::size_t unit = turn - stage;
        if (unit >= units_.size()) continue;
        Unit& state = in_flight_[unit % stages];
        if (stage == 0) {
          const std::vector<StepId> none(index(request_.size), kNoStep);
          state = {std::vector<Value>(values_), none, none};
        }
        for (const auto* tasks : {&sums_[stage], &finals_[stage]}) {
          for (const Task& task : *tasks) carry_out(task, units_[unit][index(task.owner)], state);
        }
      }
    }
  }

 private:
  static constexpr std::uint32_t kOwnInput = UINT32_MAX;  // instead of a value's number

  enum class Kind : std::uint8_t { kSend, kLend, kReceive, kSum, kOwn, kPass, kPlace, kBackUp };
  // What this rank does for a piece.
  struct Task {
    Kind kind{};
    std::int32_t owner = 0;
    std::int32_t peer = -1;
    Form form = Form::kValue;           // of what is received
    bool keeps = false;                 // kSum that finishes, kOwn, kPlace: publishes the final
    std::vector<std::uint32_t> read{};  // numbers of values: kSend's, and kSum's operands
    std::uint32_t value = 0;            // of the one that is made
    // kSum.
    bool finishes = false, combines = false;
    Bracketing bracketing = Bracketing::kChain;
  };

  // A partial result or what was received.
  struct Value {
    Operand operand;
    bool is_partial = false;  // of partials_
  };
  struct Unit {
    std::vector<Value> values;
    // By owner: who reads this rank's input of the piece, and after what the final may be shown.
    std::vector<StepId> reader, final;
  };

  static std::vector<Task>& at(std::vector<std::vector<Task>>& stages, std::size_t stage) {
    if (stages.size() <= stage) stages.resize(stage + 1);
    return stages[stage];
  }

  void plan(std::int32_t owner) {
    if (!reduces_) {
      // What is gathered is final as it is.
      if (owner == rank_) at(finals_, 0).push_back({.kind = Kind::kOwn, .owner = owner, .keeps = copies_.keeps_own()});
      return plan_finals(owner, 0);
    }
    const Expression expression(request_, hosts_, owner, rank_);
    at(sums_, expression.last_stage());  // at all ranks alike, as copies to other domains come after it
    plan_sums(owner, expression.terms());
    if (gathers_) plan_finals(owner, expression.last_stage());
  }

  void plan_sums(std::int32_t owner, const std::vector<Term>& terms) {
    std::vector<std::uint32_t> numbers(terms.size(), kOwnInput);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const Term& sum = terms[i];
      if (sum.operands.empty()) continue;
      const bool last = i + 1 == terms.size();
      std::vector<Task>& tasks = at(sums_, sum.stage);
      for (const std::int32_t number : sum.operands) {
        const Term& operand = terms[index(number)];
        if (operand.rank == sum.rank) continue;
        if (operand.rank == rank_) {
          const bool stays = gathers_ || request_.replicas > 0;
          const bool lends = stays && !operand.is_sum && sum.combines && hosts_.together(rank_, sum.rank);
          tasks.push_back({.kind = lends ? Kind::kLend : Kind::kSend,
                           .owner = owner,
                           .peer = sum.rank,
                           .read = {numbers[index(number)]}});
        } else if (sum.rank == rank_) {
          numbers[index(number)] = values_++;
          tasks.push_back({.kind = Kind::kReceive,
                           .owner = owner,
                           .peer = operand.rank,
                           .form = operand.form(),
                           .value = numbers[index(number)]});
        }
      }
      if (sum.rank != rank_) continue;
      std::vector<std::uint32_t> operands;
      for (const std::int32_t number : sum.operands) operands.push_back(numbers[index(number)]);
      numbers[i] = values_++;
      tasks.push_back({.kind = Kind::kSum,
                       .owner = owner,
                       .keeps = copies_.keeps_own(),
                       .read = std::move(operands),
                       .value = numbers[i],
                       .finishes = last,
                       .combines = sum.combines,
                       .bracketing = sum.bracketing});
    }
  }

  // From the owner through the other hosts' leaders, or to all of them, and from each to its host's ranks in the turn
  // after.
  void plan_finals(std::int32_t owner, std::size_t first_stage) {
    const bool at_once = request_.algorithm == Algorithm::kDirect;
    const std::size_t hosts = hosts_.size(), owners = hosts_.of(owner);
    const std::size_t here = (hosts_.of(rank_) + hosts - owners) % hosts;  // as many hosts after the owner's
    const auto leader_of = [&](std::size_t i) { return hosts_.leader((owners + i) % hosts, owner); };
    const auto stage_of = [&](std::size_t i) { return first_stage + (at_once ? std::min<std::size_t>(i, 1) : i); };
    const std::int32_t leader = leader_of(here);
    if (rank_ != owner) {
      std::vector<std::int32_t> path{owner};
      for (std::size_t i = at_once ? std::max<std::size_t>(here, 1) : 1; i <= here; ++i) path.push_back(leader_of(i));
      if (rank_ != leader) path.push_back(rank_);
      at(finals_, stage_of(here) + (rank_ == leader ? 0 : 1))
          .push_back(
              {.kind = Kind::kPlace, .owner = owner, .peer = path[path.size() - 2], .keeps = copies_.keeps(path)});
    }
    if (rank_ != leader) return;
    const auto pass = [&](std::int32_t to, std::size_t stage) {
      at(finals_, stage).push_back({.kind = Kind::kPass, .owner = owner, .peer = to});
    };
    for (const std::int32_t member : hosts_.members(hosts_.of(rank_))) {
      if (member != rank_) pass(member, stage_of(here) + 1);
    }
    const std::size_t last = at_once && rank_ == owner ? hosts - 1 : std::min(here + 1, hosts - 1);
    for (std::size_t i = here + 1; i <= last && (!at_once || rank_ == owner); ++i) pass(leader_of(i), stage_of(i));
  }

  // What differs by rank is copied to other domains. All ranks know of all sums, and so when they have been made.
  void plan_back_ups() {
    const std::size_t stage = sums_.size();
    for (const std::int32_t owner : copies_.owners()) {
      at(finals_, stage).push_back({.kind = Kind::kBackUp, .owner = owner});
    }
  }

  // --- Slots

  void make_slots() {
    // By peer: what comes from it in one turn.
    std::vector<std::size_t> received(index(request_.size), 0);
    for (const auto* stages : {&sums_, &finals_}) {
      for (const std::vector<Task>& tasks : *stages) {
        for (const Task& task : tasks) {
          if (task.kind == Kind::kReceive || task.kind == Kind::kPlace) ++received[index(task.peer)];
        }
      }
    }
    for (std::int32_t peer = 0; peer < request_.size; ++peer) {
      const std::size_t turns = received[index(peer)];
      if (turns == 0) {
        slots_.emplace_back();
        continue;
      }
      const std::size_t slots = std::max(std::min(turns, kMostSlotsOfATurn), most_unread(peer)) + kSlotsPerPeer;
      slots_.push_back(builder_.slots(slots, largest_));
    }
  }

  // Of what comes from a peer, so much may have to be received before the first of it is read.
  [[nodiscard]] std::size_t most_unread(std::int32_t peer) const {
    std::size_t most = 0;
    for (const std::vector<Task>& tasks : sums_) {
      std::vector<std::uint32_t> came;  // numbers of values; kOwnInput: read
      std::size_t first = 0;            // that is not read: slots are used in turn
      for (const Task& task : tasks) {
        if (task.kind == Kind::kReceive && task.peer == peer) came.push_back(task.value);
        most = std::max(most, came.size() - first);
        if (task.kind != Kind::kSum) continue;
        for (std::uint32_t& value : came) value = std::ranges::count(task.read, value) != 0 ? kOwnInput : value;
        while (first < came.size() && came[first] == kOwnInput) ++first;
      }
    }
    return most;
  }

  Operand acquire() {
    if (free_.size() <= kSparePartials) free_.push_back(&partials_.emplace_back(builder_.slot(largest_)));
    Slot* const slot = free_.front();
    free_.pop_front();
    return slot->as(Form::kPartial);
  }
  void release(const Value& value) {
    if (value.is_partial) free_.push_back(value.operand.slot);
  }

  // --- Steps

  void carry_out(const Task& task, const Range& piece, Unit& unit) {
    if (!is_piece(request_, piece)) return;
    StepId& reader = unit.reader[index(task.owner)];
    StepId& final = unit.final[index(task.owner)];
    // What was final before is copied again.
    if (task.kind != Kind::kBackUp && left_out(request_, piece)) return;
    switch (task.kind) {
      case Kind::kSend:
        if (task.read.front() == kOwnInput) {
          reader = builder_.send(task.peer, input(piece.at), piece.count);
        } else {
          builder_.send(task.peer, unit.values[task.read.front()].operand, piece.count);
          release(unit.values[task.read.front()]);
        }
        return;
      case Kind::kLend: reader = builder_.lend(task.peer, piece.at, piece.count); return;
      case Kind::kReceive: unit.values[task.value] = {receive(task, piece)}; return;
      case Kind::kSum: {
        const StepId made = sum(task, piece, unit);
        if (std::ranges::count(task.read, kOwnInput) != 0) reader = made;
        if (!task.finishes) return;
        final = made;
        break;
      }
      case Kind::kOwn: final = builder_.copy(output(piece.at), input(piece.at - input_at_), piece.count, false); break;
      case Kind::kPass: builder_.send(task.peer, output(piece.at), piece.count, {final}); return;
      case Kind::kBackUp:
        // Where it stands in the output matters to the owner alone.
        return copies_.back_up(task.owner, task.owner, piece, piece.at - output_at_, final);
      case Kind::kPlace:
        final = builder_.copy(output(piece.at), receive(task, piece), piece.count, false, {reader});
        break;
    }
    if (task.keeps) final = copies_.publish(output(piece.at - output_at_), piece, final);
  }

  // In the place of an operand that is a partial result of this rank, if one is.
  StepId sum(const Task& task, const Range& piece, Unit& unit) {
    std::vector<Operand> operands;
    std::optional<Value> dst;
    if (task.finishes) dst = Value{output(piece.at - output_at_)};
    for (const std::uint32_t number : task.read) {
      const Value value = number == kOwnInput ? Value{input(piece.at)} : unit.values[number];
      operands.push_back(value.operand);
      if (dst) {
        release(value);
      } else if (value.is_partial) {
        dst = value;
      }
    }
    if (!dst) dst = Value{acquire(), true};
    unit.values[task.value] = *dst;
    // In place the final of an owner's own input overwrites it, which may have been summed with others' before.
    const StepId reader = task.finishes ? unit.reader[index(task.owner)] : kNoStep;
    if (operands.size() == 1) return builder_.copy(dst->operand, operands[0], piece.count, true, {reader});
    if (task.combines) return builder_.combine(dst->operand, operands, task.bracketing, piece.count, {reader});
    if (task.finishes) return builder_.finish(piece.at - output_at_, operands[0], operands[1], piece.count, {reader});
    return builder_.reduce(dst->operand, operands[0], operands[1], piece.count);
  }

  Operand receive(const Task& task, const Range& piece) {
    const Operand received = slots_[index(task.peer)].next().as(task.form);
    builder_.recv(task.peer, received, piece.count);
    return received;
  }

  const Request& request_;
  Builder& builder_;
  Copies& copies_;
  std::int32_t rank_;
  bool reduces_, gathers_;
  std::uint64_t input_at_ = 0, output_at_ = 0;  // where this rank's input, and its output, begin in the whole result
  Hosts hosts_;
  std::vector<std::vector<Range>> units_;  // by owner: its piece
  std::uint64_t largest_ = 0;              // piece
  // By stage. All ranks have the tasks of a stage in one order, of which each has its own.
  std::vector<std::vector<Task>> sums_, finals_;
  std::uint32_t values_ = 0;     // of a unit
  std::vector<SlotRing> slots_;  // by peer
  std::deque<Slot> partials_;
  std::deque<Slot*> free_;
  std::vector<Unit> in_flight_;  // by unit modulo stages
};

}  // namespace

bool on_several_hosts(const Request& request) {
  if (request.hosts.empty() || !pieces_are_large(request)) return false;
  // A block of the butterfly is cut among all ranks.
  if (request.algorithm == Algorithm::kButterfly && !blocks_are_large(request)) return false;
  const Hosts hosts(request);
  if (hosts.size() < 2 || hosts.size() > kMostHosts || hosts.size() == index(request.size)) return false;
  std::size_t most = 0;
  for (std::size_t host = 0; host < hosts.size(); ++host) most = std::max(most, hosts.members(host).size());
  if (most > (request.host.maps ? kMostRanksOfAHost : kMostRanksByConnections)) return false;
  if (request.algorithm != Algorithm::kDirect && slot_bytes(request, most) > kMostSlotBytes) return false;
  if (gathers_only(request.collective)) return true;
  switch (request.algorithm) {
    case Algorithm::kRing: return !scattered(request, hosts);
    case Algorithm::kDirect: return !scattered(request, hosts) && !inputs_cross_less(request, hosts);
    default: return !partners_cross_less(request, hosts);
  }
}

void hierarchical(const Request& request, Builder& builder, Copies& copies) {
  Hierarchical(request, builder, copies).run();
}

}  // namespace warren::schedule
