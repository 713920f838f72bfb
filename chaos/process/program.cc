#include "chaos/process/program.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace warren::chaos::process {
namespace {

constexpr std::array<std::pair<Mix, std::string_view>, 12> kMixes = {{{Mix::kMixed, "mixed"},
                                                                      {Mix::kAllocated, "allocated"},
                                                                      {Mix::kBig, "big"},
                                                                      {Mix::kInPlace, "inplace"},
                                                                      {Mix::kInFlight, "inflight"},
                                                                      {Mix::kGroups, "groups"},
                                                                      {Mix::kOneSided, "onesided"},
                                                                      {Mix::kSmall, "small"},
                                                                      {Mix::kNarrow, "narrow"},
                                                                      {Mix::kFused, "fused"},
                                                                      {Mix::kMessages, "messages"},
                                                                      {Mix::kLarge, "large"}}};

// A sequence of numbers from one seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return mixed(state_++) % limit; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

// The header of a state: what restore() reads.
struct StateHead {
  std::uint64_t version = 0, value = 0;
};

std::vector<std::byte> state_of(std::uint64_t version, std::uint64_t value, std::size_t bytes, std::uint64_t filler) {
  std::vector<std::byte> out(std::max(bytes, sizeof(StateHead)));
  for (std::size_t j = 0; j < out.size(); j++) out[j] = element_at<std::byte>(filler, j);
  const StateHead head{version, value};
  std::memcpy(out.data(), &head, sizeof head);
  return out;
}

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kI64, ElementType::kU8,
                                  ElementType::kF64, ElementType::kI32, ElementType::kU64};

Call mixed_call(Draw& draw, const ProgramShape& shape, bool big) {
  Call c;
  constexpr CallKind kOften[] = {
      CallKind::kAllreduce, CallKind::kAllreduce,     CallKind::kAllreduce,      CallKind::kBroadcast,
      CallKind::kAllgather, CallKind::kReduceScatter, CallKind::kReduce,         CallKind::kReduceScatter,
      CallKind::kBroadcast, CallKind::kGather,        CallKind::kScatter,        CallKind::kAllToAll,
      CallKind::kBarrier,   CallKind::kExchange,      CallKind::kReduceScatterv, CallKind::kAllToAllv};
  c.kind = big ? kOften[draw.below(6)] : kOften[draw.below(std::size(kOften))];
  c.type = kTypes[draw.below(std::size(kTypes))];
  c.op = draw.one_in(4) ? CallOp::kMax : CallOp::kSum;
  c.root = static_cast<std::uint32_t>(draw.below(shape.ranks));
  c.in_place = c.kind == CallKind::kAllreduce && draw.one_in(2);
  c.on_group = !big && c.kind == CallKind::kAllreduce && draw.one_in(4);
  c.on_own_group = c.kind == CallKind::kExchange && draw.one_in(3);
  c.prepares = c.in_place && !c.on_group && draw.one_in(2);
  const std::size_t largest = std::max(kBigBytes + 1, shape.bytes);
  std::size_t bytes = kBigBytes + 1 + draw.below(largest - kBigBytes);
  // Small sizes at all scales: 4 B … 256 KiB.
  if (!big) bytes = (std::size_t{4} << draw.below(16)) + draw.below(4);
  const bool shared_out = c.kind != CallKind::kAllreduce && c.kind != CallKind::kBroadcast &&
                          c.kind != CallKind::kReduce && c.kind != CallKind::kBarrier && c.kind != CallKind::kExchange;
  if (shared_out) bytes /= shape.ranks;
  c.count = std::max<std::size_t>(1, (bytes + element_bytes(c.type) - 1) / element_bytes(c.type));
  if (c.kind == CallKind::kBarrier) c.count = 0;
  const bool has_wire =
      c.kind == CallKind::kAllreduce || c.kind == CallKind::kReduceScatter || c.kind == CallKind::kAllgather;
  if (has_wire && c.type == ElementType::kF32 && mixed(c.count) % 2 == 0) {
    c.wire = c.op == CallOp::kSum && mixed(c.count) % 4 == 0 ? CallWire::kI8 : CallWire::kBF16;
  }
  return c;
}

