// How a data link is authenticated before any payload: both ends prove that they hold the job's link key, for this
// generation, these incarnations, this group and this stream.
//
//   connector → acceptor   Hello      who wants which link, a nonce
//   acceptor → connector   Challenge  a nonce, and the proof over both
//   connector → acceptor   Proof
//   acceptor → connector   Verdict    0, or why not
//
// A greeting may ask for a way on: the acceptor, once it knows whom it speaks with, connects to the rank meant, and
// only then says welcome. From there on it passes bytes on, both ways, and the connector greets the rank meant through
// it.
//
// Messages have fixed sizes and layouts (little-endian). The proofs are HMAC-SHA512-256 under the link key over a label
// and everything said before. What follows the handshake is not encrypted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"

namespace warren::worker::handshake {

using LinkKey = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;
using Mac = std::array<std::byte, 32>;

inline constexpr std::size_t kHelloBytes = 104;
inline constexpr std::size_t kChallengeBytes = 72;
inline constexpr std::size_t kProofBytes = 40;
inline constexpr std::size_t kVerdictBytes = 8;

struct Hello {
  std::uint64_t job_hash = 0;
  Generation generation;
  GroupId group;
  Rank from, to;
  Incarnation from_incarnation, to_incarnation;
  std::uint16_t stream = 0, streams = 1;
  Rank relay_to = kNoRank;  // whom the link leads to, by way of `to`; none: it ends there
  Nonce nonce{};
};

// Why an acceptor says no. On the wire in Verdict.
enum class Verdict : std::uint32_t { kWelcome = 0, kBadProof = 1, kStaleGeneration = 2, kNotMe = 3, kBusy = 4 };
[[nodiscard]] const char* to_string(Verdict verdict);

using HelloBytes = std::array<std::byte, kHelloBytes>;
using ChallengeBytes = std::array<std::byte, kChallengeBytes>;
using ProofBytes = std::array<std::byte, kProofBytes>;
using VerdictBytes = std::array<std::byte, kVerdictBytes>;

[[nodiscard]] std::uint64_t job_hash(const std::string& job);

[[nodiscard]] HelloBytes encode(const Hello& hello);
// kCorrupt: not a Hello. kRefused: another format version.
[[nodiscard]] Result<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes);

[[nodiscard]] ChallengeBytes make_challenge(const LinkKey& key, const HelloBytes& hello, const Nonce& nonce);
// The connector's check of the acceptor. kRefused: the acceptor does not hold the key.
[[nodiscard]] Status check_challenge(const LinkKey& key, const HelloBytes& hello,
                                     std::span<const std::byte, kChallengeBytes> challenge);
[[nodiscard]] ProofBytes make_proof(const LinkKey& key, const HelloBytes& hello, const ChallengeBytes& challenge);
[[nodiscard]] Status check_proof(const LinkKey& key, const HelloBytes& hello, const ChallengeBytes& challenge,
                                 std::span<const std::byte, kProofBytes> proof);
[[nodiscard]] VerdictBytes make_verdict(Verdict verdict);
[[nodiscard]] Result<Verdict> decode_verdict(std::span<const std::byte, kVerdictBytes> bytes);

}  // namespace warren::worker::handshake
