#include "ffi/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace raggemm {

void AdviseHugePages(void* data, size_t bytes) {
  constexpr size_t kHugePage = 2 << 20;
  const size_t before = -reinterpret_cast<uintptr_t>(data) % kHugePage;
  if (bytes < before + kHugePage) return;
  // Advice: failure costs speed only.
  madvise(static_cast<char*>(data) + before, (bytes - before) / kHugePage * kHugePage, MADV_HUGEPAGE);
}

}  // namespace raggemm
