// oneDNN 3: its matmul primitive on weights of few bits, whose scales it applies itself, and on bytes with bytes.
//
// The headers are of 3.2, the library is newer: what came after them is declared here, and a library that lacks it has
// no such peer.
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "bench/peers/libraries.h"
#include "bench/peers/library.h"
#include "bench/peers/series.h"
#include "raggemm/cpu.h"
#include "raggemm/format.h"

namespace raggemm::bench {
namespace {

constexpr auto kS4OfOneDnn = static_cast<dnnl_data_type_t>(11);  // since 3.4
using SetFpmathMode = dnnl_status_t(dnnl_primitive_attr_t, dnnl_fpmath_mode_t, int applies_to_integers);
using SetScales = dnnl_status_t(dnnl_primitive_attr_t, int argument, int mask, int group_dims, const int64_t* group,
                                dnnl_data_type_t);

// A function of the library by its name, of the type that it is assigned to.
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

struct Functions {
  Library& library;
  SetFpmathMode* set_fpmath_mode = Symbol{library, "dnnl_primitive_attr_set_fpmath_mode_v2"};
  SetScales* set_scales = Symbol{library, "dnnl_primitive_attr_set_scales"};
  decltype(dnnl_version)* version = Symbol{library, "dnnl_version"};
  decltype(dnnl_engine_create)* engine_create = Symbol{library, "dnnl_engine_create"};
  decltype(dnnl_stream_create)* stream_create = Symbol{library, "dnnl_stream_create"};
  decltype(dnnl_memory_desc_create_with_strides)* desc_create = Symbol{library, "dnnl_memory_desc_create_with_strides"};
  decltype(dnnl_memory_desc_get_size)* memory_desc_get_size = Symbol{library, "dnnl_memory_desc_get_size"};
  decltype(dnnl_memory_create)* memory_create = Symbol{library, "dnnl_memory_create"};
  decltype(dnnl_memory_set_data_handle)* memory_set_data_handle = Symbol{library, "dnnl_memory_set_data_handle"};
  decltype(dnnl_post_ops_create)* post_ops_create = Symbol{library, "dnnl_post_ops_create"};
  decltype(dnnl_post_ops_destroy)* post_ops_destroy = Symbol{library, "dnnl_post_ops_destroy"};
  decltype(dnnl_post_ops_append_binary)* post_ops_append_binary = Symbol{library, "dnnl_post_ops_append_binary"};
  decltype(dnnl_primitive_attr_create)* attr_create = Symbol{library, "dnnl_primitive_attr_create"};
  decltype(dnnl_primitive_attr_destroy)* attr_destroy = Symbol{library, "dnnl_primitive_attr_destroy"};
  decltype(dnnl_primitive_attr_set_post_ops)* attr_set_post_ops = Symbol{library, "dnnl_primitive_attr_set_post_ops"};
  decltype(dnnl_primitive_attr_set_scratchpad_mode)* attr_set_scratchpad_mode =
      Symbol{library, "dnnl_primitive_attr_set_scratchpad_mode"};
  decltype(dnnl_matmul_primitive_desc_create)* matmul_desc_create =
      Symbol{library, "dnnl_matmul_primitive_desc_create"};
  decltype(dnnl_primitive_desc_destroy)* primitive_desc_destroy = Symbol{library, "dnnl_primitive_desc_destroy"};
  decltype(dnnl_primitive_desc_query)* primitive_desc_query = Symbol{library, "dnnl_primitive_desc_query"};
  decltype(dnnl_primitive_desc_query_md)* primitive_desc_query_md = Symbol{library, "dnnl_primitive_desc_query_md"};
  decltype(dnnl_primitive_create)* primitive_create = Symbol{library, "dnnl_primitive_create"};
  decltype(dnnl_primitive_execute)* primitive_execute = Symbol{library, "dnnl_primitive_execute"};
};

absl::Status Checked(dnnl_status_t status, const char* call) {
  if (status == dnnl_success) return absl::OkStatus();
  if (status == dnnl_unimplemented) return absl::UnimplementedError(call);
  return absl::InternalError(absl::StrCat(call, " failed: ", status));
}

dnnl_data_type_t DataType(DType dtype) {
  for (const auto& [ours, theirs] : {std::pair{DType::kF32, dnnl_f32},
                                     {DType::kBF16, dnnl_bf16},
                                     {DType::kS32, dnnl_s32},
                                     {DType::kS8, dnnl_s8},
                                     {DType::kS4, kS4OfOneDnn}}) {
    if (ours == dtype) return theirs;
  }
  return dnnl_data_type_undef;
}

// The primitive of one shape and number of threads.
class Matmul {
 public:
  Matmul(const Functions& f, dnnl_engine_t engine) : f_(f), engine_(engine) {}

