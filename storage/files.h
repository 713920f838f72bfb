// Files and directories that survive the loss of power, and names that are safe as theirs. Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/result.h"

namespace warren::storage {

// Makes `directory` and what is missing above it, of mode 0700 whatever the umask, and makes the names durable.
// kUnavailable: it cannot.
[[nodiscard]] Status make_directory(const std::string& directory);
// Takes a directory that is there, and the files that lie in it, from other users than their owner (0700, 0600), as far
// as they belong to this user. Returns what it has changed, for people. Empty: others could not enter the directory.
[[nodiscard]] std::string make_private(const std::string& directory);
// The names in it are durable when this returns success. kUnavailable: it cannot.
[[nodiscard]] Status sync_directory(const std::string& directory);
// Replaces the file as a whole, by a temporary one beside it. kExhausted: no space left. kUnavailable: it cannot for
// another reason; the temporary file is gone then. `writer` is part of its name: not empty where several processes
// write the same file.
[[nodiscard]] Status write_file(const std::string& path, std::string_view bytes, std::string_view writer = "");

// A whole file; nothing: it is not there. kUnavailable: it cannot be read. kCorrupt: longer than `most_bytes`.
[[nodiscard]] Result<std::optional<std::string>> read_file(const std::string& path, std::size_t most_bytes);
// What is in a directory, sorted; nothing if it is not there. kUnavailable: it cannot be read.
[[nodiscard]] Result<std::vector<std::string>> names_in(const std::string& directory);

// kRefused: `what` is of a format that this build does not know. People may remove `removable` instead of going on with
// it.
[[nodiscard]] Status of_another_version(const std::string& what, std::string_view format, std::string_view known,
                                        const std::string& removable);

// `name` as the name of one file: what is not of A-Za-z0-9._:@- becomes %XX, and so does a dot at the beginning; a name
// that is long then is cut and ends in % and a hash of all of it.
[[nodiscard]] std::string file_name(std::string_view name);

}  // namespace warren::storage
