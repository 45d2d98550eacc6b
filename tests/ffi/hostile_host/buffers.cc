// Buffers that are not what the call needs: types, shapes, places, the workspace, and memory that operands share.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "raggemm/format.h"
#include "tests/ffi/hostile_host/hostile_call.h"
#include "tests/support/guarded_buffer.h"

namespace raggemm::test {
namespace {

// Arguments and results by one number, as Names counts them.
host::Buffer& BufferAt(host::Call& call, size_t i) {
  return i < call.args.size() ? call.args[i] : call.results[i - call.args.size()];
}

int64_t Elements(const host::Buffer& buffer) {
  int64_t elements = 1;
  for (int64_t dim : buffer.dims) elements *= dim;
  return elements;
}

int64_t ElementBytes(const host::Buffer& buffer) { return SizeOf(FormatOfXla(buffer.dtype)->dtype); }

// Spoils each operand of one call of each target in turn; `spoil` says false where there is nothing to spoil. The error
// must name the operand, or one that it no longer agrees with.
void RefusesEach(const std::function<bool(host::Buffer&)>& spoil, const std::vector<std::string>& texts,
                 bool named = true, const std::string& but = "") {
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Call good = call->TheCall();
    const std::vector<std::string> names = call->Names();
    host::ThreadPool pool(2);
    for (size_t i = 0; i < names.size(); ++i) {
      call->TheCall() = good;
      if (names[i] == but || !spoil(BufferAt(call->TheCall(), i))) continue;
      std::vector<std::string> all = texts;
      if (named) all.push_back(names[i]);
      EXPECT_TRUE(call->IsRefused(call->Execute(&pool), all)) << names[i];
    }
    call->TheCall() = good;
    EXPECT_EQ(call->Execute(&pool).message, "");
    EXPECT_TRUE(call->AnswerIsRight());
  }
}

TEST(TypesTest, EveryOtherElementTypeIsRefused) {
  HostileCall call(EveryOperandOfExperts());
  const host::Call good = call.call();
  const std::vector<std::string> names = call.Names();
  host::ThreadPool pool(2);
  for (int dtype = 0; dtype <= XLA_FFI_DataType_F8E8M0FNU; ++dtype) {
    if (dtype == 13 || dtype == 14) continue;  // no types; FrameTest has them
    for (size_t i = 0; i < names.size(); ++i) {
      call.call() = good;
      host::Buffer& buffer = BufferAt(call.call(), i);
      // Types of narrower elements are right types with other contents; wider ones end at the unmapped page.
      const auto type = static_cast<XLA_FFI_DataType>(dtype);
      const bool narrower = type == XLA_FFI_DataType_F16 || type == XLA_FFI_DataType_BF16;
      const bool integer = type == XLA_FFI_DataType_S32 || type == XLA_FFI_DataType_U32;
      const bool rows = names[i] == "row_index", sizes = absl::StrContains(names[i], "_first") || rows;
      const bool offset = names[i] == "group_offset", added = names[i] == "bias" || names[i] == "gate";
      const bool matrix = names[i] == "lhs" || names[i] == "rhs" || added;
      if (buffer.dtype == type || Elements(buffer) == 0 || (narrower && matrix) || (integer && (sizes || offset)))
        continue;
      if (type == XLA_FFI_DataType_S64 && offset) continue;
      if (type == XLA_FFI_DataType_F64 && matrix && !added) continue;
      const Format* format = FormatOfXla(dtype);
      if (format != nullptr && IsQuantized(format->dtype) && matrix && !added) continue;
      buffer.dtype = type;
      EXPECT_TRUE(call.IsRefused(call.Execute(&pool), {})) << names[i] << " as type " << dtype;
    }
  }
}

TEST(ShapesTest, NegativeDimsAreRefused) {
  for (int64_t dim : {int64_t{-1}, int64_t{-2}, kLowest}) {
    RefusesEach(
        [&](host::Buffer& b) {
          if (b.dims.empty()) return false;
          b.dims[0] = dim;
          return true;
        },
        {});
    RefusesEach(
        [&](host::Buffer& b) {
          for (int64_t& d : b.dims) d = dim;  // two of them have a positive product
          return !b.dims.empty();
        },
        {});
  }
}

TEST(ShapesTest, HugeDimsAreRefused) {
  for (int64_t dim : {kHighest, kHighest / 2, int64_t{1} << 61, int64_t{1} << 32}) {
    RefusesEach(
        [&](host::Buffer& b) {
          const bool workspace = b.dtype == XLA_FFI_DataType_S64 && b.dims.size() == 1 && b.dims[0] > 5;
          if (b.dims.empty() || (workspace && dim < kHighest / 8)) return false;  // larger than needed is no error
          b.dims[0] = dim;
          return true;
        },
        {}, /*named=*/false, "lhs");  // which with an index may have any number of rows
  }
}

TEST(ShapesTest, OtherRanksAreRefused) {
  RefusesEach(
      [](host::Buffer& b) {
        b.dims.insert(b.dims.begin(), {2, 1, 1, 1, 1, 1, 1, 1});
        return true;
      },
      {}, /*named=*/false, "lhs");  // which with an index may have any number of rows
  RefusesEach(
      [](host::Buffer& b) {
        // A scalar is one alpha or beta for all groups, and one scale or zero point, which blocks have.
        const bool is_block = b.dims.size() == 3 && (b.dims[1] == 1 || b.dims[2] == 1);
        if (b.dims.empty() || is_block || (b.dims.size() == 1 && b.dtype == XLA_FFI_DataType_F32)) return false;
        b.dims.clear();
        return true;
      },
      {}, /*named=*/false);
}

TEST(PlacesTest, NullIsRefusedWhereThereAreElements) {
  RefusesEach(
      [](host::Buffer& b) {
        b.data = nullptr;
        return Elements(b) > 0;
      },
      {"data is null"});
}

TEST(PlacesTest, EveryMisalignedStartIsRefused) {
  for (int64_t bytes = 1; bytes < 8; ++bytes) {
    RefusesEach(
        [&](host::Buffer& b) {
          if (Elements(b) == 0 || bytes % ElementBytes(b) == 0) return false;
          b.data = static_cast<char*>(b.data) - bytes;
          return true;
        },
        {"not aligned"});
  }
}

TEST(PlacesTest, TheEndOfTheAddressSpaceIsRefused) {
  RefusesEach(
      [](host::Buffer& b) {
        b.data = reinterpret_cast<void*>(~uintptr_t{15} + 8);
        return Elements(b) * ElementBytes(b) > 8;
      },
      {"exceed the address space"});
}

// ---- the workspace ----

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

// ---- memory that operands share ----

// Every pair of operands of which one is written: the second starts where the first does.
TEST(AliasTest, WhatIsWrittenSharesMemoryWithNothingButC) {
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Call good = call->TheCall();
    const std::vector<std::string> names = call->Names();
    const size_t first_result = good.args.size(), workspace = names.size() - 1;
    host::ThreadPool pool(2);
    for (size_t written = first_result; written <= workspace; ++written) {
      for (size_t i = 0; i < names.size(); ++i) {
        call->TheCall() = good;
        const void* place = BufferAt(call->TheCall(), written).data;
        host::Buffer& other = BufferAt(call->TheCall(), i);
        if (i == written || Elements(other) == 0 || (names[written] == "out" && names[i] == "c")) continue;
        other.data = const_cast<void*>(place);
        // The larger of them may lie upon others, too.
        const host::Error error = call->Execute(&pool);
        EXPECT_TRUE(call->IsRefused(error, {" overlaps "})) << names[i] << " in " << names[written];
        const auto named = [&](size_t at) { return error.message.find(names[at]) != std::string::npos; };
        EXPECT_TRUE(named(written) || named(i)) << error.message;
      }
    }
  }
}

