#include "bench/limits.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "bench/timing.h"
#include "kernels/check/problem.h"

namespace raggemm::bench {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kPart = kBeyondCaches / 4;
// How often a unit is measured at first, for each number of threads. Ten times usually find the highest rate, so the
// first cases get the same limit as the last ones.
constexpr int kFirstTurns = 10;

#define RAGGEMM_STORE_LINES(instructions)                           \
  [](char* begin, int64_t bytes) {                                  \
    for (char* line = begin; line < begin + bytes; line += kLine) { \
      asm volatile("" instructions : : "r"(line) : "memory");       \
    }                                                               \
    asm volatile("sfence" : : : "memory");                          \
  }

using Store = void (*)(char* begin, int64_t bytes);

Store WidestStore() {
  if (__builtin_cpu_supports("avx512f")) return RAGGEMM_STORE_LINES("vmovntdq %%zmm0, (%0)");
  if (__builtin_cpu_supports("avx")) return RAGGEMM_STORE_LINES("vmovntdq %%ymm0, (%0)\nvmovntdq %%ymm0, 32(%0)");
  return RAGGEMM_STORE_LINES(
      "movntdq %%xmm0, (%0)\nmovntdq %%xmm0, 16(%0)\n"
      "movntdq %%xmm0, 32(%0)\nmovntdq %%xmm0, 48(%0)");
}

struct ReadPattern {
  int streams;       // Streams that a thread reads in turns.
  int64_t prefetch;  // Bytes between a read and its prefetch. 0: only the hardware prefetches.
  // Pages of each stream whose walks start together (TranslatePages in kernels/run/prefetch.cc). 0: each read starts
  // its own walk.
  int64_t pages = 0;
};

// Reads 8 bytes of each cache line.
void Read(const char* begin, int64_t bytes, const ReadPattern& pattern) {
  const int64_t stream = bytes / pattern.streams / kLine * kLine;
  uint64_t sum = 0;
  for (int64_t at = 0; at < stream; at += kLine) {
    if (pattern.pages != 0 && at % (pattern.pages * kPageBytes) == 0) {
      for (int64_t i = 0; i < pattern.streams * pattern.pages; ++i) {
        __builtin_prefetch(begin + i % pattern.streams * stream + at + i / pattern.streams * kPageBytes, 0, 2);
      }
    }
    for (int s = 0; s < pattern.streams; ++s) {
      const char* line = begin + s * stream + at;
      if (pattern.prefetch != 0) __builtin_prefetch(line + pattern.prefetch);
      sum += *reinterpret_cast<const uint64_t*>(line);
    }
  }
  asm volatile("" : : "r"(sum));  // Keeps the compiler from removing the loads.
}

// Reads bytes `from` to `to` of the ranges in `memory`, as if there were no gaps between them.
void ReadShare(const Stretches& memory, int64_t from, int64_t to, const ReadPattern& pattern) {
  for (const absl::Span<const char> stretch : memory) {
    const auto size = static_cast<int64_t>(stretch.size());
    const int64_t begin = std::clamp<int64_t>(from, 0, size), end = std::clamp<int64_t>(to, 0, size);
    if (begin < end) Read(stretch.data() + begin, end - begin, pattern);
    from -= size;
    to -= size;
  }
}

// Returns the GB/s of the fastest read pattern. GB/s of two threads on Emerald Rapids:
//
//     one stream                     20
//     four streams                   30
//     four streams with prefetch     32
//
// On Zen 3 prefetch is slower. On one core of Zen 4, three runs of the last pattern read 28.2, 26.6 and 28.4 GB/s. The
// best other pattern read 26.8, 28.1 and 26.1.
//
// Each call measures all patterns. In an earlier version, each run chose one pattern. Busy processes then made the
// slowest pattern win, and decoding ran 20 % above the limit.
double ReadGbps(int threads, absl::FunctionRef<Stretches()> next) {
  constexpr ReadPattern kPatterns[] = {{1, 0}, {4, 0}, {4, 1024}, {8, 1024}, {4, 1024, 32}};
  double fastest = 0;
  for (const ReadPattern& pattern : kPatterns) {
    const Stretches memory = next();
    const int64_t bytes = BytesOf(memory), share = bytes / threads / kLine * kLine;
    const double seconds = SecondsOnThreads(threads, [&](int thread) {
      ReadShare(memory, thread * share, thread + 1 == threads ? bytes : (thread + 1) * share, pattern);
    });
    fastest = std::max(fastest, static_cast<double>(bytes) / seconds * 1e-9);
  }
  return fastest;
}

double StoreGbps(int threads, char* part) {
  static const Store store = WidestStore();
  const int64_t share = kPart / threads / kLine * kLine;
  const double seconds = SecondsOnThreads(threads, [&](int thread) { store(part + thread * share, share); });
  return static_cast<double>(kPart) / seconds * 1e-9;
}

Limits QuantileOf(const std::vector<Limits>& samples, double share) {
  const auto quantile = [&](auto limit) {
    std::vector<double> values;
    for (const Limits& sample : samples) {
      if (limit(sample) > 0) values.push_back(limit(sample));
    }
    return Quantile(std::move(values), share);
  };
  Limits limits;
  for (size_t unit = 0; unit < kUnits; ++unit) {
    limits.gflops[unit] = quantile([unit](const Limits& sample) { return sample.gflops[unit]; });
  }
  limits.read_gbps = quantile([](const Limits& sample) { return sample.read_gbps; });
  limits.store_gbps = quantile([](const Limits& sample) { return sample.store_gbps; });
  limits.overall_fma_gflops = quantile([](const Limits& sample) { return sample.overall_fma_gflops; });
  return limits;
}

}  // namespace

