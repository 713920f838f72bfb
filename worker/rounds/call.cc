#include "worker/rounds/call.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <string>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"

namespace warren::worker {
namespace {

struct Extent {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

bool overlap(const Extent& a, const Extent& b) {
  return a.bytes != 0 && b.bytes != 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

// FNV-1a over words: what ranks compare is that their counts are the same.
std::uint64_t hash_counts(std::span<const std::uint64_t> counts, std::uint64_t element_bytes = 0) {
  std::uint64_t hash = 0xcbf29ce484222325u ^ element_bytes;
  for (const std::uint64_t c : counts) hash = (hash ^ c) * 0x100000001b3u;
  return hash == 0 ? 1 : hash;
}

std::uint64_t sum_of(std::span<const std::uint64_t> counts) {
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) total += count;
  return total;
}

// Elements of lower ranks.
std::uint64_t below(std::span<const std::uint64_t> counts, std::int32_t rank) {
  return sum_of(counts.first(static_cast<std::size_t>(rank)));
}

bool has_counts(Collective collective) {
  return collective == Collective::kAllgatherv || collective == Collective::kReduceScatterv ||
         collective == Collective::kAllToAllv;
}

// Most calls of most programs, which need no name of what would be refused.
bool is_plain_allreduce(const CallSpec& spec) {
  if (spec.collective != Collective::kAllreduce || !is_public(spec.type) || spec.wire != DataType{}) return false;
  const std::size_t width = element_bytes(spec.type);
  if (width == 0 || spec.count == 0 || spec.count > limits::kMaxBufferBytes / width) return false;
  const auto input = reinterpret_cast<std::uintptr_t>(spec.input),
             output = reinterpret_cast<std::uintptr_t>(spec.output);
  if (input == 0 || output == 0 || (input | output) % width != 0) return false;
  return input == output || input + spec.count * width <= output || output + spec.count * width <= input;
}

std::size_t alignment_of(const CallSpec& spec) {
  return spec.type == DataType::kCustom ? 1 : element_bytes(spec.type);
}

Status refused(const CallSpec& spec, const std::string& why) {
  return {Code::kInvalidArgument, std::string(to_string(spec.collective)) + ": " + why};
}

Status validate_peer(const CallSpec& spec, const GroupShape& group) {
  const bool outside = spec.root < 0 || spec.root >= group.size;
  const auto no_rank = [&](const std::string& what) {
    return refused(spec,
                   what + " " + std::to_string(spec.root) + " is not a rank of 0 … " + std::to_string(group.size - 1));
  };
  switch (spec.collective) {
    case Collective::kPoint:
      if (outside) return no_rank("peer");
      if (spec.root == group.rank) return refused(spec, "the peer is this rank itself");
      if (spec.tag < 0) return refused(spec, "tag " + std::to_string(spec.tag) + " is negative");
      return {};
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kGather:
    case Collective::kScatter: return outside ? no_rank("root") : Status();
    default: return {};
  }
}

Status validate_wire(const CallSpec& spec) {
  if (spec.wire == DataType{}) return {};
  const bool has = spec.collective == Collective::kAllreduce || spec.collective == Collective::kReduceScatter ||
                   spec.collective == Collective::kAllgather;
  const bool sums = spec.wire == DataType::kI8;  // and nothing else
  const bool orders = spec.op == ReduceOp::kMin || spec.op == ReduceOp::kMax;
  const bool has_op = spec.op != ReduceOp::kProduct && !(sums && orders);
  if (has && spec.type == DataType::kF32 && has_op) return {};
  return refused(spec, std::string("a wire type (") + to_string(spec.wire) +
                           ") is for f32 in allreduce and reduce_scatter, by " +
                           (sums ? "sum and average" : "sum, average, min and max") + ", and in allgather, not for " +
                           to_string(spec.type) + (has && !has_op ? std::string(" by ") + to_string(spec.op) : "") +
                           (has && sums && orders ? "; f16 and bf16 have min and max" : ""));
}

Status validate_type(const CallSpec& spec) {
  if (spec.type == DataType::kCustom) {
    if (spec.custom_bytes != 0 && spec.custom_bytes <= limits::kMaxCustomElementBytes) return {};
    return refused(spec, "elements of " + std::to_string(spec.custom_bytes) + " bytes; 1 … " +
                             std::to_string(limits::kMaxCustomElementBytes) + " are served");
  }
  return is_public(spec.type) ? Status() : refused(spec, "unknown type " + std::to_string(static_cast<int>(spec.type)));
}

std::uint64_t most_elements(const CallSpec& spec) {
  return limits::kMaxBufferBytes / element_bytes(spec);
}

Status validate_counts(const CallSpec& spec, const GroupShape& group) {
  const auto size = static_cast<std::uint64_t>(group.size);
  const std::uint64_t most = most_elements(spec);
  const bool exchanges = spec.collective == Collective::kAllToAllv;
  for (const auto& counts : {spec.counts, exchanges ? spec.counts_from : spec.counts}) {
    if (counts.size() != size) return refused(spec, "one count a rank is needed");
    std::uint64_t total = 0;
    for (const std::uint64_t count : counts) {
      if (count > most || total > most - count) {
        return refused(spec, "the counts add up to more than " + std::to_string(limits::kMaxBufferBytes) + " bytes");
      }
      total += count;
    }
  }
  if (!exchanges) return {};
  if (size > limits::kMaxUnevenExchange) {
    return refused(spec, std::to_string(size) + " ranks; " + std::to_string(limits::kMaxUnevenExchange) +
                             " are served, since each holds the counts of all");
  }
  const auto self = static_cast<std::size_t>(group.rank);
  if (spec.counts[self] == spec.counts_from[self]) return {};
  return refused(spec, "this rank sends " + std::to_string(spec.counts[self]) + " elements to itself and takes " +
                           std::to_string(spec.counts_from[self]));
}

Status validate_count(const CallSpec& spec, const GroupShape& group) {
  const bool wide = spec.collective == Collective::kAllgather || spec.collective == Collective::kReduceScatter ||
                    spec.collective == Collective::kGather || spec.collective == Collective::kScatter ||
                    spec.collective == Collective::kAllToAll;
  const std::uint64_t blocks = wide ? static_cast<std::uint64_t>(group.size) : 1;
  if (spec.count <= most_elements(spec) / blocks) return {};
  return refused(spec, "count " + std::to_string(spec.count) + " × " + std::to_string(blocks * element_bytes(spec)) +
                           " bytes is over the limit of " + std::to_string(limits::kMaxBufferBytes) + " bytes");
}

// Where the input of a call in place stands in its output, in elements.
std::int64_t in_place_at(const CallSpec& spec, const GroupShape& group) {
  const auto me = static_cast<std::int64_t>(group.rank);
  switch (spec.collective) {
    case Collective::kAllgather:
    case Collective::kGather: return me * static_cast<std::int64_t>(spec.count);
    case Collective::kAllgatherv: return static_cast<std::int64_t>(below(spec.counts, group.rank));
    case Collective::kReduceScatterv: return -static_cast<std::int64_t>(below(spec.counts, group.rank));
    case Collective::kReduceScatter:
    case Collective::kScatter: return -me * static_cast<std::int64_t>(spec.count);
    default: return 0;
  }
}

Status validate_buffers(const CallSpec& spec, const GroupShape& group) {
  const BufferBytes sizes = buffer_bytes(spec, group);
  const auto width = static_cast<std::int64_t>(element_bytes(spec));
  const Extent input{static_cast<const std::byte*>(spec.input), sizes.input};
  const Extent output{static_cast<const std::byte*>(spec.output), sizes.output};
  for (const auto& [what, extent] : {std::pair("input", input), std::pair("output", output)}) {
    if (extent.bytes == 0) continue;
    if (extent.data == nullptr) return refused(spec, std::string("the ") + what + " buffer is null");
    if (reinterpret_cast<std::uintptr_t>(extent.data) % alignment_of(spec) != 0) {
      return refused(spec, std::string("the ") + what + " buffer is not aligned to its elements of " +
                               std::to_string(width) + " bytes");
    }
  }
  if (!overlap(input, output)) return {};
  const bool may = spec.collective != Collective::kAllToAll && spec.collective != Collective::kAllToAllv;
  const std::int64_t behind = in_place_at(spec, group) * width;
  if (may && input.data == output.data + behind) return {};
  return refused(
      spec, std::string("input and output overlap") + (may ? "; in place, the input begins " + std::to_string(behind) +
                                                                 " bytes behind the beginning of the output"
                                                           : ", which it does not allow"));
}

}  // namespace

std::size_t element_bytes(const CallSpec& spec) {
  return spec.type == DataType::kCustom ? spec.custom_bytes : element_bytes(spec.type);
}

Status validate(const CallSpec& spec, const GroupShape& group) {
  if (is_plain_allreduce(spec)) return {};
  if (Status status = validate_peer(spec, group); !status.ok()) return status;
  if (Status status = validate_wire(spec); !status.ok()) return status;
  if (spec.collective == Collective::kBarrier) return {};
  if (Status status = validate_type(spec); !status.ok()) return status;
  Status status = has_counts(spec.collective) ? validate_counts(spec, group) : validate_count(spec, group);
  return status.ok() ? validate_buffers(spec, group) : status;
}

BufferBytes buffer_bytes(const CallSpec& spec, const GroupShape& group) {
  const auto size = static_cast<std::uint64_t>(group.size);
  const bool at_root = spec.root == group.rank;
  const std::uint64_t mine = spec.count, all = spec.count * size;
  BufferBytes elements;
  switch (spec.collective) {
    case Collective::kAllreduce: elements = {mine, mine}; break;
    case Collective::kReduce: elements = {mine, at_root ? mine : 0}; break;
    case Collective::kBroadcast: elements = {0, mine}; break;
    case Collective::kAllgather: elements = {mine, all}; break;
    case Collective::kAllgatherv:
      elements = {spec.counts[static_cast<std::size_t>(group.rank)], sum_of(spec.counts)};
      break;
    case Collective::kReduceScatterv:
      elements = {sum_of(spec.counts), spec.counts[static_cast<std::size_t>(group.rank)]};
      break;
    case Collective::kAllToAllv: elements = {sum_of(spec.counts), sum_of(spec.counts_from)}; break;
    case Collective::kReduceScatter: elements = {all, mine}; break;
    case Collective::kGather: elements = {mine, at_root ? all : 0}; break;
    case Collective::kScatter: elements = {at_root ? all : 0, mine}; break;
    case Collective::kAllToAll: elements = {all, all}; break;
    case Collective::kPoint: elements = spec.sends ? BufferBytes{mine, 0} : BufferBytes{0, mine}; break;
    case Collective::kBarrier: return {};
  }
  const std::uint64_t width = element_bytes(spec);
  return {elements.input * width, elements.output * width};
}

NarrowCopies narrow_copies(const CallSpec& spec, const GroupShape& group) {
  CallSpec narrow = spec;
  count_narrow(narrow);
  const BufferBytes bytes = buffer_bytes(narrow, group);
  NarrowCopies copies;
  copies.input_bytes = bytes.input;
  copies.output_bytes = bytes.output;
  copies.bytes = std::max(copies.input_bytes, copies.output_bytes);
  const std::uint64_t share = static_cast<std::uint64_t>(group.rank) * narrow.count * element_bytes(narrow);
  if (copies.input_bytes < copies.output_bytes) copies.input_at = share;
  if (copies.output_bytes < copies.input_bytes) copies.output_at = share;
  return copies;
}

DataType narrow_type(DataType wire) {
  switch (wire) {
    case DataType::kF16: return DataType::kF32AsF16;
    case DataType::kBF16: return DataType::kF32AsBF16;
    case DataType::kI8: return DataType::kF32AsI8;
    default: WARREN_UNREACHABLE("validated: f32 as f16, bf16 or i8");
  }
}

void count_narrow(CallSpec& spec) {
  spec.type = narrow_type(spec.wire);
  const std::uint64_t values = element_values(spec.type);
  if (values == 1) return;
  spec.values = spec.count;
  spec.count = (spec.count + values - 1) / values;
}

Status check_counts(const CallSpec& spec, const GroupShape& group, std::span<const Rank> members) {
  const auto size = static_cast<std::size_t>(group.size), self = static_cast<std::size_t>(group.rank);
  const auto name = [&](std::size_t rank) { return "rank " + std::to_string(members[rank].value); };
  const auto differ = [&](std::size_t from, std::size_t to, std::uint64_t sends, std::uint64_t takes) {
    return Status(Code::kDesync, name(from) + " sends " + std::to_string(sends) + " elements to " + name(to) +
                                     ", which takes " + std::to_string(takes));
  };
  std::uint64_t total = 0;
  const std::uint64_t most = limits::kMaxResultBytes / element_bytes(spec);
  for (const std::uint64_t count : spec.all_counts) {
    if (count > most || total > most - count) {
      return {Code::kDesync,
              "the counts of all ranks add up to more than " + std::to_string(limits::kMaxResultBytes) + " bytes"};
    }
    total += count;
  }
  for (std::size_t r = 0; r < size; r++) {
    const std::uint64_t comes = spec.all_counts[r * size + self], goes = spec.all_counts[self * size + r];
    if (comes != spec.counts_from[r]) return differ(r, self, comes, spec.counts_from[r]);
    // What the log has of this rank's life before is another call.
    if (goes != spec.counts[r]) return differ(self, r, spec.counts[r], goes);
  }
  return {};
}

Fingerprint fingerprint_of(const CallSpec& spec, std::uint8_t algorithm) {
  Fingerprint f;
  f.collective = spec.collective;
  f.type = spec.type;
  f.op = spec.op;
  f.algorithm = algorithm;
  const bool rooted = spec.collective == Collective::kReduce || spec.collective == Collective::kBroadcast ||
                      spec.collective == Collective::kGather || spec.collective == Collective::kScatter;
  f.root = rooted ? spec.root : -1;
  f.count = spec.values != 0 ? spec.values : spec.count;  // of so many blocks, ranks may have other values
  if (spec.collective == Collective::kAllgatherv) f.shape = hash_counts(spec.counts);
  if (spec.type == DataType::kCustom) f.shape = spec.custom_bytes;
  if (spec.collective == Collective::kReduceScatterv) {
    f.count = sum_of(spec.counts);
    f.shape = hash_counts(spec.counts, f.shape);
  }
  if (spec.collective == Collective::kAllToAllv && !spec.all_counts.empty()) {
    f.count = sum_of(spec.all_counts);
    f.shape = hash_counts(spec.all_counts);
  }
  if (spec.counted != DataType{}) {
    f.collective = Collective::kAllToAllv;
    f.type = spec.counted;
    f.count = 0;
  }
  if (spec.parts != 0) f.shape = spec.parts;
  f.site = spec.site;
  return f;
}

ResultShape result_shape(const CallSpec& spec, const GroupShape& group) {
  const auto size = static_cast<std::uint64_t>(group.size);
  const auto rank = static_cast<std::uint64_t>(group.rank);
  const std::uint64_t n = spec.count;
  switch (spec.collective) {
    case Collective::kAllreduce:
    case Collective::kBroadcast: return {n, 0, n};
    case Collective::kReduce: return {n, 0, group.rank == spec.root ? n : 0};
    case Collective::kAllgather: return {size * n, 0, size * n};
    case Collective::kAllgatherv: {
      const std::uint64_t total = sum_of(spec.counts);
      return {total, 0, total};
    }
    case Collective::kReduceScatterv:
      return {sum_of(spec.counts), below(spec.counts, group.rank), spec.counts[static_cast<std::size_t>(group.rank)]};
    case Collective::kAllToAllv: {
      ResultShape shape{sum_of(spec.all_counts), 0, sum_of(spec.counts_from)};
      for (std::size_t i = 0; i < spec.all_counts.size(); i++) shape.begin += i % size < rank ? spec.all_counts[i] : 0;
      return shape;
    }
    case Collective::kGather: return {size * n, 0, group.rank == spec.root ? size * n : 0};
    case Collective::kReduceScatter:
    case Collective::kScatter: return {size * n, rank * n, n};
    case Collective::kAllToAll: return {size * size * n, rank * size * n, size * n};
    case Collective::kBarrier:
    case Collective::kPoint: return {};
  }
  return {};
}

Sequence setup_sequence(std::string_view name) {
  const std::uint64_t hash = XXH3_64bits(name.data(), name.size()) | kSetupBit;
  return Sequence(hash == UINT64_MAX ? kSetupBit : hash);  // the greatest number is no name: it ends listings
}

std::string name_of(const Call& call) {
  return call.setup.empty() ? to_string(call.round) : "set-up round \"" + call.setup + "\"";
}

}  // namespace warren::worker
