#include "ffi/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace raggemm {
namespace {

constexpr size_t kHugePage = 2 << 20, kPages = 4;

// Fresh memory of kPages huge pages, aligned to them.
class Memory {
 public:
  Memory() : mapping_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Memory() { munmap(mapping_, kBytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* begin() const {
    char* start = static_cast<char*>(mapping_);
    return start + -reinterpret_cast<uintptr_t>(start) % kHugePage;
  }

 private:
  static constexpr size_t kBytes = (kPages + 1) * kHugePage;
  void* mapping_;
};

// Whether huge pages were asked for where `address` is, by the flags of its mapping.
bool IsAdvised(const char* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream(line) >> std::hex >> begin >> dash >> end && dash == '-') {
      const auto at = reinterpret_cast<uintptr_t>(address);
      inside = begin <= at && at < end;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return (line + " ").find(" hg ") != std::string::npos;
    }
  }
  ADD_FAILURE() << "no flags of the mapping";
  return false;
}

// Kernels that are built without huge pages refuse all advice about them.
bool KernelHasHugePages() { return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good(); }

TEST(AdviseHugePages, AdvisesWholeHugePagesWithinTheRange) {
  const Memory memory;
  char* begin = memory.begin();
  AdviseHugePages(begin + 64, 3 * kHugePage);
  const bool expected = KernelHasHugePages();
  EXPECT_FALSE(IsAdvised(begin));
  EXPECT_EQ(IsAdvised(begin + kHugePage), expected);
  EXPECT_EQ(IsAdvised(begin + 3 * kHugePage - 1), expected);
  EXPECT_FALSE(IsAdvised(begin + 3 * kHugePage));
}

TEST(AdviseHugePages, LeavesRangesWithoutAWholeHugePageAlone) {
  const Memory memory;
  char* begin = memory.begin();
  AdviseHugePages(nullptr, 0);
  AdviseHugePages(begin, kHugePage - 1);
  AdviseHugePages(begin + 1, 2 * kHugePage - 2);
  for (size_t page = 0; page < kPages; ++page) EXPECT_FALSE(IsAdvised(begin + page * kHugePage)) << page;
}

TEST(AdviseHugePages, KeepsBytes) {
  const Memory memory;
  std::memset(memory.begin(), 7, kPages * kHugePage);
  AdviseHugePages(memory.begin(), kPages * kHugePage);
  for (size_t i = 0; i < kPages * kHugePage; i += 1023) ASSERT_EQ(memory.begin()[i], 7) << i;
}

}  // namespace
}  // namespace raggemm
