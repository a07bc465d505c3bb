/* cublaslt.h: matrix products through cuBLASLt, host side, cuda only. The library is opened on first use, so a machine
 * without it starts all the same. A later request for a product is then refused with the reason. There is one handle
 * per process. The algorithm of a shape is requested once and kept. A launch makes no descriptor on the heap and asks
 * the library only for the product. All functions are inline, so that a kernel file is complete by itself.
 *
 *   blas_product b = {...};                          D = alpha * X Wᵀ + beta * D + bias, rows of X [M, K], W [N, K]
 *   ASSAY_TRY(blas_find(b, &found, error));          UNSUPPORTED: no library, or it has no algorithm
 *   ASSAY_TRY(blas_launch(found, operands, workspace, stream, error)); */
#ifndef ASSAY_GPU_LIB_CUBLASLT_H
#define ASSAY_GPU_LIB_CUBLASLT_H

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <mutex>

#include "assay/status.h"
#include "assay/sums.h"
#include "assay/tensor.h"

namespace assay_cuda_host {

/* ---- the library ------------------------------------------------------------------------------------- */

struct blas_library {
  cublasLtHandle_t handle; /* NULL: the library cannot be used, and `why` has the reason */
  char why[160];
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescInit_internal) describe;
  decltype(&cublasLtMatmulDescSetAttribute) describe_more;
  decltype(&cublasLtMatrixLayoutInit_internal) lay_out;
  decltype(&cublasLtMatmulPreferenceInit_internal) prefer;
  decltype(&cublasLtMatmulPreferenceSetAttribute) prefer_more;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) configuration;
  decltype(&cublasLtGetStatusName) name;
  decltype(&cublasLtGetVersion) version;
};

template <class Function> bool blas_symbol(void *library, const char *name, Function *function) {
  void *const found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  return found != nullptr;
}

/* Opens the library; returns NULL on failure. ASSAY_CUBLASLT_FOLDER is the folder where the build's toolkit has the
 * library, for machines whose loader does not know it. */