// One element in common is too much: the first of out is the last of the other, and the other way round.
TEST(AliasTest, OneElementInCommonIsRefused) {
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Call good = call->TheCall();
    const std::vector<std::string> names = call->Names();
    host::ThreadPool pool(2);
    for (size_t i = 0; i < good.args.size(); ++i) {
      const host::Buffer& out = good.results[0];
      const host::Buffer& other = good.args[i];
      if (Elements(other) == 0) continue;
      const int64_t behind = (Elements(out) - 1) * 4 / 8 * 8, before = (Elements(other) - 1) * ElementBytes(other);
      for (int64_t distance : {behind, -before}) {
        if (distance == 0 && names[i] == "c") continue;
        call->TheCall() = good;
        call->TheCall().args[i].data = static_cast<char*>(out.data) + distance;
        const testing::AssertionResult refused =
            call->IsRefused(call->Execute(&pool), {names[good.args.size()] + " overlaps " + names[i]});
        // A start that is not aligned to its elements is refused first.
        if (reinterpret_cast<uintptr_t>(call->TheCall().args[i].data) % ElementBytes(other) == 0) {
          EXPECT_TRUE(refused) << names[i];
        }
      }
    }
  }
}

struct SharedMemory {
  const char* name;
  std::function<void(TestProblem&)> share;
};

