#include "bench/bandwidth.h"

#include <algorithm>

#include "bench/team.h"

namespace raggemm::bench {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPart = kBeyondCaches / 4;

// One word of each line: the whole line comes from memory. The streams lie side by side in the part.
void Read(const char* begin, int64_t bytes, int streams, int64_t prefetch) {
  const int64_t stream = bytes / streams / kLine * kLine;
  uint64_t sum = 0;
  for (int64_t at = 0; at < stream; at += kLine) {
    for (int s = 0; s < streams; ++s) {
      const char* line = begin + s * stream + at;
      if (prefetch != 0) __builtin_prefetch(line + prefetch);
      sum += *reinterpret_cast<const uint64_t*>(line);
    }
  }
  asm volatile("" : : "r"(sum));  // used, so that nothing is left out
}

// Assembly, because only the kernels are compiled for an ISA. Whatever the register holds is stored.
void Store(Isa isa, char* begin, int64_t bytes) {
  const auto each_line = [&](auto store) {
    for (char* line = begin; line < begin + bytes; line += kLine) store(line);
  };
  switch (isa) {
    case Isa::kAvx512:
      each_line([](char* line) { asm volatile("vmovntdq %%zmm0, (%0)" : : "r"(line) : "memory"); });
      break;
    case Isa::kAvx2:
      each_line([](char* line) {
        asm volatile("vmovntdq %%ymm0, (%0)\nvmovntdq %%ymm0, 32(%0)" : : "r"(line) : "memory");
      });
      break;
    case Isa::kScalar:
      each_line([](char* line) {
        asm volatile("movntdq %%xmm0, (%0)\nmovntdq %%xmm0, 16(%0)\nmovntdq %%xmm0, 32(%0)\nmovntdq %%xmm0, 48(%0)"
                     :
                     : "r"(line)
                     : "memory");
      });
      break;
  }
  asm volatile("sfence" : : : "memory");
}

double Gbps(double seconds) { return static_cast<double>(kPart) / seconds * 1e-9; }

}  // namespace

Bandwidth::Bandwidth(Isa isa) : isa_(isa), memory_(kBeyondCaches + kPart, DType::kF32, DType::kF32) {}

// With how many streams a thread and how many bytes ahead, 0 leaving it to the hardware. Emerald Rapids, two threads,
// GB/s: one stream 20, four 30, four with prefetch 32; on Zen 3 prefetch makes it worse. Chosen once for all, at a
// moment when others were busy, the slowest was taken for a whole run, whose decoding then was 20 % above the limit.
double Bandwidth::ReadGbps(int threads) {
  struct Way {
    int streams;
    int64_t prefetch;
  };
  constexpr Way kWays[] = {{1, 0}, {4, 0}, {4, 1024}, {8, 1024}};
  const int64_t share = kPart / threads / kLine * kLine;
  double fastest = 0;
  for (const Way& way : kWays) {
    const char* part = NextPart();
    const double seconds =
        SecondsOnThreads(threads, [&](int thread) { Read(part + thread * share, share, way.streams, way.prefetch); });
    fastest = std::max(fastest, Gbps(seconds));
  }
  return fastest;
}

double Bandwidth::StoreGbps(int threads) {
  char* part = NextPart();
  const int64_t share = kPart / threads / kLine * kLine;
  return Gbps(SecondsOnThreads(threads, [&](int thread) { Store(isa_, part + thread * share, share); }));
}

// A part beyond the last is never asked for: prefetch may run past the end of one.
char* Bandwidth::NextPart() {
  char* part = memory_.data() + next_part_ * kPart;
  next_part_ = (next_part_ + 1) % (kBeyondCaches / kPart);
  return part;
}

}  // namespace raggemm::bench
