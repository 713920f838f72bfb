#include "worker/rounds/point_frames.h"

namespace warren::worker {

GroupId pair_of(std::uint64_t group, std::int32_t from, std::int32_t to) {
  std::uint64_t h = group ^ kPointGroupMark;
  for (const std::int32_t v : {from, to}) {
    h ^= static_cast<std::uint64_t>(static_cast<std::uint32_t>(v)) + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    h ^= h >> 31;
  }
  return GroupId(h);
}

WireAnnouncement announcement_of(const CallSpec& spec) {
  WireAnnouncement w{};
  w.tag = static_cast<std::uint32_t>(spec.tag);
  w.type = static_cast<std::uint32_t>(spec.type);
  w.count = spec.count;
  w.site = spec.site;
  return w;
}

WireAnnouncement announcement_of(const Fingerprint& logged) {
  WireAnnouncement w{};
  w.tag = static_cast<std::uint32_t>(logged.root);
  w.type = static_cast<std::uint32_t>(logged.type);
  w.count = logged.count;
  w.site = logged.site;
  return w;
}

RecordInfo record_of(const CallSpec& spec, std::uint64_t bytes) {
  RecordInfo info;
  info.fingerprint.collective = Collective::kPoint;
  info.fingerprint.type = spec.type;
  info.fingerprint.root = spec.tag;
  info.fingerprint.count = spec.count;
  info.fingerprint.site = spec.site & ~kSiteCompared;
  info.total_bytes = bytes;
  return info;
}

}  // namespace warren::worker
