// oneDNN: its matmul primitive, prepared once for each shape, on plain row-major operands; and its sgemm.
//
// Built once for each version whose headers are found: structs and enums come from there, functions from the library
// that is loaded. It works on OpenMP's threads, as many as OpenMP says.
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
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

namespace raggemm::bench {
namespace {

// Version 3 hides descriptors of memory behind pointers, and has none of operations.
#if DNNL_VERSION_MAJOR == 2
constexpr const char* kNames[] = {"onednn", "onednn-sgemm"};

struct Versioned {
  decltype(dnnl_memory_desc_init_by_strides)* memory_desc_init_by_strides;
  decltype(dnnl_matmul_desc_init)* matmul_desc_init;
  decltype(dnnl_primitive_desc_create)* primitive_desc_create;

  void FindAll(Library& library) {
    library.Find("dnnl_memory_desc_init_by_strides", memory_desc_init_by_strides);
    library.Find("dnnl_matmul_desc_init", matmul_desc_init);
    library.Find("dnnl_primitive_desc_create", primitive_desc_create);
  }
  dnnl_status_t Strided(dnnl_memory_desc_t* desc, const int64_t* dims, dnnl_data_type_t type,
                        const int64_t* steps) const {
    return memory_desc_init_by_strides(desc, 2, dims, type, steps);
  }
  dnnl_status_t Copy(dnnl_memory_desc_t* desc, const dnnl_memory_desc_t* of) const {
    *desc = *of;
    return dnnl_success;
  }
  dnnl_status_t Matmul(dnnl_primitive_desc_t* desc, dnnl_engine_t engine, const dnnl_memory_desc_t* abc,
                       dnnl_primitive_attr_t attributes) const {
    dnnl_matmul_desc_t matmul;
    const dnnl_status_t status = matmul_desc_init(&matmul, &abc[0], &abc[1], nullptr, &abc[2]);
    return status == dnnl_success ? primitive_desc_create(desc, &matmul, attributes, engine, nullptr) : status;
  }
};
const dnnl_memory_desc_t* Given(const dnnl_memory_desc_t& desc) { return &desc; }
#else
constexpr const char* kNames[] = {"onednn3", "onednn3-sgemm"};

struct Versioned {
  decltype(dnnl_memory_desc_create_with_strides)* memory_desc_create_with_strides;
  decltype(dnnl_memory_desc_clone)* memory_desc_clone;
  decltype(dnnl_matmul_primitive_desc_create)* matmul_primitive_desc_create;

  void FindAll(Library& library) {
    library.Find("dnnl_memory_desc_create_with_strides", memory_desc_create_with_strides);
    library.Find("dnnl_memory_desc_clone", memory_desc_clone);
    library.Find("dnnl_matmul_primitive_desc_create", matmul_primitive_desc_create);
  }
  dnnl_status_t Strided(dnnl_memory_desc_t* desc, const int64_t* dims, dnnl_data_type_t type,
                        const int64_t* steps) const {
    return memory_desc_create_with_strides(desc, 2, dims, type, steps);
  }
  dnnl_status_t Copy(dnnl_memory_desc_t* desc, const_dnnl_memory_desc_t of) const {
    return memory_desc_clone(desc, of);
  }
  dnnl_status_t Matmul(dnnl_primitive_desc_t* desc, dnnl_engine_t engine, const dnnl_memory_desc_t* abc,
                       dnnl_primitive_attr_t attributes) const {
    return matmul_primitive_desc_create(desc, engine, abc[0], abc[1], nullptr, abc[2], attributes);
  }
};
const_dnnl_memory_desc_t Given(const dnnl_memory_desc_t& desc) { return desc; }
#endif

struct Functions {
  Versioned versioned;
  decltype(dnnl_sgemm)* sgemm;
  decltype(dnnl_version)* version;
  decltype(dnnl_get_effective_cpu_isa)* get_effective_cpu_isa;
  decltype(dnnl_cpu_isa2str)* cpu_isa2str;
  decltype(dnnl_engine_create)* engine_create;
  decltype(dnnl_stream_create)* stream_create;
  decltype(dnnl_memory_desc_get_size)* memory_desc_get_size;
  decltype(dnnl_memory_create)* memory_create;
  decltype(dnnl_memory_set_data_handle)* memory_set_data_handle;
  decltype(dnnl_primitive_attr_create)* primitive_attr_create;
  decltype(dnnl_primitive_attr_destroy)* primitive_attr_destroy;
  decltype(dnnl_primitive_attr_set_scratchpad_mode)* primitive_attr_set_scratchpad_mode;
  decltype(dnnl_primitive_desc_destroy)* primitive_desc_destroy;
  decltype(dnnl_primitive_desc_query)* primitive_desc_query;
  decltype(dnnl_primitive_desc_query_md)* primitive_desc_query_md;
  decltype(dnnl_primitive_create)* primitive_create;
  decltype(dnnl_primitive_execute)* primitive_execute;
};

absl::Status FindAll(Library& library, Functions& f) {
  f.versioned.FindAll(library);
  library.Find("dnnl_sgemm", f.sgemm);
  library.Find("dnnl_version", f.version);
  library.Find("dnnl_get_effective_cpu_isa", f.get_effective_cpu_isa);
  library.Find("dnnl_cpu_isa2str", f.cpu_isa2str);
  library.Find("dnnl_engine_create", f.engine_create);
  library.Find("dnnl_stream_create", f.stream_create);
  library.Find("dnnl_memory_desc_get_size", f.memory_desc_get_size);
  library.Find("dnnl_memory_create", f.memory_create);
  library.Find("dnnl_memory_set_data_handle", f.memory_set_data_handle);
  library.Find("dnnl_primitive_attr_create", f.primitive_attr_create);
  library.Find("dnnl_primitive_attr_destroy", f.primitive_attr_destroy);
  library.Find("dnnl_primitive_attr_set_scratchpad_mode", f.primitive_attr_set_scratchpad_mode);
  library.Find("dnnl_primitive_desc_destroy", f.primitive_desc_destroy);
  library.Find("dnnl_primitive_desc_query", f.primitive_desc_query);
  library.Find("dnnl_primitive_desc_query_md", f.primitive_desc_query_md);
  library.Find("dnnl_primitive_create", f.primitive_create);
  library.Find("dnnl_primitive_execute", f.primitive_execute);
  return library.status();
}

absl::Status Checked(dnnl_status_t status, const char* call) {
  if (status == dnnl_success) return absl::OkStatus();
  if (status == dnnl_unimplemented) return absl::UnimplementedError(call);
  return absl::InternalError(absl::StrCat(call, " failed: ", status));
}

dnnl_data_type_t DataType(DType dtype) {
  for (const auto& [ours, theirs] :
       {std::pair{DType::kF32, dnnl_f32}, {DType::kBF16, dnnl_bf16}, {DType::kF16, dnnl_f16}}) {
    if (ours == dtype) return theirs;
  }
  return dnnl_data_type_undef;
}

struct Types {
  DType a, b, c;
};

// The primitive of one shape and number of threads. Operands are bound to a thread's own memory objects.
class Matmul {
 public:
  Matmul(const Functions& f, dnnl_engine_t engine) : f_(f), engine_(engine) {}

