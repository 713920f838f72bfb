#include "worker/settings/launcher_variables.h"

#include <algorithm>

#include "recovery/base/limits.h"
#include "worker/system/text.h"

namespace warren::worker {
namespace {

using Value = FromLauncher::Value;

std::optional<Value> read(const Environment& env, const char* variable) {
  auto text = env(variable);
  if (!text || text->empty()) return std::nullopt;
  return Value{*std::move(text), variable};
}

void take(std::optional<Value>& into, std::optional<Value> from) {
  if (!into) into = std::move(from);
}

void take_identity(FromLauncher& out, std::optional<Value> id, std::optional<Value> size) {
  if (out.worker_id || !id) return;
  out.worker_id = std::move(id);
  out.world_size = std::move(size);
}

Status read_dmlc(const Environment& env, FromLauncher& out) {
  const auto role = read(env, "DMLC_ROLE");
  if (role && role->text != "worker" && read(env, "DMLC_TRACKER_URI")) {
    return {Code::kInvalidArgument, "DMLC_ROLE is " + in_quotes(role->text) +
                                        ": only a process with the role 'worker' can join; start the program with "
                                        "dmlc-submit --num-servers=0"};
  }
  take_identity(out, read(env, "DMLC_TASK_ID"), read(env, "DMLC_NUM_WORKER"));
  if (auto host = read(env, "DMLC_TRACKER_URI"); host && !out.tracker) {
    out.tracker = std::move(host);
    out.tracker_port = read(env, "DMLC_TRACKER_PORT");
  }
  take(out.attempt, read(env, "DMLC_NUM_ATTEMPT"));
  return {};
}

void read_torchrun(const Environment& env, FromLauncher& out) {
  // RANK and WORLD_SIZE are words that anybody may use; MASTER_ADDR with them is PyTorch's.
  const auto master = read(env, "MASTER_ADDR");
  if (!master) return;
  take_identity(out, read(env, "RANK"), read(env, "WORLD_SIZE"));
  take(out.tracker, master);  // MASTER_PORT is the port of PyTorch's own store
  if (auto run = read(env, "TORCHELASTIC_RUN_ID"); run && run->text != "none") take(out.job, run);
  take(out.attempt, read(env, "TORCHELASTIC_RESTART_COUNT"));
}

void read_open_mpi(const Environment& env, FromLauncher& out) {
  take_identity(out, read(env, "OMPI_COMM_WORLD_RANK"), read(env, "OMPI_COMM_WORLD_SIZE"));
}

void read_pmi(const Environment& env, FromLauncher& out) {
  take_identity(out, read(env, "PMI_RANK"), read(env, "PMI_SIZE"));
}

void read_kubernetes(const Environment& env, FromLauncher& out) {
  take_identity(out, read(env, "JOB_COMPLETION_INDEX"), std::nullopt);
}

Status read_slurm(const Environment& env, FromLauncher& out) {
  auto size = read(env, "SLURM_STEP_NUM_TASKS");
  if (!size) size = read(env, "SLURM_NTASKS");
  take_identity(out, read(env, "SLURM_PROCID"), std::move(size));
  if (const auto nodes = read(env, "SLURM_JOB_NODELIST"); nodes && !out.tracker) {
    auto names = expand_node_list(nodes->text);
    if (!names.ok()) {
      return names.status().because_of_this(
          "SLURM_JOB_NODELIST does not tell the first node; name the tracker with WARREN_TRACKER");
    }
    out.tracker = Value{names.value().front(), nodes->variable};
  }
  if (const auto id = read(env, "SLURM_JOB_ID"); id && !out.job) {
    // Steps of one allocation can run side by side; tasks of an array have the array's number in common.
    const auto array = read(env, "SLURM_ARRAY_JOB_ID");
    const auto task = read(env, "SLURM_ARRAY_TASK_ID");
    std::string name = "slurm-" + (array && task ? array->text + "_" + task->text : id->text);
    if (const auto step = read(env, "SLURM_STEP_ID")) name += "." + step->text;
    out.job = Value{std::move(name), array && task ? array->variable : id->variable};
  }
  take(out.attempt, read(env, "SLURM_RESTART_COUNT"));
  return {};
}

Status bad_list(std::string_view list, const std::string& why) {
  return {Code::kInvalidArgument, "the node list " + in_quotes(list) + " cannot be read: " + why};
}

// Appends prefix + each number of "01-03,7" to names.
Status expand_range(std::string_view list, std::string_view prefix, std::string_view ranges,
                    std::vector<std::string>& names) {
  while (true) {
    const std::size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma);
    const std::size_t dash = range.find('-');
    const std::string_view low_text = range.substr(0, dash);
    const std::string_view high_text = dash == std::string_view::npos ? low_text : range.substr(dash + 1);
    constexpr std::uint64_t kMaxNumber = 999'999'999;
    const auto low = parse_number("a node's number", low_text, 0, kMaxNumber);
    const auto high = parse_number("a node's number", high_text, 0, kMaxNumber);
    if (!low.ok() || !high.ok()) return bad_list(list, "what stands in brackets is not 'number' or 'number-number'");
    if (high.value() < low.value()) return bad_list(list, "a range runs backwards");
    if (names.size() + (high.value() - low.value()) >= limits::kMaxWorldSize) {
      return bad_list(list, "more than " + std::to_string(limits::kMaxWorldSize) + " nodes");
    }
    for (std::uint64_t n = low.value(); n <= high.value(); ++n) {
      std::string digits = std::to_string(n);
      if (digits.size() < low_text.size()) digits.insert(0, low_text.size() - digits.size(), '0');
      names.push_back(std::string(prefix) + digits);
    }
    if (comma == std::string_view::npos) return {};
    ranges.remove_prefix(comma + 1);
  }
}

// Appends the nodes of one item: "login" or "gpu[01-03,7]", also with text after the bracket or several of them.
Status expand_item(std::string_view list, std::string_view item, std::vector<std::string>& names) {
  std::vector<std::string> done = {""};
  while (!item.empty()) {
    const std::size_t open = item.find('[');
    const std::string_view literal = item.substr(0, open);
    if (literal.find(']') != std::string_view::npos) return bad_list(list, "a bracket is closed but not opened");
    for (std::string& name : done) name += literal;
    if (open == std::string_view::npos) break;
    const std::size_t close = item.find(']', open);
    if (close == std::string_view::npos) return bad_list(list, "a bracket is not closed");
    std::vector<std::string> longer;
    for (const std::string& name : done) {
      if (Status s = expand_range(list, name, item.substr(open + 1, close - open - 1), longer); !s.ok()) return s;
    }
    done = std::move(longer);
    item.remove_prefix(close + 1);
  }
  if (names.size() + done.size() > limits::kMaxWorldSize) {
    return bad_list(list, "more than " + std::to_string(limits::kMaxWorldSize) + " nodes");
  }
  names.insert(names.end(), std::make_move_iterator(done.begin()), std::make_move_iterator(done.end()));
  return {};
}

}  // namespace

