#include "kernels/target/isa.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "raggemm/element.h"

namespace raggemm {

const IsaRow& RowOf(Isa isa) {
  const absl::Span<const IsaRow> rows = IsaRows();
  return rows[rows.size() - 1 - static_cast<size_t>(isa)];
}

absl::Span<const Isa> AllIsas() {
  static const auto all = [] {
    std::array<Isa, kMostIsas> all{};
    std::transform(IsaRows().begin(), IsaRows().end(), all.begin(), [](const IsaRow& row) { return row.isa; });
    return all;
  }();
  return absl::MakeSpan(all).first(IsaRows().size());
}

absl::string_view NameOf(Isa isa) { return RowOf(isa).name; }

absl::string_view MissingFor(Isa isa) {
  const char* missing = RowOf(isa).missing();
  return missing != nullptr ? missing : "";
}

std::optional<Isa> IsaOf(absl::string_view name) {
  for (const IsaRow& row : IsaRows()) {
    if (absl::EqualsIgnoreCase(row.name, name)) return row.isa;
  }
  return std::nullopt;
}

std::string NameOf(const KernelRow& kernels) {
  const IsaRow& isa = *std::find_if(IsaRows().begin(), IsaRows().end(), [&](const IsaRow& row) {
    return &kernels >= row.kernels.begin() && &kernels < row.kernels.end();
  });
  return absl::StrCat(ArithmeticOf(kernels).name, "_", kernels.rows, "x", kernels.cols, "_", isa.name);
}

std::vector<std::string> KernelNames(Isa isa) {
  std::vector<std::string> names;
  for (const KernelRow& kernels : RowOf(isa).kernels) names.push_back(NameOf(kernels));
  return names;
}

const KernelRow* OwnKernelsFor(Isa isa, const Arithmetic& arithmetic) {
  for (const KernelRow& row : RowOf(isa).kernels) {
    if (&ArithmeticOf(row) == &arithmetic) return &row;
  }
  return nullptr;
}

const KernelRow& KernelsFor(Isa isa, const Arithmetic& arithmetic) {
  const KernelRow* own = OwnKernelsFor(isa, arithmetic);
  return own != nullptr ? *own : KernelsFor(RowOf(isa).base, arithmetic);
}

const Dequantizers& DequantizersFor(Isa isa) {
  const IsaRow& row = RowOf(isa);
  return row.dequantizers != nullptr ? *row.dequantizers : DequantizersFor(row.base);
}

int64_t PackedBytes(const PackedLayout& layout, int64_t k, int64_t width) {
  return (k + layout.k_group - 1) / layout.k_group * layout.k_group * width * SizeOf(layout.element);
}

}  // namespace raggemm
