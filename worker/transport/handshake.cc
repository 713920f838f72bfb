#include "worker/transport/handshake.h"

#include <sodium.h>

#include <cstring>
#include <vector>

#include "recovery/base/limits.h"

namespace warren::worker::handshake {
namespace {

constexpr std::uint32_t kHelloMagic = 0x484e5257;      // "WRNH"
constexpr std::uint32_t kChallengeMagic = 0x434e5257;  // "WRNC"
constexpr std::uint32_t kProofMagic = 0x504e5257;      // "WRNP"
constexpr std::uint32_t kVerdictMagic = 0x564e5257;    // "WRNV"
constexpr std::uint32_t kVersion = 2;

static_assert(sizeof(Mac) == crypto_auth_hmacsha512256_BYTES && sizeof(LinkKey) == crypto_auth_hmacsha512256_KEYBYTES);

struct WireHello {
  std::uint32_t magic, version;
  std::uint64_t job_hash, generation, group;
  std::int32_t from, to;
  std::uint64_t from_incarnation, to_incarnation;
  std::uint16_t stream, streams;
  std::int32_t relay_to;
  std::byte nonce[32];
  std::uint64_t reserved;
};
static_assert(sizeof(WireHello) == kHelloBytes);

struct WireChallenge {
  std::uint32_t magic, version;
  std::byte nonce[32];
  std::byte mac[32];
};
static_assert(sizeof(WireChallenge) == kChallengeBytes);

struct WireProof {
  std::uint32_t magic, version;
  std::byte mac[32];
};
static_assert(sizeof(WireProof) == kProofBytes);

Mac mac_of(const LinkKey& key, const char (&label)[17], std::span<const std::byte> first,
           std::span<const std::byte> second) {
  crypto_auth_hmacsha512256_state state;
  crypto_auth_hmacsha512256_init(&state, reinterpret_cast<const unsigned char*>(key.data()), key.size());
  crypto_auth_hmacsha512256_update(&state, reinterpret_cast<const unsigned char*>(label), 16);
  for (const auto part : {first, second}) {
    crypto_auth_hmacsha512256_update(&state, reinterpret_cast<const unsigned char*>(part.data()), part.size());
  }
  Mac mac;
  crypto_auth_hmacsha512256_final(&state, reinterpret_cast<unsigned char*>(mac.data()));
  return mac;
}

bool same(const Mac& expected, const std::byte* got) {
  return sodium_memcmp(expected.data(), got, sizeof(Mac)) == 0;
}

constexpr std::size_t kChallengeHead = kChallengeBytes - sizeof(Mac);
constexpr char kServerLabel[17] = "warren-acceptor.";
constexpr char kClientLabel[17] = "warren-connector";

}  // namespace

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWelcome: return "welcome";
    case Verdict::kBadProof: return "the proof is wrong: the two ends hold different job secrets";
    case Verdict::kStaleGeneration: return "the generation is over there";
    case Verdict::kNotMe: return "the worker meant is not the one that answered";
    case Verdict::kBusy: return "too many links";
  }
  return "unknown verdict";
}

std::uint64_t job_hash(const std::string& job) {
  std::uint64_t hash = 0;
  unsigned char wide[crypto_generichash_BYTES];
  crypto_generichash(wide, sizeof wide, reinterpret_cast<const unsigned char*>(job.data()), job.size(), nullptr, 0);
  std::memcpy(&hash, wide, sizeof hash);
  return hash;
}

HelloBytes encode(const Hello& h) {
  WireHello w{};
  w.magic = kHelloMagic;
  w.version = kVersion;
  w.job_hash = h.job_hash;
  w.generation = h.generation.value;
  w.group = h.group.value;
  w.from = h.from.value;
  w.to = h.to.value;
  w.from_incarnation = h.from_incarnation.value;
  w.to_incarnation = h.to_incarnation.value;
  w.stream = h.stream;
  w.streams = h.streams;
  w.relay_to = h.relay_to.value;
  std::memcpy(w.nonce, h.nonce.data(), sizeof w.nonce);
  HelloBytes bytes;
  std::memcpy(bytes.data(), &w, sizeof w);
  return bytes;
}

