#include "tests/worker/schedule/symbolic.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "recovery/base/check.h"
#include "tests/worker/schedule/layout.h"

namespace warren::schedule::symbolic {
namespace {

using Lists = std::vector<std::vector<std::uint32_t>>;

std::string name(std::int32_t rank, std::size_t step) {
  return "rank " + std::to_string(rank) + " step " + std::to_string(step);
}

bool is_local(const Step& step) {
  return step.kind != StepKind::kSend && step.kind != StepKind::kRecv;
}

// The places that a step reads and the one that it writes.
struct Access {
  std::vector<Place> reads;
  std::optional<Place> write;
};

Access access_of(const Schedule& schedule, const Step& step) {
  Access access;
  if (step.kind == StepKind::kCombine) {
    const auto first = schedule.operands.begin() + step.first_operand;
    access.reads.assign(first, first + step.operands);
  } else if (step.kind != StepKind::kRecv) {
    access.reads.push_back(step.a);
  }
  if (step.kind == StepKind::kReduce) access.reads.push_back(step.b);
  if (step.kind != StepKind::kSend && step.kind != StepKind::kPublish) access.write = step.dst;
  return access;
}

// The steps of one kind by peer, in the order of their ordinals; steps are written in that order.
Lists by_peer(const Schedule& schedule, StepKind kind) {
  Lists lists(static_cast<std::size_t>(schedule.size));
  for (std::uint32_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.kind == kind) lists[static_cast<std::size_t>(step.peer)].push_back(i);
  }
  return lists;
}

std::string check_graph(const Schedule& schedule, std::int32_t rank, const World& world) {
  const std::size_t n = schedule.steps.size();
  if (schedule.size != world.size) return "the schedule is for another size";
  if (n == 0) return name(rank, 0) + ": there is no step at all";
  if (schedule.pending.size() != n || schedule.first_successor.size() != n + 1 ||
      schedule.first_successor.front() != 0 || schedule.first_successor.back() != schedule.successors.size()) {
    return name(rank, 0) + ": the rows of dependencies have the wrong length";
  }
  std::vector<std::uint32_t> named(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::uint32_t e = schedule.first_successor[i]; e < schedule.first_successor[i + 1]; ++e) {
      if (schedule.successors[e] <= i || schedule.successors[e] >= n) {
        return name(rank, i) + ": a successor does not come later";
      }
      ++named[schedule.successors[e]];
    }
  }
  return named == schedule.pending ? "" : name(rank, 0) + ": pending does not count the dependencies";
}

std::uint64_t result_elements(const World& world) {
  std::uint64_t total = 0;
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    const Layout layout = layout_of(world, rank);
    total = std::max(total, layout.result_at + layout.output_count);
  }
  return total;
}

// Chunks that lie side by side may be one step where there are GPUs, in a first attempt.
std::uint64_t most_elements(const World& world) {
  const bool joins = world.exchanges || (world.on.maps && world.on.gpus);
  if (world.algorithm != Algorithm::kRing || !joins || world.resumed) return world.chunk_elements;
  const std::uint64_t most_bytes = std::uint64_t{world.exchanges ? 1024u : 512u} << 10;
  return std::max(world.chunk_elements, most_bytes / world.element_bytes);
}

std::string check_step(const Step& step, const Layout& layout, const Schedule& schedule, const World& world) {
  if (step.count > most_elements(world)) return "it is larger than a chunk, or than what may be joined";
  if (step.kind == StepKind::kPublish) {
    if (world.replicas == 0) return "it publishes what nobody logs";
    if (step.a.form != Form::kValue) return "it publishes a partial result";
    if (step.result_at + step.count > result_elements(world)) return "it publishes more than the result";
    if (step.a.space == Space::kOutput && step.result_at != layout.result_at + step.a.at) {
      return "it publishes an element of the output as another one";
    }
  }
  if (step.is_word && (is_local(step) || step.turn != 0 || step.count != 0)) return "it is no word";
  if (step.lent && (step.kind != StepKind::kSend || step.a.space != Space::kInput)) return "it lends no input";
  if (step.kind == StepKind::kCombine) {
    if (step.operands < 2 || step.first_operand + step.operands > schedule.operands.size()) return "it has no operands";
    if ((step.dst.space == Space::kOutput) != step.finish) return "what it combines is final in the output alone";
    for (std::uint32_t k = 0; k < step.operands; ++k) {
      const bool begins_chain = k == 0 && step.bracketing == Bracketing::kChain;
      if (schedule.operands[step.first_operand + k].form == Form::kPartial && !begins_chain) {
        return "it combines partial results";
      }
    }
  }
  const Access access = access_of(schedule, step);
  const auto outside = [&](const Place& place) {
    const std::uint64_t limit = place.space == Space::kInput    ? layout.input_count
                                : place.space == Space::kOutput ? layout.output_count
                                                                : schedule.scratch_elements;
    return step.count > 0 && place.at + place.skip + step.count > limit;
  };
  for (std::size_t i = 0; i < access.reads.size(); ++i) {
    if (outside(access.reads[i])) return "it reads outside its buffer";
    if (access.reads[i].space != Space::kScratch && access.reads[i].form != Form::kValue) {
      return "a user's buffer holds values";
    }
  }
  if (access.write) {
    const Place& dst = *access.write;
    if (outside(dst)) return "it writes outside its buffer";
    if (dst.space == Space::kInput) return "it writes to the input";
    if (step.kind == StepKind::kRecv && dst.space != Space::kScratch) return "a receive lands outside scratch (rule 3)";
    if (dst.space == Space::kOutput && dst.form != Form::kValue) return "it writes a partial result to the output";
    const bool reduces = step.kind == StepKind::kReduce || step.kind == StepKind::kCombine;
    if (reduces && step.finish != (dst.form == Form::kValue)) {
      return "a reduction makes partials, and a value only when it finishes";
    }
    if (step.kind == StepKind::kCopy && !step.finish && step.a.form != dst.form) return "a copy changes the form";
    for (std::size_t i = 0; i < access.reads.size(); ++i) {
      const std::uint64_t from = layout.cell(access.reads[i]);
      const std::uint64_t to = layout.cell(dst);
      const bool apart = from + step.count <= to || to + step.count <= from;
      const bool same = from == to && access.reads[i].form == dst.form;
      if (!apart && !same) return "its destination overlaps an operand";
    }
  }
  if (!is_local(step) && (step.peer < 0 || step.peer >= world.size)) return "there is no such peer";
  return "";
}

