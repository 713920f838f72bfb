#include "cli/command.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>

#include "cli/setting_flags.h"
#include "cli/table.h"
#include "worker/settings/page.h"
#include "worker/settings/table.h"
#include "worker/system/text.h"

namespace warren::cli {
namespace {

using worker::in_quotes;

// Text in lines of at most 100 columns, each after `indent` blanks but the first, which begins at `column`.
std::string wrapped(std::string_view text, std::size_t column, std::size_t indent) {
  constexpr std::size_t kWidth = 100;
  std::string out;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find(' '), text.size());
    if (column + length > kWidth && column > indent) {
      out.erase(out.find_last_not_of(' ') + 1);
      out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    out += text.substr(0, length);
    column += length;
    text.remove_prefix(length);
    if (!text.empty()) {
      text.remove_prefix(1);
      if (!text.empty() && column < kWidth) out += ' ', ++column;
    }
  }
  return out;
}

gflags::CommandLineFlagInfo info_of(std::string_view flag) {
  return gflags::GetCommandLineFlagInfoOrDie(std::string(flag).c_str());
}

std::string dashed(std::string_view flag) {
  return (flag.size() == 1 ? "-" : "--") + std::string(flag);
}

// "--restarts=N", and "--noprefix" for what is on unless said otherwise.
std::string flag_form(std::string_view flag, const gflags::CommandLineFlagInfo& info) {
  if (info.type == "bool") return info.default_value == "true" ? "--no" + std::string(flag) : dashed(flag);
  const char* value = info.type == "string" ? "TEXT" : "N";
  return dashed(flag) + (flag.size() == 1 ? " " : "=") + value;
}

// A line for people: a flag's form, and what it does.
std::string help_line(const std::string& form, std::string_view text) {
  constexpr std::size_t kColumn = 28;
  std::string left = "  " + form;
  left += left.size() + 1 < kColumn ? std::string(kColumn - left.size(), ' ') : "\n" + std::string(kColumn, ' ');
  return left + wrapped(text, kColumn, kColumn) + "\n";
}

std::string flag_line(std::string_view flag) {
  const gflags::CommandLineFlagInfo info = info_of(flag);
  std::string text = info.type == "bool" && info.default_value == "true" ? "do not " : "";
  text += info.description;
  const bool telling =
      info.type != "bool" && !info.default_value.empty() && info.default_value != "0" && info.default_value != "-1";
  if (telling) text += " (default " + info.default_value + ")";
  return help_line(flag_form(flag, info), text);
}

// "--resize", "--rewire=0", "--streams=N", "--log=TEXT".
std::string setting_line(const worker::Setting& setting) {
  const bool number = std::holds_alternative<worker::Number>(setting.value);
  const char* value = !worker::is_switch(setting)         ? (number ? "=N" : "=TEXT")
                      : worker::is_on_by_default(setting) ? "=0"
                                                          : "";
  return help_line(dashed(setting.name) + value, worker::flag_help(setting));
}

// Under the headings of docs/settings.md.
std::string setting_lines(const Command& command) {
  std::string out;
  std::string_view title;
  for (const worker::Setting& setting : worker::settings_table()) {
    if (std::ranges::find(command.settings, setting.name) == command.settings.end()) continue;
    if (title != title_of(setting.section)) {
      title = title_of(setting.section);
      out += "\n" + std::string(title) + ":\n";
    }
    out += setting_line(setting);
  }
  return out;
}

bool refuse(const Command& command, const std::string& message) {
  usage_error(command, message);
  return false;
}

bool is_gflag(const Command& command, std::string_view name) {
  return std::ranges::find(command.flags, name) != command.flags.end();
}
bool is_setting(const Command& command, std::string_view name) {
  return std::ranges::find(command.settings, name) != command.settings.end();
}
bool is_known(const Command& command, std::string_view name) {
  return is_gflag(command, name) || is_setting(command, name);
}
// --NAME and --noNAME.
bool is_switch(const Command& command, std::string_view name) {
  if (is_setting(command, name)) return worker::is_switch(*worker::find_setting(name));
  return is_gflag(command, name) && info_of(name).type == "bool";
}
// A switch that is on by default says nothing without a value.
bool stands_alone(const Command& command, std::string_view name) {
  return is_switch(command, name) &&
         !(is_setting(command, name) && worker::is_on_by_default(*worker::find_setting(name)));
}

bool set_value(const Command& command, std::string_view name, const std::string& value) {
  if (is_setting(command, name)) {
    const Status given = give_setting(name, value);
    return given.ok() || refuse(command, given.describe());
  }
  // gflags says itself what is wrong with the value.
  return !gflags::SetCommandLineOption(std::string(name).c_str(), value.c_str()).empty() ||
         refuse(command, dashed(name) + " cannot be " + in_quotes(value));
}

bool refuse_unknown(const Command& command, std::string_view name) {
  std::vector<std::string_view> all = command.flags;
  all.insert(all.end(), command.settings.begin(), command.settings.end());
  const auto meant = worker::nearest(name, all);
  return refuse(command, "there is no flag " + dashed(name) + (meant ? "; did you mean " + dashed(*meant) + "?" : ""));
}

// Sets one flag from "name", "name=value", or "name" with the value in the next argument, which is then taken too.
bool set_flag(const Command& command, std::string_view text, std::span<const std::string>& rest) {
  // As other programs have it: -n4.
  const bool short_number = text.size() > 1 && is_known(command, text.substr(0, 1)) &&
                            text.find_first_not_of("0123456789", 1) == std::string_view::npos;
  const std::string spelled_out =
      short_number ? std::string(text.substr(0, 1)) + "=" + std::string(text.substr(1)) : "";
  if (short_number) text = spelled_out;
  const std::size_t equals = text.find('=');
  std::string_view name = text.substr(0, equals);
  const bool negated = !is_known(command, name) && name.starts_with("no") && is_switch(command, name.substr(2));
  if (negated) name.remove_prefix(2);
  if (!is_known(command, name)) return refuse_unknown(command, name);
  std::string value;
  if (equals != std::string_view::npos) {
    if (negated) return refuse(command, "--no" + std::string(name) + " takes no value");
    value = text.substr(equals + 1);
  } else if (negated || stands_alone(command, name)) {
    value = negated ? "0" : "1";
  } else if (!rest.empty()) {
    value = rest.front();
    rest = rest.subspan(1);
  } else {
    return refuse(command, dashed(name) + " needs a value");
  }
  return set_value(command, name, value);
}

}  // namespace

