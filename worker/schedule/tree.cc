// Trees: the binomial one, and the star, which is the tree without inner ranks. Both run chunk by chunk, so that all
// levels are busy at once.
//
// The binomial tree is laid out over positions (rank − root modulo size): the children of p are p + 1, p + 2, p + 4, …
// below p's lowest set bit. A rank adds its children's sums to its input in this order, each of which covers the
// positions that follow those before it; the bracketing is the balanced binary one over positions. The star's is
// ((in[0] + in[1]) + in[2]) + … over the same positions.
#include <algorithm>

#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

constexpr std::size_t kSlotsPerChild = 2;
constexpr std::size_t kPartialSlots = 3;
constexpr std::size_t kSlotsFromParent = 4;

struct Child {
  std::int32_t rank = 0;
  bool leaf = false;  // sends its input as it is
};

struct Shape {
  std::int32_t parent = -1;
  std::vector<Child> children;  // in the order of bracketing
};

// All ranks talk to the root. So it is where they read the root's log: nobody passes anything on. 1 MiB to 8 ranks on 2
// cores took 0.8 to 1.3 ms instead of 1.4 to 2.1 (decision 0042).
bool is_flat(const Request& request) {
  return request.algorithm == Algorithm::kStar || read_the_root(request);
}

// Before the rank's position in the tree; the root's is 0.
std::int32_t parent_of(std::int32_t position) {
  return position - (position & -position);
}

// The ranks from the root down to this one.
std::vector<std::int32_t> path_of(const Request& request) {
  if (is_flat(request)) {
    return request.rank == request.root ? std::vector<std::int32_t>{request.root}
                                        : std::vector<std::int32_t>{request.root, request.rank};
  }
  std::vector<std::int32_t> path;
  std::int32_t position = modulo(request.rank - request.root, request.size);
  for (; position != 0; position = parent_of(position)) path.push_back(modulo(position + request.root, request.size));
  path.push_back(request.root);
  std::reverse(path.begin(), path.end());
  return path;
}

Shape shape_of(const Request& request) {
  Shape shape;
  if (is_flat(request)) {
    if (request.rank != request.root) {
      shape.parent = request.root;
    } else {
      for (std::int32_t position = 1; position < request.size; ++position) {
        shape.children.push_back({modulo(request.root + position, request.size), true});
      }
    }
    return shape;
  }
  const std::int32_t position = modulo(request.rank - request.root, request.size);
  const std::int32_t lowest_bit = position & -position;
  if (position != 0) shape.parent = modulo(parent_of(position) + request.root, request.size);
  for (std::int32_t bit = 1; (position == 0 || bit < lowest_bit) && position + bit < request.size; bit *= 2) {
    const bool leaf = bit == 1 || position + bit + 1 == request.size;
    shape.children.push_back({modulo(position + bit + request.root, request.size), leaf});
  }
  return shape;
}

class TreeSchedule {
 public:
  TreeSchedule(const Request& request, Builder& builder, Copies& copies, bool up, bool down)
      : request_(request),
        builder_(builder),
        copies_(copies),
        shape_(shape_of(request)),
        up_(up),
        down_(down),
        keeps_(down ? copies.keeps(path_of(request)) : root() && copies.keeps_own()),
        whole_{0, request.count} {
    chunks_ = chunks_of(request.count, request.chunk_elements);
    const std::uint64_t elements = cut(whole_, chunks_, 0).count;
    if (up_) {
      for (std::size_t i = 0; i < shape_.children.size(); ++i) {
        child_slots_.push_back(builder_.slots(kSlotsPerChild, elements));
      }
      if (!shape_.children.empty()) partial_slots_ = builder_.slots(kPartialSlots, elements);
    }
    if (down_ && !root()) parent_slots_ = builder_.slots(kSlotsFromParent, elements);
  }

  void run() {
    for (std::uint64_t c = 0; c < chunks_; ++c) {
      const Range chunk = cut(whole_, chunks_, c);
      reader_ = final_ = kNoStep;
      if (!left_out(request_, chunk)) {
        if (up_) go_up(chunk);
        if (down_) go_down(chunk);
      }
      if (!down_) copies_.back_up(request_.root, request_.root, chunk, chunk.at, final_);
    }
  }

 private:
  [[nodiscard]] bool root() const { return shape_.parent < 0; }

  void go_up(const Range& chunk) {
    if (shape_.children.empty()) {
      reader_ = builder_.send(shape_.parent, input(chunk.at), chunk.count);
      return;
    }
    const Operand partial = partial_slots_.next().as(Form::kPartial);
    Operand sum = input(chunk.at);
    for (std::size_t i = 0; i < shape_.children.size(); ++i) {
      const Child& child = shape_.children[i];
      const Operand received = child_slots_[i].next().as(child.leaf ? Form::kValue : Form::kPartial);
      builder_.recv(child.rank, received, chunk.count);
      if (root() && i + 1 == shape_.children.size()) {
        final_ = keep(chunk, builder_.finish(chunk.at, sum, received, chunk.count));
      } else {
        const StepId step = builder_.reduce(partial, sum, received, chunk.count);
        if (i == 0) reader_ = step;
        sum = partial;
      }
    }
    if (!root()) builder_.send(shape_.parent, partial, chunk.count);
  }

  void go_down(const Range& chunk) {
    if (!root()) {
      const Operand received = parent_slots_.next().as(Form::kValue);
      builder_.recv(shape_.parent, received, chunk.count);
      final_ = keep(chunk, builder_.copy(output(chunk.at), received, chunk.count, false, {reader_}));
    } else if (!up_) {
      final_ = keep(chunk, kNoStep);  // the root's data
    }
    // The child with the deepest subtree first.
    for (std::size_t i = shape_.children.size(); i-- > 0;) {
      builder_.send(shape_.children[i].rank, output(chunk.at), chunk.count, {final_});
    }
  }

  // What `made` wrote to the output is final.
  StepId keep(const Range& chunk, StepId made) {
    return keeps_ ? copies_.publish(output(chunk.at), chunk, made) : made;
  }

  const Request& request_;
  Builder& builder_;
  Copies& copies_;
  Shape shape_;
  bool up_;
  bool down_;
  bool keeps_;
  Range whole_;
  std::uint64_t chunks_ = 0;
  std::vector<SlotRing> child_slots_;
  SlotRing partial_slots_;
  SlotRing parent_slots_;
  StepId reader_ = kNoStep;  // who reads this chunk of the input
  StepId final_ = kNoStep;   // who writes it to the output, or publishes it
};

}  // namespace

void tree_reduce(const Request& request, Builder& builder, Copies& copies) {
  TreeSchedule(request, builder, copies, true, false).run();
}
void tree_broadcast(const Request& request, Builder& builder, Copies& copies) {
  TreeSchedule(request, builder, copies, false, true).run();
}
void tree_allreduce(const Request& request, Builder& builder, Copies& copies) {
  TreeSchedule(request, builder, copies, true, true).run();
}

}  // namespace warren::schedule
