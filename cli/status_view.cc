#include "cli/status_view.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "worker/system/text.h"

namespace warren::cli {
namespace {

using nlohmann::json;

std::string seconds(std::int64_t ms) {
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 10'240 && unit + 1 < kUnits.size()) bytes >>= 10, ++unit;
  return std::to_string(bytes) + " " + kUnits[unit];
}

std::string plural(std::uint64_t n, const char* one) {
  return std::to_string(n) + " " + one + (n == 1 ? "" : "s");
}

// What the tracker got from workers may hold anything: a terminal is shown no control characters.
std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

// "2, 5 to 7": the numbers are shown in their order, runs as one.
std::string ranks_text(std::vector<std::int64_t> ranks) {
  std::ranges::sort(ranks);
  std::string out;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    out += (out.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) out += (end - i > 2 ? " to " : ", ") + std::to_string(ranks[end - 1]);
    i = end;
  }
  return out;
}

std::string work_of(const json& member) {
  std::string out;
  for (const json& round : member.at("rounds")) {
    if (!out.empty()) out += "; ";
    out += printable(round.at("round").get<std::string>() + " " + round.at("call").get<std::string>());
    const auto waiting_for = round.at("waiting_for").get<std::vector<std::int64_t>>();
    if (waiting_for.empty()) continue;
    out += ", waits " + seconds(round.at("waited_ms").get<std::int64_t>()) + " for rank" +
           (waiting_for.size() > 1 ? "s " : " ") + ranks_text(waiting_for);
  }
  return out;
}

using Row = std::vector<std::string>;

std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> width;
  for (const Row& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) line += " " + row[i] + std::string(width[i] - row[i].size() + 1, ' ');
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string why_text(const json& job) {
  std::string out;
  const json& limits = job.at("limits");
  for (const json& line : job.at("waits")) out += "  " + printable(line.get<std::string>()) + "\n";
  for (const json& m : job.at("members")) {
    const json& draining = m.at("draining");
    if (draining.is_null() || m.at("rank").is_null()) continue;
    out += "  rank " + std::to_string(m.at("rank").get<std::int64_t>()) +
           (m.at("alive").get<bool>() ? " drains (" : " has left, or is lost, after it was told to leave (") +
           printable(draining.at("reason").get<std::string>()) + ")" +
           (m.at("alive").get<bool>() ? ": it leaves when no call is under way, in " +
                                            seconds(draining.at("left_ms").get<std::int64_t>()) + " at the latest; "
                                      : "; ") +
           (draining.at("replaced").get<bool>()   ? "a spare takes its place"
            : draining.at("excluded").get<bool>() ? "the job goes on without it"
                                                  : "its place is kept") +
           "\n";
  }
  for (const json& v : job.at("verdicts")) {
    out += "  " + printable(v.at("kind").get<std::string>()) + " for " + seconds(v.at("stood_ms").get<std::int64_t>()) +
           ": " + printable(v.at("reason").get<std::string>()) +
           "\n    next: " + printable(v.at("next").get<std::string>()) + "\n";
  }
  // Else no round is under way.
  const bool runs = job.at("state").get<std::string>() == "running";
  if (runs && job.at("waits").empty()) out += "  nobody waits for anybody\n";
  if (runs && job.at("verdicts").empty()) {
    out += "  nobody is to blame by what was told of the last " + seconds(limits.at("window_ms").get<std::int64_t>()) +
           "\n";
  }
  return out + "  who is silent is suspect after " + seconds(limits.at("suspect_ms").get<std::int64_t>()) +
         " or more, and lost after " + seconds(limits.at("round_timeout_ms").get<std::int64_t>()) + "\n";
}

// Ranks that are not alive, and workers that are there beside the ranks.
std::string others_text(const json& job) {
  std::string out;
  for (const char* state : {"silent", "lost", "left", "absent", "vacant", "waiting"}) {
    const auto count = job.at("members_by_state").at(state).get<std::uint64_t>();
    if (count != 0) out += (out.empty() ? " (" : ", ") + std::to_string(count) + " " + state;
  }
  return out.empty() ? out : out + ")";
}

// How long ago the job last got further, and what it takes.
std::string progress_text(const json& job) {
  if (job.at("state").get<std::string>() == "finished") return "";
  std::string out = "  newest round " + seconds(job.at("last_round_ms_ago").get<std::int64_t>()) + " ago";
  if (!job.at("committed_version").is_null()) {
    out += ", newest commit " + seconds(job.at("last_commit_ms_ago").get<std::int64_t>()) + " ago";
  }
  out += ", " + plural(job.at("restarts").get<std::uint64_t>(), "restart");
  double fullest = -1;
  for (const json& m : job.at("members")) {
    const json& log = m.at("log");
    if (log.is_null() || log.at("budget_bytes").get<double>() == 0) continue;
    fullest = std::max(fullest, log.at("held_bytes").get<double>() / log.at("budget_bytes").get<double>());
  }
  if (fullest >= 0) out += ", the fullest log at " + std::to_string(static_cast<int>(100 * fullest)) + " %";
  return out + "\n";
}

// Of a job that does nothing of the kind there is nothing to see.
std::string gpu_text(const json& job) {
  const auto lent = job.at("inputs_lent").get<std::uint64_t>(),
             finals = job.at("finals_from_gpus").get<std::uint64_t>(),
             exchanged = job.at("rounds_exchanged").get<std::uint64_t>();
  if (lent == 0 && finals == 0 && exchanged == 0) return "";
  return "  on GPUs, over all ranks: " + plural(lent, "input") + " lent, " + plural(finals, "piece") +
         " of results from other ranks' GPUs, " + plural(exchanged, "round") + " moved by NCCL\n";
}

std::string state_text(const json& member) {
  const auto state = member.at("state").get<std::string>();
  if (state != "silent") return state;
  return "silent for " + seconds(member.at("last_heard_ms_ago").get<std::int64_t>());
}

std::string job_text(const json& job, bool why) {
  std::string out = "job " + printable(job.at("job").get<std::string>()) + ": " + job.at("state").get<std::string>() +
                    ", generation " + std::to_string(job.at("generation").get<std::uint64_t>()) + ", " +
                    std::to_string(job.at("alive").get<std::uint64_t>()) + " of " +
                    plural(job.at("world_size").get<std::uint64_t>(), "worker") + " alive" + others_text(job) + ", " +
                    plural(job.at("interrupts").get<std::uint64_t>(), "interrupt");
  const json& committed = job.at("committed_version");
  out += committed.is_null() ? "\n" : ", version " + std::to_string(committed.get<std::uint64_t>()) + " committed\n";
  out += progress_text(job);
  std::string spares;
  for (const json& s : job.at("spares")) {
    spares += (spares.empty() ? "" : ", ") + printable(s.at("worker").get<std::string>()) + " on host " +
              printable(s.at("host").get<std::string>());
    const json version = s.value("follows_version", json());
    if (!version.is_null()) spares += " with checkpoint " + std::to_string(version.get<std::uint64_t>());
    const json& rank = s.at("called_for");
    if (!rank.is_null()) spares += " (called for rank " + std::to_string(rank.get<std::int64_t>()) + ")";
  }
  if (!spares.empty()) out += "  " + plural(job.at("spares").size(), "spare") + ": " + spares + "\n";
  out += gpu_text(job);
  for (const auto& [field, label] : {std::pair{"unprotected", "  not protected: "},
                                     {"trouble", "  trouble: "},
                                     {"last_interrupt", "  last interrupt: "}}) {
    const auto text = job.at(field).get<std::string>();
    if (!text.empty()) out += label + printable(text) + "\n";
  }
  if (why) return out + why_text(job);
  std::vector<Row> rows = {{"rank", "worker", "state", "heard", "rounds", "moved", "lives", "at work on"}};
  for (const json& m : job.at("members")) {
    const json& rank = m.at("rank");
    const auto worker = m.at("worker").get<std::string>();
    if (worker.empty()) {
      // A place that nobody has had.
      rows.push_back({std::to_string(rank.get<std::int64_t>()), "-", "vacant"});
      continue;
    }
    rows.push_back({rank.is_null() ? "-" : std::to_string(rank.get<std::int64_t>()), printable(worker), state_text(m),
                    seconds(m.at("last_heard_ms_ago").get<std::int64_t>()) + " ago",
                    std::to_string(m.at("rounds_finished").get<std::uint64_t>()),
                    bytes_text(m.at("bytes_moved").get<std::uint64_t>()),
                    std::to_string(m.at("lives").get<std::uint64_t>()), work_of(m)});
  }
  return rows.size() > 1 ? out + aligned(rows) : out;
}

Status no_such_job(std::string_view job, const std::string& names) {
  return {Code::kInvalidArgument,
          "the tracker has no job " + worker::in_quotes(job) + (names.empty() ? " and no other" : "; it has " + names)};
}

Status no_tracker(const json::exception& e) {
  return {Code::kCorrupt, std::string("what answered is not a tracker of this version: ") + e.what()};
}

}  // namespace