// Who must hold what before it is seen.
struct Rule {
  explicit Rule(const World& world)
      : everyone(all_receive(world.collective)),
        everywhere(world.resumed || (everyone && result_elements(world) * world.element_bytes <= kWholeBytes)),
        elements(std::max<std::uint64_t>(1, result_elements(world))) {
    std::set<std::uint32_t> domains;
    for (std::int32_t rank = 0; rank < world.size; ++rank) domains.insert(world.domain(rank));
    least_copies = std::min<std::size_t>(world.replicas, domains.size());
  }
  bool everyone;           // receives the whole result
  bool everywhere;         // its copy must be in every host that sees it
  std::uint64_t elements;  // of the whole result; a result without any has one record, which counts as an element
  std::size_t least_copies = 0;
};

// Which elements are known to be published on which host.
class Published {
 public:
  explicit Published(const World& world) : world_(world), rule_(world) {
    for (std::int32_t rank = 0; rank < world.size; ++rank) {
      const auto [at, fresh] = number_.try_emplace(world.host(rank), number_.size());
      if (fresh) domain_.push_back(world.domain(rank));
    }
  }

  using Set = std::vector<std::uint64_t>;  // of bits, by host and element
  [[nodiscard]] Set none() const { return Set((number_.size() * rule_.elements + 63) / 64); }
  void add(Set& set, std::int32_t rank, std::uint64_t element) const {
    const std::size_t bit = number_.at(world_.host(rank)) * rule_.elements + element;
    set[bit / 64] |= std::uint64_t{1} << bit % 64;
  }
  static void add(Set& set, const Set& other) {
    for (std::size_t w = 0; w < set.size(); ++w) set[w] |= other[w];
  }

  [[nodiscard]] bool may_show(const Set& set, std::int32_t rank, std::uint64_t element) const {
    if (has(set, number_.at(world_.host(rank)), element)) return true;
    return rule_.everyone && !rule_.everywhere && enough(set, element);
  }
  [[nodiscard]] bool may_finish(const Set& set, std::int32_t rank, std::uint64_t element) const {
    return rule_.everyone ? may_show(set, rank, element) : enough(set, element);
  }
  [[nodiscard]] const Rule& rule() const { return rule_; }

 private:
  [[nodiscard]] bool has(const Set& set, std::size_t host, std::uint64_t element) const {
    const std::size_t bit = host * rule_.elements + element;
    return (set[bit / 64] >> bit % 64 & 1) != 0;
  }
  [[nodiscard]] bool enough(const Set& set, std::uint64_t element) const {
    std::set<std::uint32_t> domains;
    for (std::size_t host = 0; host < domain_.size() && domains.size() < rule_.least_copies; ++host) {
      if (has(set, host, element)) domains.insert(domain_[host]);
    }
    return domains.size() >= rule_.least_copies;
  }

  const World& world_;
  Rule rule_;
  std::map<std::uint32_t, std::size_t> number_;  // of each host
  std::vector<std::uint32_t> domain_;            // by that number
};

// What happens to the schedules in a run.
class Run {
 public:
  Run(const World& world, const std::vector<Schedule>& schedules, Order order, std::uint64_t seed, State& state)
      : world_(world),
        order_(order),
        random_(seed),
        state_(state),
        all_(state.expressions),
        published_(world),
        held_(published_.none()) {
    const std::vector<Expression> result = expected_result(world, all_);
    for (std::uint64_t i = 0; i < result.size(); ++i) position_[result[i]] = i;
    result_ = result;
    for (std::int32_t rank = 0; rank < world.size; ++rank) {
      publishes_late_.push_back(random_() % 2 == 0);
      Node& node = nodes_.emplace_back();
      node.schedule = &schedules[static_cast<std::size_t>(rank)];
      node.layout = layout_of(world, rank);
      node.expected = expected_output(world, rank, all_);
      const std::vector<Expression>& user = state.user[static_cast<std::size_t>(rank)];
      node.cells.resize(user.size() + node.schedule->scratch_elements);
      for (std::size_t i = 0; i < user.size(); ++i) node.cells[i].value = user[i];
      node.pending = node.schedule->pending;
      node.ready.assign(node.pending.size(), false);
      node.done.assign(node.pending.size(), false);
      node.sends = by_peer(*node.schedule, StepKind::kSend);
      node.receives = by_peer(*node.schedule, StepKind::kRecv);
      node.sends_posted.assign(static_cast<std::size_t>(world.size), 0);
      node.receives_posted.assign(static_cast<std::size_t>(world.size), 0);
      node.delivered.assign(static_cast<std::size_t>(world.size), 0);
      node.posted.resize(static_cast<std::size_t>(world.size));
      std::vector<bool>& log = state.logs[world.host(rank)];
      log.resize(published_.rule().elements);
      for (std::uint64_t i = 0; i < log.size(); ++i) {
        if (log[i]) published_.add(held_, rank, i);
      }
    }
  }

