#include "worker/settings/layers.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <type_traits>
#include <variant>

#include "worker/settings/table.h"
#include "worker/system/netinfo.h"
#include "worker/system/text.h"

namespace warren::worker {
namespace {

// The setting as the member of warren_options gives it; nothing: it is not given.
std::optional<std::string> text_of(const Option& option, const warren_options& options) {
  return std::visit(
      [&](auto member) -> std::optional<std::string> {
        if constexpr (std::is_same_v<decltype(member), std::monostate>) {
          return std::nullopt;
        } else if constexpr (std::is_same_v<decltype(member), const char * warren_options::*>) {
          const char* text = options.*member;
          return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
        } else {
          const std::int64_t value = options.*member;
          if (value < 0 || (value == 0 && option.given != Option::Given::kFrom0)) return std::nullopt;
          if (option.given == Option::Given::kOn) return "1";
          if (option.given == Option::Given::kOff) return "0";
          return std::to_string(value);
        }
      },
      option.member);
}

Result<Layer> read_file(const std::string& path) {
  constexpr std::size_t kMaxFileBytes = std::size_t{64} << 10;
  Layer out;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  if (!file || !file.read(text.data(), static_cast<std::streamsize>(text.size())).eof()) {
    return Status(Code::kUnavailable, "WARREN_CONFIG names " + in_quotes(path) +
                                          (file ? ", which is longer than 64 KiB" : ", which cannot be read") +
                                          "; correct it or unset WARREN_CONFIG");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  // Editors put a byte order mark in front, which says nothing in UTF-8.
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    return Status(Code::kInvalidArgument,
                  path + " is written in UTF-16, as its byte order mark says: save it as UTF-8 or ASCII");
  }
  std::istringstream lines(text);
  std::string line;
  for (std::size_t n = 1; std::getline(lines, line); ++n) {
    const std::string_view content = trim(std::string_view(line).substr(0, line.find('#')));
    if (content.empty()) continue;
    const std::string where = path + ":" + std::to_string(n);
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos) {
      return Status(Code::kInvalidArgument, where + ": " + in_quotes(content) + " is not of the form name = value");
    }
    const std::string_view name = trim(content.substr(0, equals));
    const std::string_view value = trim(content.substr(equals + 1));
    if (const Status known = check_setting_name(name); !known.ok()) {
      return Status(Code::kInvalidArgument, where + ": " + known.describe());
    }
    if (value.empty()) {
      return Status(Code::kInvalidArgument,
                    where + ": " + std::string(name) + " has no value; remove the line to use the default");
    }
    const auto [at, fresh] = out.emplace(name, Raw{std::string(value), where, std::string(name) + " (" + where + ")"});
    if (!fresh) {
      return Status(Code::kInvalidArgument,
                    where + ": " + std::string(name) + " was given before, at " + at->second.source);
    }
  }
  return out;
}

}  // namespace

Result<Layer> from_options(const warren_options* options) {
  Layer out;
  if (options == nullptr) return out;
  if (options->struct_size != sizeof(warren_options)) {
    return Status(Code::kInvalidArgument,
                  "warren_options.struct_size is " + std::to_string(options->struct_size) + ", this library's is " +
                      std::to_string(sizeof(warren_options)) +
                      "; call warren_options_init first, and compile with the header of the library's version");
  }
  const auto put = [&](std::string_view name, std::string text, std::string_view member) {
    out.insert_or_assign(std::string(name),
                         Raw{std::move(text), std::string(kOptionsSource), "the option " + std::string(member)});
  };
  for (const Setting& setting : settings_table()) {
    auto text = text_of(setting.option, *options);
    if (text) put(setting.name, *std::move(text), setting.option.name.empty() ? setting.name : setting.option.name);
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(options->settings_count, WARREN_MOST_SETTINGS); ++i) {
    const warren_setting& setting = options->settings[i];
    if (const Status known = check_setting_name(setting.name); !known.ok()) return known;
    put(setting.name, setting.value, setting.name);
  }
  return out;
}

Layer from_variables(const Environment& env) {
  Layer out;
  for (const Setting& setting : settings_table()) {
    const std::string variable = variable_of(setting.name);
    auto text = env(variable);
    if (text && !text->empty()) out.emplace(setting.name, Raw{*std::move(text), variable, variable});
  }
  return out;
}

Result<Layer> from_file(const Environment& env) {
  const auto path = env("WARREN_CONFIG");
  return path && !path->empty() ? read_file(*path) : Layer();
}

Result<Layer> from_launcher(const Environment& env) {
  auto launcher = read_launcher(env);
  if (!launcher.ok()) return launcher.status();
  Layer out;
  const auto put = [&](const char* name, const std::optional<FromLauncher::Value>& value) {
    if (value) out[name] = {value->text, value->variable, value->variable};
  };
  put("tracker", launcher.value().tracker);
  put("job", launcher.value().job);
  put("worker_id", launcher.value().worker_id);
  put("world_size", launcher.value().world_size);
  put("attempt", launcher.value().attempt);
  if (const auto& port = launcher.value().tracker_port; port && out.contains("tracker")) {
    Raw& tracker = out["tracker"];
    auto number = parse_number(port->variable, port->text, 1, 65535);
    if (!number.ok()) return number.status();
    if (!is_numeric_address(tracker.text) || tracker.text.find(':') == std::string::npos) {
      tracker.text += ":" + port->text;
    } else {
      tracker.text = "[" + tracker.text + "]:" + port->text;
    }
  }
  return out;
}

}  // namespace warren::worker
