/* sampler.cuh: what the kernels of sampler share: a row's parameters, penalties, keys, masses, and the plainest draw.
 * One routine finds the k-th key, the key at which the mass reaches p, and the id at which the running mass exceeds u.
 * It fixes eight bits of the answer per pass, or four where every thread has sums of its own. Masses are integers,
 * multiples of 2^-43, so the order of additions does not show. docs/kernels/sampler.md has the arithmetic. */
#ifndef ASSAY_GPU_LIB_SAMPLER_CUH
#define ASSAY_GPU_LIB_SAMPLER_CUH

#include "gpu/lib/philox.cuh"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {

using wide = unsigned long long;

constexpr int digit_bits = 8, digits = 1 << digit_bits;
constexpr float mass_unit = 0x1p43f; /* a mass of 1; 2^20 of them fit 64 bits */
constexpr uint32_t in_prompt = 0x80000000u;

enum status_word { status_ok, status_not_finite, status_all_banned, status_parameter, status_history };
enum seen_flags { seen_not_finite = 1, seen_finite = 2 };

/* The parameters of a launch. Absent vectors are NULL. */
struct sampler_params {
  const void *logits;
  const int64_t *seed, *request;
  const int32_t *step, *top_k, *prompt, *output;
  const float *repetition, *frequency, *presence, *temperature, *top_p, *min_p;
  int32_t *token, *status;
  uint32_t *words; /* workspace [B, V]: the history's counts, then the bits of penalised logits */
  int64_t logits_row;
  int32_t V, P, O;
};

/* The parameters of one row. */
struct row_params {
  float repetition, frequency, presence, temperature, top_p, min_p;
  int32_t top_k;
};

/* State that the threads of a block share. */
struct row_shared {
  wide best, sum, target, prefix;
  uint32_t flags, bad_token;
};

/* ---- one element ------------------------------------------------------------------------------------ */

__device__ __forceinline__ row_params params_of_row(const sampler_params &p, int64_t row) {
  const auto at_row = [&](const float *vector, float absent) { return vector != NULL ? vector[row] : absent; };
  return {at_row(p.repetition, 1.0f),        at_row(p.frequency, 0.0f), at_row(p.presence, 0.0f),
          at_row(p.temperature, 1.0f),       at_row(p.top_p, 1.0f),     at_row(p.min_p, 0.0f),
          p.top_k != NULL ? p.top_k[row] : 0};
}

__device__ __forceinline__ bool is_finite(float x) {
  return fabsf(x) <= 3.402823466e38f;
}

__device__ __forceinline__ bool is_legal(const row_params &r) {
  return r.repetition > 0.0f && is_finite(r.repetition) && is_finite(r.frequency) && is_finite(r.presence) &&
         r.temperature >= 0.0f && is_finite(r.temperature) && r.top_k >= 0 && r.top_p > 0.0f && r.top_p <= 1.0f &&
         r.min_p >= 0.0f && r.min_p <= 1.0f;
}

/* Returns the penalised logit. word: how often the id is in the outputs, and whether it is in the prompt. -0 becomes
 * +0. */
__device__ __forceinline__ float penalise(const row_params &r, float logit, uint32_t word) {
  const uint32_t times = word & ~in_prompt;
  if (word != 0) logit = logit > 0.0f ? logit / r.repetition : logit * r.repetition;
  if (times != 0) logit -= r.frequency * static_cast<float>(times) + r.presence;
  return logit + 0.0f;
}