Result<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes) {
  WireHello w;
  std::memcpy(&w, bytes.data(), sizeof w);
  if (w.magic != kHelloMagic) return Status(Code::kCorrupt, "not a link greeting: wrong magic number");
  if (w.version != kVersion) {
    return Status(Code::kRefused, "link format " + std::to_string(w.version) + ", this build speaks " +
                                      std::to_string(kVersion) + ": run the same version everywhere");
  }
  const auto out_of_range = [](std::int32_t rank) {
    return rank < 0 || rank >= static_cast<std::int32_t>(limits::kMaxWorldSize);
  };
  if (out_of_range(w.from) || out_of_range(w.to) || w.from == w.to) {
    return Status(Code::kCorrupt,
                  "link greeting between ranks " + std::to_string(w.from) + " and " + std::to_string(w.to));
  }
  if (w.streams < 1 || w.streams > limits::kMaxStreams || w.stream >= w.streams) {
    return Status(Code::kCorrupt,
                  "link greeting for stream " + std::to_string(w.stream) + " of " + std::to_string(w.streams));
  }
  if (w.relay_to != kNoRank.value && (out_of_range(w.relay_to) || w.relay_to == w.from || w.relay_to == w.to)) {
    return Status(Code::kCorrupt, "link greeting for a way on to rank " + std::to_string(w.relay_to));
  }
  if (w.reserved != 0) return Status(Code::kCorrupt, "link greeting with reserved bits set");
  Hello h;
  h.job_hash = w.job_hash;
  h.generation = Generation(w.generation);
  h.group = GroupId(w.group);
  h.from = Rank(w.from);
  h.to = Rank(w.to);
  h.from_incarnation = Incarnation(w.from_incarnation);
  h.to_incarnation = Incarnation(w.to_incarnation);
  h.stream = w.stream;
  h.streams = w.streams;
  h.relay_to = Rank(w.relay_to);
  std::memcpy(h.nonce.data(), w.nonce, sizeof w.nonce);
  return h;
}

ChallengeBytes make_challenge(const LinkKey& key, const HelloBytes& hello, const Nonce& nonce) {
  WireChallenge w{};
  w.magic = kChallengeMagic;
  w.version = kVersion;
  std::memcpy(w.nonce, nonce.data(), sizeof w.nonce);
  ChallengeBytes bytes;
  std::memcpy(bytes.data(), &w, sizeof w);
  const Mac mac = mac_of(key, kServerLabel, hello, std::span(bytes).first(kChallengeHead));
  std::memcpy(bytes.data() + kChallengeHead, mac.data(), mac.size());
  return bytes;
}

Status check_challenge(const LinkKey& key, const HelloBytes& hello,
                       std::span<const std::byte, kChallengeBytes> challenge) {
  WireChallenge w;
  std::memcpy(&w, challenge.data(), sizeof w);
  if (w.magic != kChallengeMagic || w.version != kVersion) {
    return {Code::kCorrupt, "the answer to the link greeting is not Warren's"};
  }
  if (!same(mac_of(key, kServerLabel, hello, challenge.first(kChallengeHead)), w.mac)) {
    return {Code::kRefused, "the peer does not hold this job's secret"};
  }
  return {};
}

ProofBytes make_proof(const LinkKey& key, const HelloBytes& hello, const ChallengeBytes& challenge) {
  WireProof w{};
  w.magic = kProofMagic;
  w.version = kVersion;
  const Mac mac = mac_of(key, kClientLabel, hello, challenge);
  std::memcpy(w.mac, mac.data(), mac.size());
  ProofBytes bytes;
  std::memcpy(bytes.data(), &w, sizeof w);
  return bytes;
}

Status check_proof(const LinkKey& key, const HelloBytes& hello, const ChallengeBytes& challenge,
                   std::span<const std::byte, kProofBytes> proof) {
  WireProof w;
  std::memcpy(&w, proof.data(), sizeof w);
  if (w.magic != kProofMagic || w.version != kVersion) return {Code::kCorrupt, "the link proof is not Warren's"};
  if (!same(mac_of(key, kClientLabel, hello, challenge), w.mac)) {
    return {Code::kRefused, "a connection that claims to be a worker does not hold this job's secret"};
  }
  return {};
}

VerdictBytes make_verdict(Verdict verdict) {
  VerdictBytes bytes;
  const std::uint32_t words[2] = {kVerdictMagic, static_cast<std::uint32_t>(verdict)};
  std::memcpy(bytes.data(), words, sizeof words);
  return bytes;
}

Result<Verdict> decode_verdict(std::span<const std::byte, kVerdictBytes> bytes) {
  std::uint32_t words[2];
  std::memcpy(words, bytes.data(), sizeof words);
  if (words[0] != kVerdictMagic || words[1] > 4) return Status(Code::kCorrupt, "the link verdict is not Warren's");
  return static_cast<Verdict>(words[1]);
}

}  // namespace warren::worker::handshake
