#include "rabit/parameters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <map>
#include <string_view>

namespace rabit::layer {
namespace {

// What rabit knows as a missing value.
constexpr std::string_view kNothing = "NULL";
constexpr int kMaxWorldSize = 16384;
constexpr int kMaxReplicas = 16;

// Keys that are read; the others of rabit's have a note below.
constexpr std::array<std::string_view, 16> kRead = {
    "rabit_tracker_uri",     "rabit_tracker_port", "rabit_task_id",        "rabit_world_size",
    "rabit_num_trial",       "rabit_debug",        "rabit_global_replica", "rabit_local_replica",
    "rabit_bootstrap_cache", "report_stats",       "DMLC_TRACKER_URI",     "DMLC_TRACKER_PORT",
    "DMLC_TASK_ID",          "DMLC_ROLE",          "DMLC_NUM_ATTEMPT",     "DMLC_WORKER_STOP_PROCESS_ON_ERROR"};

struct Note {
  std::string_view key;
  const char* text;
};
constexpr std::array<Note, 8> kNotes = {{
    {"rabit_timeout", "a lost worker is waited for until it is started again; whoever starts it can set an end"},
    {"rabit_timeout_sec", "a lost worker is waited for until it is started again; whoever starts it can set an end"},
    {"rabit_reduce_ring_mincount", "the size decides; WARREN_ALGORITHM chooses another algorithm"},
    {"rabit_tree_reduce_minsize", "the size decides; WARREN_ALGORITHM chooses another algorithm"},
    {"rabit_reduce_buffer", "data moves in chunks of WARREN_CHUNK_BYTES"},
    {"rabit_enable_tcp_no_delay", "links never wait to fill a packet"},
    {"force_local", "global models are always in shards with copies"},
    {"DMLC_WORKER_CONNECT_RETRY", "joining is tried for WARREN_JOIN_TIMEOUT_MS"},
}};

// A key, with where it was given.
struct Given {
  std::string text;
  std::string what;  // for errors: "the argument rabit_world_size", "DMLC_TASK_ID"
  bool argument = false;
};
using Values = std::map<std::string, Given, std::less<>>;

bool is_known(std::string_view key) {
  return std::ranges::find(kRead, key) != kRead.end() ||
         std::ranges::any_of(kNotes, [&](const Note& note) { return note.key == key; });
}

std::optional<int> number_in(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Outcome read_number(const Given& given, int least, int most, int& into) {
  const auto number = number_in(given.text);
  if (!number || *number < least || *number > most) {
    return Outcome(given.what + " is '" + given.text + "': not a whole number from " + std::to_string(least) + " to " +
                   std::to_string(most));
  }
  into = *number;
  return {};
}

bool says_yes(std::string_view text) {
  return text == "true" || text == "True" || text == "TRUE" || number_in(text).value_or(0) != 0;
}

Outcome read_kill_point(const std::string& text, std::vector<KillPoint>& into) {
  std::array<int, 4> fields{};
  std::string_view rest = text;
  bool good = true;
  for (std::size_t i = 0; i < fields.size() && good; ++i) {
    const std::size_t end = i + 1 < fields.size() ? rest.find(',') : rest.size();
    good = end != std::string_view::npos;
    if (!good) break;
    const auto number = number_in(rest.substr(0, end));
    good = number && *number >= 0;
    if (good) fields[i] = *number;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (!good) return Outcome("the argument mock is '" + text + "': give rank,version,sequence,trial");
  into.push_back({fields[0], fields[1], fields[2], fields[3]});
  return {};
}

class Reader {
 public:
  Reader(Values values, const Environment& environment) : values_(std::move(values)), environment_(environment) {}

  // What was given for the key, if no variable of Warren's comes before it.
  [[nodiscard]] const Given* find(std::string_view key, const char* warrens = nullptr) const {
    const auto at = values_.find(key);
    if (at == values_.end() || at->second.text == kNothing) return nullptr;
    if (!at->second.argument && warrens != nullptr && variable(warrens)) return nullptr;
    return &at->second;
  }
  // What was given for the key as a variable of rabit's or dmlc-submit's.
  [[nodiscard]] const Given* find_variable(std::string_view key) const {
    const Given* given = find(key);
    return given != nullptr && !given->argument ? given : nullptr;
  }
  // rabit's key, else dmlc-submit's where it is an argument: its variables are read by Warren itself.
  [[nodiscard]] const Given* find_either(std::string_view key, std::string_view dmlc, const char* warrens) const {
    const Given* given = find(key, warrens);
    if (given != nullptr && given->argument) return given;
    const Given* other = find(dmlc);
    return other != nullptr && other->argument ? other : given;
  }
  [[nodiscard]] std::optional<std::string> variable(const std::string& name) const {
    auto text = environment_(name);
    return text && !text->empty() ? text : std::nullopt;
  }
  [[nodiscard]] bool names_nothing(std::string_view key) const {
    const auto at = values_.find(key);
    return at != values_.end() && at->second.argument && at->second.text == kNothing;
  }

 private:
  Values values_;
  const Environment& environment_;
};

// "host", "host:port", "v6", "[v6]", "[v6]:port".
struct Address {
  explicit Address(std::string_view text) : host(text) {
    const bool brackets = text.starts_with('[');
    const std::size_t end = brackets ? text.find("]:") : text.find(':');
    if (end == std::string_view::npos || (!brackets && text.find(':', end + 1) != std::string_view::npos)) return;
    host = text.substr(0, brackets ? end + 1 : end);
    port = text.substr(brackets ? end + 2 : end + 1);
  }
  std::string host, port;
};

// The port that goes with a host which is not Warren's own variable's; what an argument says comes first.
std::optional<Given> port_of_tracker(const Reader& reader, const std::optional<Address>& warrens, const Given& uri,
                                     const Address& host) {
  const Given* port = reader.find_either("rabit_tracker_port", "DMLC_TRACKER_PORT", nullptr);
  if (port != nullptr && port->argument) return *port;
  if (!host.port.empty()) return Given{host.port, "the port in " + uri.what, uri.argument};
  if (warrens) {
    if (warrens->port.empty()) return std::nullopt;
    return Given{warrens->port, "the port in WARREN_TRACKER", false};
  }
  if (port == nullptr) port = reader.find_variable("DMLC_TRACKER_PORT");
  return port != nullptr ? std::optional(*port) : std::nullopt;
}

// Leaves the tracker to Warren unless rabit's keys name one, or a part of one.
Outcome read_tracker(const Reader& reader, Parameters& out) {
  std::optional<Address> warrens;
  if (const auto text = reader.variable("WARREN_TRACKER")) warrens.emplace(*text);
  std::optional<Given> uri;
  if (const Given* given = reader.find_either("rabit_tracker_uri", "DMLC_TRACKER_URI", "WARREN_TRACKER")) uri = *given;
  const Given* port = reader.find_either("rabit_tracker_port", "DMLC_TRACKER_PORT", nullptr);
  if (!uri && port != nullptr && port->argument) {
    // A port alone changes that of the tracker that the environment names.
    if (warrens) {
      uri = Given{warrens->host, "WARREN_TRACKER", false};
    } else if (const Given* dmlc = reader.find_variable("DMLC_TRACKER_URI")) {
      uri = *dmlc;
    } else {
      out.notes.push_back(port->what + ": without a tracker's host it says nothing");
    }
  }
  if (!uri) return {};
  const Address address(uri->text);
  const auto with = port_of_tracker(reader, warrens, *uri, address);
  out.tracker = address.host;
  if (!with) return {};
  int number = 0;
  Outcome outcome = read_number(*with, 1, 65535, number);
  if (!outcome.ok()) return outcome;
  const bool v6 = address.host.find(':') != std::string::npos && !address.host.starts_with('[');
  out.tracker = (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(number);
  return {};
}

// The argument or variable that gives this process a place among others, if there is one. Not SLURM_PROCID: a batch
// script has it, too.
std::optional<Given> identity_of(const Reader& reader) {
  if (const Given* id = reader.find_either("rabit_task_id", "DMLC_TASK_ID", nullptr)) return *id;
  if (const Given* id = reader.find_variable("DMLC_TASK_ID")) return *id;
  const bool torchrun = reader.variable("MASTER_ADDR").has_value();
  for (const char* name : {"WARREN_WORKER_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX", "RANK"}) {
    const auto text = reader.variable(name);
    if (text && (std::string_view(name) != "RANK" || torchrun)) return Given{*text, name, false};
  }
  return std::nullopt;
}

// A process trains alone only if nothing says that it is part of something.
Outcome read_alone(const Reader& reader, Parameters& out) {
  out.alone = reader.names_nothing("rabit_tracker_uri");
  if (out.alone || !out.tracker.empty() || out.world_size > 1) return {};
  for (const char* name : {"WARREN_TRACKER", "WARREN_CONFIG", "DMLC_TRACKER_URI"}) {
    if (const auto text = reader.variable(name); text && *text != kNothing) return {};
  }
  bool has_size = out.world_size != 0;
  const bool torchrun = reader.variable("MASTER_ADDR").has_value();
  for (const char* name : {"WARREN_WORLD_SIZE", "WARREN_MAX_WORKERS", "DMLC_NUM_WORKER", "OMPI_COMM_WORLD_SIZE",
                           "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"}) {
    const auto text = reader.variable(name);
    if (!text || (std::string_view(name) == "WORLD_SIZE" && !torchrun)) continue;
    if (*text != "1") return {};
    has_size = true;
  }
  if (const auto id = identity_of(reader); id && !has_size) {
    return Outcome(id->what + " is '" + id->text +
                   "', and nothing says how many workers the job has: set WARREN_WORLD_SIZE and WARREN_TRACKER; or, if "
                   "this process is to work alone, WARREN_WORLD_SIZE=1 or the argument rabit_tracker_uri=NULL");
  }
  out.alone = true;
  return {};
}

Outcome read_trial(const Reader& reader, Parameters& out) {
  if (const Given* given = reader.find("rabit_num_trial")) return read_number(*given, 0, INT_MAX, out.trial);
  const Given* attempt = reader.find("DMLC_NUM_ATTEMPT");
  if (attempt != nullptr && attempt->argument) return read_number(*attempt, 0, INT_MAX, out.trial);
  if (const auto text = reader.variable("WARREN_ATTEMPT")) {
    return read_number({*text, "WARREN_ATTEMPT", false}, 0, INT_MAX, out.trial);
  }
  return attempt != nullptr ? read_number(*attempt, 0, INT_MAX, out.trial) : Outcome();
}

Outcome read_replicas(const Reader& reader, Parameters& out) {
  // rabit takes any number; 0 is its word for none, and Warren's for a job that survives nothing.
  const auto at_most = [&](const Given& given, int asked) {
    if (asked <= kMaxReplicas) return asked;
    out.notes.push_back(given.what + ": Warren keeps at most " + std::to_string(kMaxReplicas) + " copies");
    return kMaxReplicas;
  };
  if (const Given* given = reader.find("rabit_global_replica", "WARREN_REPLICAS")) {
    int copies = 0;
    Outcome outcome = read_number(*given, 0, INT_MAX, copies);
    if (!outcome.ok()) return outcome;
    if (copies == 0) out.notes.push_back(given->what + ": 0: the number of copies is WARREN_REPLICAS or its default");
    out.replicas = at_most(*given, copies);
  }
  if (const Given* given = reader.find("rabit_local_replica", "WARREN_REPLICAS")) {
    int others = 0;  // besides the rank's own
    Outcome outcome = read_number(*given, 0, INT_MAX - 1, others);
    if (!outcome.ok()) return outcome;
    out.replicas = std::max(out.replicas, at_most(*given, others + 1));
  }
  return {};
}

Outcome read_world_size(const Reader& reader, Parameters& out) {
  const Given* given = reader.find("rabit_world_size", "WARREN_WORLD_SIZE");
  if (given == nullptr) return {};
  // rabit's word for whatever the tracker says.
  if (given->text == "-1") {
    out.notes.push_back(given->what + ": -1: the number of ranks is WARREN_WORLD_SIZE or what a launcher says");
    return {};
  }
  return read_number(*given, 1, kMaxWorldSize, out.world_size);
}

Outcome take_argument(std::string_view argument, bool kill_points, Values& values, Parameters& out) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == argument.size()) return {};
  const std::string key(argument.substr(0, equals)), text(argument.substr(equals + 1));
  if (key == "mock") {
    if (kill_points) return read_kill_point(text, out.kill_points);
    out.notes.emplace_back("mock: kill points are served by the library rabit_mock_static, not by rabit");
    return {};
  }
  if (is_known(key)) {
    values[key] = {text, "the argument " + key, true};
  } else if (key.starts_with("rabit_")) {
    out.notes.push_back(key + ": there is no such parameter");
  }
  return {};
}

}  // namespace

Outcome read_parameters(std::span<const char* const> arguments, const Environment& environment, bool kill_points,
                        Parameters& out) {
  Values values;
  const auto take_variable = [&](std::string_view name) {
    const std::string key(name);
    if (auto text = environment(key); text && !text->empty()) values[key] = {*std::move(text), key, false};
  };
  for (const std::string_view key : kRead) take_variable(key);
  for (const Note& note : kNotes) take_variable(note.key);
  for (const char* argument : arguments) {
    if (argument == nullptr) continue;
    Outcome outcome = take_argument(argument, kill_points, values, out);
    if (!outcome.ok()) return outcome;
  }
  for (const Note& note : kNotes) {
    if (values.contains(note.key)) out.notes.push_back(std::string(note.key) + ": " + note.text);
  }

  const Reader reader(std::move(values), environment);
  if (const Given* role = reader.find("DMLC_ROLE"); role != nullptr && role->text != "worker") {
    out.not_a_worker = true;
    return {};
  }
  Outcome outcome = read_tracker(reader, out);
  if (!outcome.ok()) return outcome;
  if (const Given* id = reader.find_either("rabit_task_id", "DMLC_TASK_ID", "WARREN_WORKER_ID")) {
    out.worker_id = id->text;
  }
  outcome = read_world_size(reader, out);
  if (!outcome.ok()) return outcome;
  outcome = read_replicas(reader, out);
  if (!outcome.ok()) return outcome;
  outcome = read_trial(reader, out);
  if (!outcome.ok()) return outcome;
  if (const Given* given = reader.find("report_stats")) out.report_stats = says_yes(given->text);
  if (const Given* given = reader.find("DMLC_WORKER_STOP_PROCESS_ON_ERROR");
      given != nullptr && !says_yes(given->text)) {
    out.stop_process_on_error = false;
    out.notes.push_back(given->what + ": errors are thrown as std::runtime_error, and every later call fails");
  }
  if (const Given* given = reader.find("rabit_bootstrap_cache")) out.infer_setup_rounds = says_yes(given->text);
  if (const Given* given = reader.find("rabit_debug"); given != nullptr && says_yes(given->text)) {
    out.notes.emplace_back("rabit_debug: Warren says what it does at WARREN_LOG_LEVEL=info, which is the default");
  }
  return read_alone(reader, out);
}

}  // namespace rabit::layer
