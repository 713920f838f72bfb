#include "recovery/tracker/last_versions.h"

namespace warren {

void LastVersions::note(std::size_t rank, Version version) {
  if (!oldest_ || version < oldest_->version) oldest_ = Last{rank, version};
  if (!newest_ || version > newest_->version) newest_ = Last{rank, version};
}

}  // namespace warren
