#include "bench/cases.h"

#include <algorithm>
#include <numeric>
#include <regex>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check/problem.h"

namespace raggemm::bench {
namespace {

struct Types {
  DType in, out;
};
struct Shape {
  int64_t k, n;
};

constexpr Types kTypes[] = {
    {DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF32}};
constexpr Quantization kQuantizations[] = {
    {"int8", DType::kBF16, DType::kS8, DType::kF32, DType::kF32},
    {"fp8", DType::kBF16, DType::kF8E4M3FN, DType::kF32, DType::kF32},
    {"int4", DType::kBF16, DType::kS4, DType::kF32, DType::kBF16, 128},
    {"mxfp4", DType::kBF16, DType::kF4E2M1FN, DType::kF32, DType::kF8E8M0FNU, 32},
    {"w8a8", DType::kS8, DType::kS8, DType::kF32, DType::kF32, 0, true},
    {"integers", DType::kS8, DType::kS8, DType::kS32, std::nullopt},
};
constexpr Mode kModes[] = {Mode::kForward, Mode::kForwardTransposed, Mode::kWgrad};
constexpr int kThreads[] = {1, 2};
// K and N of expert weights: Qwen3-30B-A3B, OLMoE, a model like Qwen but wider, gpt-oss and DeepSeek-V2-Lite.
constexpr Shape kShapes[] = {{2048, 768}, {2048, 1024}, {4096, 1792}, {2880, 2880}, {1408, 2048}};
constexpr int64_t kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};

// Selects the two shapes that differ most: 256 divides N = 768, but 2880 is only a multiple of 64.
bool InDefault(const Shape& shape) { return shape.n == 768 || shape.n == 2880; }

bool InDefault(Mode mode, int64_t rows) {
  switch (mode) {
    case Mode::kForward:
      return true;
    case Mode::kForwardTransposed:
      return rows == 1 || rows == 8 || rows == 64 || rows == 512;
    case Mode::kWgrad:
      return rows == 16 || rows == 64 || rows == 512;
  }
  return false;
}

bool InQuick(Mode mode, int64_t rows) {
  switch (mode) {
    case Mode::kForward:
      return rows == 1 || rows == 8 || rows == 64 || rows == 512;
    case Mode::kForwardTransposed:
      return rows == 8;
    case Mode::kWgrad:
      return rows == 64;
  }
  return false;
}

bool IsSelectedQuantized(const Case& c, Selection selection) {
  const bool quick = selection == Selection::kQuick;
  if (c.recorded) return !quick && absl::EndsWith(c.name, "-decode-up");
  const int64_t rows = c.sizes[0];
  if (quick || c.n != 768) return InDefault({c.k, c.n}) && (!quick || c.n == 768) && (rows == 1 || rows == 64);
  return rows != 2 && rows != 8 && rows != 32;
}

bool Selected(const Case& c, Selection selection) {
  if (selection == Selection::kFull) return true;
  if (c.threads != 2) return false;
  if (c.quantization != nullptr) return IsSelectedQuantized(c, selection);
  if (c.out != DType::kF32 || c.in == DType::kF16) return false;
  const bool quick = selection == Selection::kQuick;
  if (c.recorded) {
    return c.mode == Mode::kForward &&
           (!quick || c.name == "qwen3-30b-a3b-prefill-up" || c.name == "qwen3-30b-a3b-decode-up");
  }
  const int64_t rows = c.sizes[0];
  return quick ? c.n == 768 && InQuick(c.mode, rows) : InDefault({c.k, c.n}) && InDefault(c.mode, rows);
}

// Returns the number of groups, from 4 to 32. A multiple of four lets threads that take whole groups have equal work.
// To keep calls short, more than 4 groups have at most 96 MiB of weights and 12 GFLOP.
int64_t GroupsPerCall(const Shape& shape, int64_t rows, DType rhs) {
  const int64_t weights = shape.k * shape.n;
  const int64_t by_memory = (int64_t{96} << 20) / BytesOf(rhs, weights);
  const int64_t by_flops = int64_t{12'000'000'000} / (2 * rows * weights);
  return std::clamp<int64_t>(std::min(by_memory, by_flops), 4, 32) / 4 * 4;
}

std::vector<Case> CasesOf(const proto::GroupedGemmCases& recorded, const Case& prototype) {
  std::vector<Case> cases;
  for (const Shape& shape : kShapes) {
    for (int64_t rows : kRows) {
      Case& c = cases.emplace_back(prototype);
      c.name = absl::StrCat(shape.k, "x", shape.n, "/rows", rows);
      c.k = shape.k;
      c.n = shape.n;
      c.sizes.assign(GroupsPerCall(shape, rows, c.rhs()), rows);
    }
  }
  for (const proto::GroupedGemmCase& layer : recorded.cases()) {
    Case& c = cases.emplace_back(prototype);
    c.name = layer.name();
    c.recorded = true;
    c.k = layer.k();
    c.n = layer.n();
    c.sizes.assign(layer.group_sizes().begin(), layer.group_sizes().end());
  }
  return cases;
}

}  // namespace

int64_t Case::rows() const { return absl::c_accumulate(sizes, int64_t{0}); }

int64_t Case::active_groups() const {
  return absl::c_count_if(sizes, [](int64_t size) { return size != 0; });
}

int64_t Case::scales_of_group() const {
  if (quantization == nullptr || !quantization->rhs_scale) return 0;
  return (quantization->block == 0 ? 1 : k / std::gcd(k, quantization->block)) * n;
}

std::string Case::Id() const {
  const bool plain = quantization == nullptr;
  return absl::StrCat(plain ? NameOf(mode) : "quantized", "/", plain ? NameOf(in) : quantization->name, "-",
                      NameOf(out), "/", name, "/threads", threads);
}

Case Widened(Case c) {
  c.in = c.quantization != nullptr ? DType::kBF16 : DType::kF32;
  if (c.out == DType::kS32) c.out = DType::kF32;
  c.quantization = nullptr;
  return c;
}

absl::string_view NameOf(Mode mode) {
  switch (mode) {
    case Mode::kForward:
      return "forward";
    case Mode::kForwardTransposed:
      return "forward_transposed";
    case Mode::kWgrad:
      return "wgrad";
  }
  return "";
}

absl::StatusOr<std::vector<Case>> SelectCases(const proto::GroupedGemmCases& recorded, Selection selection,
                                              const std::string& filter) {
  std::regex pattern;
  try {
    pattern = filter;
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(absl::StrCat("filter '", filter, "': ", error.what()));
  }
  std::vector<Case> selected;
  const auto add = [&](Case prototype) {
    for (int threads : kThreads) {
      prototype.threads = threads;
      for (Case& c : CasesOf(recorded, prototype)) {
        if (Selected(c, selection) && std::regex_search(c.Id(), pattern)) selected.push_back(std::move(c));
      }
    }
  };
  for (const Quantization& quantization : kQuantizations) {
    Case prototype;
    prototype.in = quantization.lhs;
    prototype.out = quantization.out;
    prototype.quantization = &quantization;
    add(prototype);
  }
  for (const Types& types : kTypes) {
    for (Mode mode : kModes) {
      Case prototype;
      prototype.mode = mode;
      prototype.in = types.in;
      prototype.out = types.out;
      add(prototype);
    }
  }
  if (selected.empty()) return absl::InvalidArgumentError(absl::StrCat("no case matches '", filter, "'"));
  return selected;
}

}  // namespace raggemm::bench