  // UnimplementedError where there is no implementation but the reference.
  absl::Status Prepare(const GemmSeries& series, int64_t m) {
    // A factor for each row is a product with [m,1] afterwards: scales of lhs are one for all. Of [m,n] only the
    // reference implements it (3.6.2), of [1,m,n] the kernels do.
    const int rank = series.lhs_scale.empty() ? 2 : 3;
    const int64_t k = series.k, n = series.n;
    absl::Status status = Describe(DNNL_ARG_SRC, series.lhs_dtype, rank, m, k);
    status.Update(Describe(DNNL_ARG_WEIGHTS, series.rhs_dtype, rank, k, n));
    status.Update(Describe(DNNL_ARG_DST, series.out_dtype, rank, m, n));
    if (!series.lhs_scale.empty()) {
      status.Update(Describe(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, DType::kF32, rank, m, 1));
    }
    if (!series.rhs_scale.empty()) {
      status.Update(Describe(DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, series.rhs_scale_dtype, 2, k / series.block, n));
    }
    if (!status.ok()) return status;
    dnnl_primitive_attr_t attributes;
    f_.attr_create(&attributes);
    status = Set(series, rank, attributes);
    if (status.ok()) status = Create(attributes);
    f_.attr_destroy(attributes);
    return status;
  }

  size_t scratch_bytes() const { return scratch_bytes_; }

  // One for each thread that will run it.
  void BindThreads(size_t threads) {
    while (arguments_.size() < threads) {
      std::vector<dnnl_exec_arg_t>& arguments = arguments_.emplace_back();
      for (const Operand& operand : operands_) {
        f_.memory_create(&arguments.emplace_back(dnnl_exec_arg_t{operand.argument, nullptr}).memory, operand.desc,
                         engine_, nullptr);
      }
    }
  }

  absl::Status Run(const GemmSeries& series, size_t group, size_t thread, dnnl_stream_t stream, void* scratch) const {
    std::vector<const void*> data = {series.lhs[group], series.rhs[group], series.out[group]};
    if (!series.lhs_scale.empty()) data.push_back(series.lhs_scale[group]);
    if (!series.rhs_scale.empty()) data.push_back(series.rhs_scale[group]);
    data.push_back(scratch);
    const std::vector<dnnl_exec_arg_t>& arguments = arguments_[thread];
    for (size_t i = 0; i < data.size(); ++i) {
      f_.memory_set_data_handle(arguments[i].memory, const_cast<void*>(data[i]));
    }
    return Checked(f_.primitive_execute(primitive_, stream, static_cast<int>(arguments.size()), arguments.data()),
                   "primitive_execute");
  }

 private:
  struct Operand {
    int argument;
    dnnl_memory_desc_t desc;
  };

  // A dense matrix; rank 3: [1,rows,columns].
  absl::Status Describe(int argument, DType dtype, int rank, int64_t rows, int64_t columns) {
    const int64_t dims[] = {1, rows, columns}, steps[] = {rows * columns, columns, 1};
    dnnl_memory_desc_t desc = nullptr;
    if (DataType(dtype) == dnnl_data_type_undef) return absl::UnimplementedError("data type");
    const dnnl_status_t status = f_.desc_create(&desc, rank, dims + 3 - rank, DataType(dtype), steps + 3 - rank);
    if (status == dnnl_success) operands_.push_back({argument, desc});
    return Checked(status, "memory_desc_create");
  }

  absl::Status Set(const GemmSeries& series, int rank, dnnl_primitive_attr_t attributes) const {
    // The library's own scratch memory belongs to the thread that creates a primitive; others run it too.
    absl::Status status =
        Checked(f_.attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "set_scratchpad_mode");
    if (series.lhs_dtype == DType::kBF16) {
      status.Update(Checked(f_.set_fpmath_mode(attributes, dnnl_fpmath_mode_bf16, 1), "set_fpmath_mode"));
    }
    if (!series.rhs_scale.empty()) {
      const bool blocks = series.block != series.k;
      const int64_t group[] = {series.block, 1};
      const int mask = (blocks ? 3 : 2) << (rank - 2);
      status.Update(Checked(f_.set_scales(attributes, DNNL_ARG_WEIGHTS, mask, blocks ? 2 : 0, blocks ? group : nullptr,
                                          DataType(series.rhs_scale_dtype)),
                            "set_scales"));
    }
    if (series.lhs_scale.empty()) return status;
    dnnl_post_ops_t multiply;
    f_.post_ops_create(&multiply);
    status.Update(Checked(f_.post_ops_append_binary(multiply, dnnl_binary_mul, operands_[3].desc), "append_binary"));
    status.Update(Checked(f_.attr_set_post_ops(attributes, multiply), "set_post_ops"));
    f_.post_ops_destroy(multiply);
    return status;
  }

