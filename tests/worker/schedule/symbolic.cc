#include "tests/worker/schedule/symbolic.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <random>
#include <utility>

#include "recovery/check.h"
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
  std::array<Place, 2> reads{};
  std::size_t read_count = 0;
  std::optional<Place> write;
};

Access access_of(const Step& step) {
  Access access;
  if (step.kind != StepKind::kRecv) access.reads[access.read_count++] = step.a;
  if (step.kind == StepKind::kReduce) access.reads[access.read_count++] = step.b;
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

std::string check_step(const Step& step, const Layout& layout, const Schedule& schedule, const World& world) {
  if (step.count > world.chunk_elements) return "it is larger than a chunk";
  const Access access = access_of(step);
  const auto outside = [&](const Place& place) {
    const std::uint64_t limit = place.space == Space::kInput    ? layout.input_count
                                : place.space == Space::kOutput ? layout.output_count
                                                                : schedule.scratch_elements;
    return step.count > 0 && place.at + place.skip + step.count > limit;
  };
  for (std::size_t i = 0; i < access.read_count; ++i) {
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
    if (step.kind == StepKind::kReduce && step.finish != (dst.form == Form::kValue)) {
      return "a reduction makes partials, and a value only when it finishes";
    }
    if (step.kind == StepKind::kCopy && !step.finish && step.a.form != dst.form) return "a copy changes the form";
    for (std::size_t i = 0; i < access.read_count; ++i) {
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

// What happens to the schedules in a run.
class Run {
 public:
  Run(const World& world, const std::vector<Schedule>& schedules, Order order, std::uint64_t seed)
      : world_(world), order_(order), random_(seed) {
    for (std::int32_t rank = 0; rank < world.size; ++rank) {
      Node& node = nodes_.emplace_back();
      node.schedule = &schedules[static_cast<std::size_t>(rank)];
      node.layout = layout_of(world, rank);
      node.expected = expected_output(world, rank, all_);
      const std::vector<Expression> user = initial_cells(world, rank, all_);
      node.cells.resize(user.size() + node.schedule->scratch_elements);
      for (std::size_t i = 0; i < user.size(); ++i) node.cells[i].value = user[i];
      node.pending = node.schedule->pending;
      node.ready.assign(node.pending.size(), false);
      node.sends = by_peer(*node.schedule, StepKind::kSend);
      node.receives = by_peer(*node.schedule, StepKind::kRecv);
      node.sends_posted.assign(static_cast<std::size_t>(world.size), 0);
      node.receives_posted.assign(static_cast<std::size_t>(world.size), 0);
      node.delivered.assign(static_cast<std::size_t>(world.size), 0);
    }
  }

  std::string run() {
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      for (std::uint32_t i = 0; i < node(rank).pending.size(); ++i) {
        if (node(rank).pending[i] == 0) becomes_ready(rank, i);
      }
    }
    while (wrong_.empty()) {
      const std::optional<Event> event = next();
      if (!event) break;
      handle(*event);
    }
    return wrong_.empty() ? check_end() : wrong_;
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
        (order_ == Order::kLateLocal && (event.what == What::kBegin || event.what == What::kEnd));
    (late ? late_ : soon_).push_back(event);
  }

  std::optional<Event> next() {
    std::deque<Event>& from = soon_.empty() ? late_ : soon_;
    if (from.empty()) return std::nullopt;
    if (order_ != Order::kInOrder) {
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
        const bool sends = step.kind == StepKind::kSend;
        const auto peer = static_cast<std::size_t>(step.peer);
        const std::size_t before = ++(sends ? n.sends_posted : n.receives_posted)[peer];
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
        for (std::uint64_t i = 0; i < step.count; ++i) {
          Cell& cell = receiver.cells[receiver.layout.cell(receive.dst) + i];
          cell.value = n.cells[n.layout.cell(step.a) + i].value;
          cell.form = receive.dst.form;
        }
        push({What::kComplete, event.rank, event.step});
        push({What::kComplete, step.peer, other});
        deliver_next(event.rank, step.peer);
        return;
      }
      case What::kComplete: finish(event); return;
    }
  }

  // Marks what the step touches while it is in flight.
  void begin(const Event& event) {
    Node& n = node(event.rank);
    const Step& step = step_of(event);
    const Access access = access_of(step);
    for (std::uint64_t i = 0; i < step.count; ++i) {
      for (std::size_t r = 0; r < access.read_count; ++r) {
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
    const Access access = access_of(step);
    for (std::uint64_t i = 0; i < step.count; ++i) {
      for (std::size_t r = 0; r < access.read_count; ++r) {
        Cell& cell = n.cells[n.layout.cell(access.reads[r]) + i];
        cell.readers = static_cast<std::uint16_t>(cell.readers + (in_flight ? 1 : -1));
      }
      if (access.write) n.cells[n.layout.cell(*access.write) + i].written = in_flight;
    }
  }

  void compute(const Event& event) {
    Node& n = node(event.rank);
    const Step& step = step_of(event);
    for (std::uint64_t i = 0; i < step.count; ++i) {
      Expression value = n.cells[n.layout.cell(step.a) + i].value;
      if (step.kind == StepKind::kReduce) value = all_.combine(value, n.cells[n.layout.cell(step.b) + i].value);
      if (step.finish) value = all_.finish(value);
      Cell& cell = n.cells[n.layout.cell(step.dst) + i];
      cell.value = value;
      cell.form = step.dst.form;
      if (step.dst.space == Space::kOutput && value != n.expected[step.dst.at + i]) {
        fail(event, "it writes " + all_.to_string(value) + " to output element " + std::to_string(step.dst.at + i) +
                        ", whose final value is " + all_.to_string(n.expected[step.dst.at + i]));
      }
    }
  }

  void finish(const Event& event) {
    Node& n = node(event.rank);
    mark(event, false);
    ++n.finished;
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
  Expressions all_;
  std::vector<Node> nodes_;
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
  return request;
}

std::string World::describe() const {
  std::string text = std::string(warren::to_string(collective)) + " by " + std::string(schedule::to_string(algorithm)) +
                     ", K " + std::to_string(size) + ", root " + std::to_string(root) + ", chunk " +
                     std::to_string(chunk_elements) + (in_place ? ", in place" : "") + ", count";
  if (counts.empty()) return text + " " + std::to_string(count);
  for (const std::uint64_t c : counts) text += " " + std::to_string(c);
  return text;
}

std::vector<Schedule> make_all(const World& world) {
  std::vector<Schedule> schedules;
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    Result<Schedule> made = make(world.request(rank));
    WARREN_CHECK(made.ok(), "make_all is for valid requests");
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
        if (send.message != m || receive.message != m || send.count != receive.count ||
            send.a.form != receive.dst.form) {
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
      const Access access = access_of(step);
      for (std::uint64_t k = 0; k < step.count; ++k) {
        for (std::size_t r = 0; r < access.read_count; ++r) {
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

std::string check_run(const World& world, const std::vector<Schedule>& schedules, Order order, std::uint64_t seed) {
  return Run(world, schedules, order, seed).run();
}

std::string check(const World& world, const std::vector<Schedule>& schedules, Order order, std::uint64_t seed) {
  if (std::string wrong = check_form(world, schedules); !wrong.empty()) return wrong;
  if (std::string wrong = check_races(world, schedules); !wrong.empty()) return wrong;
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
