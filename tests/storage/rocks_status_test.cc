#include "storage/rocks_status.h"

#include <gtest/gtest.h>

namespace warren::storage {
namespace {

TEST(RocksStatus, AQuotaThatIsUsedUpIsNoSpaceToo) {
  const std::string quota = std::generic_category().message(EDQUOT), other = std::generic_category().message(EIO);
  EXPECT_EQ(from_rocks(rocksdb::Status::IOError("While appending to file: 7.log", quota), "cannot write").code(),
            Code::kExhausted);
  EXPECT_EQ(from_rocks(rocksdb::Status::NoSpace(), "cannot write").code(), Code::kExhausted);
  EXPECT_EQ(from_rocks(rocksdb::Status::IOError("While appending to file: 7.log", other), "cannot write").code(),
            Code::kUnavailable);
  // Of a file that is called so.
  EXPECT_EQ(from_rocks(rocksdb::Status::Corruption(quota), "cannot read").code(), Code::kCorrupt);
}

}  // namespace
}  // namespace warren::storage
