/* sampler.cu: one token a row: penalties, temperature, top-k, softmax, top-p, min-p, draw.
 *
 *   l <- l > 0 ? l / r : l * r                      of ids in prompt or outputs
 *   l <- l - (frequency * n + presence)             of ids n times in the outputs
 *   w_i = exp((l_i - l_max) / T)                    T = 0: the lowest id of l_max
 *   the first k by (l, then lower id); of them the shortest prefix with mass >= p; of them w_i >= m
 *   the lowest id whose running mass exceeds u times the whole, u from Philox
 *
 * One variant, without a sort: the k-th key, the key at which the mass reaches p, and the id at which the running mass
 * exceeds u are each found by one routine that fixes eight bits of the answer a pass. Masses are integers, multiples of
 * 2^-43, so that no order of additions shows. docs/kernels/sampler.md has the arithmetic. */
#include "gpu/lib/philox.cuh"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {
namespace {

using wide = unsigned long long;

constexpr int max_threads = 1024;
constexpr int digit_bits = 8, digits = 1 << digit_bits;
constexpr float mass_unit = 0x1p43f; /* a mass of 1; 2^20 of them fit 64 bits */
constexpr uint32_t in_prompt = 0x80000000u;

enum status_word { status_ok, status_not_finite, status_all_banned, status_parameter, status_history };
enum seen_flags { seen_not_finite = 1, seen_finite = 2 };

/* Vectors that are absent are NULL. */
struct sampler_params {
  const void *logits;
  const int64_t *seed, *request;
  const int32_t *step, *top_k, *prompt, *output;
  const float *repetition, *frequency, *presence, *temperature, *top_p, *min_p;
  int32_t *token, *status;
  uint32_t *words; /* workspace: [B, V] the history's counts, then the bits of penalised logits */
  int64_t logits_row;
  int32_t V, P, O;
};

/* The parameters of one row. */
struct row_params {
  float repetition, frequency, presence, temperature, top_p, min_p;
  int32_t top_k;
};

/* What the threads of a block share. */
struct row_shared {
  wide best, sum, target, prefix;
  uint32_t flags, bad_token;
};

/* ---- one element ------------------------------------------------------------------------------------ */

__device__ __forceinline__ float at_row(const float *vector, float absent) {
  return vector != NULL ? vector[blockIdx.x] : absent;
}

__device__ __forceinline__ bool is_finite(float x) {
  return fabsf(x) <= 3.402823466e38f;
}

__device__ __forceinline__ bool is_legal(const row_params &r) {
  return r.repetition > 0.0f && is_finite(r.repetition) && is_finite(r.frequency) && is_finite(r.presence) &&
         r.temperature >= 0.0f && is_finite(r.temperature) && r.top_k >= 0 && r.top_p > 0.0f && r.top_p <= 1.0f &&
         r.min_p >= 0.0f && r.min_p <= 1.0f;
}

/* word: how often the id is in the outputs, and whether it is in the prompt. -0 becomes +0. */
__device__ __forceinline__ float penalise(const row_params &r, float logit, uint32_t word) {
  const uint32_t times = word & ~in_prompt;
  if (word != 0) logit = logit > 0.0f ? logit / r.repetition : logit * r.repetition;
  if (times != 0) logit -= r.frequency * static_cast<float>(times) + r.presence;
  return logit + 0.0f;
}

/* Larger values have larger keys. */
__device__ __forceinline__ uint32_t ordered(uint32_t bits) {
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ uint32_t value_bits(uint32_t key) {
  return (key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key;
}

/* ---- the k-th key, a share of the mass, the drawn id ------------------------------------------------- */

/* The largest key for which the weights of all elements whose key is not smaller add up to shared->target or more.
 * weigh(id, &key): the element's weight; its key has `bits` bits. All threads call it; it begins and ends with a
 * barrier. Thread 0 goes through the sums of the 256 digits from the top. */
template <class Weigh> __device__ wide reach(row_shared *shared, wide *sums, int32_t V, int bits, Weigh weigh) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  wide prefix = 0;
  for (int shift = (bits + digit_bits - 1) / digit_bits * digit_bits - digit_bits; shift >= 0; shift -= digit_bits) {
    for (int digit = thread; digit < digits; digit += threads)
      sums[digit] = 0;
    __syncthreads(); /* sums are 0, the target is there */
    for (int32_t i = thread; i < V; i += threads) {
      wide key;
      const wide weight = weigh(i, &key);
      if (weight != 0 && key >> shift >> digit_bits == prefix) atomicAdd(&sums[(key >> shift) & (digits - 1)], weight);
    }
    __syncthreads(); /* sums are complete */
    if (thread == 0) {
      wide left = shared->target;
      int digit = digits - 1;
      for (; digit > 0 && sums[digit] < left; --digit)
        left -= sums[digit];
      shared->target = left;
      shared->prefix = prefix << digit_bits | static_cast<wide>(digit);
    }
    __syncthreads(); /* the digit is there, sums are read */
    prefix = shared->prefix;
  }
  return prefix;
}

/* The sum of weigh(id) over the row. Between two calls there is a barrier. */
template <class Weigh> __device__ wide total(row_shared *shared, int32_t V, Weigh weigh) {
  if (threadIdx.x == 0) shared->sum = 0;
  __syncthreads(); /* the sum is 0 */
  wide own = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < V; i += static_cast<int32_t>(blockDim.x))
    own += weigh(i);
  if (own != 0) atomicAdd(&shared->sum, own);
  __syncthreads(); /* the sum is complete */
  return shared->sum;
}

/* ---- the row ---------------------------------------------------------------------------------------- */

__device__ __forceinline__ void finish(const sampler_params &p, int32_t token, int32_t status) {
  if (threadIdx.x != 0) return;
  p.token[blockIdx.x] = token;
  p.status[blockIdx.x] = status;
}

__device__ __forceinline__ void count_history(const sampler_params &p, row_shared *shared, uint32_t *words) {
  const int64_t row = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  bool bad = false;
  for (int32_t j = thread; p.prompt != NULL && j < p.P; j += threads) {
    const int32_t id = p.prompt[row * p.P + j];
    bad = bad || id < -1 || id >= p.V;
    if (id >= 0 && id < p.V) atomicOr(&words[id], in_prompt);
  }
  for (int32_t j = thread; p.output != NULL && j < p.O; j += threads) {
    const int32_t id = p.output[row * p.O + j];
    bad = bad || id < -1 || id >= p.V;
    if (id >= 0 && id < p.V) atomicAdd(&words[id], 1u);
  }
  if (bad) atomicOr(&shared->bad_token, 1u);
}

/* sample_row
 * Grid:   B rows. Block: 128, 256 or 1024 threads, by V alone.
 * Shared: 2.1 KB: sums of one digit, what the row's steps agree on.
 * Align:  by element.
 * Arch:   any.
 * Limit:  bytes: V * sizeof(T) once and 4 V of workspace a pass: 3 passes, and with top-k and top-p up to 7 each, to
 *         draw up to 3. */
template <class T> __global__ void __launch_bounds__(max_threads) sample_row(sampler_params p) {
  ASSAY_SHARED(wide, sums, digits);
  ASSAY_SHARED(row_shared, shared_word, 1);
  row_shared *const shared = shared_word;
  const int64_t row = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x), V = p.V;
  uint32_t *const words = p.words + row * V;
  const row_params r = {at_row(p.repetition, 1.0f),        at_row(p.frequency, 0.0f), at_row(p.presence, 0.0f),
                        at_row(p.temperature, 1.0f),       at_row(p.top_p, 1.0f),     at_row(p.min_p, 0.0f),
                        p.top_k != NULL ? p.top_k[row] : 0};
  if (!is_legal(r)) {
    finish(p, -1, status_parameter);
    return;
  }