// Likewise, of what mode shrink has.
Call mixed_call_of_some(Draw& draw, const ProgramShape& shape, bool big) {
  const Call any = mixed_call(draw, shape, big);
  Call c;
  c.type = any.type;
  c.op = any.op;
  c.in_place = draw.one_in(2);
  if (any.kind == CallKind::kBarrier) {
    c.kind = CallKind::kBarrier;
    return c;
  }
  const bool is_float = c.type == ElementType::kF32 || c.type == ElementType::kF64;
  if (is_float && draw.one_in(3)) c.op = CallOp::kAverage;
  c.count = std::max<std::size_t>(1, call_bytes(any, shape.ranks) / element_bytes(c.type));
  return c;
}

}  // namespace

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t digest_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::vector<std::size_t> counts_to(const Call& call, std::size_t size, std::size_t from) {
  std::vector<std::size_t> counts;
  for (std::size_t to = 0; to < size; to++) counts.push_back(uneven_count(call, from, to));
  return counts;
}

std::vector<std::size_t> counts_from(const Call& call, std::size_t size, std::size_t to) {
  std::vector<std::size_t> counts;
  for (std::size_t from = 0; from < size; from++) counts.push_back(uneven_count(call, from, to));
  return counts;
}

std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kU8: return 1;
    case ElementType::kI32:
    case ElementType::kF32: return 4;
    case ElementType::kI64:
    case ElementType::kU64:
    case ElementType::kF64: return 8;
  }
  return 0;
}

std::size_t call_bytes(const Call& call, std::uint32_t ranks) {
  const std::size_t share = call.count * element_bytes(call.type);
  switch (call.kind) {
    case CallKind::kAllreduce:
    case CallKind::kBroadcast:
    case CallKind::kReduce:
    case CallKind::kExchange: return share;
    case CallKind::kBarrier: return 0;
    default: return share * ranks;
  }
}

std::optional<Mix> mix_named(std::string_view name) {
  for (const auto& [mix, known] : kMixes) {
    if (known == name) return mix;
  }
  return std::nullopt;
}

std::string_view name_of(Mix mix) {
  for (const auto& [known, name] : kMixes) {
    if (known == mix) return name;
  }
  return "";
}

