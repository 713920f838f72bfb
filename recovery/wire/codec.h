// Control messages: bytes to validated envelopes and back. The one place where what a peer sent is judged by itself;
// what needs context (is this generation the current one?) is judged by the machines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

// Of messages, between any two processes of a job.
inline constexpr std::uint32_t kProtocolVersion = 26;
// Of a job's record in the tracker's journal; one of another format is refused by name.
inline constexpr std::uint32_t kJobRecordFormat = 4;
// What a worker sends is small: the longest are a heartbeat whose rounds wait for everybody, and a report.
inline constexpr std::size_t kMaxWorkerMessageBytes = std::size_t{1} << 20;
// Generations and terms stay below this, so that the next one always exists.
inline constexpr std::uint64_t kMaxGeneration = std::uint64_t{1} << 62;
// Versions, and numbers of rounds, likewise.
inline constexpr std::uint64_t kMaxVersion = std::uint64_t{1} << 62;
// In one round. Times are subtracted from one another.
inline constexpr std::uint64_t kMaxWaitedMs = std::uint64_t{1} << 40;
// What begins with a program's first checkpoint: the oldest version that can be voted for or committed.
inline constexpr Version kFirstCommit = version_of_program(1);
inline constexpr std::size_t kMaxSoftwareBytes = 128;
inline constexpr std::size_t kMaxMissingNames = 16;

// Who may send an envelope.
enum class Side { kWorker, kTracker };

// A place of a plan that nobody has had yet: there is no worker to name.
[[nodiscard]] inline bool is_vacant(const wire::Member& m) {
  return m.absent() && m.worker_id().empty();
}

// Serializes. The envelope must be valid (checked: an invalid one is our own bug). Free texts in it (reason, evidence)
// must have passed wire_text(). A plan on its way to a worker is packed (packed_members.h).
[[nodiscard]] std::string encode(const wire::Envelope& envelope, Side from);

// Parses and validates what `from` sent. kRefused: another protocol version (the message names both). kCorrupt: not an
// envelope, over a limit, a body that this side never sends, a field out of range. Never allocates more than the
// input's size times a small constant; or, of a tracker's message, more than the largest plan takes.
[[nodiscard]] Result<wire::Envelope> decode_envelope(std::span<const std::byte> bytes, Side from);

// One function a message kind; each says why the message is invalid. Public so that tests and fuzzers reach them. They
// stand in the files *_checks.cc beside this one.
[[nodiscard]] Status validate(const wire::Join& join);
[[nodiscard]] Status validate(const wire::Held& held);
[[nodiscard]] Status validate(const wire::Heartbeat& heartbeat);
[[nodiscard]] Status validate(const wire::LinkBroken& broken);
[[nodiscard]] Status validate(const wire::About& about);
[[nodiscard]] Status validate(const wire::RoundFailed& failed);
[[nodiscard]] Status validate(const wire::Stopped& stopped);
[[nodiscard]] Status validate(const wire::Leave& leave);
[[nodiscard]] Status validate(const wire::Report& report);
[[nodiscard]] Status validate(const wire::Vote& vote);
[[nodiscard]] Status validate(const wire::LogGap& gap);
[[nodiscard]] Status validate(const wire::Known& known);
[[nodiscard]] Status validate(const wire::Welcome& welcome);
[[nodiscard]] Status validate(const wire::Refused& refused);
[[nodiscard]] Status validate(const wire::Plan& plan);       // one that says everything
[[nodiscard]] Status validate_told(const wire::Plan& plan);  // or only what has changed (recovery/wire/plan_changes.h)
[[nodiscard]] Status validate(const wire::Interrupt& interrupt);
[[nodiscard]] Status validate(const wire::Finished& finished);
[[nodiscard]] Status validate(const wire::HeartbeatReply& reply);
[[nodiscard]] Status validate(const wire::Loaded& loaded);
[[nodiscard]] Status validate(const wire::Committed& committed);
[[nodiscard]] Status validate(const wire::Tell& tell);
[[nodiscard]] Status validate(const wire::Called& called);
[[nodiscard]] Status validate(const wire::JobSettings& settings);
// From the tracker's journal. kRefused: another version of Warren has written it.
[[nodiscard]] Status validate(const wire::JobRecord& record);

// A text as messages carry it: at most limits::kMaxReasonBytes, no control characters, valid UTF-8. What is not is
// replaced by '?', and what is too long is cut.
[[nodiscard]] std::string wire_text(std::string_view text);

// Names that people and file systems can live with: 1 … limit bytes of [A-Za-z0-9._:/@-], not starting with '-' or '.'.
[[nodiscard]] Status validate_name(std::string_view what, std::string_view name, std::size_t limit_bytes);

}  // namespace warren
