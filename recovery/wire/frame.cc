#include "recovery/wire/frame.h"

#include <cstring>
#include <iterator>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"

namespace warren {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and so is every host we serve");

struct WireHeader {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t kind;
  std::uint16_t stream;
  std::uint64_t generation;
  std::uint64_t group;
  std::uint64_t round_version;
  std::uint64_t sequence;
  std::uint32_t timeline;
  std::uint32_t message;
  std::uint8_t collective;
  std::uint8_t type;
  std::uint8_t op;
  std::uint8_t algorithm;
  std::int32_t root;
  std::uint64_t count;
  std::uint64_t shape;
  std::uint64_t site;
  std::uint32_t payload_bytes;
  std::uint32_t header_checksum;
  std::uint64_t checksum;
};
static_assert(sizeof(WireHeader) == FrameHeader::kWireBytes);
static_assert(offsetof(WireHeader, header_checksum) == FrameHeader::kHeaderChecksumAt);
static_assert(offsetof(WireHeader, checksum) == FrameHeader::kChecksumAt);

Status corrupt(std::string message) {
  return {Code::kCorrupt, std::move(message)};
}

}  // namespace

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::kAllreduce: return "allreduce";
    case Collective::kReduce: return "reduce";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kBarrier: return "barrier";
    case Collective::kAllgather: return "allgather";
    case Collective::kAllgatherv: return "allgatherv";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kGather: return "gather";
    case Collective::kScatter: return "scatter";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kPoint: return "send/recv";
    case Collective::kReduceScatterv: return "reduce_scatterv";
    case Collective::kAllToAllv: return "all_to_allv";
  }
  return "unknown";
}

const char* to_string(DataType type) {
  switch (type) {
    case DataType::kI8: return "i8";
    case DataType::kU8: return "u8";
    case DataType::kI32: return "i32";
    case DataType::kU32: return "u32";
    case DataType::kI64: return "i64";
    case DataType::kU64: return "u64";
    case DataType::kF16: return "f16";
    case DataType::kBF16: return "bf16";
    case DataType::kF32: return "f32";
    case DataType::kF64: return "f64";
    case DataType::kCustom: return "custom";
    case DataType::kF32AsF16: return "f32 as f16";
    case DataType::kF32AsBF16: return "f32 as bf16";
    case DataType::kF32AsI8: return "f32 as i8";
    case DataType::kI16: return "i16";
    case DataType::kU16: return "u16";
    case DataType::kBool: return "bool";
  }
  return "unknown";
}

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kNone: return "none";
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kBitAnd: return "bit_and";
    case ReduceOp::kBitOr: return "bit_or";
    case ReduceOp::kBitXor: return "bit_xor";
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kCustom: return "custom";
  }
  return "unknown";
}

std::size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::kI8:
    case DataType::kU8:
    case DataType::kBool: return 1;
    case DataType::kI16:
    case DataType::kU16:
    case DataType::kF16:
    case DataType::kBF16:
    case DataType::kF32AsF16:
    case DataType::kF32AsBF16: return 2;
    case DataType::kI32:
    case DataType::kU32:
    case DataType::kF32: return 4;
    case DataType::kI64:
    case DataType::kU64:
    case DataType::kF64: return 8;
    case DataType::kF32AsI8: return kI8BlockBytes;
    case DataType::kCustom: return 0;
  }
  return 0;
}

namespace {

// Those of schedule::to_string(), which a test compares. One of a newer version has none.
std::string name_of_algorithm(std::uint8_t algorithm) {
  static constexpr const char* kNames[] = {"auto", "star", "tree", "butterfly", "ring", "direct"};
  return algorithm < std::size(kNames) ? kNames[algorithm] : "algorithm " + std::to_string(algorithm);
}

// The text for a call's shape. Ranks compare hashes of lists, so a text can give the hash alone.
std::string shape_text(const Fingerprint& f) {
  switch (f.collective) {
    case Collective::kAllgatherv:
    case Collective::kReduceScatterv:
    case Collective::kAllToAllv: return ", hash of counts " + hex(f.shape);
    default: break;
  }
  if (f.type == DataType::kCustom) return ", elements of " + std::to_string(f.shape) + " bytes";
  return ", hash of parts " + hex(f.shape);
}

// How a frame's call differs from the one that is expected. Who calls something else may also take another algorithm
// for it, which is nobody's fault: algorithms are named where all else agrees.
std::string difference(const FrameHeader& expected, const FrameHeader& got) {
  Fingerprint here = expected.fingerprint, there = got.fingerprint;
  const bool same = agree(here, there);
  there.algorithm = here.algorithm;
  if (same || !agree(here, there)) {
    here.algorithm = there.algorithm = 0;
  } else {
    there.algorithm = got.fingerprint.algorithm;
  }
  // The rank that waits for the frame says in which round.
  if (expected.round == got.round) return "here " + to_string(here) + ", there " + to_string(there);
  if (!same) {
    return "here " + to_string(here) + " as " + to_string(expected.round) + ", there " + to_string(there) + " as " +
           to_string(got.round);
  }
  return "here " + to_string(here) + " is " + to_string(expected.round) + ", there the same call is " +
         to_string(got.round) + ": one of the two ranks has made other calls, or other checkpoints, before it";
}

}  // namespace