  absl::Status Create(dnnl_primitive_attr_t attributes) {
    dnnl_primitive_desc_t desc;
    absl::Status status = Checked(f_.matmul_desc_create(&desc, engine_, operands_[0].desc, operands_[1].desc, nullptr,
                                                        operands_[2].desc, attributes),
                                  "matmul");
    if (!status.ok()) return status;
    const char* implementation = "";
    f_.primitive_desc_query(desc, dnnl_query_impl_info_str, 0, static_cast<void*>(&implementation));
    if (absl::string_view(implementation).find("ref") != absl::string_view::npos) {
      status = absl::UnimplementedError(implementation);
    } else {
      status = Checked(f_.primitive_create(&primitive_, desc), "primitive_create");
    }
    scratch_bytes_ = f_.memory_desc_get_size(f_.primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    status.Update(Describe(DNNL_ARG_SCRATCHPAD, DType::kS8, 2, 1, static_cast<int64_t>(scratch_bytes_)));
    f_.primitive_desc_destroy(desc);
    return status;
  }

  const Functions& f_;
  dnnl_engine_t engine_;
  std::vector<Operand> operands_;
  dnnl_primitive_t primitive_ = nullptr;
  size_t scratch_bytes_ = 0;
  std::vector<std::vector<dnnl_exec_arg_t>> arguments_;  // of each thread, as operands_
};

// Everything that was prepared so far; lives to the end of the process.
class Quantized {
 public:
  explicit Quantized(const Functions& f) : f_(f) { f_.engine_create(&engine_, dnnl_cpu, 0); }

  absl::Status Prepare(const GemmSeries& series, int library_threads, std::vector<Matmul*>& matmuls) {
    if (series.mode != Mode::kForward || !IsQuantized(series.rhs_dtype)) return absl::UnimplementedError("series");
    for (int64_t rows : series.rows) {
      const Key key = {series.lhs_dtype,
                       series.rhs_dtype,
                       series.out_dtype,
                       series.rhs_scale_dtype,
                       series.lhs_scale.empty(),
                       series.block,
                       series.k,
                       series.n,
                       rows,
                       library_threads};
      std::unique_ptr<Matmul>& matmul = matmuls_[key];
      if (matmul == nullptr) {
        auto prepared = std::make_unique<Matmul>(f_, engine_);
        if (absl::Status status = prepared->Prepare(series, rows); !status.ok()) return status;
        matmul = std::move(prepared);
      }
      matmuls.push_back(matmul.get());
    }
    return absl::OkStatus();
  }

  bool Supports(const GemmSeries& series) {
    // Without VNNI oneDNN sums products of bytes in 16 bits, which saturate (its guide to int8 computations).
    const bool has_vnni = HostCpu().Has("avx_vnni") || HostCpu().Has("avx512_vnni");
    if (series.lhs_dtype == DType::kS8 && !has_vnni) return false;
    const OpenMpThreads openmp(1);
    std::vector<Matmul*> matmuls;
    return Prepare(series, 1, matmuls).ok();
  }

  absl::Status Run(const GemmSeries& series, PeerThreads way, int threads) {
    const int library_threads = LibraryThreads(way, threads);
    const OpenMpThreads openmp(library_threads);
    std::vector<Matmul*> matmuls;
    if (absl::Status status = Prepare(series, library_threads, matmuls); !status.ok()) return status;
    threads_.resize(std::max(threads_.size(), static_cast<size_t>(threads)));
    for (Thread& thread : threads_) {
      if (thread.stream == nullptr) f_.stream_create(&thread.stream, engine_, dnnl_stream_default_flags);
      for (Matmul* matmul : matmuls) {
        matmul->BindThreads(threads_.size());
        if (thread.scratch.size() < matmul->scratch_bytes()) thread.scratch.resize(matmul->scratch_bytes());
      }
    }
    return ForEachGroup(series, way, threads, [&](size_t group, int thread) {
      Thread& mine = threads_[static_cast<size_t>(thread)];
      return matmuls[group]->Run(series, group, static_cast<size_t>(thread), mine.stream, mine.scratch.data());
    });
  }

  std::string Describe() const {
    const dnnl_version_t& version = *f_.version();
    return absl::StrCat("oneDNN ", version.major, ".", version.minor, ".", version.patch, "; ", f_.library.path());
  }

 private:
  struct Thread {
    dnnl_stream_t stream = nullptr;
    std::vector<char> scratch;
  };
  // The number of threads goes into a primitive when it is made, by what OpenMP says then.
  using Key = std::tuple<DType, DType, DType, DType, bool, int64_t, int64_t, int64_t, int64_t, int>;

  const Functions f_;
  dnnl_engine_t engine_ = nullptr;
  std::map<Key, std::unique_ptr<Matmul>> matmuls_;
  std::vector<Thread> threads_;
};

}  // namespace

absl::StatusOr<std::vector<Peer>> LoadOneDnnQuantized() {
  absl::StatusOr<Library> library = Library::Load(RAGGEMM_PEER_ONEDNN);
  if (!library.ok()) return library.status();
  const Functions functions{*new Library(*library)};
  if (!functions.library.status().ok()) return functions.library.status();
  Quantized& onednn = *new Quantized(functions);
  return std::vector<Peer>{{.name = "onednn3-quantized",
                            .quantized = true,
                            .supports = [&onednn](const GemmSeries& series) { return onednn.Supports(series); },
                            .run = [&onednn](const GemmSeries& series, PeerThreads way,
                                             int threads) { return onednn.Run(series, way, threads); },
                            .describe = [&onednn] { return onednn.Describe(); }}};
}

}  // namespace raggemm::bench
