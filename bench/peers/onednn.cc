// oneDNN, as several peers: its sgemm, and its matmul primitive on plain row-major operands. The primitive is prepared
// once for each shape. Version 3 also multiplies quantized operands: bf16 by weights with scales, and bytes by bytes.
//
// This file is built once for each version whose headers are found. The headers of version 3 are those of 3.2, so this
// file declares the functions of 3.4 that it calls.
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/peers/libraries.h"
#include "bench/peers/library.h"
#include "bench/peers/series.h"
#include "raggemm/cpu.h"
#include "raggemm/format.h"

namespace raggemm::bench {
namespace {

// Looks up a function by name. The variable to which a Symbol is assigned gives the type.
struct Symbol {
  Library& library;
  const char* name;
  template <typename Function>
  // NOLINTNEXTLINE(google-explicit-constructor): what is assigned to tells the type
  operator Function*() const {
    Function* function;
    library.Find(name, function);
    return function;
  }
};

absl::Status Checked(dnnl_status_t status, const char* call) {
  if (status == dnnl_success) return absl::OkStatus();
  if (status == dnnl_unimplemented) return absl::UnimplementedError(call);
  return absl::InternalError(absl::StrCat(call, " failed: ", status));
}

dnnl_data_type_t DataType(DType dtype) {
  constexpr auto kS4SinceVersion34 = static_cast<dnnl_data_type_t>(11);
  for (const auto& [ours, theirs] : {std::pair{DType::kF32, dnnl_f32},
                                     {DType::kBF16, dnnl_bf16},
                                     {DType::kF16, dnnl_f16},
                                     {DType::kS32, dnnl_s32},
                                     {DType::kS8, dnnl_s8},
                                     {DType::kS4, kS4SinceVersion34}}) {
    if (ours == dtype) return theirs;
  }
  return dnnl_data_type_undef;
}

// oneDNN 3 hides memory descriptors behind pointers, and has no operation descriptors. oneDNN 2 has both as structs.
#if DNNL_VERSION_MAJOR == 2
const dnnl_memory_desc_t* Given(const dnnl_memory_desc_t& desc) { return &desc; }

struct Versioned {
  static constexpr int kScaleArgument = 0;

  Library& library;
  decltype(dnnl_memory_desc_init_by_strides)* describe = Symbol{library, "dnnl_memory_desc_init_by_strides"};
  decltype(dnnl_matmul_desc_init)* matmul_desc_init = Symbol{library, "dnnl_matmul_desc_init"};
  decltype(dnnl_primitive_desc_create)* primitive_desc_create = Symbol{library, "dnnl_primitive_desc_create"};

  dnnl_status_t Matmul(dnnl_primitive_desc_t* desc, dnnl_engine_t engine, const dnnl_memory_desc_t& a,
                       const dnnl_memory_desc_t& b, const dnnl_memory_desc_t& c,
                       dnnl_primitive_attr_t attributes) const {
    dnnl_matmul_desc_t matmul;
    const dnnl_status_t status = matmul_desc_init(&matmul, &a, &b, nullptr, &c);
    return status == dnnl_success ? primitive_desc_create(desc, &matmul, attributes, engine, nullptr) : status;
  }
  absl::Status Quantize(const GemmSeries&, int, const dnnl_memory_desc_t&, dnnl_primitive_attr_t) const {
    return absl::UnimplementedError("quantized operands");
  }
};
#else
const_dnnl_memory_desc_t Given(const dnnl_memory_desc_t& desc) { return desc; }

struct Versioned {
  static constexpr int kScaleArgument = DNNL_ARG_ATTR_SCALES;
  using SetFpmathMode = dnnl_status_t(dnnl_primitive_attr_t, dnnl_fpmath_mode_t, int applies_to_integers);
  using SetScales = dnnl_status_t(dnnl_primitive_attr_t, int argument, int mask, int group_dims, const int64_t* group,
                                  dnnl_data_type_t);