  if (thread == 0) *shared = row_shared();
  for (int32_t i = thread; i < V; i += threads)
    words[i] = 0;
  __syncthreads(); /* words and shared are 0 */
  count_history(p, shared, words);
  __syncthreads(); /* counts and the flag are there */
  if (shared->bad_token != 0) {
    finish(p, -1, status_history);
    return;
  }

  const T *const logits = static_cast<const T *>(p.logits) + row * p.logits_row;
  const int id_bits = 32 - __clz(V - 1);
  const wide id_mask = (static_cast<wide>(1) << id_bits) - 1;
  /* The order of top-k and top-p: by value, of equal ones the lower id first. Unique. */
  const auto key_of = [&](uint32_t bits, int32_t id) {
    return static_cast<wide>(ordered(bits)) << id_bits | (id_mask - static_cast<wide>(id));
  };
  uint32_t flags = 0;
  wide best = 0;
  for (int32_t i = thread; i < V; i += threads) {
    const float value = penalise(r, to_float(logits[i]), words[i]);
    words[i] = bits_of(value);
    if (!(value <= 3.402823466e38f)) flags |= seen_not_finite;
    if (is_finite(value)) flags |= seen_finite;
    best = max(best, key_of(words[i], i));
  }
  atomicOr(&shared->flags, flags);
  atomicMax(&shared->best, best);
  __syncthreads(); /* values, flags and the largest are there */
  best = shared->best;
  if ((shared->flags & seen_not_finite) != 0 || (shared->flags & seen_finite) == 0) {
    finish(p, -1, (shared->flags & seen_not_finite) != 0 ? status_not_finite : status_all_banned);
    return;
  }
  if (r.temperature == 0.0f) {
    finish(p, static_cast<int32_t>(id_mask - (best & id_mask)), status_ok);
    return;
  }