Result<FromLauncher> read_launcher(const Environment& env) {
  FromLauncher out;
  if (Status s = read_dmlc(env, out); !s.ok()) return s;
  read_torchrun(env, out);
  read_open_mpi(env, out);
  read_pmi(env, out);
  read_kubernetes(env, out);
  if (Status s = read_slurm(env, out); !s.ok()) return s;
  return out;
}

Result<std::uint64_t> read_local_world_size(const Environment& env) {
  std::optional<Value> size = read(env, "WARREN_LOCAL_WORLD_SIZE");
  if (read(env, "MASTER_ADDR")) take(size, read(env, "LOCAL_WORLD_SIZE"));
  take(size, read(env, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  take(size, read(env, "MPI_LOCALNRANKS"));
  if (!size) return std::uint64_t{1};
  return parse_number(size->variable, size->text, 1, limits::kMaxWorldSize);
}

Result<std::vector<std::string>> expand_node_list(std::string_view list) {
  constexpr std::size_t kMaxListBytes = std::size_t{1} << 20;
  if (list.size() > kMaxListBytes) return bad_list(list, "longer than 1 MiB");
  std::vector<std::string> names;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && (list[i] != ',' || inside)) {
      if (list[i] == '[') inside = true;
      if (list[i] == ']') inside = false;
      continue;
    }
    const std::string_view item = list.substr(begin, i - begin);
    if (item.empty()) return bad_list(list, "a name is missing");
    if (Status s = expand_item(list, item, names); !s.ok()) return s;
    begin = i + 1;
  }
  return names;
}

}  // namespace warren::worker
