#include "tests/support/guarded_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace raggemm::test {
namespace {

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
constexpr unsigned char kFill = 0xA5;

// Returns the mapped regions that no buffer uses, by their number of pages. They are reused, because mapping is slow
// and tests make many small buffers.
constinit std::mutex regions_mutex;
std::map<size_t, std::vector<unsigned char*>>& FreeRegions() {
  static auto* regions = new std::map<size_t, std::vector<unsigned char*>>;
  return *regions;
}

unsigned char* TakeRegion(size_t pages) {
  const std::lock_guard<std::mutex> lock(regions_mutex);
  std::vector<unsigned char*>& free = FreeRegions()[pages];
  if (!free.empty()) {
    unsigned char* region = free.back();
    free.pop_back();
    return region;
  }
  void* reserved = mmap(nullptr, (pages + 2) * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) std::abort();
  unsigned char* region = static_cast<unsigned char*>(reserved) + kPage;
  if (mprotect(region, pages * kPage, PROT_READ | PROT_WRITE) != 0) std::abort();
  return region;
}

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes, size_t gap, Cliff cliff)
    : bytes_(bytes), pages_((bytes + gap + kPage - 1) / kPage), region_(nullptr), data_(nullptr) {
  if (bytes == 0) return;
  region_ = TakeRegion(pages_);
  const size_t rest = pages_ * kPage - gap - bytes;
  const size_t before = cliff == Cliff::kBehind ? rest : gap, behind = cliff == Cliff::kBehind ? gap : rest;
  unsigned char* begin = region_ + before;
  data_ = begin;
  std::memset(region_, kFill, before);
  std::memset(begin + bytes, kFill, behind);
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept
    : bytes_(other.bytes_), pages_(other.pages_), region_(other.region_), data_(other.data_) {
  other.region_ = nullptr;
}

GuardedBuffer::~GuardedBuffer() {
  if (region_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(regions_mutex);
  FreeRegions()[pages_].push_back(region_);
}

bool GuardedBuffer::SurroundingsIntact() const {
  if (region_ == nullptr) return true;
  const unsigned char* begin = static_cast<const unsigned char*>(data_);
  const auto filled = [](unsigned char byte) { return byte == kFill; };
  return std::all_of(const_cast<const unsigned char*>(region_), begin, filled) &&
         std::all_of(begin + bytes_, static_cast<const unsigned char*>(region_) + pages_ * kPage, filled);
}

}  // namespace raggemm::test
