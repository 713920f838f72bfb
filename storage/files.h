// Files and directories that survive the loss of power, and names that are safe as theirs. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "recovery/result.h"

namespace warren::storage {

// Makes `directory` and what is missing above it, and makes the names durable. kUnavailable: it cannot.
[[nodiscard]] Status make_directory(const std::string& directory);
// The names in it are durable when this returns success. kUnavailable: it cannot.
[[nodiscard]] Status sync_directory(const std::string& directory);
// Replaces the file as a whole, by a temporary one beside it. kExhausted: no space left. kUnavailable: it cannot for
// another reason; the temporary file is gone then. `writer` is part of its name: not empty where several processes
// write the same file.
[[nodiscard]] Status write_file(const std::string& path, std::string_view bytes, std::string_view writer = "");

// `name` as the name of one file: what is not of A-Za-z0-9._:@- becomes %XX, and so does a dot at the beginning; a name
// that is long then is cut and ends in % and a hash of all of it.
[[nodiscard]] std::string file_name(std::string_view name);

}  // namespace warren::storage
