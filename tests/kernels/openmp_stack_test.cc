#include "kernels/threads/openmp_stack.h"

#include <cstdlib>
#include <utility>

#include "gtest/gtest.h"

namespace raggemm {
namespace {

class OpenMpStackTest : public testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE", "OMP_STACKSIZE_ALL"}) unsetenv(name);
  }
};

TEST_F(OpenMpStackTest, IsZeroIfNoVariableIsSet) { EXPECT_EQ(OpenMpStackSize(), 0); }

TEST_F(OpenMpStackTest, ParsesUnitsAndSpaces) {
  constexpr size_t kMiB = 1 << 20;
  const std::pair<const char*, size_t> sizes[] = {
      {"100G", 102400 * kMiB}, {"512M", 512 * kMiB}, {"512m", 512 * kMiB}, {"4096", 4 * kMiB}, {"4096k", 4 * kMiB},
      {"4194304B", 4 * kMiB},  {" 2 M ", 2 * kMiB},  {"\t2M\n", 2 * kMiB}, {"0", 0},           {"-1b", SIZE_MAX},
  };
  for (const auto& [text, bytes] : sizes) {
    setenv("OMP_STACKSIZE", text, 1);
    EXPECT_EQ(OpenMpStackSize(), bytes) << text;
  }
}

TEST_F(OpenMpStackTest, IgnoresInvalidSizes) {
  for (const char* text : {"", " ", "M", "2MB", "2 M M", "2T", "2.5M", "-1", "18446744073709551616", "17179869184G"}) {
    setenv("OMP_STACKSIZE", text, 1);
    EXPECT_EQ(OpenMpStackSize(), 0) << text;
  }
}

TEST_F(OpenMpStackTest, TakesTheFirstValidVariable) {
  setenv("OMP_STACKSIZE_ALL", "3B", 1);
  EXPECT_EQ(OpenMpStackSize(), 3);
  setenv("GOMP_STACKSIZE", "2B", 1);
  EXPECT_EQ(OpenMpStackSize(), 2);
  setenv("OMP_STACKSIZE", "1B", 1);
  EXPECT_EQ(OpenMpStackSize(), 1);
  setenv("OMP_STACKSIZE", "one", 1);
  EXPECT_EQ(OpenMpStackSize(), 2);
}

}  // namespace
}  // namespace raggemm