  std::string run(std::uint64_t& events) {
    const std::uint64_t most = events;
    events = 0;
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      for (std::uint32_t i = 0; i < node(rank).pending.size(); ++i) {
        if (node(rank).pending[i] == 0) becomes_ready(rank, i);
      }
    }
    bool stopped = false;
    while (wrong_.empty()) {
      stopped = events == most;
      const std::optional<Event> event = stopped ? std::nullopt : next();
      if (!event) break;
      handle(*event);
      ++events;
    }
    for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
      for (std::size_t i = 0; i < state_.user[rank].size(); ++i) state_.user[rank][i] = nodes_[rank].cells[i].value;
    }
    return wrong_.empty() && !stopped ? check_end() : wrong_;
  }

 private:
  enum class What : std::uint8_t { kPost, kDeliver, kComplete, kBegin, kEnd };
  struct Event {
    What what{};
    std::int32_t rank = 0;
    std::uint32_t step = 0;
  };
  struct Cell {
    Expression value = kNothing;
    Form form = Form::kValue;
    std::uint16_t readers = 0;
    bool written = false;  // by a step in flight
    // What was received is still the sender's, in this cell of its memory.
    std::int32_t lender = -1;
    std::uint64_t lent = 0;
  };
  struct Node {
    const Schedule* schedule = nullptr;
    Layout layout;
    std::vector<Cell> cells;
    std::vector<Expression> expected;
    std::vector<std::uint32_t> pending;
    std::vector<bool> ready;
    Lists sends, receives;
    std::vector<std::size_t> sends_posted, receives_posted;  // by peer
    std::vector<std::size_t> delivered;                      // by receiver
    // By receiver: what was in messages when they were posted, where sends complete at once.
    std::vector<std::deque<std::vector<Expression>>> posted;
    std::map<std::uint32_t, std::vector<Cell>> unsaid;  // what was received in turns, until its word comes
    std::vector<bool> done;                             // by step
    std::size_t finished = 0;
  };

  Node& node(std::int32_t rank) { return nodes_[static_cast<std::size_t>(rank)]; }
  const Step& step_of(const Event& event) { return node(event.rank).schedule->steps[event.step]; }
  void fail(const Event& event, const std::string& why) {
    if (wrong_.empty()) wrong_ = name(event.rank, event.step) + ": " + why;
  }

  void push(const Event& event) {
    const bool late =
        (order_ == Order::kLateSends && event.what == What::kComplete && step_of(event).kind == StepKind::kSend) ||
        (order_ == Order::kLateLocal && (event.what == What::kBegin || event.what == What::kEnd)) ||
        (order_ == Order::kLatePublish && step_of(event).kind == StepKind::kPublish &&
         publishes_late_[static_cast<std::size_t>(event.rank)]);
    (late ? late_ : soon_).push_back(event);
  }

  std::optional<Event> next() {
    std::deque<Event>& from = soon_.empty() ? late_ : soon_;
    if (from.empty()) return std::nullopt;
    if (order_ == Order::kLatePublish && soon_.empty()) {
      std::swap(from.front(), from.back());
    } else if (order_ != Order::kInOrder) {
      std::swap(from.front(), from[static_cast<std::size_t>(random_() % from.size())]);
    }
    const Event event = from.front();
    from.pop_front();
    return event;
  }

  void becomes_ready(std::int32_t rank, std::uint32_t step) {
    node(rank).ready[step] = true;
    const Step& s = node(rank).schedule->steps[step];
    if (is_local(s)) {
      push({What::kBegin, rank, step});
    } else {
      post_next(rank, s.kind, s.peer, step);
    }
  }

  // Rule 2: posted in the order of ordinals. `only`: if it is this step's turn.
  void post_next(std::int32_t rank, StepKind kind, std::int32_t peer, std::optional<std::uint32_t> only = {}) {
    Node& n = node(rank);
    const auto p = static_cast<std::size_t>(peer);
    const std::vector<std::uint32_t>& list = (kind == StepKind::kSend ? n.sends : n.receives)[p];
    const std::size_t turn = (kind == StepKind::kSend ? n.sends_posted : n.receives_posted)[p];
    if (turn < list.size() && n.ready[list[turn]] && (!only || list[turn] == *only)) {
      push({What::kPost, rank, list[turn]});
    }
  }

  void deliver_next(std::int32_t sender, std::int32_t receiver) {
    Node& from = node(sender);
    const auto to = static_cast<std::size_t>(receiver);
    const std::size_t turn = from.delivered[to];
    if (turn < from.sends_posted[to] && turn < node(receiver).receives_posted[static_cast<std::size_t>(sender)]) {
      push({What::kDeliver, sender, from.sends[to][turn]});
    }
  }

  void handle(const Event& event) {
    const Step& step = step_of(event);
    Node& n = node(event.rank);
    switch (event.what) {
      case What::kBegin:
        begin(event);
        push({What::kEnd, event.rank, event.step});
        return;
      case What::kEnd:
        compute(event);
        finish(event);
        return;
      case What::kPost: {
        begin(event);
        if (step.is_word && !n.done[event.step - 1]) fail(event, "it is the word of what has not been moved");
        const bool sends = step.kind == StepKind::kSend;
        const auto peer = static_cast<std::size_t>(step.peer);
        const std::size_t before = ++(sends ? n.sends_posted : n.receives_posted)[peer];
        if (sends) shows(event);
        if (sends && order_ == Order::kEagerSends) {
          std::vector<Expression>& values = n.posted[peer].emplace_back();
          for (std::uint64_t i = 0; i < step.count; ++i) values.push_back(n.cells[n.layout.cell(step.a) + i].value);
          push({What::kComplete, event.rank, event.step});
        }
        post_next(event.rank, step.kind, step.peer);
        const std::int32_t sender = sends ? event.rank : step.peer;
        const std::int32_t receiver = sends ? step.peer : event.rank;
        if (node(sender).delivered[static_cast<std::size_t>(receiver)] + 1 == before) deliver_next(sender, receiver);
        return;
      }
      case What::kDeliver: {
        const auto to = static_cast<std::size_t>(step.peer);
        Node& receiver = node(step.peer);
        const std::uint32_t other = receiver.receives[static_cast<std::size_t>(event.rank)][n.delivered[to]++];
        const Step& receive = receiver.schedule->steps[other];
        const bool eager = order_ == Order::kEagerSends;
        for (std::uint64_t i = 0; i < step.count; ++i) {
          Cell& cell = receiver.cells[receiver.layout.cell(receive.dst) + i];
          cell.value = eager ? n.posted[to].front()[i] : n.cells[n.layout.cell(step.a) + i].value;
          cell.form = receive.dst.form;
          cell.lender = step.lent ? event.rank : -1;
          cell.lent = n.layout.cell(step.a) + i;
          if (step.turn == 0) continue;
          // It may be anything: its sender may have gone.
          receiver.unsaid[other].push_back(cell);
          cell.value = kNothing;
        }
        if (receive.is_word) says(event, receiver, other);
        if (eager) {
          n.posted[to].pop_front();
        } else {
          push({What::kComplete, event.rank, event.step});
        }
        push({What::kComplete, step.peer, other});
        deliver_next(event.rank, step.peer);
        return;
      }
      case What::kComplete: finish(event); return;
    }
  }

  // The word of what was received before has come.
  void says(const Event& event, Node& receiver, std::uint32_t word) {
    const Step& receive = receiver.schedule->steps[word - 1];
    const std::vector<Cell> values = std::move(receiver.unsaid[word - 1]);
    if (values.size() != receive.count) fail(event, "it is the word of nothing that has come");
    for (std::size_t i = 0; i < values.size(); ++i) {
      Cell& cell = receiver.cells[receiver.layout.cell(receive.dst) + i];
      const Cell before = std::exchange(cell, values[i]);
      cell.readers = before.readers;
      cell.written = before.written;
    }
  }

  // As the step finds it when it reads.
  Expression read(const Event& event, const Place& place, std::uint64_t i) {
    const Cell& cell = node(event.rank).cells[node(event.rank).layout.cell(place) + i];
    if (cell.lender < 0) return cell.value;
    if (state_.finished[static_cast<std::size_t>(cell.lender)]) fail(event, "it reads from a rank that has returned");
    const Cell& theirs = node(cell.lender).cells[cell.lent];
    if (theirs.written) fail(event, "it reads what a step of the lender writes");
    return theirs.value;
  }

  Expression combined(const Event& event, const Step& step, std::uint64_t i) {
    const Schedule& schedule = *node(event.rank).schedule;
    const auto operand = [&](std::size_t k) { return read(event, schedule.operands[step.first_operand + k], i); };
    if (step.bracketing == Bracketing::kChain) {
      Expression sum = operand(0);
      for (std::size_t k = 1; k < step.operands; ++k) sum = all_.combine(sum, operand(k));
      return sum;
    }
    // As in docs/algorithms.md: pairs are folded, then neighbours combined until one is left.
    std::vector<Expression> sums;
    const std::size_t folded = step.operands - std::bit_floor(step.operands);
    for (std::size_t k = 0; k < step.operands; ++k) {
      const bool pair = k / 2 < folded;
      sums.push_back(pair ? all_.combine(operand(k), operand(k + 1)) : operand(k));
      if (pair) ++k;
    }
    while (sums.size() > 1) {
      for (std::size_t k = 0; k < sums.size() / 2; ++k) sums[k] = all_.combine(sums[2 * k], sums[2 * k + 1]);
      sums.resize(sums.size() / 2);
    }
    return sums[0];
  }

  // Marks what the step touches while it is in flight.
  void begin(const Event& event) {
    Node& n = node(event.rank);
    const Step& step = step_of(event);
    const Access access = access_of(*n.schedule, step);
    for (std::uint64_t i = 0; i < step.count; ++i) {
      for (std::size_t r = 0; r < access.reads.size(); ++r) {
        const Cell& cell = n.cells[n.layout.cell(access.reads[r]) + i];
        if (cell.written) fail(event, "it reads what a step in flight writes");
        if (cell.value == kNothing) fail(event, "it reads what nobody wrote");
        if (cell.form != access.reads[r].form) fail(event, "it reads in another form than was written");
      }
      if (access.write) {
        const Cell& cell = n.cells[n.layout.cell(*access.write) + i];
        if (cell.written || cell.readers > 0) fail(event, "it writes what a step in flight reads or writes");
      }
    }
    mark(event, true);
  }

  void mark(const Event& event, bool in_flight) {
    Node& n = node(event.rank);
    const Step& step = step_of(event);
    const Access access = access_of(*n.schedule, step);
    for (std::uint64_t i = 0; i < step.count; ++i) {
      for (std::size_t r = 0; r < access.reads.size(); ++r) {
        Cell& cell = n.cells[n.layout.cell(access.reads[r]) + i];
        cell.readers = static_cast<std::uint16_t>(cell.readers + (in_flight ? 1 : -1));
      }
      if (access.write) n.cells[n.layout.cell(*access.write) + i].written = in_flight;
    }
  }

  void compute(const Event& event) {
    Node& n = node(event.rank);
    const Step& step = step_of(event);
    if (step.kind == StepKind::kPublish) {
      publish(event);
      return;
    }
    for (std::uint64_t i = 0; i < step.count; ++i) {
      Expression value = step.kind == StepKind::kCombine ? combined(event, step, i) : read(event, step.a, i);
      if (step.kind == StepKind::kReduce) value = all_.combine(value, read(event, step.b, i));
      if (step.finish) value = all_.finish(value);
      Cell& cell = n.cells[n.layout.cell(step.dst) + i];
      cell.value = value;
      cell.form = step.dst.form;
      cell.lender = -1;
      if (step.dst.space == Space::kOutput && value != n.expected[step.dst.at + i]) {
        fail(event, "it writes " + all_.to_string(value) + " to output element " + std::to_string(step.dst.at + i) +
                        ", whose final value is " + all_.to_string(n.expected[step.dst.at + i]));
      }
      if (step.dst.space == Space::kOutput) state_.final[static_cast<std::size_t>(event.rank)][step.dst.at + i] = true;
    }
  }

  void publish(const Event& event) {
    Node& n = node(event.rank);
    const Step& step = step_of(event);
    for (std::uint64_t i = 0; i < step.count; ++i) {
      const Expression value = n.cells[n.layout.cell(step.a) + i].value;
      if (value == result_[step.result_at + i]) continue;
      fail(event, "it publishes " + all_.to_string(value) + " as element " + std::to_string(step.result_at + i) +
                      ", whose final value is " + all_.to_string(result_[step.result_at + i]));
    }
    const std::uint64_t end = result_.empty() ? 1 : step.result_at + step.count;
    for (std::uint64_t i = step.result_at; i < end; ++i) {
      state_.logs[world_.host(event.rank)][i] = true;
      published_.add(held_, event.rank, i);
    }
  }

  // A send: finals that are in it must be published. Where results differ by rank, raw inputs are on their way to who
  // owns the result; the owner may only show it.
  void shows(const Event& event) {
    const Step& step = step_of(event);
    if (world_.replicas == 0) return;
    if (!all_receive(world_.collective) && step.a.space != Space::kOutput) return;
    const Node& n = node(event.rank);
    for (std::uint64_t i = 0; i < step.count; ++i) {
      const auto at = position_.find(n.cells[n.layout.cell(step.a) + i].value);
      if (at == position_.end() || published_.may_show(held_, event.rank, at->second)) continue;
      fail(event, "it shows element " + std::to_string(at->second) + " before the copy that its host must hold");
    }
  }

  void finishes(const Event& event) {
    state_.finished[static_cast<std::size_t>(event.rank)] = true;
    if (world_.replicas == 0) return;
    for (std::uint64_t i = 0; i < published_.rule().elements; ++i) {
      if (published_.may_finish(held_, event.rank, i)) continue;
      fail(event, "the rank returns, element " + std::to_string(i) + " is not stable");
    }
  }

  void finish(const Event& event) {
    Node& n = node(event.rank);
    mark(event, false);
    n.done[event.step] = true;
    if (++n.finished == n.pending.size()) finishes(event);
    const Schedule& s = *n.schedule;
    for (std::uint32_t e = s.first_successor[event.step]; e < s.first_successor[event.step + 1]; ++e) {
      if (--n.pending[s.successors[e]] == 0) becomes_ready(event.rank, s.successors[e]);
    }
  }

  std::string check_end() {
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      const Node& n = node(rank);
      if (n.finished != n.pending.size()) {
        return "deadlock: rank " + std::to_string(rank) + " finished " + std::to_string(n.finished) + " of " +
               std::to_string(n.pending.size()) + " steps";
      }
    }
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      const Node& n = node(rank);
      for (std::size_t i = 0; i < n.expected.size(); ++i) {
        const Cell& cell = n.cells[n.layout.output_at + i];
        if (cell.value != n.expected[i]) {
          return "rank " + std::to_string(rank) + ": output element " + std::to_string(i) + " is " +
                 all_.to_string(cell.value) + " and not " + all_.to_string(n.expected[i]);
        }
      }
    }
    return "";
  }

  const World& world_;
  Order order_;
  std::mt19937_64 random_;
  State& state_;
  Expressions& all_;
  std::vector<Expression> result_;
  std::unordered_map<Expression, std::uint64_t> position_;  // of finals in the whole result
  Published published_;
  Published::Set held_;
  std::vector<Node> nodes_;
  std::vector<bool> publishes_late_;  // by rank
  std::deque<Event> soon_, late_;
  std::string wrong_;
};

