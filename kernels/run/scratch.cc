#include "kernels/run/scratch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

#include "absl/strings/str_cat.h"
#include "kernels/plan/tile.h"
#include "kernels/run/rounded.h"
#include "kernels/target/isa.h"
#include "kernels/target/target.h"
#include "kernels/threads/fork.h"
#include "raggemm/element.h"

namespace raggemm {
namespace {

struct FreeBlock {
  FreeBlock* next;
  size_t bytes;
};

// Size of the header in front of each buffer. The header is a FreeBlock.
constexpr size_t kHeader = kLineBytes;

// Head of the list of free buffers. It has no destructor, because other threads may still make calls after static
// destructors ran.
constinit FreeBlock* free_list = nullptr;
constinit KeptBuffers kept = {};

FreeBlock* TakeFree(size_t bytes) {
  const std::lock_guard<std::mutex> lock(lists_mutex);
  for (FreeBlock** at = &free_list; *at != nullptr; at = &(*at)->next) {
    if ((*at)->bytes < bytes) continue;
    FreeBlock* block = *at;
    *at = block->next;
    --kept.count;
    kept.bytes -= static_cast<int64_t>(block->bytes);
    return block;
  }
  return nullptr;
}

FreeBlock* Allocate(size_t bytes) {
  void* memory = std::aligned_alloc(kHugePageBytes, bytes);
  if (memory == nullptr) return nullptr;
  // Without huge pages, calls are only slower, so an error of madvise is ignored.
  madvise(memory, bytes, MADV_HUGEPAGE);
  return new (memory) FreeBlock{nullptr, bytes};
}

void GiveBack(FreeBlock* block) {
  {
    const std::lock_guard<std::mutex> lock(lists_mutex);
    if (kept.count < kMostKeptBuffers) {
      block->next = free_list;
      free_list = block;
      ++kept.count;
      kept.bytes += static_cast<int64_t>(block->bytes);
      return;
    }
  }
  std::free(block);
}

// Frees the buffers when the library is unloaded. Other threads may still make calls.
__attribute__((destructor)) void FreeAll() {
  const std::lock_guard<std::mutex> lock(lists_mutex);
  kept = {};
  while (free_list != nullptr) {
    FreeBlock* block = free_list;
    free_list = block->next;
    std::free(block);
  }
}

}  // namespace

Scratch::Scratch(const TileContext& context, void* block) {
  const KernelRow& kernels = *context.kernels.row;
  const auto take = [&](int64_t size) {
    char* slot = block == nullptr ? nullptr : static_cast<char*>(block) + bytes;
    bytes += RoundUp(size, kLineBytes);
    return slot;
  };
  const int64_t sum = SizeOf(ArithmeticOf(kernels).sum), steps = KernelSteps(context.kernels, context.kernels.kc);
  // Packers may write up to one vector beyond the end of the last panel.
  packed_lhs = take(PackedBytes(kernels.lhs, steps, context.blocking.m) + kernels.vector * sum);
  for (char*& panel : panels) panel = take(PackedBytes(kernels.rhs, steps, kernels.cols));
  // The last panel may start after a narrower panel, and end behind the tile.
  const int64_t sums = context.blocking.m * (context.blocking.n + kernels.cols) * sum;
  // Rounded rows keep unfinished s32 sums behind the totals.
  chain = take(sums * (context.call.products.rounds_lhs ? 2 : 1));
  total = take(sums);
  const int64_t columns = std::max(context.blocking.n, kMaxCols),
                floats = columns * static_cast<int64_t>(sizeof(float));
  bias = take(columns * sum);
  for (float** row : {&gate, &result}) *row = reinterpret_cast<float*>(take(context.call.activation ? floats : 0));
  const int64_t scaled_rows = context.call.scales_sums ? context.blocking.m : 0;
  scaled = take(context.call.scales_sums ? sums : 0);
  row_scales = reinterpret_cast<float*>(take(scaled_rows * static_cast<int64_t>(sizeof(float))));
  const int64_t pieces = PiecesOfKc(context), piece_rows = context.blocking.m * pieces;
  const int64_t column_sets = context.call.scales_sums ? 1 : pieces;
  column_scales =
      reinterpret_cast<float*>(take(column_sets * (kMaxCols + kMostVector) * static_cast<int64_t>(sizeof(float))));
  column_zeros =
      reinterpret_cast<int32_t*>(take(pieces * (kMaxCols + kMostVector) * static_cast<int64_t>(sizeof(int32_t))));
  piece_scales = reinterpret_cast<float*>(take(piece_rows * static_cast<int64_t>(sizeof(float))));
  piece_sums = reinterpret_cast<int32_t*>(take(piece_rows * static_cast<int64_t>(sizeof(int32_t))));
  block_scales =
      reinterpret_cast<float*>(take(pieces > 0 ? context.blocking.m * static_cast<int64_t>(sizeof(float)) : 0));
}

KeptBuffers CountKeptBuffers() {
  const std::lock_guard<std::mutex> lock(lists_mutex);
  return kept;
}

absl::Status ScratchLease::Acquire(int64_t count, int64_t bytes) {
  const size_t whole = (static_cast<size_t>(bytes) + kHeader + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  while (count_ < count) {
    FreeBlock* block = TakeFree(whole);
    if (block == nullptr) block = Allocate(whole);
    if (block == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for the pack buffers of ", count, " threads, ", whole, " bytes each"));
    }
    blocks_[count_++] = reinterpret_cast<char*>(block) + kHeader;
  }
  return absl::OkStatus();
}

ScratchLease::~ScratchLease() {
  while (count_ > 0) {
    GiveBack(reinterpret_cast<FreeBlock*>(static_cast<char*>(blocks_[--count_]) - kHeader));
  }
}

}  // namespace raggemm