  Library& library;
  decltype(dnnl_memory_desc_create_with_strides)* describe = Symbol{library, "dnnl_memory_desc_create_with_strides"};
  decltype(dnnl_matmul_primitive_desc_create)* matmul = Symbol{library, "dnnl_matmul_primitive_desc_create"};
  SetFpmathMode* set_fpmath_mode = Symbol{library, "dnnl_primitive_attr_set_fpmath_mode_v2"};
  SetScales* set_scales = Symbol{library, "dnnl_primitive_attr_set_scales"};
  decltype(dnnl_post_ops_create)* post_ops_create = Symbol{library, "dnnl_post_ops_create"};
  decltype(dnnl_post_ops_destroy)* post_ops_destroy = Symbol{library, "dnnl_post_ops_destroy"};
  decltype(dnnl_post_ops_append_binary)* post_ops_append_binary = Symbol{library, "dnnl_post_ops_append_binary"};
  decltype(dnnl_primitive_attr_set_post_ops)* set_post_ops = Symbol{library, "dnnl_primitive_attr_set_post_ops"};

  dnnl_status_t Matmul(dnnl_primitive_desc_t* desc, dnnl_engine_t engine, const dnnl_memory_desc_t& a,
                       const dnnl_memory_desc_t& b, const dnnl_memory_desc_t& c,
                       dnnl_primitive_attr_t attributes) const {
    return matmul(desc, engine, a, b, nullptr, c, attributes);
  }

  // Sets `attributes` for quantized operands. `row_scale` describes the scales of lhs, if any.
  absl::Status Quantize(const GemmSeries& series, int rank, const dnnl_memory_desc_t& row_scale,
                        dnnl_primitive_attr_t attributes) const {
    absl::Status status;
    if (series.lhs_dtype == DType::kBF16) {
      status.Update(Checked(set_fpmath_mode(attributes, dnnl_fpmath_mode_bf16, 1), "set_fpmath_mode"));
    }
    if (!series.rhs_scale.empty()) {
      const bool blocks = series.block != series.k;
      const int64_t group[] = {series.block, 1};
      const int mask = (blocks ? 3 : 2) << (rank - 2);
      status.Update(Checked(set_scales(attributes, DNNL_ARG_WEIGHTS, mask, blocks ? 2 : 0, blocks ? group : nullptr,
                                       DataType(series.rhs_scale_dtype)),
                            "set_scales"));
    }
    if (series.lhs_scale.empty()) return status;
    dnnl_post_ops_t multiply;
    post_ops_create(&multiply);
    status.Update(Checked(post_ops_append_binary(multiply, dnnl_binary_mul, row_scale), "append_binary"));
    status.Update(Checked(set_post_ops(attributes, multiply), "set_post_ops"));
    post_ops_destroy(multiply);
    return status;
  }
};
#endif

struct Functions {
  Library& library;
  Versioned versioned = {library};
  decltype(dnnl_sgemm)* sgemm = Symbol{library, "dnnl_sgemm"};
  decltype(dnnl_version)* version = Symbol{library, "dnnl_version"};
  decltype(dnnl_get_effective_cpu_isa)* get_effective_cpu_isa = Symbol{library, "dnnl_get_effective_cpu_isa"};
  decltype(dnnl_cpu_isa2str)* cpu_isa2str = Symbol{library, "dnnl_cpu_isa2str"};
  decltype(dnnl_engine_create)* engine_create = Symbol{library, "dnnl_engine_create"};
  decltype(dnnl_stream_create)* stream_create = Symbol{library, "dnnl_stream_create"};
  decltype(dnnl_memory_desc_get_size)* memory_desc_get_size = Symbol{library, "dnnl_memory_desc_get_size"};
  decltype(dnnl_memory_create)* memory_create = Symbol{library, "dnnl_memory_create"};
  decltype(dnnl_memory_set_data_handle)* memory_set_data_handle = Symbol{library, "dnnl_memory_set_data_handle"};
  decltype(dnnl_primitive_attr_create)* attr_create = Symbol{library, "dnnl_primitive_attr_create"};
  decltype(dnnl_primitive_attr_destroy)* attr_destroy = Symbol{library, "dnnl_primitive_attr_destroy"};
  decltype(dnnl_primitive_attr_set_scratchpad_mode)* attr_set_scratchpad_mode =
      Symbol{library, "dnnl_primitive_attr_set_scratchpad_mode"};
  decltype(dnnl_primitive_desc_destroy)* primitive_desc_destroy = Symbol{library, "dnnl_primitive_desc_destroy"};
  decltype(dnnl_primitive_desc_query)* primitive_desc_query = Symbol{library, "dnnl_primitive_desc_query"};
  decltype(dnnl_primitive_desc_query_md)* primitive_desc_query_md = Symbol{library, "dnnl_primitive_desc_query_md"};
  decltype(dnnl_primitive_create)* primitive_create = Symbol{library, "dnnl_primitive_create"};
  decltype(dnnl_primitive_execute)* primitive_execute = Symbol{library, "dnnl_primitive_execute"};
};

// A matmul primitive for one shape, with memory objects for the operands of each thread.
class Matmul {
 public:
  Matmul(const Functions& f, dnnl_engine_t engine) : f_(f), engine_(engine) {}