  // UnimplementedError where there is no implementation but the reference.
  absl::Status Prepare(const Product& p, const Types& types) {
    const int64_t a_steps[2] = {p.a_transposed ? 1 : p.lda, p.a_transposed ? p.lda : 1};
    const int64_t b_steps[2] = {p.b_transposed ? 1 : p.ldb, p.b_transposed ? p.ldb : 1};
    const int64_t c_steps[2] = {p.ldc, 1};
    const int64_t a_dims[2] = {p.m, p.k}, b_dims[2] = {p.k, p.n}, c_dims[2] = {p.m, p.n};
    f_.versioned.Strided(&descs_[0], a_dims, DataType(types.a), a_steps);
    f_.versioned.Strided(&descs_[1], b_dims, DataType(types.b), b_steps);
    f_.versioned.Strided(&descs_[2], c_dims, DataType(types.c), c_steps);
    // The library's own scratch memory belongs to the thread that creates a primitive; others run it too.
    dnnl_primitive_attr_t attributes;
    f_.primitive_attr_create(&attributes);
    f_.primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    dnnl_primitive_desc_t desc;
    absl::Status status = Checked(f_.versioned.Matmul(&desc, engine_, descs_, attributes), "matmul");
    f_.primitive_attr_destroy(attributes);
    if (!status.ok()) return status;
    const char* implementation = "";
    f_.primitive_desc_query(desc, dnnl_query_impl_info_str, 0, static_cast<void*>(&implementation));
    implementation_ = implementation;
    f_.versioned.Copy(&descs_[3], f_.primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    status = Checked(f_.primitive_create(&primitive_, desc), "primitive_create");
    f_.primitive_desc_destroy(desc);
    if (status.ok() && absl::StrContains(implementation_, "ref")) return absl::UnimplementedError(implementation_);
    return status;
  }

  const std::string& implementation() const { return implementation_; }
  size_t scratch_bytes() const { return f_.memory_desc_get_size(Given(descs_[3])); }

  // One for each thread that will run it.
  void BindThreads(size_t threads) {
    while (memories_.size() < threads) {
      std::array<dnnl_memory_t, 4>& memories = memories_.emplace_back();
      for (size_t i = 0; i < memories.size(); ++i) f_.memory_create(&memories[i], Given(descs_[i]), engine_, nullptr);
    }
  }

  absl::Status Run(const Product& p, size_t thread, dnnl_stream_t stream, void* scratch) const {
    const std::array<dnnl_memory_t, 4>& memories = memories_[thread];
    void* const data[] = {const_cast<void*>(p.a), const_cast<void*>(p.b), p.c, scratch};
    for (size_t i = 0; i < memories.size(); ++i) f_.memory_set_data_handle(memories[i], data[i]);
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, memories[0]},
                                         {DNNL_ARG_WEIGHTS, memories[1]},
                                         {DNNL_ARG_DST, memories[2]},
                                         {DNNL_ARG_SCRATCHPAD, memories[3]}};
    return Checked(f_.primitive_execute(primitive_, stream, 4, arguments), "primitive_execute");
  }