// Operands that are only read may share memory, and out may be c.
const SharedMemory kLegal[] = {
    {"SizesOnce", [](TestProblem& t) { t.problem.out.first_dims->data = t.problem.lhs.first_dims->data; }},
    {"LhsInsideRhs", [](TestProblem& t) { t.problem.lhs.data = static_cast<float*>(t.problem.rhs.data) + 3; }},
    {"BiasInsideLhs", [](TestProblem& t) { t.problem.bias->data = t.problem.lhs.data; }},
    {"AlphaIsBeta", [](TestProblem& t) { t.problem.alpha->data = t.problem.beta->data; }},
    {"AlphaInsideBias", [](TestProblem& t) { t.problem.alpha->data = t.problem.bias->data; }},
    {"CInsideRhs", [](TestProblem& t) { t.problem.c->data = t.problem.rhs.data; }},
    {"OutIsC", [](TestProblem& t) { t.AliasOutWithC(); }},
};

TEST(AliasTest, WhatIsReadMayShareMemoryAndOutMayBeC) {
  host::ThreadPool pool(3);
  for (const SharedMemory& shared : kLegal) {
    SCOPED_TRACE(shared.name);
    HostileCall call(EveryOperand(), shared.share);
    const bool out_is_c = call.problem().problem.c->data == call.problem().problem.out.data;
    EXPECT_EQ((out_is_c ? call.ExecuteAsItIs(&pool) : call.Execute(&pool)).message, "");
    EXPECT_TRUE(call.IsRight());
  }
}

// In every mode: out that is lhs or rhs, from its start, from its middle, from one element before.
TEST(AliasTest, OutOverAnOperandIsRefusedInEveryMode) {
  for (const ProblemSpec& spec : OneOfEachMode(/*with_c=*/false)) {
    HostileCall call(spec);
    const host::Call good = call.call();
    for (size_t i : {size_t{0}, size_t{1}}) {
      for (int64_t elements : {int64_t{0}, Elements(good.args[i]) / 2, Elements(good.args[i]) - 1, int64_t{-1}}) {
        call.call() = good;
        call.call().results[0].data = static_cast<float*>(good.args[i].data) + elements;
        const host::Error error = call.Execute(nullptr);
        EXPECT_TRUE(call.IsRefused(error, {i == 0 ? "out overlaps lhs" : "out overlaps rhs"})) << Describe(spec);
      }
    }
    call.call() = good;
    EXPECT_EQ(call.Execute(nullptr).message, "");
    EXPECT_TRUE(call.IsRight());  // the operands are as they were, too
  }
}

}  // namespace
}  // namespace raggemm::test