inline void *blas_load() {
#define BLAS_TEXT_(x) #x
#define BLAS_TEXT(x)  BLAS_TEXT_(x)
  void *library = dlopen("libcublasLt.so." BLAS_TEXT(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
#ifdef ASSAY_CUBLASLT_FOLDER
  if (library == nullptr)
    library = dlopen(ASSAY_CUBLASLT_FOLDER "/libcublasLt.so." BLAS_TEXT(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
#endif
  return library;
}

inline void blas_open(blas_library *b) {
  *b = blas_library();
  void *const library = blas_load();
  if (library == nullptr) {
    const char *const why = dlerror();
    (void)snprintf(b->why, sizeof b->why, "%.150s", why != nullptr ? why : "libcublasLt was not found");
    return;
  }
  const bool whole = blas_symbol(library, "cublasLtCreate", &b->create) &&
                     blas_symbol(library, "cublasLtMatmul", &b->matmul) &&
                     blas_symbol(library, "cublasLtMatmulAlgoGetHeuristic", &b->heuristic) &&
                     blas_symbol(library, "cublasLtMatmulDescInit_internal", &b->describe) &&
                     blas_symbol(library, "cublasLtMatmulDescSetAttribute", &b->describe_more) &&
                     blas_symbol(library, "cublasLtMatrixLayoutInit_internal", &b->lay_out) &&
                     blas_symbol(library, "cublasLtMatmulPreferenceInit_internal", &b->prefer) &&
                     blas_symbol(library, "cublasLtMatmulPreferenceSetAttribute", &b->prefer_more) &&
                     blas_symbol(library, "cublasLtMatmulAlgoConfigGetAttribute", &b->configuration) &&
                     blas_symbol(library, "cublasLtGetStatusName", &b->name) &&
                     blas_symbol(library, "cublasLtGetVersion", &b->version);
  if (!whole) {
    (void)snprintf(b->why, sizeof b->why, "libcublasLt lacks a function that is needed");
    return;
  }
  const cublasStatus_t made = b->create(&b->handle);
  if (made == CUBLAS_STATUS_SUCCESS) return;
  (void)snprintf(b->why, sizeof b->why, "cublasLtCreate: %.100s", b->name(made));
  b->handle = nullptr;
}

/* A product: its sizes, types and options. */
struct blas_product {
  int64_t M, N, K, x_row; /* x_row: elements between rows of X; W and D are dense */
  assay_dtype type, out;
  bool biased, reads; /* reads: beta is not 0 */
  bool whole;         /* an algorithm that does not cut K into parts */
};

struct blas_found {
  blas_product product;
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t w, x, d;
  cublasLtMatmulAlgo_t algorithm;
  int64_t workspace_bytes;
  int32_t number, split, reduction; /* the algorithm's number, parts of K, how they are joined */
  char path[64];
};

constexpr int blas_most_kept = 256;

/* The state that the threads share: the library, and the algorithms found so far. The oldest is overwritten. */
struct blas_shared {
  std::mutex lock;
  bool open;
  blas_library library;
  int64_t kept; /* number ever kept */
  blas_found found[blas_most_kept];
};

inline blas_shared *blas_state() {
  static blas_shared state;
  return &state;
}

/* Opens the library if needed. Call it with the lock held. */
inline assay_status blas_need(blas_shared *s, assay_error *error) {
  if (!s->open) blas_open(&s->library);
  s->open = true;
  if (s->library.handle != nullptr) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cuBLASLt: %s", s->library.why);
}

/* ---- the algorithm of a shape ------------------------------------------------------------------------ */

inline bool blas_same(const blas_product &a, const blas_product &b) {
  return a.M == b.M && a.N == b.N && a.K == b.K && a.x_row == b.x_row && a.type == b.type && a.out == b.out &&
         a.biased == b.biased && a.reads == b.reads && a.whole == b.whole;
}

inline cudaDataType_t blas_type(assay_dtype type) {
  return type == ASSAY_F32    ? CUDA_R_32F
         : type == ASSAY_F16  ? CUDA_R_16F
         : type == ASSAY_E4M3 ? CUDA_R_8F_E4M3
                              : CUDA_R_16BF;
}

constexpr uint64_t blas_most_workspace = uint64_t{32} << 20;
constexpr uint32_t blas_alignment = 16; /* alignment of every base, in bytes */

/* The algorithm that uses Hopper's tensor cores on rows of multiples of 16 bytes. Others, for odd sizes, sum in other
 * orders. */
constexpr int32_t blas_declared = 66;

inline int32_t blas_number(const blas_library &b, const cublasLtMatmulAlgo_t &algorithm) {
  int32_t number = -1;
  size_t written = 0;
  (void)b.configuration(&algorithm, CUBLASLT_ALGO_CONFIG_ID, &number, sizeof number, &written);
  return number;
}

/* Asks the library for an algorithm. Sums are in f32, and f32 inputs are multiplied as f32. Sums of e4m3 stay in the
 * tensor cores, which is the fastest and has fewer bits. Splits of k are added in f32 in the workspace, or not used.
 * cuBLASLt counts columns first: to it W is [K, N], to be transposed, X is [K, M] and D is [N, M]. */
inline cublasStatus_t blas_ask(const blas_library &b, blas_found *f, int *count) {
  const blas_product &p = f->product;
  const cudaDataType_t type = blas_type(p.type), out = blas_type(p.out);
  const uint64_t N = static_cast<uint64_t>(p.N), M = static_cast<uint64_t>(p.M), K = static_cast<uint64_t>(p.K);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const cublasLtEpilogue_t epilogue = p.biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  const int8_t fast = 1;
  const uint32_t reduction = p.whole ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasLtMatmulPreferenceOpaque_t preference;
  constexpr int most = 16;
  cublasLtMatmulHeuristicResult_t result[most] = {};
  cublasStatus_t s = b.describe(&f->description, sizeof f->description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  if (s == CUBLAS_STATUS_SUCCESS)
    s = b.describe_more(&f->description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  if (s == CUBLAS_STATUS_SUCCESS)
    s = b.describe_more(&f->description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  if (s == CUBLAS_STATUS_SUCCESS && p.type == ASSAY_E4M3)
    s = b.describe_more(&f->description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
  if (s == CUBLAS_STATUS_SUCCESS) s = b.lay_out(&f->w, sizeof f->w, type, K, N, p.K);
  if (s == CUBLAS_STATUS_SUCCESS) s = b.lay_out(&f->x, sizeof f->x, type, K, M, p.x_row);
  if (s == CUBLAS_STATUS_SUCCESS) s = b.lay_out(&f->d, sizeof f->d, out, N, M, p.N);
  if (s == CUBLAS_STATUS_SUCCESS) s = b.prefer(&preference, sizeof preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const void *value, size_t bytes) {
    if (s == CUBLAS_STATUS_SUCCESS) s = b.prefer_more(&preference, which, value, bytes);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &blas_most_workspace, sizeof blas_most_workspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &blas_alignment, sizeof blas_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &blas_alignment, sizeof blas_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &blas_alignment, sizeof blas_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &blas_alignment, sizeof blas_alignment);
  *count = 0;
  if (s == CUBLAS_STATUS_SUCCESS)
    s = b.heuristic(b.handle, &f->description, &f->w, &f->x, &f->d, &f->d, &preference, p.whole ? most : 1, result,
                    count);
  if (s != CUBLAS_STATUS_SUCCESS || *count < 1) return s;
  int taken = 0; /* the best algorithm whose sums are known; without one, the best */
  for (int i = 0; i < *count && p.whole; ++i)
    if (result[i].state == CUBLAS_STATUS_SUCCESS && blas_number(b, result[i].algo) == blas_declared) {
      taken = i;
      break;
    }
  f->algorithm = result[taken].algo;
  f->workspace_bytes = static_cast<int64_t>(result[taken].workspaceSize);
  return result[taken].state;
}

inline void blas_name(const blas_library &b, blas_found *f) {
  constexpr int count = 5;
  const cublasLtMatmulAlgoConfigAttributes_t which[count] = {
      CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
      CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME};
  int32_t value[count] = {-1, -1, -1, -1, -1};
  for (int i = 0; i < count; ++i) {
    size_t written = 0;
    (void)b.configuration(&f->algorithm, which[i], &value[i], sizeof value[i], &written);
  }
  (void)snprintf(f->path, sizeof f->path, "cublaslt algorithm=%d tile=%d stages=%d split=%d", value[0], value[1],
                 value[2], value[3]);
  f->number = value[0];
  f->split = value[3];
  f->reduction = value[4];
}

inline assay_status blas_find(const blas_product &product, blas_found *found, assay_error *error) {
  blas_shared *const s = blas_state();
  const std::lock_guard<std::mutex> held(s->lock);
  const assay_status status = blas_need(s, error);
  if (status != ASSAY_OK) return status;
  for (int i = 0; i < blas_most_kept && i < s->kept; ++i)
    if (blas_same(s->found[i].product, product)) {
      *found = s->found[i];
      return ASSAY_OK;
    }
  int count = 0;
  *found = blas_found();
  found->product = product;
  const cublasStatus_t asked = blas_ask(s->library, found, &count);
  if (asked != CUBLAS_STATUS_SUCCESS || count < 1)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for M %lld, N %lld, K %lld: %s",
                      static_cast<long long>(product.M), static_cast<long long>(product.N),
                      static_cast<long long>(product.K), s->library.name(asked));
  blas_name(s->library, found);
  s->found[s->kept++ % blas_most_kept] = *found;
  return ASSAY_OK;
}

/* ---- its sums ---------------------------------------------------------------------------------------- */

/* Versions of the library whose sums a GPU has confirmed to be as blas_sums says (docs/last-bit.md). 0 ends the list.
 */
constexpr size_t blas_confirmed[] = {130100, 0};

/* Tells whether sums are declared with this version of the library. ASSAY_CUBLASLT_SUMS=1 asks a version that is not
 * confirmed. */
inline bool blas_is_confirmed(size_t version) {
  const char *const asked = getenv("ASSAY_CUBLASLT_SUMS");
  bool confirmed = asked != nullptr && strcmp(asked, "1") == 0;
  for (int i = 0; blas_confirmed[i] != 0; ++i)
    confirmed = confirmed || blas_confirmed[i] == version;
  return confirmed;
}

/* Declares the sums of a product of 16-bit factors from what the algorithm says: parts of K, joined in f32. A part has
 * whole tiles of 64, as recorded products have (docs/last-bit.md). UNSUPPORTED: the sums are not known. */
inline assay_status blas_sums(const blas_found &found, assay_sums *sums, assay_error *error) {
  const size_t version = blas_state()->library.version();
  if (!blas_is_confirmed(version))
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "cuBLASLt %zu: its sums are not confirmed", version);
  if (found.product.type == ASSAY_F32)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "dtype: found f32, allowed f16, bf16");
  if (found.number != blas_declared)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found algorithm %d, allowed %d", found.path,
                      static_cast<int>(found.number), static_cast<int>(blas_declared));
  if (found.split > 1 && found.reduction != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "%s: found reduction %d, allowed %d: in f32", found.path,
                      static_cast<int>(found.reduction), static_cast<int>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  sums->unit = ASSAY_SUM_WGMMA_16;
  sums->parts = found.split > 1 ? found.split : 1;
  sums->tile = found.split > 1 ? 64 : 0;
  sums->after[0] = ASSAY_AFTER_ALPHA;
  sums->after[1] = ASSAY_AFTER_OLD_ADD;
  sums->after[2] = ASSAY_AFTER_BIAS;
  return ASSAY_OK;
}

/* ---- the product ------------------------------------------------------------------------------------- */

struct blas_operands {
  const void *x, *w, *bias;
  void *d;
  float alpha, beta;
};

/* Launches the product. The workspace must hold the bytes that `found` requires; the launcher ensures it. */
inline assay_status blas_launch(const blas_found &found, const blas_operands &o, void *workspace, void *stream,
                                assay_error *error) {
  const blas_library &b = blas_state()->library; /* blas_find has opened the library; it never changes again */
  cublasLtMatmulDescOpaque_t description = found.description;
  cublasLtMatrixLayoutOpaque_t w = found.w, x = found.x, d = found.d;
  cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
  if (found.product.biased)
    s = b.describe_more(&description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o.bias, sizeof o.bias);
  if (s == CUBLAS_STATUS_SUCCESS)
    s = b.matmul(b.handle, &description, &o.alpha, o.w, &w, o.x, &x, &o.beta, o.d, &d, o.d, &d, &found.algorithm,
                 workspace, static_cast<size_t>(found.workspace_bytes), static_cast<cudaStream_t>(stream));
  if (s == CUBLAS_STATUS_SUCCESS) return ASSAY_OK;
  return assay_fail(error, ASSAY_ERR_DEVICE, "cublasLtMatmul (%s): %s", found.path, b.name(s));
}

} // namespace assay_cuda_host
#endif
