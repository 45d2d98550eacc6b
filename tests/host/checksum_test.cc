#include "tests/host/checksum.h"

#include <cstdint>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace raggemm::host {
namespace {

template <typename Bits>
uint64_t Of(DType dtype, std::vector<Bits> bits) {
  const int64_t dims[] = {static_cast<int64_t>(bits.size())};
  return Checksum({bits.data(), dtype, dims});
}

// The first numbers of SplitMix64 from state 0, as everybody's implementation has them.
TEST(Checksum, OfZerosIsTheSumOfTheGenerator) {
  EXPECT_EQ(Of<uint32_t>(DType::kF32, {}), 0u);
  EXPECT_EQ(Of<uint32_t>(DType::kF32, {0}), 0xe220a8397b1dcdaf);
  EXPECT_EQ(Of<uint16_t>(DType::kF16, {0, 0}), 0xe220a8397b1dcdaf + 0x6e789e6aa1b965f4);
}

TEST(Checksum, ChangesWithEveryBitAndWithTheOrder) {
  std::set<uint64_t> checksums = {Of<uint64_t>(DType::kF64, {0, 1}), Of<uint64_t>(DType::kF64, {1, 0}),
                                  Of<uint64_t>(DType::kF64, {0, 0})};
  for (int bit = 1; bit < 64; ++bit) checksums.insert(Of<uint64_t>(DType::kF64, {0, uint64_t{1} << bit}));
  EXPECT_EQ(checksums.size(), 66u);
}

TEST(Checksum, TellsZerosApartButNotNaNs) {
  EXPECT_NE(Of<uint32_t>(DType::kF32, {0x80000000}), Of<uint32_t>(DType::kF32, {0}));
  EXPECT_EQ(Of<uint32_t>(DType::kF32, {0xffc12345}), Of<uint32_t>(DType::kF32, {0x7fc00000}));
  EXPECT_EQ(Of<uint16_t>(DType::kF16, {0xfc01}), Of<uint16_t>(DType::kF16, {0x7e00}));
  EXPECT_EQ(Of<uint16_t>(DType::kBF16, {0xff81}), Of<uint16_t>(DType::kBF16, {0x7fc0}));
  EXPECT_EQ(Of<uint64_t>(DType::kF64, {~uint64_t{0}}), Of<uint64_t>(DType::kF64, {0x7ff8000000000000}));
  EXPECT_NE(Of<uint16_t>(DType::kBF16, {0x7f80}), Of<uint16_t>(DType::kBF16, {0x7fc0}));
}

}  // namespace
}  // namespace raggemm::host
