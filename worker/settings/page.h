// Settings as text for people: the tables of docs/settings.md, and the flags of `warren help`.
#pragma once

#include <string>
#include <string_view>

#include "worker/settings/table.h"

namespace warren::worker {

// A section's table in Markdown.
[[nodiscard]] std::string table_of(Section section);
// The settings that programs give by name alone, one after the other.
[[nodiscard]] std::string settings_without_option();
// Which settings `warren run` has flags for, as a table in Markdown.
[[nodiscard]] std::string table_of_flags();

// The help of a flag, without Markdown: "how long a silent peer is waited for, in milliseconds (default 10000)".
[[nodiscard]] std::string flag_help(const Setting& setting);
// Whether the setting is a switch, and how it comes out by default.
[[nodiscard]] bool is_switch(const Setting& setting);
[[nodiscard]] bool is_on_by_default(const Setting& setting);

// `page` with what stands between "<!-- table NAME -->" and "<!-- end -->" replaced: NAME is the title of a section,
// "without option" or "flags".
[[nodiscard]] std::string with_tables(std::string_view page);

}  // namespace warren::worker
