#include "ffi/decode.h"

#include <sys/mman.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/ascii.h"
#include "ffi/calls.h"
#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"

namespace raggemm::test {
namespace {

namespace ffi = ::xla::ffi;

TEST(FormatsTest, HaveTheTypeNumbersOfXla) {
  for (const Format& format : kFormats) {
    std::ostringstream name;
    name << static_cast<ffi::DataType>(format.xla);
    EXPECT_EQ(name.str(), absl::AsciiStrToUpper(format.name));
  }
}

TEST(DecodeTest, TakesOperandsInAnyOrder) {
  PluginCall call({.groups = 1, .m = 2, .sizes = {2}, .c = true, .alpha = true});
  std::swap(call.call().args[8], call.call().args[9]);
  call.call().attributes["operands"] = std::string("alpha,c");
  ASSERT_EQ(call.Run(nullptr).message, "");
  EXPECT_TRUE(call.IsRight());
}

TEST(DecodeAttributesTest, UsesTheDefaultsOfTheSchema) {
  GroupedGemmCall call;
  const XLA_FFI_Attrs none{XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 0, nullptr, nullptr, nullptr};
  ASSERT_EQ(DecodeAttributes(ffi::Dictionary(&none), call), absl::OkStatus());
  EXPECT_EQ(call.problem.rhs.axis_boundary, -1);
  EXPECT_EQ(call.problem.out.layout, Layout::kStrided);
  EXPECT_EQ(call.options.executor, Executor::kAuto);
  EXPECT_EQ(call.options.isa, std::nullopt);
  EXPECT_EQ(call.options.threads, 0);
  EXPECT_EQ(call.config.on_error(), proto::GroupedGemmConfig::OnError::RAISE);
  EXPECT_EQ(call.problem.names.lhs_first, "lhs_first");
}

TEST(BytesOfTest, IsZeroForImpossibleShapes) {
  const auto bytes = [](std::vector<int64_t> dims) {
    XLA_FFI_Buffer buffer{XLA_FFI_Buffer_STRUCT_SIZE,        nullptr,    XLA_FFI_DataType_F32, nullptr,
                          static_cast<int64_t>(dims.size()), dims.data()};
    return BytesOf(ffi::AnyBuffer(&buffer));
  };
  EXPECT_EQ(bytes({3, 5}), 60u);
  EXPECT_EQ(bytes({-1}), 0u);
  EXPECT_EQ(bytes({int64_t{1} << 31, int64_t{1} << 31, 1 << 4}), 0u);
}

TEST(AdviseHugePagesTest, AdvisesWholePagesWithinTheRange) {
  constexpr size_t kHugePage = 2 << 20, kBytes = 5 * kHugePage;
  void* mapping = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  char* begin = static_cast<char*>(mapping) + -reinterpret_cast<uintptr_t>(mapping) % kHugePage;
  // Returns true if the mapping at the address has Linux' flag "hg": huge pages were advised.
  const auto is_advised = [](const char* address) {
    std::ifstream maps("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(maps, line);) {
      uintptr_t first = 0, last = 0;
      if (std::sscanf(line.c_str(), "%zx-%zx ", &first, &last) == 2) {
        inside = first <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < last;
      } else if (inside && line.rfind("VmFlags:", 0) == 0) {
        return (line + " ").find(" hg ") != std::string::npos;
      }
    }
    return false;
  };
  AdviseHugePages(nullptr, 0);
  AdviseHugePages(begin + 1, 2 * kHugePage - 2);
  AdviseHugePages(begin + 1, kHugePage / 2);
  EXPECT_FALSE(is_advised(begin + kHugePage));
  AdviseHugePages(begin + 64, 3 * kHugePage);
  // The flag "hg" is always missing if Linux was built without huge pages.
  const bool expected = std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();
  EXPECT_FALSE(is_advised(begin));
  EXPECT_EQ(is_advised(begin + kHugePage), expected);
  EXPECT_EQ(is_advised(begin + 3 * kHugePage - 1), expected);
  EXPECT_FALSE(is_advised(begin + 3 * kHugePage));
  munmap(mapping, kBytes);
}

}  // namespace
}  // namespace raggemm::test
