#include "cli/setting_flags.h"

#include "worker/settings/page.h"
#include "worker/settings/table.h"
#include "worker/system/text.h"

namespace warren::cli {
namespace {

std::map<std::string, std::string, std::less<>>& given() {
  static std::map<std::string, std::string, std::less<>> settings;
  return settings;
}

}  // namespace

const std::map<std::string, std::string, std::less<>>& given_settings() {
  return given();
}

std::string given_setting(std::string_view name, std::string otherwise) {
  const auto at = given().find(name);
  return at != given().end() ? at->second : otherwise;
}

bool is_given_on(std::string_view name) {
  const auto on = worker::parse_switch(name, given_setting(name));
  return on.ok() && on.value();
}

Status give_setting(std::string_view name, std::string value) {
  const worker::Setting* setting = worker::find_setting(name);
  if (setting != nullptr && worker::is_switch(*setting) && !value.empty()) {
    const auto on = worker::parse_switch("--" + std::string(name), value);
    if (!on.ok()) return on.status();
    value = on.value() ? "1" : "0";
  }
  if (!value.empty()) {
    given().insert_or_assign(std::string(name), std::move(value));
  } else if (const auto at = given().find(name); at != given().end()) {
    given().erase(at);
  }
  return {};
}

std::vector<std::string_view> settings_of_run() {
  std::vector<std::string_view> out;
  for (const worker::Setting& setting : worker::settings_table()) {
    if (setting.flag) out.push_back(setting.name);
  }
  return out;
}

}  // namespace warren::cli
