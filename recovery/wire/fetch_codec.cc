#include "recovery/wire/fetch_codec.h"

#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"

namespace warren {
namespace {

Status bad(std::string why) {
  return {Code::kCorrupt, std::move(why)};
}
std::string str(std::uint64_t v) {
  return std::to_string(v);
}

// What requests and replies begin with.
template <class Message>
Status validate_head(const Message& m) {
  if (m.protocol() != kProtocolVersion) {
    return {Code::kRefused, "protocol version " + str(m.protocol()) + ", this build speaks " + str(kProtocolVersion) +
                                ": use one version of Warren for the whole job"};
  }
  if (m.sender() == 0) return bad("no sender");
  if (m.receiver() == 0) return bad("no receiver");
  if (m.generation() == 0 || m.generation() > kMaxGeneration)
    return bad("generation " + str(m.generation()) + " cannot be");
  if (m.id() == 0) return bad("no id");
  return {};
}

Status validate_question(const wire::FetchRequest& r) {
  if (r.kind() != 1) return bad("a question about something else than a round");
  if (r.first_sequence() == UINT64_MAX) return bad("a sequence over the limit");
  if (r.end_sequence() != 0 || r.begin() != 0 || r.most_bytes() != 0 || r.most_ranges() != 0 || !r.pieces().empty()) {
    return bad("a question that is a listing too");
  }
  if (static_cast<std::size_t>(r.sites_size()) > limits::kMaxQuestionSites) {
    return bad(str(static_cast<std::uint64_t>(r.sites_size())) + " call sites are over the limit");
  }
  return {};
}

Status validate_listing(const wire::FetchRequest& r) {
  if (r.most_bytes() != 0) return bad("a listing has no payload");
  if (r.first_sequence() >= r.end_sequence()) return bad("an empty range of sequences");
  if (r.begin() > limits::kMaxResultBytes) return bad("begins at byte " + str(r.begin()) + ", over the limit");
  if (r.most_ranges() < 1 || r.most_ranges() > limits::kMaxFetchRanges) {
    return bad(str(r.most_ranges()) + " ranges are outside 1 to " + str(limits::kMaxFetchRanges));
  }
  return {};
}

Status validate_pieces(const wire::FetchRequest& r) {
  if (r.first_sequence() != 0 || r.end_sequence() != 0 || r.begin() != 0 || r.most_ranges() != 0) {
    return bad("pieces in a listing");
  }
  if (r.most_bytes() < 1 || r.most_bytes() > limits::kMaxFetchPayloadBytes) {
    return bad(str(r.most_bytes()) + " bytes of payload are outside 1 to " + str(limits::kMaxFetchPayloadBytes));
  }
  if (static_cast<std::size_t>(r.pieces_size()) > limits::kMaxFetchPieces) {
    return bad(str(static_cast<std::uint64_t>(r.pieces_size())) + " pieces are over the limit");
  }
  std::pair<std::uint64_t, std::uint64_t> before{0, 0};  // sequence, end
  for (const wire::FetchPiece& p : r.pieces()) {
    if (p.begin() >= p.end() || p.end() > limits::kMaxResultBytes) {
      return bad("bytes " + str(p.begin()) + " to " + str(p.end()) + " are no piece");
    }
    if (p.sequence() == UINT64_MAX) return bad("a sequence over the limit");
    if (std::pair(p.sequence(), p.begin()) < before) return bad("pieces are not in order, or overlap");
    before = {p.sequence(), p.end()};
  }
  return {};
}

Status validate_fingerprint(const wire::FetchEntry& e) {
  if (e.collective() > static_cast<std::uint32_t>(kLastCollective)) {
    return bad("unknown collective " + str(e.collective()));
  }
  if (e.type() > static_cast<std::uint32_t>(kLastDataType)) return bad("unknown type " + str(e.type()));
  if (e.op() > static_cast<std::uint32_t>(ReduceOp::kCustom)) return bad("unknown operation " + str(e.op()));
  if (e.algorithm() > 255) return bad("unknown algorithm " + str(e.algorithm()));
  if (e.root() < -1) return bad("root " + std::to_string(e.root()) + " is negative");
  return {};
}

// `ranges`: those of all entries so far.
Status validate_entry(const wire::FetchEntry& e, bool data, Payloads where, std::size_t& ranges) {
  if (e.sequence() == UINT64_MAX) return bad("a sequence over the limit");
  if (Status s = validate_fingerprint(e); !s.ok()) return s;
  if (e.total_bytes() > limits::kMaxResultBytes) return bad(str(e.total_bytes()) + " bytes are over the limit");
  ranges += static_cast<std::size_t>(e.held_size());
  if (ranges > limits::kMaxFetchRanges) return bad("more ranges than " + str(limits::kMaxFetchRanges));
  std::uint64_t last = 0;
  for (const wire::ByteRange& r : e.held()) {
    if (r.begin() < last || r.begin() >= r.end() || r.end() > e.total_bytes()) {
      return bad("bytes " + str(r.begin()) + " to " + str(r.end()) + " of " + str(e.total_bytes()) +
                 " are no range after byte " + str(last));
    }
    last = r.end();
  }
  if (!data && e.checksum() != 0) return bad("a listing has a checksum of bytes");
  const std::uint64_t payload = data && where == Payloads::kInside ? range_bytes(e) : 0;
  if (e.payload().size() != payload) {
    return bad("a payload of " + str(e.payload().size()) + " bytes where " + str(payload) + " belong");
  }
  return {};
}

std::string serialize(const auto& message, std::size_t limit_bytes) {
  std::string bytes;
  WARREN_CHECK(message.SerializeToString(&bytes), "a valid message can be serialized");
  WARREN_CHECK(bytes.size() <= limit_bytes, "a valid message is within its limit");
  return bytes;
}

template <class Message>
Result<Message> parse(std::span<const std::byte> bytes, std::size_t limit_bytes, const char* what) {
  if (bytes.size() > limit_bytes) {
    return bad(std::string(what) + " of " + str(bytes.size()) + " bytes is over the limit of " + str(limit_bytes));
  }
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return bad(std::string("not a ") + what);
  }
  return message;
}

}  // namespace