  // Creates the primitive. Returns UnimplementedError if oneDNN can compute the product only by its slow reference
  // code, or not at all.
  absl::Status Prepare(const GemmSeries& series, const Product& p) {
    // oneDNN supports only one scale for all of lhs, so a post-op multiplies the result by the scales [m,1]. With rank
    // 2, only the reference code has this post-op (3.6.2), so the rank is 3.
    const int rank = series.lhs_scale.empty() ? 2 : 3;
    absl::Status status = Describe(DNNL_ARG_SRC, series.lhs_dtype, rank, {p.m, p.k, p.lda, p.a_transposed});
    status.Update(Describe(DNNL_ARG_WEIGHTS, series.rhs_dtype, rank, {p.k, p.n, p.ldb, p.b_transposed}));
    status.Update(Describe(DNNL_ARG_DST, series.out_dtype, rank, {p.m, p.n, p.ldc}));
    if (!series.lhs_scale.empty()) {
      status.Update(Describe(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, DType::kF32, rank, {p.m, 1, 1}));
    }
    if (!series.rhs_scale.empty()) {
      status.Update(Describe(Versioned::kScaleArgument | DNNL_ARG_WEIGHTS, series.rhs_scale_dtype, 2,
                             {p.k / series.block, p.n, p.n}));
    }
    if (!status.ok()) return status;
    dnnl_primitive_attr_t attributes;
    f_.attr_create(&attributes);
    // Each thread passes its own scratch memory. Scratch memory of the library would belong to the thread that creates
    // the primitive.
    status = Checked(f_.attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "set_scratchpad_mode");
    if (IsQuantized(series.rhs_dtype)) {
      status.Update(f_.versioned.Quantize(series, rank, operands_[series.lhs_scale.empty() ? 0 : 3].desc, attributes));
    }
    if (status.ok()) status = Create(attributes);
    f_.attr_destroy(attributes);
    return status;
  }

  size_t scratch_bytes() const { return scratch_bytes_; }

  void BindThreads(size_t threads) {
    while (arguments_.size() < threads) {
      std::vector<dnnl_exec_arg_t>& arguments = arguments_.emplace_back();
      for (const Operand& operand : operands_) {
        f_.memory_create(&arguments.emplace_back(dnnl_exec_arg_t{operand.argument, nullptr}).memory,
                         Given(operand.desc), engine_, nullptr);
      }
    }
  }

  absl::Status Run(const GemmSeries& series, size_t group, size_t thread, dnnl_stream_t stream, void* scratch) const {
    const Product p = ProductOf(series, group);
    const void* const lhs_scale = series.lhs_scale.empty() ? nullptr : series.lhs_scale[group];
    const void* const rhs_scale = series.rhs_scale.empty() ? nullptr : series.rhs_scale[group];
    const std::vector<dnnl_exec_arg_t>& arguments = arguments_[thread];
    size_t next = 0;
    for (const void* data : {p.a, p.b, static_cast<const void*>(p.c), lhs_scale, rhs_scale}) {
      if (data != nullptr) f_.memory_set_data_handle(arguments[next++].memory, const_cast<void*>(data));
    }
    f_.memory_set_data_handle(arguments[next].memory, scratch);
    return Checked(f_.primitive_execute(primitive_, stream, static_cast<int>(arguments.size()), arguments.data()),
                   "primitive_execute");
  }

 private:
  struct Operand {
    int argument;
    dnnl_memory_desc_t desc;
  };
  struct Matrix {
    int64_t rows, columns, step;  // `step`: elements from one stored row to the next.
    bool is_transposed = false;
  };

