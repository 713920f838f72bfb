#include "worker/api/call_sites.h"

#include <dlfcn.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "warren/c_api.h"

namespace warren::api {
namespace {

// FNV-1a.
std::uint64_t hash_of(const char* text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char* c = text; *c != 0; c++) hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100000001b3u;
  return hash;
}
const char* last_part(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

// A call site holds 23 bits of the hash of a module's name or a source file's, and 40 bits: the offset in the module;
// or 16 of the hash of a function's name, and the line.
constexpr std::uint64_t kFileBits = 0x7fffff, kOffsetBits = (std::uint64_t{1} << 40) - 1, kLineBits = 0xffffff;
std::uint64_t site_in(std::uint64_t file_hash, std::uint64_t offset) {
  return ((file_hash & kFileBits) << 40) | (offset & kOffsetBits);
}

}  // namespace

void SiteNames::add(std::uint64_t hash, const char* name, bool source) {
  const std::lock_guard lock(mutex_);
  names_.try_emplace(hash & kFileBits, name, source);
}

std::string SiteNames::explain(std::string text) {
  const std::lock_guard lock(mutex_);
  std::string hint;
  for (const auto& [hash, file] : names_) {
    char digits[16];
    (void)std::snprintf(digits, sizeof digits, "at %llx+0x", static_cast<unsigned long long>(hash));
    for (std::size_t at = text.find(digits); at != std::string::npos; at = text.find(digits, at)) {
      std::string readable = "at " + file.name + "+0x";
      std::size_t length = std::strlen(digits);
      if (file.source) {
        std::uint64_t offset = 0;
        const char* const end = text.data() + text.size();
        length = static_cast<std::size_t>(std::from_chars(text.data() + at + length, end, offset, 16).ptr -
                                          (text.data() + at));
        readable = "at " + file.name + ":" + std::to_string(offset & kLineBits);
      } else {
        hint = "; `addr2line -i -e " + file.name + " 0xOFFSET` shows the line, if it was built with -g";
      }
      text.replace(at, length, readable);
      at += readable.size();
    }
  }
  return text + hint;
}

SiteNames& site_names() {
  static SiteNames& names = *new SiteNames;
  return names;
}

std::uint64_t find_site(const void* address, CachedSites& set) noexcept {
  Dl_info info{};
  std::uint64_t site = 0;
  if (dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    const char* name = last_part(info.dli_fname);
    const std::uint64_t hash = hash_of(name);
    try {
      site_names().add(hash, name, false);
    } catch (const std::bad_alloc&) {
      return 0;  // unknown; agrees with all
    }
    site = site_in(
        hash, static_cast<std::uint64_t>(static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase)));
  }
  set.second = std::exchange(set.first, {address, site});
  return site;
}

namespace {

// Of a line in a source file, which is the program's own or a binding's.
std::uint64_t site_in_source(const char* file, std::int32_t line, const char* function) noexcept {
  if (file == nullptr || *file == 0) return 0;
  const std::uint64_t caller = function == nullptr ? 0 : hash_of(function) & 0xffff;
  const char* const name = last_part(file);
  const std::uint64_t hash = hash_of(name);
  try {
    site_names().add(hash, name, true);
  } catch (const std::bad_alloc&) {
    return 0;  // unknown; agrees with all
  }
  return site_in(hash, caller << 24 | (static_cast<std::uint64_t>(line) & kLineBits));
}

}  // namespace
}  // namespace warren::api

uint64_t warren_site_of(const char* file, int32_t line, const char* function) {
  return warren::api::site_in_source(file, line, function);
}
