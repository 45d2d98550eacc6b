// The workspace: sizes and starts on both sides of what is needed, flush between unmapped pages.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/ffi/hostile_host/hostile_call.h"
#include "tests/support/guarded_buffer.h"

namespace raggemm::test {
namespace {

TEST(WorkspaceTest, OneElementTooFewIsRefusedInEveryMode) {
  for (const ProblemSpec& spec : OneOfEachMode(/*with_c=*/true)) {
    HostileCall call(spec);
    host::Buffer& workspace = call.call().results[1];
    const int64_t needed = workspace.dims[0];
    for (int64_t elements : {needed - 1, needed / 2, int64_t{1}}) {
      workspace.dims[0] = elements;
      const std::string text = absl::StrCat("int64_workspace has ", elements, " elements, ", needed, " are needed");
      EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), {text}));
    }
    workspace = {XLA_FFI_DataType_S64, {0}, nullptr};
    EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), {"int64_workspace has 0 elements"}));
  }
}

TEST(WorkspaceTest, SizesThatNoMemoryHasAreRefused) {
  HostileCall call(EveryOperand());
  host::Buffer& workspace = call.call().results[1];
  for (int64_t elements : {int64_t{-1}, int64_t{-1} << 32, kLowest, kHighest, int64_t{1} << 61, kLowest / 4}) {
    workspace.dims[0] = elements;
    EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), {"int64_workspace: ", elements < 0 ? "negative" : ""}))
        << elements;
  }
}

TEST(WorkspaceTest, OneByteOffIsRefused) {
  HostileCall call(EveryOperand());
  void*& data = call.call().results[1].data;
  char* const start = static_cast<char*>(data);
  for (int64_t bytes = 1; bytes < 8; ++bytes) {
    data = start - bytes;
    EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), {"int64_workspace: data at address ", "not aligned"}));
  }
}

// Exactly as many elements as are needed, at every distance from a line of 64 bytes, are never left.
TEST(WorkspaceTest, IsNeverLeft) {
  host::ThreadPool pool(2);
  for (const ProblemSpec& spec : OneOfEachMode(/*with_c=*/true)) {
    HostileCall call(spec);
    host::Buffer& workspace = call.call().results[1];
    for (Cliff cliff : {Cliff::kBehind, Cliff::kBefore}) {
      for (size_t gap = 0; gap < 8; ++gap) {
        const GuardedBuffer memory(workspace.dims[0] * sizeof(int64_t), gap * sizeof(int64_t), cliff);
        workspace.data = memory.data();
        EXPECT_EQ(call.Execute(&pool).message, "");
        EXPECT_TRUE(call.IsRight());
        EXPECT_TRUE(memory.SurroundingsIntact()) << gap;
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