  // Appends a description of `matrix` to operands_. Its shape is [rows,columns], or [1,rows,columns] if `rank` is 3.
  absl::Status Describe(int argument, DType dtype, int rank, const Matrix& matrix) {
    const int64_t dims[] = {1, matrix.rows, matrix.columns};
    const int64_t steps[] = {matrix.rows * matrix.columns, matrix.is_transposed ? 1 : matrix.step,
                             matrix.is_transposed ? matrix.step : 1};
    if (DataType(dtype) == dnnl_data_type_undef) return absl::UnimplementedError("data type");
    Operand operand = {argument, {}};
    const dnnl_status_t status =
        f_.versioned.describe(&operand.desc, rank, dims + 3 - rank, DataType(dtype), steps + 3 - rank);
    if (status == dnnl_success) operands_.push_back(operand);
    return Checked(status, "memory_desc");
  }

  absl::Status Create(dnnl_primitive_attr_t attributes) {
    dnnl_primitive_desc_t desc;
    absl::Status status = Checked(
        f_.versioned.Matmul(&desc, engine_, operands_[0].desc, operands_[1].desc, operands_[2].desc, attributes),
        "matmul");
    if (!status.ok()) return status;
    const char* implementation = "";
    f_.primitive_desc_query(desc, dnnl_query_impl_info_str, 0, static_cast<void*>(&implementation));
    if (absl::StrContains(implementation, "ref")) {
      status = absl::UnimplementedError(implementation);
    } else {
      status = Checked(f_.primitive_create(&primitive_, desc), "primitive_create");
    }
    scratch_bytes_ = f_.memory_desc_get_size(f_.primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    const auto bytes = static_cast<int64_t>(scratch_bytes_);
    status.Update(Describe(DNNL_ARG_SCRATCHPAD, DType::kS8, 2, {1, bytes, bytes}));
    f_.primitive_desc_destroy(desc);
    return status;
  }

  const Functions& f_;
  dnnl_engine_t engine_;
  // lhs, rhs, out, then the scales of lhs and of rhs if there are any, then scratch memory.
  std::vector<Operand> operands_;
  dnnl_primitive_t primitive_ = nullptr;
  size_t scratch_bytes_ = 0;
  std::vector<std::vector<dnnl_exec_arg_t>> arguments_;
};

class OneDnn {
 public:
  explicit OneDnn(const Functions& f) : f_(f) { f_.engine_create(&engine_, dnnl_cpu, 0); }

  bool Supports(const GemmSeries& series) {
    // Without VNNI, oneDNN sums products of bytes in 16 bits, with saturation (oneDNN's guide to int8 computations).
    const bool has_vnni = HostCpu().Has("avx_vnni") || HostCpu().Has("avx512_vnni");
    if (series.lhs_dtype == DType::kS8 && !has_vnni) return false;
    const OpenMpThreads openmp(1);
    std::vector<Matmul*> matmuls;
    return Prepare(series, 1, matmuls).ok();
  }

  absl::Status RunMatmul(const GemmSeries& series, PeerThreads threading, int threads) {
    const int library_threads = LibraryThreads(threading, threads);
    const OpenMpThreads openmp(library_threads);
    const size_t runners = threading == PeerThreads::kOwn ? 1 : static_cast<size_t>(threads);
    std::vector<Matmul*> matmuls;
    if (absl::Status status = Prepare(series, library_threads, matmuls); !status.ok()) return status;
    size_t scratch_bytes = 0;
    for (Matmul* matmul : matmuls) {
      matmul->BindThreads(runners);
      scratch_bytes = std::max(scratch_bytes, matmul->scratch_bytes());
    }
    BindThreads(runners, scratch_bytes);
    return ForEachGroup(series, threading, threads, [&](size_t group, int thread) {
      const Thread& mine = threads_[static_cast<size_t>(thread)];
      return matmuls[group]->Run(series, group, static_cast<size_t>(thread), mine.stream, mine.scratch.get());
    });
  }

  absl::Status RunSgemm(const GemmSeries& series, PeerThreads threading, int threads) const {
    const OpenMpThreads openmp(LibraryThreads(threading, threads));
    return ForEachGroup(series, threading, threads, [&](size_t group, int) {
      const Product p = ProductOf(series, group);
      return Checked(f_.sgemm(p.a_transposed ? 'T' : 'N', p.b_transposed ? 'T' : 'N', p.m, p.n, p.k, 1,
                              static_cast<const float*>(p.a), p.lda, static_cast<const float*>(p.b), p.ldb, 0,
                              static_cast<float*>(p.c), p.ldc),
                     "sgemm");
    });
  }

