// A disk that is full: what people are told of it, and the room that is kept so that it can be relieved. Inside
// storage/.
#pragma once

#include <string>

#include "recovery/base/result.h"

namespace warren::storage {

// Room for what RocksDB writes when a database is opened and families are dropped, so that a full disk can be relieved.
// The note has a reserve of its own: a disk that stays full would leave nothing for it, without which nothing may be
// dropped.
inline constexpr char kReserveName[] = "RESERVE", kReserveOfNoteName[] = "RESERVE-note";
// Makes the reserves of this directory that are not there, if there is room.
void keep_reserves(const std::string& directory);

// kExhausted: with the name of the disk, and what frees it. Others: as they are.
[[nodiscard]] Status with_remedy(Status status, const std::string& directory);

}  // namespace warren::storage
