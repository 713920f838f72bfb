#include "storage/life_note.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>

#include "storage/files.h"
#include "storage/result_format.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

// Then the run and the XXH3 of what follows, in 16 hex digits each and a line each, and what follows.
constexpr char kNoteFormat[] = "warren-note-1\n";
constexpr std::size_t kNoteHeadBytes = sizeof kNoteFormat - 1 + 2 * 17;
constexpr std::uintmax_t kMostNoteBytes = 1 << 20;

std::uint64_t sum_of(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

Status write_note(const std::string& directory, std::uint64_t run, std::string_view text) {
  char head[2 * 17 + 1];
  std::snprintf(head, sizeof head, "%016llx\n%016llx\n", static_cast<unsigned long long>(run),
                static_cast<unsigned long long>(sum_of(text)));
  return write_file(directory + "/" + kNoteName, kNoteFormat + std::string(head) + std::string(text));
}

NoteFile read_note(const std::string& directory) {
  const std::string path = directory + "/" + kNoteName;
  NoteFile note;
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return note;
  note.there = true;
  if (size < kNoteHeadBytes || size > kMostNoteBytes) return note;
  std::string bytes(size, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(bytes.data(), static_cast<std::streamsize>(size)) || !bytes.starts_with(kNoteFormat)) return note;
  const char* head = bytes.c_str() + sizeof kNoteFormat - 1;
  const std::string text = bytes.substr(kNoteHeadBytes);
  if (std::strtoull(head + 17, nullptr, 16) != sum_of(text)) return note;
  note.run = std::strtoull(head, nullptr, 16);
  note.text = text;
  return note;
}

}  // namespace warren::storage