std::string mix_names() {
  std::string out;
  for (const auto& [mix, name] : kMixes) {
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
}

bool may_shrink(Mix mix) {
  switch (mix) {
    case Mix::kMixed:
    case Mix::kBig:
    case Mix::kInPlace:
    case Mix::kAllocated:
    case Mix::kInFlight:
    case Mix::kSmall: return true;
    case Mix::kGroups:
    case Mix::kOneSided:
    case Mix::kNarrow:
    case Mix::kFused:
    case Mix::kMessages:
    case Mix::kLarge: return false;
  }
  return false;
}

ProgramState Program::initial(std::uint32_t rank) const {
  return {mixed(shape_.seed), mixed(shape_.seed ^ mixed(rank + 1))};
}

Call Program::preamble() const {
  Call c;
  c.type = ElementType::kI64;
  c.count = 1000;
  return c;
}

std::vector<Call> Program::setups() const {
  Call sum = preamble();
  Call big;
  big.kind = CallKind::kAllgather;
  big.count = 100'000 / shape_.ranks;
  Call one_sided;
  one_sided.kind = CallKind::kReduceScatter;
  one_sided.count = 3000;
  return {sum, big, one_sided};
}

// One idea: the calls of each mix, one case a mix.
std::vector<Call> Program::iteration(std::uint64_t index) const {
  std::vector<Call> calls;
  Draw draw(mixed(shape_.seed + index * 0x10001));
  if (shape_.iterations == 0) {
    Call stop;
    stop.kind = shape_.shrinks() ? CallKind::kAllreduce : CallKind::kBroadcast;
    stop.op = CallOp::kMax;
    stop.in_place = shape_.shrinks();
    stop.type = ElementType::kU64;
    stop.decision = true;
    stop.count = 1;
    stop.root = static_cast<std::uint32_t>(index % shape_.ranks);
    calls.push_back(stop);
  }
  Call big;
  big.count = shape_.bytes / sizeof(float);
  Call small;
  small.type = ElementType::kI64;
  small.count = 16;
  switch (shape_.mix) {
    case Mix::kMixed: {
      const std::uint64_t n = 6 + draw.below(8);
      for (std::uint64_t i = 0; i < n; i++) {
        const bool is_big = i == 0 || draw.one_in(12);
        calls.push_back(shape_.shrinks() ? mixed_call_of_some(draw, shape_, is_big) : mixed_call(draw, shape_, is_big));
      }
      std::swap(calls[calls.size() - n], calls[calls.size() - 1 - draw.below(n)]);
      // Some calls in a row are in flight together.
      if (draw.one_in(2)) {
        const std::size_t first = calls.size() - n + draw.below(n / 2);
        for (std::size_t i = first; i < std::min(calls.size(), first + 4); i++) {
          calls[i].in_flight = !calls[i].on_group && !calls[i].on_own_group;
          if (calls[i].in_flight) calls[i].prepares = false;
        }
      }
      break;
    }
    case Mix::kBig: calls.push_back(big); break;
    case Mix::kInPlace:
      big.in_place = true;
      calls.push_back(big);
      break;
    case Mix::kAllocated:
      big.allocated = true;
      for (int i = 0; i < 4; i++) {
        big.in_place = i % 2 == 1;
        big.in_flight = i / 2 == 1;
        calls.push_back(big);
      }
      break;
    case Mix::kInFlight:
      big.in_flight = true;
      big.count /= 8;
      for (int i = 0; i < 8; i++) {
        big.in_place = i % 2 == 0;
        calls.push_back(big);
      }
      break;
    case Mix::kGroups:
      big.on_group = true;
      calls.insert(calls.end(), {big, small, big});
      break;
    case Mix::kOneSided:
      for (const CallKind kind :
           {CallKind::kReduceScatter, CallKind::kReduce, CallKind::kGather, CallKind::kScatter, CallKind::kAllToAll,
            CallKind::kBroadcast, CallKind::kAllgather, CallKind::kReduceScatterv, CallKind::kAllToAllv}) {
        Call c = big;
        c.kind = kind;
        c.root = static_cast<std::uint32_t>((index + calls.size()) % shape_.ranks);
        c.count = std::max<std::size_t>(1, big.count / shape_.ranks);
        calls.push_back(c);
      }
      break;
    case Mix::kSmall:
      for (int i = 0; i < 100; i++) calls.push_back(small);
      break;
    case Mix::kNarrow:
      big.wire = index % 2 == 0 ? CallWire::kBF16 : CallWire::kI8;
      for (const CallKind kind : {CallKind::kAllreduce, CallKind::kReduceScatter, CallKind::kAllreduce,
                                  CallKind::kAllgather, CallKind::kAllreduce, CallKind::kAllreduce}) {
        Call c = big;
        c.kind = kind;
        c.op = calls.size() == 2 && c.wire == CallWire::kBF16 ? CallOp::kMax : CallOp::kSum;
        c.in_place = kind == CallKind::kAllreduce && calls.size() % 2 == 0;
        c.prepares = c.in_place && calls.size() == 2;
        c.in_flight = calls.size() >= 4;
        if (kind != CallKind::kAllreduce) c.count = std::max<std::size_t>(1, c.count / shape_.ranks);
        calls.push_back(c);
      }
      break;
    case Mix::kFused:
      // Of all sizes up to `bytes`, now and then of another type, as bf16, or waited for.
      for (std::uint64_t i = 0; i < 60; i++) {
        Call c;
        c.type = draw.one_in(8) ? ElementType::kI64 : ElementType::kF32;
        c.op = draw.one_in(10) ? CallOp::kMax : CallOp::kSum;
        if (c.type == ElementType::kF32 && draw.one_in(6)) c.wire = CallWire::kBF16;
        c.in_place = draw.one_in(2);
        c.in_flight = !draw.one_in(15);
        c.on_group = draw.one_in(20);
        const std::uint64_t most = std::max<std::uint64_t>(1, shape_.bytes / element_bytes(c.type));
        c.count = 1 + draw.below(std::max<std::uint64_t>(1, most >> draw.below(16)));
        calls.push_back(c);
      }
      break;
    case Mix::kMessages:
      big.kind = small.kind = CallKind::kExchange;
      for (int i = 0; i < 3; i++) {
        small.on_own_group = i == 1;
        calls.push_back(small);
      }
      calls.push_back(big);
      big.in_flight = true;
      for (int i = 0; i < 2; i++) calls.push_back(big);
      big.in_flight = false;
      big.on_own_group = true;
      calls.push_back(big);
      small = {};
      small.count = 1000;
      small.in_place = small.prepares = true;
      calls.push_back(small);
      break;
    case Mix::kLarge:
      for (std::uint64_t i = 0; i < 5; i++) {
        Call c = big;
        // No whole number of anything, and another one each time.
        c.count += 1 + draw.below(999);
        c.op = i == 3 ? CallOp::kAverage : draw.one_in(4) ? CallOp::kMax : CallOp::kSum;
        c.in_place = i == 1 || draw.one_in(3);
        c.prepares = i == 1;
        c.in_flight = i >= 3;
        if (i == 2 || draw.one_in(6)) c.wire = CallWire::kBF16;
        calls.push_back(c);
      }
      calls.insert(calls.end() - 2, small);
      break;
  }
  return calls;
}

std::vector<std::uint32_t> Program::members(std::uint32_t color) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t r = color; r < shape_.ranks; r += 2) out.push_back(r);
  return out;
}