// reaches(i, j): step j waits for step i, directly or not.
class Reach {
 public:
  explicit Reach(const Schedule& schedule) : words_((schedule.steps.size() + 63) / 64) {
    bits_.assign(words_ * schedule.steps.size(), 0);
    for (std::size_t i = schedule.steps.size(); i-- > 0;) {
      std::uint64_t* own = &bits_[i * words_];
      for (std::uint32_t e = schedule.first_successor[i]; e < schedule.first_successor[i + 1]; ++e) {
        const std::uint32_t later = schedule.successors[e];
        for (std::size_t w = later / 64; w < words_; ++w) own[w] |= bits_[later * words_ + w];
        own[later / 64] |= std::uint64_t{1} << later % 64;
      }
    }
  }
  [[nodiscard]] bool operator()(std::uint32_t i, std::uint32_t j) const {
    return (bits_[i * words_ + j / 64] >> j % 64 & 1) != 0;
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace

Expression Expressions::number(Kind kind, std::uint64_t a, std::uint64_t b) {
  WARREN_CHECK(a < (1U << 31) && b < (1U << 31), "numbers of expressions fit in a key");
  const std::uint64_t key = static_cast<std::uint64_t>(kind) << 62 | a << 31 | b;
  const auto [at, fresh] = numbers_.try_emplace(key, static_cast<Expression>(nodes_.size()));
  if (fresh) nodes_.push_back({kind, a, b});
  return at->second;
}

Expression Expressions::input(std::int32_t rank, std::uint64_t element) {
  return number(Kind::kInput, static_cast<std::uint64_t>(rank), element);
}
Expression Expressions::combine(Expression a, Expression b) {
  return number(Kind::kCombine, a, b);
}
Expression Expressions::finish(Expression a) {
  return number(Kind::kFinish, a, 0);
}

std::vector<std::int32_t> Expressions::contributors(Expression expression) const {
  std::vector<std::int32_t> ranks;
  std::vector<Expression> open{expression};
  while (!open.empty()) {
    const Node& node = nodes_[open.back()];
    open.pop_back();
    if (node.kind == Kind::kInput) {
      ranks.push_back(static_cast<std::int32_t>(node.a));
      continue;
    }
    if (node.kind == Kind::kCombine) open.push_back(static_cast<Expression>(node.b));
    open.push_back(static_cast<Expression>(node.a));
  }
  return ranks;
}

std::string Expressions::to_string(Expression expression) const {
  if (expression == kNothing) return "nothing";
  const Node& node = nodes_[expression];
  switch (node.kind) {
    case Kind::kInput: return "in[" + std::to_string(node.a) + "][" + std::to_string(node.b) + "]";
    case Kind::kCombine:
      return "(" + to_string(static_cast<Expression>(node.a)) + " + " + to_string(static_cast<Expression>(node.b)) +
             ")";
    case Kind::kFinish: return "final(" + to_string(static_cast<Expression>(node.a)) + ")";
  }
  return "?";
}

Request World::request(std::int32_t rank) const {
  Request request;
  request.collective = collective;
  request.algorithm = algorithm;
  request.rank = rank;
  request.size = size;
  request.root = root;
  request.count = count;
  request.counts = counts;
  request.chunk_elements = chunk_elements;
  request.replicas = replicas;
  request.hosts = hosts;
  request.host = on;
  request.owner = owner;
  request.domains = domains;
  request.element_bytes = element_bytes;
  request.partial_bytes = element_bytes;
  request.resumed = resumed;
  request.final = final;
  request.order = order;
  request.exchanges = exchanges;
  return request;
}

std::uint32_t World::host(std::int32_t rank) const {
  return hosts.empty() ? static_cast<std::uint32_t>(rank) : hosts[static_cast<std::size_t>(rank)];
}
std::uint32_t World::domain(std::int32_t rank) const {
  return domains.empty() ? host(rank) : domains[static_cast<std::size_t>(rank)];
}

std::string World::describe() const {
  std::string text = std::string(warren::to_string(collective)) + " by " + std::string(schedule::to_string(algorithm)) +
                     ", K " + std::to_string(size) + ", root " + std::to_string(root) + ", chunk " +
                     std::to_string(chunk_elements) + (in_place ? ", in place" : "");
  if (replicas > 0) text += ", R " + std::to_string(replicas) + ", " + std::to_string(element_bytes) + " bytes each";
  if (!hosts.empty()) {
    text += ", hosts";
    for (std::int32_t rank = 0; rank < size; ++rank) {
      text += " " + std::to_string(host(rank)) + "/" + std::to_string(domain(rank));
    }
  }
  if (!on.maps) text += ", by TCP";
  if (on.cores != 0) text += ", on " + std::to_string(on.cores) + " cores";
  if (exchanges) text += ", from GPU to GPU";
  if (owner != 0) text += ", owner " + std::to_string(owner);
  if (!order.empty()) {
    text += ", order";
    for (const std::uint32_t rank : order) text += " " + std::to_string(rank);
  }
  if (resumed) {
    text += ", resumed, final";
    for (const Interval& i : final.intervals()) text += " " + std::to_string(i.begin) + "-" + std::to_string(i.end);
  }
  text += ", count";
  if (counts.empty()) return text + " " + std::to_string(count);
  for (const std::uint64_t c : counts) text += " " + std::to_string(c);
  return text;
}

std::vector<Schedule> make_all(const World& world) {
  std::vector<Schedule> schedules;
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    Result<Schedule> made = make(world.request(rank));
    WARREN_CHECK(made.ok(), made.status().describe().c_str());
    schedules.push_back(std::move(made).value());
  }
  return schedules;
}

std::string check_form(const World& world, const std::vector<Schedule>& schedules) {
  if (schedules.size() != static_cast<std::size_t>(world.size)) return "there is not one schedule a rank";
  std::vector<Lists> sends;
  std::vector<Lists> receives;
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    const Schedule& schedule = schedules[static_cast<std::size_t>(rank)];
    if (std::string wrong = check_graph(schedule, rank, world); !wrong.empty()) return wrong;
    const Layout layout = layout_of(world, rank);
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      if (std::string wrong = check_step(step, layout, schedule, world); !wrong.empty()) {
        return name(rank, i) + ": " + wrong;
      }
      if (!is_local(step) && step.peer == rank) return name(rank, i) + ": it talks to itself";
      const Step* const before = i == 0 ? nullptr : &schedule.steps[i - 1];
      if (step.is_word && (before == nullptr || before->turn == 0 || before->kind != step.kind ||
                           before->peer != step.peer || before->message + 1 != step.message)) {
        return name(rank, i) + ": it is the word of nothing";
      }
    }
    sends.push_back(by_peer(schedule, StepKind::kSend));
    receives.push_back(by_peer(schedule, StepKind::kRecv));
  }
  for (std::size_t from = 0; from < schedules.size(); ++from) {
    for (std::size_t to = 0; to < schedules.size(); ++to) {
      const std::vector<std::uint32_t>& out = sends[from][to];
      const std::vector<std::uint32_t>& in = receives[to][from];
      if (out.size() != in.size()) {
        return "rank " + std::to_string(from) + " sends " + std::to_string(out.size()) + " messages to rank " +
               std::to_string(to) + ", which expects " + std::to_string(in.size());
      }
      for (std::size_t m = 0; m < out.size(); ++m) {
        const Step& send = schedules[from].steps[out[m]];
        const Step& receive = schedules[to].steps[in[m]];
        if (send.message != m || receive.message != m || send.count != receive.count || send.turn != receive.turn ||
            send.is_word != receive.is_word || send.a.form != receive.dst.form) {
          return "message " + std::to_string(m) + " from rank " + std::to_string(from) + " to rank " +
                 std::to_string(to) + " is not the same on both ends";
        }
      }
    }
  }
  return "";
}

