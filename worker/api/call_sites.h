// Call sites: a number for the place of a call, equal in all processes that run the same program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace warren::api {

// Modules and source files that made calls, by their hash in call sites.
class SiteNames {
 public:
  void add(std::uint64_t hash, const char* name, bool source);
  // Call sites with names instead of hashes, and how to read them.
  std::string explain(std::string text);
  std::mutex& mutex() { return mutex_; }

 private:
  struct File {
    File(const char* n, bool s) : name(n), source(s) {}
    std::string name;
    bool source;
  };
  std::mutex mutex_;
  std::map<std::uint64_t, File> names_;
};
// Never destroyed: threads of the library log, and destructors of statics call, when the program's statics go.
SiteNames& site_names();

struct CachedSite {
  const void* address;
  std::uint64_t site;
};
// Sites lie in sets of two: two calls of a loop whose addresses meet in one place would look their module up each time,
// which takes longer than a small round.
struct CachedSites {
  CachedSite first, second;
};
inline constexpr std::size_t kCachedSets = 32;
// By address: a handful of addresses make all the calls of a program.
inline constinit thread_local CachedSites cached_sites[kCachedSets] = {};

// Looks the module of `address` up, and remembers its site.
std::uint64_t find_site(const void* address, CachedSites& set) noexcept;

// Where in its module a call was made: the same number in every process that runs the same binary, wherever it was
// loaded. Modules are looked up once an address. 0: unknown, which agrees with all.
inline std::uint64_t site_of(const void* address) noexcept {
  CachedSites& set = cached_sites[(reinterpret_cast<std::uintptr_t>(address) >> 2) & (kCachedSets - 1)];
  if (set.first.address == address) return set.first.site;
  return set.second.address == address ? set.second.site : find_site(address, set);
}

}  // namespace warren::api

// In a function of the C interface: the place where the program calls it.
#define WARREN_SITE warren::api::site_of(__builtin_return_address(0))