size_t FastestUnit(const Limits& limits) {
  return static_cast<size_t>(std::max_element(limits.gflops.begin(), limits.gflops.end()) - limits.gflops.begin());
}

int64_t BytesOf(const Stretches& memory) {
  return absl::c_accumulate(
      memory, int64_t{0}, [](int64_t sum, const auto& stretch) { return sum + static_cast<int64_t>(stretch.size()); });
}

LimitsMeter::LimitsMeter() : memory_(kBeyondCaches + kPart, DType::kF32, DType::kF32) {}

Limits LimitsMeter::Measure(int threads, DType in, absl::FunctionRef<Stretches()> next) {
  Limits limits;
  MeasureUnits(threads, in, limits);
  limits.read_gbps = ReadGbps(threads, next);
  limits.store_gbps = StoreGbps(threads, NextPart());
  return limits;
}

Limits LimitsMeter::WithFastestUnits(Limits limits, int threads) const {
  const auto fastest = fastest_.find(threads);
  for (size_t i = 0; i < kUnits && fastest != fastest_.end(); ++i) {
    if (limits.gflops[i] > 0) limits.gflops[i] = std::max(limits.gflops[i], fastest->second[i]);
  }
  return limits;
}

void LimitsMeter::MeasureUnits(int threads, DType in, Limits& limits) {
  for (size_t i = 0; i < kUnits; ++i) {
    if (!Multiplies(Units()[i], in)) continue;
    double& fastest = fastest_[threads][i];
    for (int turn = fastest == 0 ? kFirstTurns : 1; turn > 0; --turn) {
      const UnitRates rates = MeasureUnit(Units()[i], threads);
      limits.gflops[i] = std::max(limits.gflops[i], rates.fastest);
      if (i == 0) limits.overall_fma_gflops = rates.overall;
    }
    fastest = std::max(fastest, limits.gflops[i]);
  }
}

char* LimitsMeter::NextPart() {
  char* part = memory_.data() + next_part_ * kPart;
  next_part_ = (next_part_ + 1) % (kBeyondCaches / kPart);
  return part;
}

Limits UpperQuartileOf(const std::vector<Limits>& samples) { return QuantileOf(samples, 0.75); }
Limits MedianOf(const std::vector<Limits>& samples) { return QuantileOf(samples, 0.5); }

Work WorkOf(const Case& c) {
  const int64_t rows = c.rows(), matrix = c.k * c.n;
  const int64_t in = SizeOf(c.in), out = SizeOf(c.out);
  Work work;
  work.flops = 2.0 * static_cast<double>(rows * matrix);
  if (c.mode == Mode::kWgrad) {
    work.bytes_read = static_cast<double>(rows * (c.k + c.n) * in);
    work.bytes_written = static_cast<double>(static_cast<int64_t>(c.sizes.size()) * matrix * out);
  } else {
    const SetBytes set = SetBytesOf(c);
    const int64_t weights = (set.rhs + set.rhs_scale) / static_cast<int64_t>(c.sizes.size()) * c.active_groups();
    work.bytes_read = static_cast<double>(set.lhs + set.lhs_scale + weights);
    work.bytes_written = static_cast<double>(rows * c.n * out);
  }
  return work;
}

double SecondsAtBest(const Work& work, const Limits& limits) {
  const double sums = work.flops / limits.gflops[FastestUnit(limits)];
  const double transfers = work.bytes_read / limits.read_gbps + work.bytes_written / limits.store_gbps;
  return std::max(sums, transfers) * 1e-9;
}

}  // namespace raggemm::bench