  std::string Describe() const {
    const dnnl_version_t& version = *f_.version();
    return absl::StrCat("core ", f_.cpu_isa2str(f_.get_effective_cpu_isa()), "; oneDNN ", version.major, ".",
                        version.minor, ".", version.patch, "; ", f_.library.path());
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Thread {
    dnnl_stream_t stream = nullptr;
    std::unique_ptr<void, Free> scratch;
    size_t scratch_bytes = 0;
  };
  using Types = std::array<DType, 4>;
  using Key = std::tuple<Mode, Types, bool, int64_t, int64_t, int64_t, int64_t, int>;

  // Appends the primitive of each group to `matmuls`, and makes missing ones. A primitive keeps the number of OpenMP
  // threads that was set when it was made.
  absl::Status Prepare(const GemmSeries& series, int library_threads, std::vector<Matmul*>& matmuls) {
    for (size_t group = 0; group < series.rows.size(); ++group) {
      const Types types = {series.lhs_dtype, series.rhs_dtype, series.out_dtype, series.rhs_scale_dtype};
      const Key key = {series.mode, types,    series.lhs_scale.empty(), series.block,
                       series.k,    series.n, series.rows[group],       library_threads};
      std::unique_ptr<Matmul>& matmul = matmuls_[key];
      if (matmul == nullptr) {
        auto prepared = std::make_unique<Matmul>(f_, engine_);
        if (absl::Status status = prepared->Prepare(series, ProductOf(series, group)); !status.ok()) return status;
        matmul = std::move(prepared);
      }
      matmuls.push_back(matmul.get());
    }
    return absl::OkStatus();
  }

  void BindThreads(size_t threads, size_t scratch_bytes) {
    constexpr size_t kPage = 4096;
    if (threads_.size() < threads) threads_.resize(threads);
    for (Thread& thread : threads_) {
      if (thread.stream == nullptr) f_.stream_create(&thread.stream, engine_, dnnl_stream_default_flags);
      if (thread.scratch_bytes >= scratch_bytes) continue;
      thread.scratch_bytes = (scratch_bytes + kPage - 1) / kPage * kPage;
      thread.scratch.reset(std::aligned_alloc(kPage, thread.scratch_bytes));
    }
  }

  const Functions f_;
  dnnl_engine_t engine_ = nullptr;
  std::map<Key, std::unique_ptr<Matmul>> matmuls_;
  std::vector<Thread> threads_;
};

}  // namespace

template <>
absl::StatusOr<std::vector<Peer>> LoadOneDnn<DNNL_VERSION_MAJOR>() {
  absl::StatusOr<Library> library = Library::Load(RAGGEMM_PEER_ONEDNN);
  if (!library.ok()) return library.status();
  const Functions functions{*new Library(*library)};
  if (!functions.library.status().ok()) return functions.library.status();
  if (functions.version()->major != DNNL_VERSION_MAJOR) {
    return absl::NotFoundError(absl::StrCat(library->path(), " is not of version ", DNNL_VERSION_MAJOR));
  }
  OneDnn& onednn = *new OneDnn(functions);
  const auto describe = std::bind_front(&OneDnn::Describe, &onednn);
  const auto supports = std::bind_front(&OneDnn::Supports, &onednn);
  const auto matmul = std::bind_front(&OneDnn::RunMatmul, &onednn);
  const auto sgemm = std::bind_front(&OneDnn::RunSgemm, &onednn);
  const auto is_f32 = [](const GemmSeries& series) {
    return series.lhs_dtype == DType::kF32 && series.rhs_dtype == DType::kF32 && series.out_dtype == DType::kF32;
  };
  const bool is_2 = DNNL_VERSION_MAJOR == 2;
  std::vector<Peer> peers = {
      {.name = is_2 ? "onednn" : "onednn3", .supports = supports, .run = matmul, .describe = describe},
      {.name = is_2 ? "onednn-sgemm" : "onednn3-sgemm", .supports = is_f32, .run = sgemm, .describe = describe}};
  if (is_2) return peers;
  peers.push_back(
      {.name = "onednn3-quantized", .quantized = true, .supports = supports, .run = matmul, .describe = describe});
  return peers;
}

}  // namespace raggemm::bench
