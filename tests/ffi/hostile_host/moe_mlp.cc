// What is wrong with expert MLPs alone: types, what a router may write, the workspace, and extents that nothing but an
// empty buffer can have. The other files have what goes for every call.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/format.h"
#include "tests/ffi/hostile_host/hostile_call.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

// By number, as Names counts them.
host::Buffer& BufferAt(host::Call& call, size_t i) {
  return i < call.args.size() ? call.args[i] : call.results[i - call.args.size()];
}

// Weights are floats, so that scales and zeros are none's.
MlpSpec FloatWeights() { return {.sizes = {3, 4, 0, 6, 2}, .local = 3, .offset = 1}; }

bool MayHave(const std::string& name, const Format& format) {
  const bool narrow = format.role == Role::kMatrix && format.dtype != DType::kF64;
  if (name == "int64_workspace") return format.dtype == DType::kS64;
  if (name == "row_weights") return format.dtype == DType::kF32;
  if (name == "row_tokens" || name == "group_sizes" || name == "group_offset") return format.role == Role::kSizes;
  return narrow || (name.substr(0, 2) == "w_" && format.role == Role::kQuantized);
}

TEST(MlpTypesTest, EveryOtherElementTypeIsRefusedByName) {
  HostileMlp call(FloatWeights());
  const host::Call good = call.call();
  const std::vector<std::string> names = call.Names();
  host::ThreadPool pool(2);
  for (int dtype = 0; dtype <= XLA_FFI_DataType_F8E8M0FNU; ++dtype) {
    if (dtype == 13 || dtype == 14) continue;  // no types; FrameTest has them
    for (size_t i = 0; i < names.size(); ++i) {
      const Format* format = FormatOfXla(dtype);
      if (format != nullptr && MayHave(names[i], *format)) continue;
      call.call() = good;
      BufferAt(call.call(), i).dtype = static_cast<XLA_FFI_DataType>(dtype);
      EXPECT_TRUE(call.IsRefused(call.Execute(&pool), {names[i]})) << names[i] << " as type " << dtype;
    }
  }
}

TEST(MlpSizesTest, EveryWrongSizeTokenAndOffsetIsRefused) {
  for (DType dtype : kAllSizesTypes) {
    MlpSpec spec = FloatWeights();
    spec.sizes_type = dtype;
    HostileMlp call(spec);
    const MoeMlpProblem& problem = call.mlp().problem;
    const auto refuses = [&](const Array& array, int64_t index, const std::string& text) {
      const int64_t before = ToInteger(array, index);
      for (int64_t value : {int64_t{-1}, int64_t{1000}, kHighest, kLowest, int64_t{1} << 31, kHighest / 2}) {
        std::memcpy(static_cast<char*>(array.data) + index * SizeOf(dtype), &value, SizeOf(dtype));
        const int64_t sent = ToInteger(array, index);
        if (sent != before && sent != 0) {  // which any may be
          EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), {text})) << sent << " at " << index;
        }
        std::memcpy(static_cast<char*>(array.data) + index * SizeOf(dtype), &before, SizeOf(dtype));
      }
    };
    for (int64_t g = 0; g < spec.groups(); ++g) refuses(problem.group_sizes, g, "group_sizes: group ");
    refuses(*problem.group_offset, 0, "group_offset: value ");
    for (int64_t row = 3; row < 13; ++row) {  // those of processed groups
      refuses(problem.row_tokens, row, "row_tokens: value ");
    }
    EXPECT_EQ(call.Execute(nullptr).message, "");
    EXPECT_TRUE(call.IsRight());
  }
}

TEST(MlpWorkspaceTest, OneElementTooFewIsRefused) {
  HostileMlp call(EveryMlpOperand());
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

// Exactly as many elements as are needed, at every distance from a line of 64 bytes, are never left.
TEST(MlpWorkspaceTest, IsNeverLeft) {
  host::ThreadPool pool(2);
  HostileMlp call(EveryMlpOperand());
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

TEST(MlpShapesTest, EveryHugeExtentOfEveryOperandIsRefused) {
  for (const MlpSpec& spec : {EveryMlpOperand(), FloatWeights()}) {
    HostileMlp call(spec);
    const host::Call good = call.call();
    for (size_t i = 0; i + 1 < call.Names().size(); ++i) {  // a workspace that is too large is none of our business
      for (size_t axis = 0; axis < BufferAt(call.call(), i).dims.size(); ++axis) {
        for (int64_t extent : {int64_t{1} << 32, int64_t{1} << 40, int64_t{1} << 62, kHighest, int64_t{-1}, kLowest}) {
          call.call() = good;
          BufferAt(call.call(), i).dims[axis] = extent;
          EXPECT_TRUE(call.IsRefused(call.Execute(nullptr), {})) << call.Names()[i] << " " << axis << " " << extent;
        }
      }
    }
  }
}

// Extents of all operands together, so that they agree: nothing has elements. Beyond 2^40 no workspace is counted.
TEST(MlpShapesTest, HugeExtentsWithoutElements) {
  for (int64_t huge : {int64_t{1} << 32, int64_t{1} << 41, int64_t{1} << 62, kHighest}) {
    std::vector<int64_t> workspace(1 << 16);
    MoeMlpProblem problem;
    problem.x.dims = problem.out.dims = {0, huge};
    problem.row_tokens = {nullptr, DType::kS32, {0}};
    problem.group_sizes = {nullptr, DType::kS32, {0}};
    problem.w_up.dims = problem.w_down.dims = {0, huge, huge};
    const host::Call call = host::MakeCall(problem, absl::MakeSpan(workspace));
    const host::Error error = host::Execute(MlpHandler("execute"), call, nullptr);
    EXPECT_EQ(error.code, huge < int64_t{1} << 40 ? XLA_FFI_Error_Code_OK : XLA_FFI_Error_Code_INVALID_ARGUMENT)
        << error.message;
  }
}

TEST(MlpGuardPagesTest, RandomProblemsWithEveryIsa) {
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  host::ThreadPool pool(2);
  for (int i = 0; i < 100; ++i) {
    HostileMlp call(RandomMlpSpec(random));
    for (Isa isa : HostIsas()) {
      call.call().attributes["isa"] = absl::AsciiStrToUpper(IsaName(isa));
      ASSERT_EQ(call.Execute(&pool).message, "") << i;
      ASSERT_TRUE(call.IsRight()) << i << " " << IsaName(isa);
    }
  }
}

}  // namespace
}  // namespace raggemm::test
