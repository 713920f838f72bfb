#include "recovery/wire/codec.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/field_checks.h"
#include "recovery/wire/job_settings.h"
#include "recovery/wire/packed_members.h"

namespace warren {

using namespace checks;

namespace {

Status validate_setting(const JobSetting& setting, const wire::JobSettings& s) {
  if (setting.text == nullptr) return in_range(setting.name, setting.get(s), setting.least, setting.most);
  const std::string& text = setting.text(s);
  if (setting.words.empty()) return text_is_printable(setting.name, text, setting.most_bytes);
  if (std::ranges::find(setting.words, text) != setting.words.end()) return {};
  std::string known;
  for (const std::string_view word : setting.words) {
    known += (known.empty() ? "" : word == setting.words.back() ? " and " : ", ") + std::string(word);
  }
  return bad("unknown " + std::string(setting.name) + " '" + wire_text(text).substr(0, 32) + "', known are " + known);
}

std::string_view body_name(const wire::Envelope& e) {
  switch (e.body_case()) {
    case wire::Envelope::kJoin: return "Join";
    case wire::Envelope::kHeartbeat: return "Heartbeat";
    case wire::Envelope::kLinkBroken: return "LinkBroken";
    case wire::Envelope::kRoundFailed: return "RoundFailed";
    case wire::Envelope::kStopped: return "Stopped";
    case wire::Envelope::kLeave: return "Leave";
    case wire::Envelope::kReport: return "Report";
    case wire::Envelope::kLoad: return "Load";
    case wire::Envelope::kVote: return "Vote";
    case wire::Envelope::kLogGap: return "LogGap";
    case wire::Envelope::kKnown: return "Known";
    case wire::Envelope::kForget: return "Forget";
    case wire::Envelope::kWelcome: return "Welcome";
    case wire::Envelope::kRefused: return "Refused";
    case wire::Envelope::kPlan: return "Plan";
    case wire::Envelope::kInterrupt: return "Interrupt";
    case wire::Envelope::kFinished: return "Finished";
    case wire::Envelope::kHeartbeatReply: return "HeartbeatReply";
    case wire::Envelope::kLoaded: return "Loaded";
    case wire::Envelope::kCommitted: return "Committed";
    case wire::Envelope::kTell: return "Tell";
    case wire::Envelope::kCalled: return "Called";
    case wire::Envelope::kForgotten: return "Forgotten";
    case wire::Envelope::BODY_NOT_SET: return "no";
  }
  return "no";
}

Status validate_body(const wire::Envelope& e) {
  switch (e.body_case()) {
    case wire::Envelope::kJoin: return validate(e.join());
    case wire::Envelope::kHeartbeat: return validate(e.heartbeat());
    case wire::Envelope::kLinkBroken: return validate(e.link_broken());
    case wire::Envelope::kRoundFailed: return validate(e.round_failed());
    case wire::Envelope::kStopped: return validate(e.stopped());
    case wire::Envelope::kLeave: return validate(e.leave());
    case wire::Envelope::kReport: return validate(e.report());
    case wire::Envelope::kLoad: return {};
    case wire::Envelope::kVote: return validate(e.vote());
    case wire::Envelope::kLogGap: return validate(e.log_gap());
    case wire::Envelope::kKnown: return validate(e.known());
    case wire::Envelope::kForget: return {};
    case wire::Envelope::kWelcome: return validate(e.welcome());
    case wire::Envelope::kRefused: return validate(e.refused());
    case wire::Envelope::kPlan: return validate_told(e.plan());
    case wire::Envelope::kInterrupt: return validate(e.interrupt());
    case wire::Envelope::kFinished: return validate(e.finished());
    case wire::Envelope::kHeartbeatReply: return validate(e.heartbeat_reply());
    case wire::Envelope::kLoaded: return validate(e.loaded());
    case wire::Envelope::kCommitted: return validate(e.committed());
    case wire::Envelope::kTell: return validate(e.tell());
    case wire::Envelope::kCalled: return validate(e.called());
    case wire::Envelope::kForgotten: return {};
    case wire::Envelope::BODY_NOT_SET: return bad("no body");
  }
  return bad("no body");
}

bool sent_by_worker(const wire::Envelope& e) {
  return e.body_case() <= wire::Envelope::kForget;
}

Status validate_protocol(const wire::Envelope& e) {
  if (e.protocol() == kProtocolVersion) return {};
  return {Code::kRefused, "protocol version " + str(e.protocol()) + ", this build speaks " + str(kProtocolVersion) +
                              ": use one version of Warren for the whole job"};
}

Status validate_envelope(const wire::Envelope& e, Side from) {
  if (Status s = validate_protocol(e); !s.ok()) return s;
  if (Status s = validate_name("job", e.job(), limits::kMaxJobNameBytes); !s.ok()) return s;
  if (e.sender() == 0) return bad("no sender");
  if (e.body_case() == wire::Envelope::BODY_NOT_SET) return bad("no body");
  if (sent_by_worker(e) != (from == Side::kWorker)) {
    return bad(std::string("a ") + (from == Side::kWorker ? "worker" : "tracker") + " never sends " +
               std::string(body_name(e)));
  }
  if (from == Side::kTracker && e.receiver() == 0) return bad("no receiver");
  if (e.term() >= kMaxGeneration) return bad("term " + str(e.term()) + " is too large");
  // A tracker that speaks of no job's state has none.
  if (from == Side::kTracker && e.term() == 0 && !e.has_refused() && !e.has_forgotten()) return bad("no term");
  if (from == Side::kWorker && e.term() != 0 && e.receiver() == 0) return bad("a term of no tracker's");
  if (Status s = validate_body(e); !s.ok()) return s.because_of_this("bad " + std::string(body_name(e)));
  return {};
}

bool has_plan_to_worker(const wire::Envelope& e) {
  return e.has_plan() || e.welcome().follow().has_plan();
}
wire::Plan& plan_to_worker(wire::Envelope& e) {
  return e.has_plan() ? *e.mutable_plan() : *e.mutable_welcome()->mutable_follow()->mutable_plan();
}

Status unpack_plan(wire::Envelope& e) {
  if (!has_plan_to_worker(e)) return {};
  wire::Plan& plan = plan_to_worker(e);
  auto unpacked = unpack(std::move(plan));
  if (!unpacked.ok()) return unpacked.status().because_of_this("bad " + std::string(body_name(e)));
  plan = std::move(unpacked).value();
  return {};
}

}  // namespace

Status validate(const wire::JobSettings& s) {
  for (const JobSetting& setting : job_settings()) {
    if (Status r = validate_setting(setting, s); !r.ok()) return r;
  }
  // Settings that depend on each other.
  if (s.replace_after_ms() != 0 && s.replicas() == 0) return bad("ranks are to be replaced, and nothing is logged");
  if (Status r = in_range("min_workers", s.min_workers(), 0, s.world_size()); !r.ok()) return r;
  if (Status r = in_range("grace_ms", s.grace_ms(), 0, s.min_workers() == 0 ? 0 : limits::kMaxGraceMs); !r.ok()) {
    return r;
  }
  if (s.min_workers() != 0 && s.replicas() == 0) return bad("the job may shrink, and nothing is logged");
  if (s.reorders() && !s.rewire()) return bad("rings may be ordered anew, and no link is gone around");
  if (s.elastic_start() && s.min_workers() == 0) return bad("the job may begin with fewer, and waits for all");
  return {};
}

Status validate(const wire::About& a) {
  if (a.has_rank()) {
    if (Status s = rank_in_any_world("rank", a.rank()); !s.ok()) return s;
  }
  if (a.has_peer()) {
    if (Status s = rank_in_any_world("peer", a.peer()); !s.ok()) return s;
  }
  return text_is_printable("round", a.round(), limits::kMaxRoundTextBytes);
}

std::string encode(const wire::Envelope& envelope, Side from) {
  const Status valid = validate_envelope(envelope, from);
  WARREN_CHECK(valid.ok(), valid.describe().c_str());
  std::string bytes;
  if (from == Side::kWorker || !has_plan_to_worker(envelope)) {
    WARREN_CHECK(envelope.SerializeToString(&bytes), "a valid envelope serializes");
    return bytes;
  }
  wire::Envelope packed_envelope = envelope;
  wire::Plan& plan = plan_to_worker(packed_envelope);
  plan = packed(std::move(plan));
  WARREN_CHECK(packed_envelope.SerializeToString(&bytes), "a valid envelope serializes");
  return bytes;
}

Result<wire::Envelope> decode_envelope(std::span<const std::byte> bytes, Side from) {
  const std::size_t limit = from == Side::kWorker ? kMaxWorkerMessageBytes : limits::kMaxControlMessageBytes;
  if (bytes.size() > limit) {
    return bad("message of " + str(bytes.size()) + " bytes is over the limit of " + str(limit));
  }
  wire::Envelope envelope;
  if (!envelope.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return bad("not one of Warren's messages");
  Status s = validate_protocol(envelope);
  if (s.ok() && from == Side::kTracker) s = unpack_plan(envelope);
  if (s.ok()) s = validate_envelope(envelope, from);
  if (!s.ok()) {
    // To whoever called us, a bad name is damage like any other.
    return s.code() == Code::kRefused ? s : s.because_of_this(Code::kCorrupt, "message refused");
  }
  return envelope;
}

}  // namespace warren
