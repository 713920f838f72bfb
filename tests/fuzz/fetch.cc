// Messages with which workers fetch what is logged: whatever is accepted, encodes again to something that is accepted
// and means the same; and whatever is asked, is answered with something that the other side accepts.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "recovery/base/check.h"
#include "recovery/wire/fetch_codec.h"
#include "storage/host_log.h"
#include "worker/replay/replayer.h"

namespace {

using warren::Payloads;

// A log with something under every kind.
warren::HostLogReader& log_reader() {
  static const auto memory = warren::heap_segment(std::size_t{16} << 20);
  static const std::unique_ptr<warren::HostLog> log = [] {
    auto made = warren::HostLog::create(warren::Incarnation(12), memory);
    WARREN_CHECK(made.ok(), "a segment of this size is large enough");
    static const std::string bytes(3000, 'x');
    for (std::uint8_t kind = 1; kind <= warren::kMaxRecordKind; ++kind) {
      for (std::uint64_t sequence = 0; sequence < 20; ++sequence) {
        const warren::RecordKey key{
            static_cast<warren::RecordKind>(kind),
            {warren::Timeline(0), warren::kWorldGroup, warren::Version(1), warren::Sequence(sequence)}};
        warren::RecordInfo info;
        info.total_bytes = 5000;
        const auto payload = std::as_bytes(std::span(bytes));
        WARREN_CHECK(made.value()->publish(key, info, sequence * 50, payload).ok(), "there is room");
      }
    }
    return std::move(made).value();
  }();
  static const auto reader = log->reader();
  return *reader;
}

void decode_reply(std::span<const std::byte> bytes, Payloads where) {
  const auto reply = warren::decode_fetch_reply(bytes, where);
  if (!reply.ok()) {
    WARREN_CHECK(!reply.status().message().empty(), "a refusal has a reason");
    return;
  }
  const std::string text = warren::encode(reply.value(), where);
  const auto again = warren::decode_fetch_reply(std::as_bytes(std::span(text)), where);
  WARREN_CHECK(again.ok(), "what was accepted once is accepted again");
  WARREN_CHECK(warren::encode(again.value(), where) == text, "decoding and encoding loses nothing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  decode_reply(bytes, Payloads::kInside);
  decode_reply(bytes, Payloads::kApart);
  const auto request = warren::decode_fetch_request(bytes);
  if (!request.ok()) {
    WARREN_CHECK(!request.status().message().empty(), "a refusal has a reason");
    return 0;
  }
  const std::string text = warren::encode(request.value());
  const auto again = warren::decode_fetch_request(std::as_bytes(std::span(text)));
  WARREN_CHECK(again.ok() && warren::encode(again.value()) == text, "decoding and encoding loses nothing");
  const auto answer = warren::worker::Replayer::answer(request.value(), log_reader());
  WARREN_CHECK(warren::validate(answer, Payloads::kInside).ok(), "an answer is valid");
  return 0;
}
