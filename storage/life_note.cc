#include "storage/life_note.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "storage/files.h"
#include "storage/result_format.h"

namespace warren::storage {
namespace {

constexpr std::string_view kFamily = "warren-note-", kFormat = "warren-note-4";
constexpr std::size_t kHexLineBytes = 17;
constexpr std::size_t kMostNoteBytes = std::size_t{1} << 20;

std::uint64_t sum_of(std::string_view body) {
  const std::string text = std::string(kFormat) + "\n" + std::string(body);
  return checksum_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string hex_line(std::uint64_t value) {
  char line[kHexLineBytes + 1];
  std::snprintf(line, sizeof line, "%016llx\n", static_cast<unsigned long long>(value));
  return line;
}

}  // namespace

Status write_note(const std::string& path, const ResultStore::Note& note) {
  const std::string body = hex_line(note.run) + note.text;
  return write_file(path, std::string(kFormat) + "\n" + hex_line(sum_of(body)) + body);
}

Result<std::optional<ResultStore::Note>> read_note(const std::string& path) {
  auto file = read_file(path, kMostNoteBytes);
  if (!file.ok()) return file.status();
  if (!file.value()) return std::optional<ResultStore::Note>();
  const std::string& bytes = *file.value();
  const std::size_t sum_at = kFormat.size() + 1, body_at = sum_at + kHexLineBytes;
  const bool whole = bytes.size() >= body_at + kHexLineBytes &&
                     hex_line(sum_of(std::string_view(bytes).substr(body_at))) == bytes.substr(sum_at, kHexLineBytes);
  const std::string_view format = std::string_view(bytes).substr(0, bytes.find('\n'));
  if (!whole && format.starts_with(kFamily) && format != kFormat) {
    return of_another_version(path, format, kFormat, std::filesystem::path(path).parent_path());
  }
  const std::uint64_t run = whole ? std::strtoull(bytes.c_str() + body_at, nullptr, 16) : 0;
  if (run == 0) return Status(Code::kCorrupt, path + " is damaged: its checksum does not hold");
  return std::optional(ResultStore::Note{run, bytes.substr(body_at + kHexLineBytes)});
}

}  // namespace warren::storage
