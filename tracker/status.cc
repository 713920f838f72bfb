#include "tracker/status.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "recovery/base/ids.h"
#include "recovery/decide/verdict.h"
#include "recovery/wire/frame.h"
#include "tracker/member_state.h"

namespace warren::tracker {
namespace {

using nlohmann::ordered_json;

Fingerprint fingerprint_of(const wire::CurrentRound& r) {
  Fingerprint f;
  f.collective = static_cast<Collective>(r.collective());
  f.type = static_cast<DataType>(r.type());
  f.op = static_cast<ReduceOp>(r.op());
  f.algorithm = static_cast<std::uint8_t>(r.algorithm());
  f.root = r.root();
  f.count = r.count();
  f.shape = r.shape();
  f.site = r.site();
  return f;
}

RoundId round_id_of(const wire::CurrentRound& r) {
  return {Timeline(r.timeline()), GroupId(r.group()), Version(r.version()), Sequence(r.sequence())};
}

// Incarnations are 64 bits wide, which JSON's readers round: text.
std::string hex(std::uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (auto it = text.rbegin(); it != text.rend(); ++it, value >>= 4) *it = kDigits[value & 15];
  return text;
}

ordered_json round_json(const wire::CurrentRound& r) {
  return {{"round", to_string(round_id_of(r))},
          {"version", r.version()},
          {"sequence", r.sequence()},
          {"call", to_string(fingerprint_of(r))},
          {"waiting_for", std::vector<std::uint32_t>(r.waiting_for().begin(), r.waiting_for().end())},
          {"waited_ms", r.waited_ms()}};
}

ordered_json activity_json(const std::optional<wire::Activity>& a) {
  if (!a) return nullptr;
  ordered_json links = ordered_json::array();
  for (const wire::LinkActivity& l : a->links()) {
    links.push_back({{"peer", l.peer()},
                     {"sent_bytes", l.window_sent_bytes()},
                     {"received_bytes", l.window_received_bytes()},
                     {"awaited_ms", l.awaited_ms()},
                     {"blocked_ms", l.blocked_ms()},
                     {"quiet_ms", l.quiet_ms()},
                     {"usual_bytes_per_s", l.usual_bytes_per_s()}});
  }
  return {{"window_ms", a->window_ms()}, {"outside_ms", a->outside_ms()},   {"idle_ms", a->idle_ms()},
          {"held_ms", a->held_ms()},     {"moved_bytes", a->moved_bytes()}, {"replaying", a->replaying()},
          {"links", std::move(links)}};
}

ordered_json verdict_json(const StragglerWatch::Standing& standing, std::int64_t stood_ms) {
  const Verdict& v = standing.verdict;
  ordered_json json = {{"kind", to_string(v.blame)}, {"rank", v.rank.value}, {"peer", nullptr},
                       {"round", nullptr},           {"stood_ms", stood_ms}, {"victims", v.victims},
                       {"waited_ms", v.waited_ms},   {"reason", v.reason},   {"next", v.next}};
  if (v.peer != kNoRank) json["peer"] = v.peer.value;
  if (v.round) json["round"] = to_string(*v.round);
  return json;
}

ordered_json limits_json(const StragglerLimits& l) {
  return {{"round_timeout_ms", l.round_timeout_ms},
          {"heartbeat_ms", l.heartbeat_ms},
          {"sample_ms", l.sample_ms},
          {"window_ms", l.window_ms},
          {"suspect_ms", l.suspect_ms}};
}

ordered_json members_by_state_json(const TrackerMachine::View& view) {
  const auto count = members_by_state(view);
  ordered_json json = ordered_json::object();
  for (std::size_t i = 0; i < kMemberStates; ++i) json[to_string(static_cast<MemberState>(i))] = count[i];
  return json;
}

ordered_json log_json(const std::optional<wire::LogFill>& log) {
  if (!log) return nullptr;
  return {{"held_bytes", log->held_bytes()}, {"budget_bytes", log->budget_bytes()}};
}

ordered_json member_json(const TrackerMachine::View& view, const TrackerMachine::MemberView& m) {
  ordered_json rounds = ordered_json::array();
  for (const wire::CurrentRound& r : m.rounds) rounds.push_back(round_json(r));
  ordered_json json = {{"rank", m.rank.value},
                       {"worker", m.worker_id},
                       {"host", m.host_id},
                       {"state", to_string(state_of(view, m))},
                       {"alive", m.alive},
                       {"suspect", m.suspect},
                       {"absent", m.absent},
                       {"incarnation", hex(m.incarnation.value)},
                       {"attempt", m.attempt},
                       {"lives", m.lives},
                       {"last_heard_ms_ago", m.last_heard_ms_ago},
                       {"rounds_finished", m.rounds_finished},
                       {"bytes_moved", m.bytes_moved},
                       {"gpu_readers", m.gpu.readers},
                       {"inputs_lent", m.gpu.inputs_lent},
                       {"finals_from_gpus", m.gpu.finals_from_gpus},
                       {"rounds_exchanged", m.gpu.rounds_exchanged},
                       {"rounds", std::move(rounds)},
                       {"activity", activity_json(m.activity)},
                       {"draining", nullptr},
                       {"log", log_json(m.log)},
                       {"disk_trouble", m.disk_trouble}};
  if (m.draining)
    json["draining"] = {{"left_ms", m.draining->left_ms()},
                        {"reason", m.draining->reason()},
                        {"replaced", m.replaced},
                        {"excluded", m.excluded}};
  if (m.rank == kNoRank) json["rank"] = nullptr;
  return json;
}

// Of the program: it has called checkpoint so many times.
std::uint64_t of_program(Version version) {
  return version.value - 1;
}

// A job in many groups would fill the page: these are the first.
constexpr std::size_t kPositionsShown = 64;

ordered_json frontier_json(const TrackerMachine::View& view) {
  ordered_json frontier = ordered_json::array();
  for (const wire::Position& p : view.frontier) {
    if (frontier.size() == kPositionsShown) break;
    std::uint64_t final_bytes = 0;
    for (const wire::ByteRange& range : p.final()) final_bytes += range.end() - range.begin();
    frontier.push_back({{"group", hex(p.group())},
                        {"version", p.version()},
                        {"rounds", p.rounds()},
                        {"closed", p.closed()},
                        {"final_bytes", final_bytes}});
  }
  return frontier;
}

ordered_json job_json(const JobStatus& job) {
  ordered_json members = ordered_json::array();
  for (const TrackerMachine::MemberView& m : job.view.members) members.push_back(member_json(job.view, m));
  ordered_json verdicts = ordered_json::array();
  for (const StragglerWatch::Standing& s : job.view.verdicts) {
    verdicts.push_back(verdict_json(s, job.view.now - s.since));
  }
  ordered_json detours = ordered_json::array(), orders = ordered_json::array();
  for (const wire::Detour& d : job.view.detours) {
    detours.push_back({{"a", d.a()}, {"b", d.b()}, {"relays", std::vector(d.relays().begin(), d.relays().end())}});
  }
  for (const wire::RingOrder& o : job.view.orders) {
    orders.push_back({{"from_version", o.from_version() - version_of_program(0).value},
                      {"ranks", std::vector(o.ranks().begin(), o.ranks().end())}});
  }
  ordered_json json = {{"job", job.name},
                       {"state", state_of(job.view)},
                       {"generation", job.view.generation.value},
                       {"world_size", job.view.world_size},
                       {"alive", members_alive(job.view)},
                       {"members_by_state", members_by_state_json(job.view)},
                       {"replicas", job.view.replicas},
                       {"min_workers", job.view.min_workers},
                       {"timeline", job.view.timeline.value},
                       {"committed_version", nullptr},
                       {"unprotected", job.view.unprotected},
                       {"votes", job.view.votes},
                       {"waiting_for", job.view.waiting_for},
                       {"last_round_ms_ago", job.view.last_round_ms_ago},
                       {"last_commit_ms_ago", job.view.last_commit_ms_ago},
                       {"restarts", restarts_of(job.view)},
                       {"joins", job.view.joins},
                       {"interrupts", job.view.interrupts},
                       {"refusals", job.view.refusals},
                       {"preemptions", job.view.preemptions},
                       {"spares_used", job.view.spares_used},
                       {"gpu_readers", job.view.gpu.readers},
                       {"inputs_lent", job.view.gpu.inputs_lent},
                       {"finals_from_gpus", job.view.gpu.finals_from_gpus},
                       {"rounds_exchanged", job.view.gpu.rounds_exchanged},
                       {"last_interrupt", job.view.last_interrupt},
                       {"trouble", job.trouble},
                       {"limits", limits_json(job.view.limits)},
                       {"waits", job.view.waits},
                       {"verdicts", std::move(verdicts)},
                       {"detours", std::move(detours)},
                       {"ring_orders", std::move(orders)},
                       {"frontier", frontier_json(job.view)},
                       {"members", std::move(members)}};
  json["spares"] = ordered_json::array();
  for (const TrackerMachine::SpareView& s : job.view.spares) {
    json["spares"].push_back({{"worker", s.worker_id},
                              {"host", s.host_id},
                              {"incarnation", hex(s.incarnation.value)},
                              {"last_heard_ms_ago", s.last_heard_ms_ago},
                              {"follows_version", nullptr},
                              {"called_for", nullptr}});
    if (s.followed) json["spares"].back()["follows_version"] = of_program(*s.followed);
    if (s.called_for != kNoRank) json["spares"].back()["called_for"] = s.called_for.value;
  }
  if (job.view.committed) json["committed_version"] = of_program(*job.view.committed);
  return json;
}

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string cell(std::string_view text) {
  return "<td>" + escaped(text) + "</td>";
}
std::string cell(std::uint64_t value) {
  return "<td class=n>" + std::to_string(value) + "</td>";
}

std::string waits_of(const TrackerMachine::MemberView& m) {
  constexpr int kShown = 8;
  std::string text;
  for (const wire::CurrentRound& r : m.rounds) {
    if (!text.empty()) text += "; ";
    text += to_string(round_id_of(r)) + " " + to_string(fingerprint_of(r));
    if (r.waiting_for_size() == 0) continue;
    text += " waits " + seconds_text(static_cast<std::int64_t>(std::min<std::uint64_t>(r.waited_ms(), 1ULL << 53))) +
            " for rank";
    for (int i = 0; i < std::min(r.waiting_for_size(), kShown); ++i) text += " " + std::to_string(r.waiting_for(i));
    if (r.waiting_for_size() > kShown) text += " and " + std::to_string(r.waiting_for_size() - kShown) + " others";
  }
  return text;
}

std::string recovery_text(const TrackerMachine::View& v) {
  if (v.replicas == 0) return ", results are not logged";
  std::string text =
      ", " + std::to_string(v.replicas) + " copies of results, timeline " + std::to_string(v.timeline.value) + ", ";
  text += v.committed ? "version " + std::to_string(of_program(*v.committed)) + " committed" : "nothing committed yet";
  if (v.votes != 0) {
    text += ", the next stored by " + std::to_string(v.votes) + " of " + std::to_string(v.world_size) + " ranks";
  }
  std::string missing;
  for (const std::string& worker : v.waiting_for) missing += (missing.empty() ? "" : ", ") + escaped(worker);
  return text + (missing.empty() ? "" : "; waiting for " + missing);
}

// Of a job that does nothing of the kind there is nothing to see.
std::string gpu_html(const TrackerMachine::GpuCounts& g) {
  if (g.inputs_lent == 0 && g.finals_from_gpus == 0 && g.rounds_exchanged == 0) return "";
  return "<p>On GPUs, over all ranks: " + std::to_string(g.inputs_lent) + " inputs lent, " +
         std::to_string(g.finals_from_gpus) + " pieces of results from other ranks' GPUs, " +
         std::to_string(g.rounds_exchanged) + " rounds moved by NCCL</p>";
}

std::string state_html(MemberState state) {
  const bool bad = state == MemberState::kAbsent || state == MemberState::kLost || state == MemberState::kSilent;
  return std::string(bad ? "<td class=bad>" : "<td>") + to_string(state) + "</td>";
}

std::string job_html(const JobStatus& job) {
  const TrackerMachine::View& v = job.view;
  std::string html = "<h2>" + escaped(job.name) + "</h2><p>" + state_of(v) + ", generation " +
                     std::to_string(v.generation.value) + ", " + std::to_string(members_alive(v)) + " of " +
                     std::to_string(v.world_size) + " workers alive, " + std::to_string(v.interrupts) + " interrupts" +
                     (v.spares.empty() ? "" : ", " + std::to_string(v.spares.size()) + " spares wait") +
                     recovery_text(v) + "</p>";
  if (!v.unprotected.empty()) html += "<p class=bad>Not protected: " + escaped(v.unprotected) + "</p>";
  if (!job.trouble.empty()) html += "<p class=bad>" + escaped(job.trouble) + "</p>";
  html += gpu_html(v.gpu);
  if (!v.last_interrupt.empty()) html += "<p>Last interrupt: " + escaped(v.last_interrupt) + "</p>";
  for (const StragglerWatch::Standing& s : v.verdicts) {
    html += "<p class=bad>" + std::string(to_string(s.verdict.blame)) + " for " + seconds_text(v.now - s.since) + ": " +
            escaped(s.verdict.reason) + ". Next: " + escaped(s.verdict.next) + ".</p>";
  }
  for (const std::string& line : v.waits) html += "<p>" + escaped(line) + "</p>";
  if (v.members.empty()) return html;
  html += "<table><tr><th>rank<th>worker<th>host<th>state<th>last heard<th>rounds<th>bytes<th>lives<th>at work on</tr>";
  for (const TrackerMachine::MemberView& m : v.members) {
    if (m.worker_id.empty()) {
      html += "<tr>" + cell(std::to_string(m.rank.value)) + "<td><td><td>vacant</td></tr>\n";
      continue;
    }
    html += "<tr>" + cell(m.rank == kNoRank ? "" : std::to_string(m.rank.value)) + cell(m.worker_id) + cell(m.host_id) +
            state_html(state_of(v, m)) + cell(seconds_text(m.last_heard_ms_ago) + " ago") + cell(m.rounds_finished) +
            cell(m.bytes_moved) + cell(m.lives) + cell(waits_of(m)) + "</tr>\n";
  }
  return html + "</table>";
}

}  // namespace

std::string to_json(const Snapshot& snapshot) {
  ordered_json jobs = ordered_json::array();
  for (const JobStatus& job : snapshot.jobs) jobs.push_back(job_json(job));
  const ordered_json json = {{"version", snapshot.version},
                             {"uptime_ms", snapshot.uptime_ms},
                             {"port", snapshot.port},
                             {"authentication", !snapshot.insecure},
                             {"jobs", std::move(jobs)}};
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string to_html(const Snapshot& snapshot) {
  std::string html =
      "<!doctype html><html lang=en><head><meta charset=utf-8><meta http-equiv=refresh content=5>"
      "<meta name=viewport content='width=device-width'><title>Warren tracker</title><style>"
      "body{font:14px system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse}"
      "td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left}.n{text-align:right}"
      ".bad{color:#b00}</style></head><body><h1>Warren tracker</h1><p>Version " +
      escaped(snapshot.version) + ", up for " + seconds_text(snapshot.uptime_ms) + ", port " +
      std::to_string(snapshot.port) + ", " + std::to_string(snapshot.jobs.size()) +
      " jobs. The same as <a href='/status'>JSON</a>, and <a href='/metrics'>metrics</a>.</p>";
  if (snapshot.insecure) html += "<p class=bad>Authentication is off: anybody who reaches the port can join.</p>";
  for (const JobStatus& job : snapshot.jobs) html += job_html(job);
  return html + "</body></html>\n";
}

}  // namespace warren::tracker
