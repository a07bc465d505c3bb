/* library.cpp: functions of the tvm-ffi ABI, right ones and wrong ones, for ci/ffi.sh. They work on host memory. */
#define TVM_FFI_DLL_EXPORT_INCLUDE_METADATA 1
#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

namespace {

template <class T> T *data_of(const TensorView &t) {
  return static_cast<T *>(t.data_ptr());
}

float load(const TensorView &t, int64_t i) {
  if (t.dtype().bits == 32) return data_of<const float>(t)[i];
  const uint32_t bits = static_cast<uint32_t>(data_of<const uint16_t>(t)[i]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void store(const TensorView &t, int64_t i, float value) {
  uint32_t bits;
  if (t.dtype().bits == 32) {
    data_of<float>(t)[i] = value;
    return;
  }
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
  data_of<uint16_t>(t)[i] = static_cast<uint16_t>(bits >> 16);
}

/* ---- norms ------------------------------------------------------------------------------------------- */

void norm_rows(TensorView y, TensorView x, TensorView g, double eps, int64_t more) {
  for (int64_t n = 0; n < x.size(0); ++n) {
    float sum = 0;
    for (int64_t c = 0; c < x.size(1) + more; ++c)
      sum += load(x, n * x.stride(0) + c) * load(x, n * x.stride(0) + c);
    const float factor = 1.0f / std::sqrt(sum / static_cast<float>(x.size(1)) + static_cast<float>(eps));
    for (int64_t c = 0; c < x.size(1); ++c)
      store(y, n * y.stride(0) + c, load(x, n * x.stride(0) + c) * factor * load(g, c));
  }
}

void norm(TensorView y, TensorView x, TensorView g, double eps) {
  norm_rows(y, x, g, eps, 0);
}
void norm_wrong_eps(TensorView y, TensorView x, TensorView g, double eps) {
  norm_rows(y, x, g, 2 * eps + 1e-2, 0);
}
void norm_reads_past(TensorView y, TensorView x, TensorView g, double eps) {
  norm_rows(y, x, g, eps, 1);
}
void norm_raises(TensorView y, TensorView x, TensorView g, double eps) {
  if (x.size(0) > 0) TVM_FFI_THROW(ValueError) << "no rows of any width today";
  norm_rows(y, x, g, eps, 0);
}
/* Looks at strides as FlashInfer and torch do: an axis of one element has the usual stride. */
void norm_looks_at_strides(TensorView y, TensorView x, TensorView g, double eps) {
  if (x.stride(1) != 1 || (x.size(0) == 1 && x.stride(0) != x.size(1))) TVM_FFI_THROW(ValueError) << "unusual strides";
  norm_rows(y, x, g, eps, 0);
}
void norm_crashes(TensorView, TensorView, TensorView, double) {
  std::abort();
}
void norm_changes_modes(TensorView y, TensorView x, TensorView g, double eps) {
  norm_rows(y, x, g, eps, 0);
  std::fesetround(FE_UPWARD);
}
/* The result is a tensor of the host's allocator. */
Tensor norm_returned(TensorView x, TensorView g, double eps) {
  int64_t shape[2] = {x.size(0), x.size(1)};
  Tensor y = Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, tvm::ffi::ShapeView(shape, 2), x.dtype(), x.device());
  norm_rows(TensorView(y), x, g, eps, 0);
  return y;
}
void add_norm(TensorView x, TensorView res, TensorView g, double eps) {
  for (int64_t n = 0; n < x.size(0); ++n)
    for (int64_t c = 0; c < x.size(1); ++c)
      store(res, n * res.stride(0) + c, load(res, n * res.stride(0) + c) + load(x, n * x.stride(0) + c));
  norm_rows(x, res, g, eps, 0);
}

/* ---- attention over a page table in compressed rows --------------------------------------------------- */

Array<int64_t> plan(TensorView indptr, TensorView scratch, int64_t requests) {
  data_of<uint8_t>(scratch)[0] = 42;
  return {data_of<const int32_t>(indptr)[requests], requests};
}

void decode(TensorView scratch, Array<int64_t> planned, TensorView q, TensorView k, TensorView v, TensorView indptr,
            TensorView indices, TensorView last, TensorView out, Optional<TensorView> lse, int64_t layout,
            int64_t window_left, double scale) {
  const int64_t H = q.size(1), D = q.size(2), heads = layout == 0 ? 2 : 1, tokens = 3 - heads;
  const int32_t *first = data_of<const int32_t>(indptr), *page = data_of<const int32_t>(indices);
  if (data_of<uint8_t>(scratch)[0] != 42 || planned[0] != first[planned[1]]) TVM_FFI_THROW(ValueError) << "no plan";
  for (int64_t b = 0; b < planned[1]; ++b) {
    const int64_t pages = first[b + 1] - first[b];
    const int64_t L = pages > 0 ? (pages - 1) * k.size(static_cast<int>(tokens)) + data_of<const int32_t>(last)[b] : 0;
    const int64_t from = window_left >= 0 && L - 1 - window_left > 0 ? L - 1 - window_left : 0;
    for (int64_t h = 0; h < H; ++h) {
      const int64_t kv = h / (H / k.size(static_cast<int>(heads)));
      const auto at = [&](const TensorView &t, int64_t n) {
        return page[first[b] + n / t.size(static_cast<int>(tokens))] * t.stride(0) +
               n % t.size(static_cast<int>(tokens)) * t.stride(static_cast<int>(tokens)) +
               kv * t.stride(static_cast<int>(heads));
      };
      double most = -INFINITY, sum = 0;
      double score[4096], value[256] = {0};
      for (int64_t n = from; n < L; ++n) {
        score[n] = 0;
        for (int64_t d = 0; d < D; ++d)
          score[n] += static_cast<double>(load(q, b * q.stride(0) + h * D + d)) * load(k, at(k, n) + d);
        score[n] *= scale;
        most = std::fmax(most, score[n]);
      }
      for (int64_t n = from; n < L; ++n) {
        const double p = std::exp(score[n] - most);
        sum += p;
        for (int64_t d = 0; d < D; ++d)
          value[d] += p * load(v, at(v, n) + d);
      }
      for (int64_t d = 0; d < D; ++d)
        store(out, (b * H + h) * D + d, sum > 0 ? static_cast<float>(value[d] / sum) : 0.0f);
      if (lse.has_value())
        data_of<float>(lse.value())[b * H + h] = static_cast<float>((most + std::log(sum)) / std::log(2.0));
    }
  }
}

/* ---- the other adapters ------------------------------------------------------------------------------- */

void append(TensorView k, TensorView v, TensorView batch, TensorView positions, TensorView k_cache, TensorView v_cache,
            TensorView indices, TensorView indptr, TensorView lengths, int64_t layout) {
  const int heads = layout == 0 ? 2 : 1, tokens = 3 - heads;
  for (int64_t n = 0; n < k.size(0); ++n) {
    const int32_t request = data_of<const int32_t>(batch)[n], offset = data_of<const int32_t>(positions)[n];
    const int32_t page = data_of<const int32_t>(indices)[data_of<const int32_t>(indptr)[request]];
    if (data_of<const int32_t>(lengths)[request] != offset + 1) TVM_FFI_THROW(ValueError) << "lengths";
    for (int64_t h = 0; h < k.size(1); ++h)
      for (int64_t d = 0; d < k.size(2); ++d) {
        store(k_cache, page * k_cache.stride(0) + offset * k_cache.stride(tokens) + h * k_cache.stride(heads) + d,
              load(k, n * k.stride(0) + h * k.stride(1) + d));
        store(v_cache, page * v_cache.stride(0) + offset * v_cache.stride(tokens) + h * v_cache.stride(heads) + d,
              load(v, n * v.stride(0) + h * v.stride(1) + d));
      }
  }
}

void rope_one(TensorView x, TensorView to, TensorView cos_sin, TensorView positions, bool interleave) {
  const int64_t R = cos_sin.size(1), half = R / 2;
  for (int64_t n = 0; n < x.size(0); ++n) {
    const int64_t at =
        positions.dtype().bits == 64 ? data_of<const int64_t>(positions)[n] : data_of<const int32_t>(positions)[n];
    const float *c = data_of<const float>(cos_sin) + at * R, *s = c + half;
    for (int64_t h = 0; h < x.size(1); ++h) {
      const int64_t from = n * x.stride(0) + h * x.stride(1), into = n * to.stride(0) + h * to.stride(1);
      for (int64_t i = 0; i < half; ++i) {
        const int64_t a = interleave ? 2 * i : i, b = interleave ? 2 * i + 1 : i + half;
        const float x0 = load(x, from + a), x1 = load(x, from + b);
        store(to, into + a, x0 * c[i] - x1 * s[i]);
        store(to, into + b, x1 * c[i] + x0 * s[i]);
      }
      for (int64_t d = R; d < x.size(2); ++d)
        store(to, into + d, load(x, from + d));
    }
  }
}

void rope(TensorView q, TensorView k, TensorView q_to, TensorView k_to, TensorView cos_sin, TensorView positions,
          bool interleave) {
  rope_one(q, q_to, cos_sin, positions, interleave);
  rope_one(k, k_to, cos_sin, positions, interleave);
}

void merge(TensorView a, TensorView lse_a, TensorView b, TensorView lse_b, TensorView out, TensorView lse) {
  const int64_t D = a.size(2);
  for (int64_t row = 0; row < a.size(0) * a.size(1); ++row) {
    const double la = data_of<const float>(lse_a)[row], lb = data_of<const float>(lse_b)[row], most = std::fmax(la, lb);
    const double wa = std::isinf(most) ? 0 : std::exp2(la - most), wb = std::isinf(most) ? 0 : std::exp2(lb - most);
    for (int64_t d = 0; d < D; ++d)
      store(out, row * D + d,
            wa + wb > 0
                ? static_cast<float>(
                      (wa * (wa > 0 ? load(a, row * D + d) : 0) + wb * (wb > 0 ? load(b, row * D + d) : 0)) / (wa + wb))
                : 0.0f);
    data_of<float>(lse)[row] = static_cast<float>(most + std::log2(wa + wb));
  }
}

/* One FMA a product, in the order of k. */
void product(TensorView a, TensorView b, TensorView c) {
  for (int64_t m = 0; m < a.size(0); ++m)
    for (int64_t n = 0; n < b.size(0); ++n) {
      float sum = 0;
      for (int64_t k = 0; k < b.size(1); ++k)
        sum = std::fma(load(a, m * b.size(1) + k), load(b, n * b.size(1) + k), sum);
      store(c, m * b.size(0) + n, sum);
    }
}

/* Latent vectors and rotated channels, each row to its page: two tensors that may be parts of one cache. */
void latent_append(TensorView c, TensorView pe, TensorView pages, TensorView offsets, TensorView c_cache,
                   TensorView pe_cache) {
  for (int64_t n = 0; n < c.size(0); ++n) {
    const int64_t page = data_of<const int32_t>(pages)[n], offset = data_of<const int32_t>(offsets)[n];
    for (int64_t d = 0; d < c.size(1); ++d)
      store(c_cache, page * c_cache.stride(0) + offset * c_cache.stride(1) + d, load(c, n * c.stride(0) + d));
    for (int64_t d = 0; d < pe.size(1); ++d)
      store(pe_cache, page * pe_cache.stride(0) + offset * pe_cache.stride(1) + d, load(pe, n * pe.stride(0) + d));
  }
}

/* Causal latent attention over pages, in f64. */
void latent(TensorView q_c, TensorView q_pe, TensorView c, TensorView pe, TensorView rows, TensorView indptr,
            TensorView indices, TensorView lengths, TensorView out, int64_t S, double scale) {
  for (int64_t b = 0; b < lengths.size(0); ++b) {
    const int32_t *at = data_of<const int32_t>(indices) + data_of<const int32_t>(indptr)[b];
    const int64_t first = data_of<const int32_t>(rows)[b], end = data_of<const int32_t>(rows)[b + 1];
    for (int64_t n = first; n < end; ++n)
      for (int64_t h = 0; h < q_c.size(1); ++h) {
        const int64_t keys = data_of<const int32_t>(lengths)[b] - (end - 1 - n);
        double sum = 0, most = -INFINITY, weighed[512] = {0};
        for (int64_t j = 0; j < keys; ++j) {
          const int64_t c_at = at[j / S] * c.stride(0) + j % S * c.stride(1);
          const int64_t pe_at = at[j / S] * pe.stride(0) + j % S * pe.stride(1);
          double score = 0;
          for (int64_t d = 0; d < 512; ++d)
            score += static_cast<double>(load(q_c, n * q_c.stride(0) + h * q_c.stride(1) + d)) * load(c, c_at + d);
          for (int64_t d = 0; d < 64; ++d)
            score += static_cast<double>(load(q_pe, n * q_pe.stride(0) + h * q_pe.stride(1) + d)) * load(pe, pe_at + d);
          score *= scale;
          const double up = std::fmax(most, score), before = std::exp(most - up), weight = std::exp(score - up);
          most = up;
          sum = sum * before + weight;
          for (int64_t d = 0; d < 512; ++d)
            weighed[d] = weighed[d] * before + weight * load(c, c_at + d);
        }
        for (int64_t d = 0; d < 512; ++d)
          store(out, n * out.stride(0) + h * out.stride(1) + d, keys > 0 ? static_cast<float>(weighed[d] / sum) : 0);
      }
  }
}

} // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm, norm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm_wrong_eps, norm_wrong_eps);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm_reads_past, norm_reads_past);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm_raises, norm_raises);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm_looks_at_strides, norm_looks_at_strides);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm_crashes, norm_crashes);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm_changes_modes, norm_changes_modes);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm_returned, norm_returned);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_norm, add_norm);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(plan, plan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode, decode);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(append, append);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rope, rope);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(merge, merge);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(product, product);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(latent_append, latent_append);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(latent, latent);

/* Without metadata: a wrong number of arguments shows in the call alone. */
#undef TVM_FFI_DLL_EXPORT_TYPED_FUNC
#define TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function) TVM_FFI_DLL_EXPORT_TYPED_FUNC_IMPL_(name, function)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(norm_plain, norm);