  wide least = 0; /* keys below it are out */
  if (r.top_k > 0 && r.top_k < V) {
    if (thread == 0) shared->target = static_cast<wide>(r.top_k);
    least = reach(shared, sums, V, 32 + id_bits, [&](int32_t i, wide *key) -> wide {
      *key = key_of(words[i], i);
      return 1;
    });
  }

  const float largest = float_of(value_bits(static_cast<uint32_t>(best >> id_bits)));
  /* The mass of an id with that key; 0 below the edge of min-p. */
  const auto mass_of = [&](int32_t i, wide key, float edge) -> wide {
    if (key < least) return 0;
    const float mass = expf((float_of(words[i]) - largest) / r.temperature);
    return mass >= edge ? static_cast<wide>(mass * mass_unit) : 0;
  };
  if (r.top_p < 1.0f) {
    const wide whole = total(shared, V, [&](int32_t i) { return mass_of(i, key_of(words[i], i), 0.0f); });
    if (thread == 0) {
      const wide share = static_cast<wide>(ceil(static_cast<double>(r.top_p) * static_cast<double>(whole)));
      shared->target = min(max(share, static_cast<wide>(1)), whole);
    }
    least = reach(shared, sums, V, 32 + id_bits, [&](int32_t i, wide *key) {
      *key = key_of(words[i], i);
      return mass_of(i, *key, 0.0f);
    });
  }