Program::Places Program::places(std::uint64_t iteration, std::uint32_t call, std::uint32_t rank) const {
  if (!shape_.on_gpus) return {};
  const std::uint64_t drawn = mixed(shape_.seed ^ mixed(iteration * 4096 + call));
  if (drawn % 8 != 0) return {true, true};
  const std::uint64_t own = mixed(drawn + rank + 1);
  return {own % 2 == 0, own / 2 % 2 == 0};
}

std::uint64_t Program::input_base(std::uint64_t iteration, std::uint32_t call, std::uint32_t rank,
                                  const ProgramState& state) const {
  return mixed(state.shared ^ mixed(state.own ^ mixed(iteration * 4096 + call) ^ (std::uint64_t{rank} << 48)));
}

void Program::fold(const Call& call, std::uint64_t digest, Contributors contributors, ProgramState& state) const {
  if (shape_.shrinks()) {
    if (!call.decision) state.shared = mixed(state.shared ^ digest ^ mixed(contributors));
    return;
  }
  const bool everywhere = !call.on_group && (call.kind == CallKind::kAllreduce || call.kind == CallKind::kBroadcast ||
                                             call.kind == CallKind::kAllgather);
  std::uint64_t& value = everywhere ? state.shared : state.own;
  if (!call.decision) value = mixed(value ^ digest);
}

std::vector<std::byte> Program::global_state(std::uint64_t version, const ProgramState& state) const {
  return state_of(version, state.shared, shape_.state_bytes, mixed(state.shared ^ version));
}

std::vector<std::byte> Program::local_state(std::uint64_t version, std::uint32_t rank,
                                            const ProgramState& state) const {
  return state_of(version, state.own, shape_.state_bytes / 16 * (1 + rank), mixed(state.own ^ version));
}

bool Program::restore(std::span<const std::byte> global, std::span<const std::byte> local, ProgramState& state) const {
  StateHead head;
  if (global.size() < sizeof head || (!shape_.shrinks() && local.size() < sizeof head)) return false;
  std::memcpy(&head, global.data(), sizeof head);
  state.shared = head.value;
  if (shape_.shrinks()) return true;
  std::memcpy(&head, local.data(), sizeof head);
  state.own = head.value;
  return true;
}

}  // namespace warren::chaos::process
