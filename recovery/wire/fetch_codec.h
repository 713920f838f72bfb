// Messages with which workers fetch what is logged: bytes to validated messages and back, like codec.h. What needs
// context (is this generation the current one? was this asked?) is judged by who serves and by the replayer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

// Kinds of records are 1 … this (storage/host_log.h names them).
inline constexpr std::uint32_t kMaxRecordKind = 5;
inline constexpr std::uint32_t kGlobalRecord = 3;

// What a rank says to the question which round is the one of a number. What it says of a round, or that there is none,
// is so for ever.
enum class RoundWord : std::uint8_t {
  kNone = 0,   // the reply answers no question
  kLater = 1,  // it cannot tell yet
  kRound = 2,  // this one
  kOver = 3,   // none: the version has, or had, no more rounds
  kAsks = 4,   // it waits there and asks the same, for the same call
  kGone = 5,   // it is past it and does not know any more which it was
  kOther = 6,  // it waits there and asks for another call
};
inline constexpr std::uint32_t kMaxRoundWord = 6;

// Where the payloads of a reply with data are: in its entries, or apart, one after the other in the order of entries.
enum class Payloads { kInside, kApart };

// Serialize. What they are given must be valid (checked).
[[nodiscard]] std::string encode(const wire::FetchRequest& request);
[[nodiscard]] std::string encode(const wire::FetchReply& reply, Payloads where);

// Parse and validate. kRefused: another protocol version. kCorrupt: anything else that is wrong, with the reason.
// Never allocate more than the input's size times a small constant.
[[nodiscard]] Result<wire::FetchRequest> decode_fetch_request(std::span<const std::byte> bytes);
[[nodiscard]] Result<wire::FetchReply> decode_fetch_reply(std::span<const std::byte> bytes, Payloads where);

[[nodiscard]] Status validate(const wire::FetchRequest& request);
[[nodiscard]] Status validate(const wire::FetchReply& reply, Payloads where);

// The answer to a valid question. `round`: which, for kRound.
[[nodiscard]] wire::FetchReply answer_to(const wire::FetchRequest& question, RoundWord word,
                                         const Fingerprint* round = nullptr);

// Bytes of all ranges that a valid reply's entries name: with data, those of the payloads.
[[nodiscard]] std::uint64_t range_bytes(const wire::FetchEntry& entry);
[[nodiscard]] std::uint64_t range_bytes(const wire::FetchReply& reply);

[[nodiscard]] Fingerprint fingerprint_of(const wire::FetchEntry& valid);
void set_fingerprint(const Fingerprint& fingerprint, wire::FetchEntry& entry);

}  // namespace warren