  const wide kept = total(shared, V, [&](int32_t i) { return mass_of(i, key_of(words[i], i), r.min_p); });
  if (thread == 0) {
    const wide request = static_cast<wide>(p.request[row]), seed = static_cast<wide>(p.seed[row]);
    const philox_block counter = {
        {static_cast<uint32_t>(p.step[row]), 0, static_cast<uint32_t>(request), static_cast<uint32_t>(request >> 32)}};
    const philox_block x = philox4x32_10(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const double passed = static_cast<double>(philox_unit(x.word[0])) * static_cast<double>(kept);
    shared->target = static_cast<wide>(passed) + 1; /* the least integer above u times the whole */
  }
  const wide drawn = reach(shared, sums, V, id_bits, [&](int32_t i, wide *key) {
    *key = id_mask - static_cast<wide>(i);
    return mass_of(i, key_of(words[i], i), r.min_p);
  });
  finish(p, id_bits > 0 ? static_cast<int32_t>(id_mask - drawn) : 0, status_ok);
}

/* ---- launcher --------------------------------------------------------------------------------------- */

struct sampler_plan {
  sampler_params p;
  assay_dtype type;
  int64_t B;
};

assay_status read_call(const assay_call *call, sampler_plan *plan, assay_error *error) {
  plain_call c;
  ASSAY_TRY(plain_read(call, &c, error));
  *plan = sampler_plan();
  plan->type = c.type("logits");
  plan->B = c.dim("B");
  ASSAY_TRY(expect_type("logits", plan->type, error));
  sampler_params *const p = &plan->p;
  p->logits = c.data<const void>("logits");
  p->logits_row = c.row("logits");
  p->seed = c.data<const int64_t>("seed");
  p->request = c.data<const int64_t>("request");
  p->step = c.data<const int32_t>("step");
  p->top_k = c.data<const int32_t>("top_k");
  p->prompt = c.data<const int32_t>("prompt");
  p->output = c.data<const int32_t>("output");
  p->repetition = c.data<const float>("repetition");
  p->frequency = c.data<const float>("frequency");
  p->presence = c.data<const float>("presence");
  p->temperature = c.data<const float>("temperature");
  p->top_p = c.data<const float>("top_p");
  p->min_p = c.data<const float>("min_p");
  p->token = c.data<int32_t>("token");
  p->status = c.data<int32_t>("status");
  p->V = c.dim32("V");
  p->P = p->prompt != NULL ? c.dim32("P") : 0;
  p->O = p->output != NULL ? c.dim32("O") : 0;
  return ASSAY_OK;
}

assay_status supports(const assay_call *call, assay_error *error) {
  sampler_plan plan;
  return read_call(call, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  sampler_plan plan;
  *bytes = 0;
  ASSAY_TRY(read_call(call, &plan, error));
  *bytes = 4 * plan.B * plan.p.V;
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  sampler_plan plan;
  ASSAY_TRY(read_call(call, &plan, error));
  ASSAY_TRY(expect_workspace(env, 4 * plan.B * plan.p.V, error));
  plan.p.words = static_cast<uint32_t *>(env->workspace);
  const int32_t V = plan.p.V, threads = V <= 2048 ? 128 : V <= 16384 ? 256 : max_threads;
  (void)snprintf(env->path, sizeof env->path, "row threads=%d", threads);
  return with_type(plan.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return ASSAY_LAUNCH(error, (sample_row<T>), plan.B, threads, 0, env->stream, plan.p);
  });
}

/* Penalties, masses: f32; exp within 1 ulp, division rounded once. Sums of masses are sums of integers, which round
 * nothing: as many lanes as there can be terms. */
constexpr assay_contract contract = {ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, ASSAY_NONE, ASSAY_NONE,         1.0,
                                     1,          1,          0,          0.0,        ASSAY_V_MULTIPLIED, true,
                                     true,       true,       1 << 20,    ASSAY_NONE};

} // namespace
} // namespace ASSAY_NS

#define RADIX_ROWS                                                                                                     \
  {                                                                                                                    \
    sizeof(assay_variant), "sampler", "radix_rows" ASSAY_VARIANT_SUFFIX,                                               \
        "no sort: one block a row, keys and masses selected eight bits a pass", ASSAY_DEVICE_NAME, "any",              \
        PLAIN_TYPE_CLAIMS, ::ASSAY_NS::contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace, ::ASSAY_NS::launch       \
  }

ASSAY_VARIANTS(sampler, RADIX_ROWS)