const Command* find_command(std::string_view name) {
  const auto all = commands();
  const auto at = std::ranges::find_if(all, [&](const Command* c) { return c->name == name; });
  return at == all.end() ? nullptr : *at;
}

Parsed parse_arguments(const Command& command, std::span<const std::string> arguments) {
  Parsed out;
  while (!arguments.empty()) {
    std::string_view word = arguments.front();
    if (word == "--" && command.takes_words) {
      arguments = arguments.subspan(1);
      break;
    }
    if (!word.starts_with('-') || word == "-") {
      if (command.takes_words) break;
      refuse(command, "it takes no word " + in_quotes(word));
      return out;
    }
    arguments = arguments.subspan(1);
    if (word == "--help" || word == "-h" || word == "-help") {
      out.ok = out.help = true;
      return out;
    }
    word.remove_prefix(word.starts_with("--") ? 2 : 1);
    if (!set_flag(command, word, arguments)) return out;
  }
  out.words.assign(arguments.begin(), arguments.end());
  out.ok = true;
  return out;
}

std::string help_page(const Command& command) {
  std::string out = "warren " + std::string(command.name) + ": " + std::string(command.summary) + "\n\nusage: warren " +
                    std::string(command.name) + " " + std::string(command.usage) + "\n\n";
  std::string_view text = command.text;
  while (!text.empty()) {  // paragraphs end at a newline
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += wrapped(text.substr(0, end), 0, 0) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (!command.flags.empty()) out += "\nFlags:\n";
  for (const std::string_view flag : command.flags) out += flag_line(flag);
  return out + setting_lines(command);
}

std::string overview() {
  std::string out = "warren: fault-tolerant allreduce\n\nusage: warren COMMAND [flags]\n\nCommands:\n";
  for (const Command* c : commands()) {
    std::string line = "  " + std::string(c->name);
    line += std::string(line.size() < 14 ? 14 - line.size() : 1, ' ');
    out += line + std::string(c->summary) + "\n";
  }
  return out +
         "\n`warren help COMMAND` tells more of one; `warren --version` tells the version.\n"
         "A worker takes each setting from the first of these that has it: the program's options (a command's flags), "
         "WARREN_* variables,\nthe file named by WARREN_CONFIG, what a launcher set (dmlc-submit, torchrun, Open MPI, "
         "MPICH, Kubernetes, Slurm), the default.\n";
}

int usage_error(const Command& command, std::string_view message) {
  std::fprintf(stderr, "warren %s: %s\nsee `warren help %s`\n", std::string(command.name).c_str(),
               std::string(message).c_str(), std::string(command.name).c_str());
  return kExitUsage;
}

int failure(std::string_view message) {
  std::fprintf(stderr, "warren: %s\n", std::string(message).c_str());
  return kExitFailed;
}

}  // namespace warren::cli
