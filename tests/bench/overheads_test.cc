#include "bench/overheads.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace raggemm::bench {
namespace {

TEST(MeasureOverheads, HasEveryCallThatIsPromisedToBeCheap) {
  const auto overheads = MeasureOverheads();
  ASSERT_TRUE(overheads.ok()) << overheads.status();
  std::vector<std::string> names;
  for (const proto::Overhead& overhead : *overheads) {
    names.push_back(overhead.name());
    EXPECT_GT(overhead.microseconds(), 0) << overhead.name();
  }
  EXPECT_THAT(names, testing::ElementsAre("custom call, empty problem", "plan of 512 groups"));
}

}  // namespace
}  // namespace raggemm::bench