std::string to_string(const Fingerprint& f) {
  std::string text = std::string(to_string(f.collective)) + "(" + to_string(f.type);
  if (f.op != ReduceOp::kNone) text += std::string(", ") + to_string(f.op);
  const bool tells_counts = f.collective == Collective::kAllToAllv && f.shape == 0;
  text += tells_counts ? ", its counts" : ", count " + std::to_string(f.count);
  if (f.root >= 0)
    text += std::string(f.collective == Collective::kPoint ? ", tag " : ", root ") + std::to_string(f.root);
  if (f.shape != 0) text += shape_text(f);
  if (f.algorithm != 0) text += ", " + name_of_algorithm(f.algorithm);
  text += ")";
  if (f.site != 0) {
    text += " at " + hex((f.site & ~kSiteCompared) >> 40) + "+0x" + hex(f.site & ((std::uint64_t{1} << 40) - 1));
  }
  return text;
}

bool agree(const Fingerprint& a, const Fingerprint& b) {
  Fingerprint copy = b;
  if ((a.site & b.site & kSiteCompared) == 0) copy.site = a.site;
  return a == copy;
}

void encode(const FrameHeader& h, std::span<std::byte, FrameHeader::kWireBytes> out) {
  const WireHeader w{
      .magic = FrameHeader::kMagic,
      .version = FrameHeader::kVersion,
      .kind = static_cast<std::uint8_t>(h.kind),
      .stream = h.stream,
      .generation = h.generation.value,
      .group = h.round.group.value,
      .round_version = h.round.version.value,
      .sequence = h.round.sequence.value,
      .timeline = h.round.timeline.value,
      .message = h.message,
      .collective = static_cast<std::uint8_t>(h.fingerprint.collective),
      .type = static_cast<std::uint8_t>(h.fingerprint.type),
      .op = static_cast<std::uint8_t>(h.fingerprint.op),
      .algorithm = h.fingerprint.algorithm,
      .root = h.fingerprint.root,
      .count = h.fingerprint.count,
      .shape = h.fingerprint.shape,
      .site = h.fingerprint.site,
      .payload_bytes = h.payload_bytes,
      .header_checksum = h.header_checksum,
      .checksum = h.checksum,
  };
  std::memcpy(out.data(), &w, sizeof w);
}

Result<FrameHeader> decode(std::span<const std::byte, FrameHeader::kWireBytes> bytes) {
  WireHeader w;
  std::memcpy(&w, bytes.data(), sizeof w);
  if (w.magic != FrameHeader::kMagic) return corrupt("frame does not start with Warren's magic number");
  if (w.version != FrameHeader::kVersion) {
    return Status(Code::kRefused, "frame format " + std::to_string(w.version) + ", this build speaks " +
                                      std::to_string(FrameHeader::kVersion));
  }
  if (w.kind < 1 || w.kind > 2) return corrupt("unknown frame kind " + std::to_string(w.kind));
  if (w.stream >= limits::kMaxStreams) return corrupt("stream " + std::to_string(w.stream) + " is over the limit");
  if (w.collective < 1 || w.collective > static_cast<std::uint8_t>(kLastCollective))
    return corrupt("unknown collective " + std::to_string(w.collective));
  if (w.type < 1 || w.type > static_cast<std::uint8_t>(kLastDataType))
    return corrupt("unknown type " + std::to_string(w.type));
  if (w.op > 9) return corrupt("unknown operation " + std::to_string(w.op));
  if (w.payload_bytes > limits::kMaxChunkBytes) {
    return corrupt("payload of " + std::to_string(w.payload_bytes) + " bytes is over the limit of " +
                   std::to_string(limits::kMaxChunkBytes));
  }
  FrameHeader h;
  h.kind = static_cast<FrameKind>(w.kind);
  h.stream = w.stream;
  h.generation = Generation(w.generation);
  h.round = {Timeline(w.timeline), GroupId(w.group), Version(w.round_version), Sequence(w.sequence)};
  h.message = w.message;
  h.fingerprint = {static_cast<Collective>(w.collective),
                   static_cast<DataType>(w.type),
                   static_cast<ReduceOp>(w.op),
                   w.algorithm,
                   w.root,
                   w.count,
                   w.shape,
                   w.site};
  h.payload_bytes = w.payload_bytes;
  h.header_checksum = w.header_checksum;
  h.checksum = w.checksum;
  return h;
}

Status match(const FrameHeader& expected, const FrameHeader& got) {
  if (got.generation != expected.generation) {
    return corrupt("frame of generation " + std::to_string(got.generation.value) + " on a link of generation " +
                   std::to_string(expected.generation.value));
  }
  if (got.kind != expected.kind || got.stream != expected.stream) {
    return corrupt("frame belongs to another link");
  }
  if (got.round != expected.round || !agree(got.fingerprint, expected.fingerprint)) {
    return {Code::kDesync, difference(expected, got)};
  }
  if (got.message != expected.message) {
    return corrupt("message " + std::to_string(got.message) + " came where " + std::to_string(expected.message) +
                   " was due in " + to_string(got.round));
  }
  if (got.payload_bytes != expected.payload_bytes) {
    return corrupt("chunk of " + std::to_string(got.payload_bytes) + " bytes where " +
                   std::to_string(expected.payload_bytes) + " were due in " + to_string(got.round));
  }
  return {};
}

}  // namespace warren