std::string check_races(const World& world, const std::vector<Schedule>& schedules) {
  struct Last {
    std::uint32_t writer = UINT32_MAX;
    std::vector<std::uint32_t> readers;  // since then
  };
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    const Schedule& schedule = schedules[static_cast<std::size_t>(rank)];
    const Layout layout = layout_of(world, rank);
    const Reach before(schedule);
    std::vector<Last> cells(layout.user_cells + schedule.scratch_elements);
    for (std::uint32_t i = 0; i < schedule.steps.size(); ++i) {
      const Step& step = schedule.steps[i];
      const Access access = access_of(schedule, step);
      // What a word speaks of is there with the word.
      const std::uint64_t count = step.is_word && access.write ? schedule.steps[i - 1].count : step.count;
      for (std::uint64_t k = 0; k < count; ++k) {
        for (std::size_t r = 0; r < access.reads.size(); ++r) {
          Last& last = cells[layout.cell(access.reads[r]) + k];
          if (last.writer != UINT32_MAX && !before(last.writer, i)) {
            return name(rank, i) + " does not wait for step " + std::to_string(last.writer) +
                   ", which writes what it reads";
          }
          last.readers.push_back(i);
        }
        if (!access.write) continue;
        Last& last = cells[layout.cell(*access.write) + k];
        for (const std::uint32_t reader : last.readers) {
          if (reader != i && !before(reader, i)) {
            return name(rank, i) + " does not wait for step " + std::to_string(reader) + ", which reads what it writes";
          }
        }
        if (last.writer != UINT32_MAX && !before(last.writer, i)) {
          return name(rank, i) + " does not wait for step " + std::to_string(last.writer) + ", which writes there too";
        }
        last.writer = i;
        last.readers.clear();
      }
    }
  }
  return "";
}

