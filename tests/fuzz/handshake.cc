// The handshake of a data link: the decoders hold on any bytes, and nobody without the key gets through.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "recovery/base/check.h"
#include "worker/transport/handshake.h"

namespace hs = warren::worker::handshake;

namespace {

template <std::size_t N>
std::array<std::byte, N> take(std::span<const std::uint8_t>& input) {
  std::array<std::byte, N> out{};
  const std::size_t n = std::min(N, input.size());
  std::copy_n(reinterpret_cast<const std::byte*>(input.data()), n, out.begin());
  input = input.subspan(n);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span input(data, size);
  static constexpr hs::LinkKey kKey{std::byte{7}};
  const auto hello_bytes = take<hs::kHelloBytes>(input);
  if (const auto hello = hs::decode_hello(hello_bytes); hello.ok()) {
    WARREN_CHECK(hs::encode(hello.value()) == hello_bytes, "a hello that was accepted encodes to its own bytes");
  } else {
    WARREN_CHECK(!hello.status().message().empty(), "a refusal has a reason");
  }
  const auto stranger = take<hs::kChallengeBytes>(input);
  WARREN_CHECK(!hs::check_challenge(kKey, hello_bytes, stranger).ok(), "a challenge needs the key");
  const auto challenge = hs::make_challenge(kKey, hello_bytes, take<sizeof(hs::Nonce)>(input));
  WARREN_CHECK(hs::check_challenge(kKey, hello_bytes, challenge).ok(), "who holds the key is recognized");
  const auto forged = take<hs::kProofBytes>(input);
  WARREN_CHECK(!hs::check_proof(kKey, hello_bytes, challenge, forged).ok(), "a proof needs the key");
  if (const auto verdict = hs::decode_verdict(take<hs::kVerdictBytes>(input)); verdict.ok()) {
    WARREN_CHECK(hs::to_string(verdict.value()) != nullptr, "a verdict can be named");
  }
  return 0;
}