/* Returns the key of a value's bits. Larger values have larger keys. */
__device__ __forceinline__ uint32_t ordered(uint32_t bits) {
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ uint32_t value_bits(uint32_t key) {
  return (key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key;
}

/* The order of top-k and top-p: by value, and among equal values the lower id first. Keys are unique. */
struct key_order {
  int id_bits;
  wide id_mask;

  __device__ __forceinline__ explicit key_order(int32_t V) {
    id_bits = 32 - __clz(V - 1);
    id_mask = (static_cast<wide>(1) << id_bits) - 1;
  }
  __device__ __forceinline__ wide operator()(uint32_t bits, int32_t id) const {
    return static_cast<wide>(ordered(bits)) << id_bits | (id_mask - static_cast<wide>(id));
  }
  __device__ __forceinline__ int32_t id_of(wide key) const { return static_cast<int32_t>(id_mask - (key & id_mask)); }
  __device__ __forceinline__ float value_of(wide key) const {
    return float_of(value_bits(static_cast<uint32_t>(key >> id_bits)));
  }
};

/* Returns a share top_p of the whole: at least 1, at most the whole. */
__device__ __forceinline__ wide share_of(float top_p, wide whole) {
  const wide share = static_cast<wide>(ceil(static_cast<double>(top_p) * static_cast<double>(whole)));
  return min(max(share, static_cast<wide>(1)), whole);
}

/* Returns the least integer above u times the kept mass. */
__device__ __forceinline__ wide draw_target(const sampler_params &p, int64_t row, wide kept) {
  const wide request = static_cast<wide>(p.request[row]), seed = static_cast<wide>(p.seed[row]);
  const philox_block counter = {
      {static_cast<uint32_t>(p.step[row]), 0, static_cast<uint32_t>(request), static_cast<uint32_t>(request >> 32)}};
  const philox_block x = philox4x32_10(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const double passed = static_cast<double>(philox_unit(x.word[0])) * static_cast<double>(kept);
  return static_cast<wide>(passed) + 1;
}

/* ---- the k-th key, a share of the mass, the drawn id ------------------------------------------------- */

/* The sums of a pass that the threads of a block share: one for each digit of eight bits. */
struct shared_sums {
  static constexpr int bits = digit_bits;
  wide *sums; /* [digits] */

  __device__ __forceinline__ void clear() const {
    for (int32_t digit = static_cast<int32_t>(threadIdx.x); digit < digits; digit += static_cast<int32_t>(blockDim.x))
      sums[digit] = 0;
  }
  __device__ __forceinline__ void add(int digit, wide weight) const { atomicAdd(&sums[digit], weight); }
  __device__ __forceinline__ void finish() const {}
  __device__ __forceinline__ wide of(int digit) const { return sums[digit]; }
};

/* Returns the largest key for which the weights of all elements whose key is not smaller add up to shared->target or
 * more. weigh(id, &key) returns the element's weight and sets its key, which has `bits` bits. All threads call it; it
 * begins and ends with a barrier. Thread 0 goes through the sums of a digit from the top. A thread weighs four elements
 * before it adds the first, so that their loads are under way together. */
template <class Sums, class Weigh>
__device__ wide reach(row_shared *shared, const Sums &sums, int32_t V, int bits, Weigh weigh) {
  constexpr int size = Sums::bits, count = 1 << size, ahead = 4;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  wide prefix = 0;
  for (int shift = (bits + size - 1) / size * size - size; shift >= 0; shift -= size) {
    sums.clear();
    __syncthreads(); /* sums are 0, the target is written */
    for (int32_t i = thread; i < V; i += ahead * threads) {
      wide key[ahead] = {}, weight[ahead] = {};
      ASSAY_UNROLL
      for (int u = 0; u < ahead; ++u)
        if (i + u * threads < V) weight[u] = weigh(i + u * threads, &key[u]);
      ASSAY_UNROLL
      for (int u = 0; u < ahead; ++u)
        if (weight[u] != 0 && key[u] >> shift >> size == prefix)
          sums.add(static_cast<int>(key[u] >> shift & (count - 1)), weight[u]);
    }
    __syncthreads(); /* sums are complete */
    sums.finish();
    if (thread == 0) {
      wide left = shared->target;
      int digit = count - 1;
      for (; digit > 0 && sums.of(digit) < left; --digit)
        left -= sums.of(digit);
      shared->target = left;
      shared->prefix = prefix << size | static_cast<wide>(digit);
    }
    __syncthreads(); /* the digit is written, the sums have been read */
    prefix = shared->prefix;
  }
  return prefix;
}

/* Returns the sum of weigh(id) over the row. There must be a barrier between two calls. */
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

/* ---- a row's draw ----------------------------------------------------------------------------------- */

/* Returns a mass. Masses are whole numbers of 2^-43, and the largest logit has mass 1. The mass is 0 below the edge of
 * min-p. */
__device__ __forceinline__ wide mass_of_value(float value, float largest, float temperature, float edge) {
  const float mass = expf((value - largest) / temperature);
  return mass >= edge ? static_cast<wide>(mass * mass_unit) : 0;
}

/* Returns the token of a row that draws. words[id]: bits of the penalised logit. best: the largest key. All threads of
 * the block call it. Everything that it reads of `shared` and `sums` must have been written before a barrier. */
template <class Words, class Sums>
__device__ int32_t draw_row(const sampler_params &p, const row_params &r, int64_t row, const key_order &key_of,
                            wide best, const Words &words, row_shared *shared, const Sums &sums) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x), V = p.V;
  const int id_bits = key_of.id_bits;
  const wide id_mask = key_of.id_mask;
  wide least = 0; /* smaller keys are excluded */
  if (r.top_k > 0 && r.top_k < V) {
    if (thread == 0) shared->target = static_cast<wide>(r.top_k);
    least = reach(shared, sums, V, 32 + id_bits, [&](int32_t i, wide *key) -> wide {
      *key = key_of(words[i], i);
      return 1;
    });
  }

  const float largest = key_of.value_of(best);
  /* Returns the mass of an id with that key; 0 below the edge of min-p. */
  const auto mass_of = [&](int32_t i, wide key, float edge) -> wide {
    if (key < least) return 0;
    return mass_of_value(float_of(words[i]), largest, r.temperature, edge);
  };
  if (r.top_p < 1.0f) {
    const wide whole = total(shared, V, [&](int32_t i) { return mass_of(i, key_of(words[i], i), 0.0f); });
    if (thread == 0) shared->target = share_of(r.top_p, whole);
    least = reach(shared, sums, V, 32 + id_bits, [&](int32_t i, wide *key) {
      *key = key_of(words[i], i);
      return mass_of(i, *key, 0.0f);
    });
  }

  const wide kept = total(shared, V, [&](int32_t i) { return mass_of(i, key_of(words[i], i), r.min_p); });
  if (thread == 0) shared->target = draw_target(p, row, kept);
  const wide drawn = reach(shared, sums, V, id_bits, [&](int32_t i, wide *key) {
    *key = id_mask - static_cast<wide>(i);
    return mass_of(i, key_of(words[i], i), r.min_p);
  });
  return id_bits > 0 ? static_cast<int32_t>(id_mask - drawn) : 0;
}

/* ---- launchers -------------------------------------------------------------------------------------- */

struct sampler_plan {
  sampler_params p;
  assay_dtype type;
  int64_t B;
};

inline assay_status read_sampler(const assay_call *call, sampler_plan *plan, assay_error *error) {
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

/* Penalties, masses: f32; exp within 1 ulp, division rounded once. Sums of masses are sums of integers, which round
 * nothing: as many lanes as there can be terms. */
constexpr assay_contract sampler_contract = {.exp_ulp = 1.0,
                                             .qk_lanes = 1,
                                             .pv_lanes = 1,
                                             .zero_p_v = ASSAY_V_MULTIPLIED,
                                             .run_to_run = true,
                                             .renumbering = true,
                                             .permutation = true,
                                             .lanes = 1 << 20,
                                             .alone = true};

} // namespace ASSAY_NS
#endif