std::string check_publication(const World& world, const std::vector<Schedule>& schedules) {
  if (world.replicas == 0) return "";
  const Published published(world);
  const std::uint64_t elements = published.rule().elements;
  const std::uint64_t total = result_elements(world);
  struct Node {
    std::vector<std::uint32_t> pending;
    std::vector<Published::Set> known;  // by step: what is published before it starts
    Published::Set at_end;
    Lists sends, receives;
  };
  std::vector<Node> nodes;
  std::vector<std::pair<std::size_t, std::uint32_t>> ready;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    const Schedule& schedule = schedules[rank];
    Node& node = nodes.emplace_back();
    node.pending = schedule.pending;
    Published::Set before = published.none();
    // What is taken from the log is logged again.
    const Layout layout = layout_of(world, static_cast<std::int32_t>(rank));
    for (std::uint64_t i = layout.result_at; i < layout.result_at + layout.output_count; ++i) {
      if (world.final.covers(i, i + 1)) published.add(before, static_cast<std::int32_t>(rank), i);
    }
    node.known.assign(schedule.steps.size(), before);
    node.at_end = before;
    node.sends = by_peer(schedule, StepKind::kSend);
    node.receives = by_peer(schedule, StepKind::kRecv);
    for (std::uint32_t i = 0; i < schedule.steps.size(); ++i) {
      // A receive waits for its message, a send for the one before.
      if (schedule.steps[i].kind == StepKind::kRecv) ++node.pending[i];
      if (schedule.steps[i].kind == StepKind::kSend && schedule.steps[i].message > 0) ++node.pending[i];
      if (node.pending[i] == 0) ready.emplace_back(rank, i);
    }
  }
  const auto follows = [&](const Published::Set& known, std::size_t rank, std::uint32_t step) {
    Published::add(nodes[rank].known[step], known);
    if (--nodes[rank].pending[step] == 0) ready.emplace_back(rank, step);
  };
  while (!ready.empty()) {
    const auto [rank, i] = ready.back();
    ready.pop_back();
    const auto group_rank = static_cast<std::int32_t>(rank);
    const Step& step = schedules[rank].steps[i];
    Published::Set known = std::move(nodes[rank].known[i]);
    if (step.kind == StepKind::kPublish) {
      const std::uint64_t end = total == 0 ? 1 : step.result_at + step.count;
      for (std::uint64_t e = step.result_at; e < end; ++e) published.add(known, group_rank, e);
    }
    if (step.kind == StepKind::kSend) {
      const std::uint64_t first = layout_of(world, group_rank).result_at + step.a.at;
      for (std::uint64_t e = first; step.a.space == Space::kOutput && e < first + step.count; ++e) {
        if (published.may_show(known, group_rank, e)) continue;
        return name(group_rank, i) + " may show element " + std::to_string(e) +
               " before the copy that its host must hold";
      }
      const auto to = static_cast<std::size_t>(step.peer);
      follows(known, to, nodes[to].receives[rank][step.message]);
      const std::vector<std::uint32_t>& sends = nodes[rank].sends[to];
      if (step.message + 1 < sends.size()) follows(known, rank, sends[step.message + 1]);
    }
    Published::add(nodes[rank].at_end, known);
    for (std::uint32_t e = schedules[rank].first_successor[i]; e < schedules[rank].first_successor[i + 1]; ++e) {
      follows(known, rank, schedules[rank].successors[e]);
    }
  }
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    for (std::uint64_t e = 0; e < elements; ++e) {
      if (published.may_finish(nodes[rank].at_end, static_cast<std::int32_t>(rank), e)) continue;
      return "rank " + std::to_string(rank) + " may return while element " + std::to_string(e) + " is not stable";
    }
  }
  return "";
}

