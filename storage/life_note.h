// What a life leaves to those after it beside its results: ResultStore::Note, in a file of its place, or of a run in
// the mirror of checkpoints.
//
// The file: "warren-note-4", the XXH3 of all the rest in 16 hex digits, the run likewise, a line each; then the text. A
// damaged first line is told from another version's by the checksum, which counts that line as it was written.
#pragma once

#include <optional>
#include <string>

#include "recovery/base/result.h"
#include "storage/result_store.h"

namespace warren::storage {

inline constexpr char kNoteName[] = "LIFE-note";  // in a life's place; one without it is of whatever run is asked for

// Replaces the file as a whole. Errors as write_file().
[[nodiscard]] Status write_note(const std::string& path, const ResultStore::Note& note);
// Nothing: it is not there. kRefused: another version of Warren has written it. kCorrupt: damaged. kUnavailable: it
// cannot be read.
[[nodiscard]] Result<std::optional<ResultStore::Note>> read_note(const std::string& path);

}  // namespace warren::storage
