#include "tests/kernels/schedules/schedule_text.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/block.h"
#include "kernels/fetch.h"
#include "kernels/isa.h"
#include "kernels/microkernel.h"
#include "kernels/scratch.h"
#include "kernels/tile.h"
#include "kernels/ways/way.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm {

// Shows what is fetched of lhs, which Fetch keeps to itself.
struct FetchPeer {
  static std::string Text(const Fetch& fetch, const char* lhs) {
    const auto& at = fetch.lhs_;
    if (at.line == nullptr) return "";
    return absl::StrCat(" lhs ", at.line - lhs, " ", at.lines_left, "/", at.per_kernel, " ", at.row_left, "/",
                        at.lines_per_row, " ", at.row_skip);
  }
};

namespace test {
namespace {

constexpr int kMostBlocks = 12;  // of a tile, as text
constexpr int64_t kMostTiles = 64;

int KindOf(const StripSource& source) { return source.sweeps ? 1 : source.stores ? 2 : source.reads_rhs ? 0 : 3; }

std::string NameOf(const Recipe& recipe) {
  static constexpr const char* kOrders[] = {"by strips", "by rows"};
  return absl::StrCat(WayOf(recipe).name, " ", kOrders[static_cast<int>(recipe.fetch)], " ", recipe.shape);
}

void AppendOperand(const Operand& x, const Reading& reading, const char* name, std::string& text) {
  absl::StrAppend(&text, name, ": read ", NameOf(reading.type), reading.expand != nullptr ? " expanded" : "",
                  ", repeat ", static_cast<int>(x.repeat));
  for (const Factor* factor : {&x.scale, &x.zero}) {
    if (!factor->is_given()) continue;
    absl::StrAppend(&text, ", ", NameOf(factor->values.dtype), " per ", static_cast<int>(factor->values.per));
    if (factor->of_elements) absl::StrAppend(&text, " of elements");
    if (factor->of_blocks) {
      absl::StrAppend(&text, " of blocks ", factor->row_block, "x", factor->col_block, ", ", factor->rows, "x",
                      factor->cols);
    }
  }
  absl::StrAppend(&text, "\n");
}

void AppendArray(const char* name, const int64_t* values, int64_t count, std::string& text) {
  absl::StrAppend(&text, name);
  for (int64_t i = 0; values != nullptr && i < count; ++i) absl::StrAppend(&text, " ", values[i]);
  absl::StrAppend(&text, "\n");
}

// What the work on a block fetches, as kernels would, from the start of rhs.
void AppendFetches(const Schedule& plan, const TilePlace& place, const Block& block, Fetch& fetch, std::string& text) {
  const auto append = [&](Prefetch* at) {
    if (at->count <= 0) return;
    absl::StrAppend(&text, " ", at->line - plan.rhs.data, "x", at->count, at->near ? " near" : "");
    for (; at->count > 0; --at->count) {
      const bool ends = --at->run_left == 0;
      at->line += ends ? at->skip : 64;
      if (ends) at->run_left = at->run;
    }
  };
  Strip strip;
  for (int64_t col = block.col; col < block.col + block.cols; col += strip.cols) {
    strip = NextStrip(plan, place, block.col + block.cols - col);
    absl::StrAppend(&text, " [", strip.cols, "/", strip.width, " from ", KindOf(*strip.source));
    if (!strip.source->reads_rhs) append(fetch.For(Fetch::Work::kPack));
    for (int64_t i = 0; i < place.rows.count; ++i) append(fetch.For(Fetch::Work::kKernel));
    absl::StrAppend(&text, "]", FetchPeer::Text(fetch, plan.lhs.data));
  }
}

void AppendBlocks(const Schedule& plan, const TilePlace& place, int64_t tile, std::string& text) {
  Fetch fetch(plan, place, tile);
  Block block;
  bool more = FirstBlock(plan, place, block);
  for (int i = 0; more && i < kMostBlocks; ++i) {
    Block next = block;
    more = NextBlock(plan, place, next);
    fetch.StartBlock(block, more ? &next : nullptr);
    absl::StrAppend(&text, "  ", block.term.replica, ": ", block.k, "+", block.steps, " of ", block.panel_k, "+",
                    block.panel_steps, ", ", block.col, "+", block.cols, " ", block.start, block.finish,
                    block.first_chain, block.ends_sum, block.last, block.begins_panel(), " lhs ",
                    block.lhs.data - plan.lhs.data, " rhs ", block.rhs.data - plan.rhs.data, ":");
    AppendFetches(plan, place, block, fetch, text);
    absl::StrAppend(&text, "\n");
    block = next;
  }
}

// Where they lie, at the beginning and at the end; of three the walk through their blocks, too.
void AppendTiles(const Schedule& plan, std::string& text) {
  for (int64_t tile = 0; tile < plan.gemm_tiles; ++tile) {
    if (tile >= kMostTiles && tile + kMostTiles < plan.gemm_tiles && tile != plan.gemm_tiles / 2) continue;
    const TilePlace place(plan, tile);
    const auto& [unit, out, window, rows, recipe, blocks] = place;
    absl::StrAppend(&text, "tile of ", unit.problem, " ", unit.replica, " ", unit.group, ": ", window.row, "+",
                    window.rows, " ", window.col, "+", window.cols, " at ", out.data - plan.out.data, ", ", rows.count,
                    " row tiles, ", rows.taller, " taller than ", rows.each, ", ", NameOf(recipe), ", ", blocks.k, "x",
                    blocks.n, blocks.k_inner ? " along k" : "", "\n");
    const bool is_walked = tile == 0 || tile == plan.gemm_tiles / 2 || tile + 1 == plan.gemm_tiles;
    if (is_walked) AppendBlocks(plan, place, tile, text);
  }
}

void AppendScratch(const Schedule& plan, std::string& text) {
  const Scratch scratch(plan, nullptr);
  absl::StrAppend(&text, "scratch");
  for (const void* at : {static_cast<const void*>(scratch.panels), static_cast<const void*>(scratch.strips[0]),
                         static_cast<const void*>(scratch.strips[1]), static_cast<const void*>(scratch.chain),
                         static_cast<const void*>(scratch.total), static_cast<const void*>(scratch.bias),
                         static_cast<const void*>(scratch.gate), static_cast<const void*>(scratch.result),
                         static_cast<const void*>(scratch.scaled), static_cast<const void*>(scratch.row_scales),
                         static_cast<const void*>(scratch.column_scales)}) {
    absl::StrAppend(&text, " ", reinterpret_cast<uintptr_t>(at));
  }
  absl::StrAppend(&text, " of ", scratch.bytes, "\n");
}

}  // namespace

std::string Summary(const Schedule& plan) {
  const TilePlace place(plan, 0);
  return absl::StrCat(NameOf(plan.isa), ", ", plan.arithmetic->name, ", ", plan.blocking.m, "x", plan.blocking.n, ", ",
                      plan.threads, " threads, ", plan.gemm_tiles, " + ", plan.fill_tiles, " tiles, ",
                      NameOf(place.recipe), " ", place.blocks.k, "x", place.blocks.n,
                      place.blocks.k_inner ? " along k" : "");
}

std::string ScheduleText(const Schedule& plan) {
  std::string text = ToString(plan);
  AppendOperand(plan.lhs, plan.read_lhs, "lhs", text);
  AppendOperand(plan.rhs, plan.read_rhs, "rhs", text);
  AppendOperand(plan.out, Reading(), "out", text);
  const int64_t sizes = plan.problems * plan.replicas * plan.groups;
  for (const Operand* x : {&plan.lhs, &plan.rhs, &plan.out}) {
    for (const GroupExtents* extents : {&x->first, &x->last}) {
      AppendArray("sizes", extents->sizes, sizes, text);
      AppendArray("starts", extents->starts, sizes, text);
    }
  }
  AppendArray("first group", plan.first_group, plan.problems * plan.replicas, text);
  AppendArray("costs", plan.cost_prefix, plan.units + 1, text);
  AppendArray("tiles", plan.tile_prefix, plan.units + 1, text);
  absl::StrAppend(&text, "panel ", plan.panel, ", sums ", plan.scales_sums, " of ", plan.sum_steps, ", streams ",
                  plan.rhs_streams, ", ends as ", NameOf(*plan.ends), "\n");
  AppendScratch(plan, text);
  AppendTiles(plan, text);
  return text;
}

std::string KernelsText(const KernelRow& row) {
  const auto packers = [](const Packers& x) { return absl::StrCat(x.rows != nullptr, x.transposed != nullptr, " "); };
  std::string text =
      absl::StrCat(NameOf(row), ", steps of ", row.row_step, " rows and ", row.k_step, " of k, vector ", row.vector,
                   ", lhs ", NameOf(row.lhs.element), " ", row.lhs.k_group, ", rhs ", NameOf(row.rhs.element), " ",
                   row.rhs.k_group, row.adds_totals ? ", adds totals" : "", ", products ", row.products_per_fma,
                   ", ahead ", row.ahead_slice, ", has ", row.add_scaled != nullptr, row.add_scaled_integers != nullptr,
                   row.combine != nullptr, row.set_up != nullptr, row.restore != nullptr, " ");
  for (const TermPackers& terms : row.terms) absl::StrAppend(&text, packers(terms.lhs), packers(terms.rhs));
  for (const FormatKernels& x : row.formats) {
    absl::StrAppend(&text, "\n", packers(x.lhs), packers(x.rhs), x.pack_bias != nullptr, x.epilogue != nullptr,
                    x.widen != nullptr, x.scale != nullptr, x.dot != nullptr);
    for (Activate* activate : x.activate) absl::StrAppend(&text, activate != nullptr);
    for (ActivateGradient* activate : x.activate_gradient) absl::StrAppend(&text, activate != nullptr);
    for (int64_t mr = 0; mr <= kMaxRows; ++mr) {
      absl::StrAppend(&text, " ", x.expand[mr] != nullptr, x.packed[mr] != nullptr);
      for (const DirectKernel& kernel : {x.direct[mr][0], x.direct[mr][1], x.sweep[mr], x.along_k[mr]}) {
        absl::StrAppend(&text, ",", kernel.run != nullptr ? kernel.nr : 0);
      }
    }
  }
  return text;
}

std::string ExpandersText(const Expanders& expanders) {
  std::string text;
  for (int i = 0; i < kQuantizedFormats; ++i) {
    absl::StrAppend(&text, NameOf(kQuantized[i].dtype), expanders.to_bf16[i] != nullptr, expanders.to_f32[i] != nullptr,
                    expanders.to_bytes[i] != nullptr, "\n");
  }
  return text;
}

std::string BuffersText(const MoeMlpExtents& extents, bool is_backward) {
  char* const base = reinterpret_cast<char*>(uintptr_t{1} << 40);  // is not touched
  const MlpBuffers b(extents, is_backward, reinterpret_cast<int64_t*>(base));
  std::string text;
  for (const void* at : {static_cast<const void*>(b.of_sizes.data()), static_cast<const void*>(b.of_products.data()),
                         static_cast<const void*>(b.of_gate.data()), static_cast<const void*>(b.chunk_sizes),
                         static_cast<const void*>(b.tokens), static_cast<const void*>(b.sums),
                         static_cast<const void*>(b.up), static_cast<const void*>(b.d), static_cast<const void*>(b.x),
                         static_cast<const void*>(b.a), static_cast<const void*>(b.a_gradient),
                         static_cast<const void*>(b.out_gradient), static_cast<const void*>(b.weighted),
                         static_cast<const void*>(b.up_gradient), static_cast<const void*>(b.ones)}) {
    absl::StrAppend(&text, at == nullptr ? 0 : static_cast<const char*>(at) - base, "\n");
  }
  return text;
}

}  // namespace test
}  // namespace raggemm