std::string check_run(const World& world, const std::vector<Schedule>& schedules, Order order, std::uint64_t seed) {
  State state = start_of(world);
  std::uint64_t events = UINT64_MAX;
  return run_from(world, schedules, order, seed, state, events);
}

std::string run_from(const World& world, const std::vector<Schedule>& schedules, Order order, std::uint64_t seed,
                     State& state, std::uint64_t& events) {
  return Run(world, schedules, order, seed, state).run(events);
}

State start_of(const World& world) {
  State state;
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    const Layout layout = layout_of(world, rank);
    state.user.push_back(initial_cells(world, rank, state.expressions));
    const bool has_it = world.collective == Collective::kBroadcast && rank == world.root;
    state.final.emplace_back(layout.output_count, has_it);
    state.finished.push_back(false);
  }
  return state;
}

std::string check(const World& world, const std::vector<Schedule>& schedules, Order order, std::uint64_t seed) {
  if (std::string wrong = check_form(world, schedules); !wrong.empty()) return wrong;
  if (std::string wrong = check_races(world, schedules); !wrong.empty()) return wrong;
  if (std::string wrong = check_publication(world, schedules); !wrong.empty()) return wrong;
  return check_run(world, schedules, order, seed);
}

std::uint32_t hops(const std::vector<Schedule>& schedules) {
  // Depths only grow: repeat until none does.
  std::vector<Lists> sends;
  std::vector<std::vector<std::uint32_t>> depth;
  for (const Schedule& schedule : schedules) {
    sends.push_back(by_peer(schedule, StepKind::kSend));
    depth.emplace_back(schedule.steps.size(), 0);
  }
  std::uint32_t deepest = 0;
  for (bool changed = true; changed;) {
    changed = false;
    const auto raise = [&](std::uint32_t& value, std::uint32_t least) {
      if (value >= least) return;
      value = least;
      deepest = std::max(deepest, least);
      changed = true;
    };
    for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
      const Schedule& schedule = schedules[rank];
      for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
        const Step& step = schedule.steps[i];
        if (step.kind == StepKind::kRecv) {
          const auto peer = static_cast<std::size_t>(step.peer);
          raise(depth[rank][i], depth[peer][sends[peer][rank][step.message]] + 1);
        }
        for (std::uint32_t e = schedule.first_successor[i]; e < schedule.first_successor[i + 1]; ++e) {
          raise(depth[rank][schedule.successors[e]], depth[rank][i]);
        }
      }
    }
  }
  return deepest;
}

}  // namespace warren::schedule::symbolic