Result<std::string> status_of_job(std::string_view text, std::string_view job) {
  try {
    json page = json::parse(text);
    std::string names;
    for (const json& j : page.at("jobs")) {
      const auto name = j.at("job").get<std::string>();
      names += (names.empty() ? "" : ", ") + printable(name);
      if (name != job) continue;
      page["jobs"] = json::array({j});
      return page.dump();
    }
    return no_such_job(job, names);
  } catch (const json::exception& e) {
    return no_tracker(e);
  }
}

Result<std::string> status_table(std::string_view text, std::string_view job, bool why) {
  try {
    const json page = json::parse(text);
    std::string out = "tracker " + page.at("version").get<std::string>() + ", up " +
                      seconds(page.at("uptime_ms").get<std::int64_t>()) + ", port " +
                      std::to_string(page.at("port").get<std::uint64_t>()) +
                      (page.at("authentication").get<bool>() ? "" : ", without authentication") + "\n";
    std::string names;
    bool found = false;
    for (const json& j : page.at("jobs")) {
      const auto name = j.at("job").get<std::string>();
      names += (names.empty() ? "" : ", ") + printable(name);
      if (!job.empty() && job != name) continue;
      found = true;
      out += "\n" + job_text(j, why);
    }
    if (!job.empty() && !found) return no_such_job(job, names);
    if (names.empty()) out += "no jobs\n";
    return out;
  } catch (const json::exception& e) {
    return no_tracker(e);
  }
}

}  // namespace warren::cli
