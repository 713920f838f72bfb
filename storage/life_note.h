// What a life leaves to those after it beside its results: ResultStore::Note, in the file LIFE-note of its place, or of
// a run in the mirror of checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "recovery/result.h"

namespace warren::storage {

inline constexpr char kNoteName[] = "LIFE-note";
// Replaces the one that is there as a whole. Errors as write_file().
[[nodiscard]] Status write_note(const std::string& directory, std::uint64_t run, std::string_view text);
struct NoteFile {
  bool there = false;     // a place without one is of whatever run is asked for
  std::uint64_t run = 0;  // 0: damaged
  std::string text;
};
[[nodiscard]] NoteFile read_note(const std::string& directory);

}  // namespace warren::storage