std::uint64_t range_bytes(const wire::FetchEntry& entry) {
  std::uint64_t n = 0;
  for (const wire::ByteRange& r : entry.held()) n += r.end() - r.begin();
  return n;
}

std::uint64_t range_bytes(const wire::FetchReply& reply) {
  std::uint64_t n = 0;
  for (const wire::FetchEntry& e : reply.entries()) n += range_bytes(e);
  return n;
}

Fingerprint fingerprint_of(const wire::FetchEntry& e) {
  return {static_cast<Collective>(e.collective()),
          static_cast<DataType>(e.type()),
          static_cast<ReduceOp>(e.op()),
          static_cast<std::uint8_t>(e.algorithm()),
          e.root(),
          e.count(),
          e.shape(),
          e.site()};
}

void set_fingerprint(const Fingerprint& f, wire::FetchEntry& e) {
  e.set_collective(static_cast<std::uint32_t>(f.collective));
  e.set_type(static_cast<std::uint32_t>(f.type));
  e.set_op(static_cast<std::uint32_t>(f.op));
  e.set_algorithm(f.algorithm);
  e.set_root(f.root);
  e.set_count(f.count);
  e.set_shape(f.shape);
  e.set_site(f.site);
}

wire::FetchReply answer_to(const wire::FetchRequest& question, RoundWord word, const Fingerprint* round) {
  wire::FetchReply reply;
  reply.set_protocol(question.protocol());
  reply.set_sender(question.receiver());
  reply.set_receiver(question.sender());
  reply.set_generation(question.generation());
  reply.set_id(question.id());
  reply.set_next_sequence(question.first_sequence());
  reply.set_word(static_cast<std::uint32_t>(word));
  WARREN_CHECK((word == RoundWord::kRound) == (round != nullptr), "of a round it is said which");
  if (round == nullptr) return reply;
  wire::FetchEntry& entry = *reply.add_entries();
  entry.set_sequence(question.first_sequence());
  set_fingerprint(*round, entry);
  return reply;
}