 private:
  const Functions& f_;
  dnnl_engine_t engine_;
  dnnl_memory_desc_t descs_[4];  // A, B, C, scratch
  dnnl_primitive_t primitive_ = nullptr;
  std::string implementation_;
  std::vector<std::array<dnnl_memory_t, 4>> memories_;
};

// Everything that was prepared so far; lives to the end of the process.
class OneDnn {
 public:
  explicit OneDnn(const Functions& f, const std::string& path) : f_(f), path_(path) {
    f_.engine_create(&engine_, dnnl_cpu, 0);
  }

  bool Supports(const GemmSeries& series) {
    const int64_t rows[] = {64};
    const void* const none[] = {nullptr};
    void* const no_out[] = {nullptr};
    GemmSeries probe = series;
    probe.k = probe.n = 64;
    probe.rows = rows;
    probe.lhs = probe.rhs = none;
    probe.out = no_out;
    return Prepared(probe, 0, 1).ok();
  }

  absl::Status RunMatmul(const GemmSeries& series, PeerThreads way, int threads) {
    const int library_threads = LibraryThreads(way, threads);
    const OpenMpThreads openmp(library_threads);
    const size_t runners = way == PeerThreads::kOwn ? 1 : static_cast<size_t>(threads);
    std::vector<const Matmul*> matmuls;
    size_t scratch_bytes = 0;
    for (size_t group = 0; group < series.rows.size(); ++group) {
      absl::StatusOr<Matmul*> matmul = Prepared(series, group, library_threads);
      if (!matmul.ok()) return matmul.status();
      (*matmul)->BindThreads(runners);
      scratch_bytes = std::max(scratch_bytes, (*matmul)->scratch_bytes());
      matmuls.push_back(*matmul);
    }
    BindThreads(runners, scratch_bytes);
    return ForEachGroup(series, way, threads, [&](size_t group, int thread) {
      const Thread& mine = threads_[static_cast<size_t>(thread)];
      return matmuls[group]->Run(ProductOf(series, group), static_cast<size_t>(thread), mine.stream,
                                 mine.scratch.get());
    });
  }

  absl::Status RunSgemm(const GemmSeries& series, PeerThreads way, int threads) const {
    const OpenMpThreads openmp(LibraryThreads(way, threads));
    return ForEachGroup(series, way, threads, [&](size_t group, int) {
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
                        version.minor, ".", version.patch, "; ", path_);
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
  using Key = std::tuple<Mode, DType, DType, DType, int64_t, int64_t, int64_t, int>;

  // The number of threads goes into a primitive when it is made, by what OpenMP says then.
  absl::StatusOr<Matmul*> Prepared(const GemmSeries& series, size_t group, int library_threads) {
    const Key key = {series.mode, series.lhs_dtype, series.rhs_dtype,   series.out_dtype,
                     series.k,    series.n,         series.rows[group], library_threads};
    if (const auto found = matmuls_.find(key); found != matmuls_.end()) return found->second.get();
    auto matmul = std::make_unique<Matmul>(f_, engine_);
    const absl::Status status =
        matmul->Prepare(ProductOf(series, group), {series.lhs_dtype, series.rhs_dtype, series.out_dtype});
    if (!status.ok()) return status;
    return (matmuls_[key] = std::move(matmul)).get();
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
  const std::string path_;
  dnnl_engine_t engine_ = nullptr;
  std::map<Key, std::unique_ptr<Matmul>> matmuls_;
  std::vector<Thread> threads_;
};

}  // namespace

template <>
absl::StatusOr<std::vector<Peer>> LoadOneDnn<DNNL_VERSION_MAJOR>() {
  absl::StatusOr<Library> library = Library::Load(RAGGEMM_PEER_ONEDNN);
  if (!library.ok()) return library.status();
  Functions functions;
  if (absl::Status status = FindAll(*library, functions); !status.ok()) return status;
  if (functions.version()->major != DNNL_VERSION_MAJOR) {
    return absl::NotFoundError(absl::StrCat(library->path(), " is not of version ", DNNL_VERSION_MAJOR));
  }
  OneDnn& onednn = *new OneDnn(functions, library->path());
  const auto describe = [&onednn] { return onednn.Describe(); };
  return std::vector<Peer>{{.name = kNames[0],
                            .supports = [&onednn](const GemmSeries& series) { return onednn.Supports(series); },
                            .run = [&onednn](const GemmSeries& series, PeerThreads way,
                                             int threads) { return onednn.RunMatmul(series, way, threads); },
                            .describe = describe},
                           {.name = kNames[1],
                            .supports =
                                [](const GemmSeries& series) {
                                  return series.lhs_dtype == DType::kF32 && series.rhs_dtype == DType::kF32 &&
                                         series.out_dtype == DType::kF32;
                                },
                            .run = [&onednn](const GemmSeries& series, PeerThreads way,
                                             int threads) { return onednn.RunSgemm(series, way, threads); },
                            .describe = describe}};
}

}  // namespace raggemm::bench
