#include "bench/bandwidth.h"

#include <vector>

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

double Bandwidth::ReadGbps(int threads) {
  auto way = ways_.find(threads);
  if (way == ways_.end()) way = ways_.emplace(threads, FastestWay(threads)).first;
  return ReadPass(threads, way->second);
}

double Bandwidth::StoreGbps(int threads) {
  char* part = NextPart();
  const int64_t share = kPart / threads / kLine * kLine;
  return Gbps(SecondsOnThreads(threads, [&](int thread) { Store(isa_, part + thread * share, share); }));
}

double Bandwidth::ReadPass(int threads, const ReadWay& way) {
  const char* part = NextPart();
  const int64_t share = kPart / threads / kLine * kLine;
  return Gbps(
      SecondsOnThreads(threads, [&](int thread) { Read(part + thread * share, share, way.streams, way.prefetch); }));
}

// Emerald Rapids, two threads, GB/s: one stream 20, four 30, four with prefetch 32; on Zen 3 prefetch makes it worse.
Bandwidth::ReadWay Bandwidth::FastestWay(int threads) {
  constexpr ReadWay kWays[] = {{1, 0}, {1, 4096}, {4, 0}, {4, 1024}, {8, 0}, {8, 1024}};
  ReadWay best = kWays[0];
  double best_rate = 0;
  for (const ReadWay& way : kWays) {
    std::vector<double> rates;
    for (int pass = 0; pass < 5; ++pass) rates.push_back(ReadPass(threads, way));
    if (const double rate = Median(rates); rate > best_rate) {
      best = way;
      best_rate = rate;
    }
  }
  return best;
}

// A part beyond the last is never asked for: prefetch may run past the end of one.
char* Bandwidth::NextPart() {
  char* part = memory_.data() + next_part_ * kPart;
  next_part_ = (next_part_ + 1) % (kBeyondCaches / kPart);
  return part;
}

}  // namespace raggemm::bench