Status validate(const wire::FetchRequest& request) {
  if (Status s = validate_head(request); !s.ok()) return s;
  if (request.kind() < 1 || request.kind() > kMaxRecordKind) {
    return bad("unknown kind of record " + str(request.kind()));
  }
  if (request.follows() && (request.asks() || request.kind() != kGlobalRecord)) {
    return bad("a spare asks for something else than a global state");
  }
  if (request.asks()) return validate_question(request);
  if (!request.sites().empty()) return bad("call sites without a question");
  return request.pieces().empty() ? validate_listing(request) : validate_pieces(request);
}

Status validate(const wire::FetchReply& reply, Payloads where) {
  if (Status s = validate_head(reply); !s.ok()) return s;
  if (static_cast<std::size_t>(reply.entries_size()) > limits::kMaxFetchEntries) {
    return bad(str(static_cast<std::uint64_t>(reply.entries_size())) + " entries are over the limit");
  }
  if (reply.next_begin() > limits::kMaxResultBytes) return bad("the next byte is over the limit");
  if (reply.word() > kMaxRoundWord) return bad("unknown word " + str(reply.word()));
  if (reply.word() != 0) {
    const bool round = static_cast<RoundWord>(reply.word()) == RoundWord::kRound;
    if (reply.data() || reply.entries_size() != (round ? 1 : 0) || (round && !reply.entries(0).held().empty())) {
      return bad("the answer to a question has entries that do not belong there");
    }
  }
  std::size_t ranges = 0;
  const wire::FetchEntry* before = nullptr;
  for (const wire::FetchEntry& e : reply.entries()) {
    if (before != nullptr && e.sequence() <= before->sequence()) return bad("entries are not in order");
    if (Status s = validate_entry(e, reply.data(), where, ranges); !s.ok()) {
      return s.because_of_this("entry of sequence " + str(e.sequence()));
    }
    before = &e;
  }
  if (before != nullptr) {
    const std::uint64_t end = before->held().empty() ? 0 : before->held(before->held_size() - 1).end();
    if (std::pair(reply.next_sequence(), reply.next_begin()) < std::pair(before->sequence(), end)) {
      return bad("entries beyond what was looked at");
    }
  }
  if (reply.data() && range_bytes(reply) > limits::kMaxFetchPayloadBytes) {
    return bad("payloads of " + str(range_bytes(reply)) + " bytes are over the limit of " +
               str(limits::kMaxFetchPayloadBytes));
  }
  return {};
}

std::string encode(const wire::FetchRequest& request) {
  WARREN_CHECK(validate(request).ok(), "what is sent is valid");
  return serialize(request, limits::kMaxFetchRequestBytes);
}

std::string encode(const wire::FetchReply& reply, Payloads where) {
  WARREN_CHECK(validate(reply, where).ok(), "what is sent is valid");
  return serialize(reply, where == Payloads::kApart ? limits::kMaxFetchHeadBytes : limits::kMaxFetchReplyBytes);
}

Result<wire::FetchRequest> decode_fetch_request(std::span<const std::byte> bytes) {
  auto request = parse<wire::FetchRequest>(bytes, limits::kMaxFetchRequestBytes, "fetch request");
  if (!request.ok()) return request;
  if (Status s = validate(request.value()); !s.ok()) return s.because_of_this("bad fetch request");
  return request;
}

Result<wire::FetchReply> decode_fetch_reply(std::span<const std::byte> bytes, Payloads where) {
  auto reply = parse<wire::FetchReply>(
      bytes, where == Payloads::kApart ? limits::kMaxFetchHeadBytes : limits::kMaxFetchReplyBytes, "fetch reply");
  if (!reply.ok()) return reply;
  if (Status s = validate(reply.value(), where); !s.ok()) return s.because_of_this("bad fetch reply");
  return reply;
}

}  // namespace warren
