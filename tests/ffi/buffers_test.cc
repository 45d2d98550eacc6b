// Tests calls with wrong types, shapes, addresses and workspaces, and with overlapping buffers. The memory of each
// buffer lies between unmapped pages, so an access beyond it ends the process.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/format.h"
#include "tests/ffi/spoilt_call.h"

namespace raggemm::test {
namespace {

int64_t Elements(const host::Buffer& buffer) {
  int64_t elements = 1;
  for (int64_t dim : buffer.dims) elements *= dim;
  return elements;
}

int64_t ElementBytes(const host::Buffer& buffer) { return SizeOf(FormatOfXla(buffer.dtype)->dtype); }

// Spoils each buffer of each custom call, one at a time, and expects an error with these texts. `spoil` makes a buffer
// invalid, or returns false if this is impossible. If `named`, the error must name the spoilt buffer. Otherwise it may
// name another operand.
void ExpectEachIsRefused(const std::function<bool(host::Buffer&)>& spoil, const std::vector<std::string>& texts,
                         bool named = true) {
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Call good = call->call();
    const std::vector<std::string> names = target.Names(good);
    host::ThreadPool pool(2);
    for (size_t i = 0; i < names.size(); ++i) {
      call->call() = good;
      if (!spoil(BufferAt(call->call(), i))) continue;
      // The grouped GEMM has a row_index, so lhs may have any number of rows.
      if (!named && names[i] == "lhs") continue;
      std::vector<std::string> all = texts;
      if (named) all.push_back(names[i]);
      EXPECT_TRUE(call->IsRefused(call->Execute(&pool), all)) << target.description.name << " " << names[i];
    }
    call->call() = good;
    EXPECT_EQ(call->Execute(&pool).message, "");
    EXPECT_TRUE(call->IsRight());
  }
}

TEST(TypesTest, UnsupportedTypesAreRefused) {
  for (auto type : {XLA_FFI_DataType_PRED, XLA_FFI_DataType_C64, XLA_FFI_DataType_U64, XLA_FFI_DataType_TOKEN,
                    XLA_FFI_DataType_F8E4M3}) {
    ExpectEachIsRefused(
        [&](host::Buffer& b) {
          b.dtype = type;
          return Elements(b) > 0;
        },
        {});
  }
}

TEST(TypesTest, IntegersForFloatsAndFloatsForIntegersAreRefused) {
  ExpectEachIsRefused(
      [](host::Buffer& b) {
        const bool is_size = FormatOfXla(b.dtype)->role == Role::kSizes;
        b.dtype = is_size ? XLA_FFI_DataType_F32 : XLA_FFI_DataType_S32;
        return Elements(b) > 0;
      },
      {}, /*named=*/false);  // A wrong type of the gradient of x gives an error that names the workspace.
}

TEST(ShapesTest, NegativeDimsAreRefused) {
  for (int64_t dim : {int64_t{-1}, kLowest}) {
    ExpectEachIsRefused(
        [&](host::Buffer& b) {
          for (int64_t& d : b.dims) d = dim;  // The product of two negative dims is positive.
          return !b.dims.empty();
        },
        {});
  }
}

TEST(ShapesTest, HugeDimsAreRefused) {
  for (int64_t dim : {kHighest, int64_t{1} << 61, int64_t{1} << 32}) {
    ExpectEachIsRefused(
        [&](host::Buffer& b) {
          const bool workspace = b.dtype == XLA_FFI_DataType_S64 && b.dims.size() == 1 && b.dims[0] > 5;
          // Too large a workspace is no error.
          if (b.dims.empty() || (workspace && dim < kHighest / 8)) return false;
          b.dims[0] = dim;
          return true;
        },
        {}, /*named=*/false);
  }
}

TEST(ShapesTest, OtherRanksAreRefused) {
  ExpectEachIsRefused(
      [](host::Buffer& b) {
        b.dims.insert(b.dims.begin(), {2, 1, 1, 1, 1, 1, 1, 1});
        return true;
      },
      {}, /*named=*/false);
}

TEST(AddressesTest, NullIsRefusedIfThereAreElements) {
  ExpectEachIsRefused(
      [](host::Buffer& b) {
        b.data = nullptr;
        return Elements(b) > 0;
      },
      {"data is null"});
}

TEST(AddressesTest, EveryMisalignedStartIsRefused) {
  for (int64_t bytes : {1, 2, 4}) {
    ExpectEachIsRefused(
        [&](host::Buffer& b) {
          if (Elements(b) == 0 || bytes % ElementBytes(b) == 0) return false;
          b.data = static_cast<char*>(b.data) - bytes;
          return true;
        },
        {"not aligned"});
  }
}

TEST(AddressesTest, TheEndOfTheAddressSpaceIsRefused) {
  ExpectEachIsRefused(
      [](host::Buffer& b) {
        b.data = reinterpret_cast<void*>(~uintptr_t{15} + 8);
        return Elements(b) * ElementBytes(b) > 8;
      },
      {"exceed the address space"});
}

// Covers each pair of a result and another buffer. The result begins at the first or the last element of the other
// buffer.
TEST(AliasTest, ResultsShareNoMemoryExceptOutWithC) {
  for (const Target& target : AllTargets()) {
    const std::unique_ptr<SpoiltCall> call = target.make();
    const host::Call good = call->call();
    const std::vector<std::string> names = target.Names(good);
    host::ThreadPool pool(2);
    for (size_t written = good.args.size(); written < names.size(); ++written) {
      for (size_t i = 0; i < names.size(); ++i) {
        for (bool one_element : {false, true}) {
          call->call() = good;
          host::Buffer& other = BufferAt(call->call(), i);
          if (i == written || Elements(other) == 0) continue;
          const int64_t back = one_element ? (Elements(other) - 1) * ElementBytes(other) : 0;
          if (names[written] == "out" && names[i] == "c" && back == 0) continue;
          other.data = static_cast<char*>(BufferAt(call->call(), written).data) - back;
          if (reinterpret_cast<uintptr_t>(other.data) % ElementBytes(other) != 0) continue;
          // The larger buffer may also overlap a third one, so the error need not name both.
          const host::Error error = call->Execute(&pool);
          EXPECT_TRUE(call->IsRefused(error, {" overlaps "})) << names[i] << " in " << names[written];
          const auto named = [&](size_t at) { return error.message.find(names[at]) != std::string::npos; };
          EXPECT_TRUE(named(written) || named(i)) << error.message;
        }
      }
    }
  }
}

struct SharedMemory {
  const char* name;
  std::function<void(TestProblem&)> share;
};

const SharedMemory kLegal[] = {
    {"SizesOnce", [](TestProblem& t) { t.problem.out.first_dims->data = t.problem.lhs.first_dims->data; }},
    {"LhsInsideRhs", [](TestProblem& t) { t.problem.lhs.data = static_cast<float*>(t.problem.rhs.data) + 3; }},
    {"AlphaIsBeta", [](TestProblem& t) { t.problem.alpha->data = t.problem.beta->data; }},
    {"CInsideRhs", [](TestProblem& t) { t.problem.c->data = t.problem.rhs.data; }},
    {"OutIsC", [](TestProblem& t) { t.AliasOutWithC(); }},
};

TEST(AliasTest, OperandsMayShareMemoryAndOutMayBeC) {
  host::ThreadPool pool(3);
  for (const SharedMemory& shared : kLegal) {
    SCOPED_TRACE(shared.name);
    SpoiltGemm call(EveryOperand(), shared.share);
    const bool out_is_c = call.problem().problem.c->data == call.problem().problem.out.data;
    EXPECT_EQ((out_is_c ? call.ExecuteAsItIs(&pool) : call.Execute(&pool)).message, "");
    EXPECT_TRUE(call.IsRight());
  }
}

// Addresses of out: the first element of lhs or rhs, its last element, and one element before its first.
TEST(AliasTest, OutOverAnOperandIsRefusedInEveryMode) {
  for (const ProblemSpec& spec : OneOfEachMode(/*with_c=*/false)) {
    SpoiltGemm call(spec);
    const host::Call good = call.call();
    for (size_t i : {size_t{0}, size_t{1}}) {
      for (int64_t elements : {int64_t{0}, Elements(good.args[i]) - 1, int64_t{-1}}) {
        call.call() = good;
        call.call().results[0].data = static_cast<float*>(good.args[i].data) + elements;
        const host::Error error = call.Execute(nullptr);
        EXPECT_TRUE(call.IsRefused(error, {i == 0 ? "out overlaps lhs" : "out overlaps rhs"})) << Describe(spec);
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
