/* sampler_threshold.cu: one token per row, the logits of a row spread over many blocks. The definition is that
 * of sampler.cu; masses are the same integers, so the tokens are the same.
 *
 *   scan     every chunk: penalties, the largest key, flags, the largest value of each of 32 groups
 *   weigh    rows with top-p and without top-k: masses in 1024 bins by distance from the largest logit
 *   choose   every chunk: keys at or above a bound go to the row's list (top-k: the k-th largest group maximum; top-p:
 *            those of the bin in which the mass reaches p); masses above it are summed. The last block of a row to
 *            arrive ranks the list, cuts it and draws. With a list that is too short it does the row by draw_row.
 *
 * docs/kernels/sampler.md has the arithmetic. */
#include "gpu/lib/sampler_scan.cuh"

namespace ASSAY_NS {
namespace {

/* ---- scan -------------------------------------------------------------------------------------------- */

/* Counts how often each id of the chunk is in the row's history. Returns whether the history holds a number that is no
 * id. */
__device__ __forceinline__ bool count_chunk(const sampler_params &s, int64_t row, int32_t first, int32_t size,
                                            uint32_t *words) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  bool bad = false;
  for (int32_t j = thread; s.prompt != NULL && j < s.P; j += scan_threads) {
    const int32_t id = s.prompt[row * s.P + j];
    bad = bad || id < -1 || id >= s.V;
    if (id >= first && id - first < size) atomicOr(&words[id - first], in_prompt);
  }
  for (int32_t j = thread; s.output != NULL && j < s.O; j += scan_threads) {
    const int32_t id = s.output[row * s.O + j];
    bad = bad || id < -1 || id >= s.V;
    if (id >= first && id - first < size) atomicAdd(&words[id - first], 1u);
  }
  return bad;
}

/* scan: a chunk of a row.
 * Grid:   (B * chunks). Block: 256 threads, `steps` runs of 8 logits each, 2048 apart.
 * Shared: 16 bytes; with a history 8 KB per step.
 * Align:  vectors where base and row stride are multiples of 16 bytes, else by element.
 * Arch:   any.
 * Limit:  bytes: V * sizeof(T) per row; with a history 4 V more. */
template <class T, int steps, bool history> __global__ void __launch_bounds__(scan_threads) scan(scan_params p) {
  take_turn();
  ASSAY_SHARED(chunk_facts, facts, 1);
  const int64_t row = static_cast<int64_t>(blockIdx.x) / p.chunks;
  const int32_t chunk = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.chunks), V = p.s.V;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), first = chunk * steps * scan_step;
  const T *const logits = static_cast<const T *>(p.s.logits) + row * p.s.logits_row;
  float v[steps][scan_run];
  ASSAY_UNROLL
  for (int step = 0; step < steps; ++step)
    load_run(logits, first + step * scan_step + thread * scan_run, V, p.aligned, v[step]);

  row_work *const work = p.rows + row;
  for (int32_t i = chunk * scan_threads + thread; i < mass_bins; i += p.chunks * scan_threads)
    work->bins[i] = 0;
  if (chunk == 0 && thread == 0) work->listed = work->arrived = 0;
  if (thread == 0) facts[0] = {0, 0xFFFFFFFFu, 0};
  uint32_t flags = 0;
  if constexpr (history) {
    ASSAY_SHARED(uint32_t, words, steps * scan_step);
    for (int32_t i = thread; i < steps * scan_step; i += scan_threads)
      words[i] = 0;
    __syncthreads(); /* words are 0 */
    if (count_chunk(p.s, row, first, steps * scan_step, words)) flags |= seen_bad_token;
    __syncthreads(); /* counts are written */
    const row_params r = params_of_row(p.s, row);
    float *const values = p.values + row * V;
    ASSAY_UNROLL
    for (int step = 0; step < steps; ++step) {
      const int32_t own = step * scan_step + thread * scan_run, i = first + own;
      ASSAY_UNROLL
      for (int e = 0; e < scan_run; ++e)
        if (i + e < V) v[step][e] = penalise(r, v[step][e], words[own + e]);
      if (p.values_aligned && i + scan_run <= V) {
        store_rounded(values + i, v[step]);
      } else {
        ASSAY_UNROLL
        for (int e = 0; e < scan_run; ++e)
          if (i + e < V) values[i + e] = v[step][e];
      }
    }
  } else {
    __syncthreads(); /* the facts are empty */
  }

  float largest = -INFINITY, smallest = INFINITY;
  int32_t id = -1;
  ASSAY_UNROLL
  for (int step = 0; step < steps; ++step) {
    ASSAY_UNROLL
    for (int e = 0; e < scan_run; ++e) {
      const float value = v[step][e];
      if (!(value <= 3.402823466e38f)) flags |= seen_not_finite;
      if (is_finite(value)) {
        flags |= seen_finite;
        smallest = fminf(smallest, value);
      }
      if (value > largest) { /* the first of equal ones */
        largest = value;
        id = first + step * scan_step + thread * scan_run + e;
      }
    }
  }
  const float of_group = group_max<8>(largest);
  if (thread % 8 == 0) p.groups[(row * p.chunks + chunk) * scan_groups + thread / 8] = ordered(bits_of(of_group));
  wide best = id >= 0 ? key_order(V)(bits_of(largest), id) : 0;
  best = warp_max(best);
  smallest = -warp_max(-smallest);
  if (flags != 0) atomicOr(&facts[0].flags, flags);
  if (thread % 32 == 0) {
    atomicMax(&facts[0].best, best);
    atomicMin(&facts[0].smallest, ordered(bits_of(smallest)));
  }
  __syncthreads(); /* the chunk's facts are written */
  if (thread == 0) p.facts[row * p.chunks + chunk] = facts[0];
}

/* ---- what a row does --------------------------------------------------------------------------------- */

enum row_mode { row_broken, row_greedy, row_top_k, row_top_p, row_all };

struct row_view {
  row_params r;
  row_mode mode;
  int32_t status; /* facts of a broken row */
  wide best;
  float largest, scale; /* scale: bins a unit of distance from the largest */
};

/* Masses vanish beyond exp(-30). Distances are cut into 1024 bins, up to that or to the smallest logit. */
__device__ __forceinline__ float bins_a_unit(float temperature, float range) {
  return fminf(static_cast<float>(mass_bins) / fminf(30.0f * temperature, range), 3.402823466e38f);
}

/* Returns the bin of a value; smaller values never have smaller bins. */
__device__ __forceinline__ int32_t bin_of(const row_view &view, float value) {
  return static_cast<int32_t>(fminf((view.largest - value) * view.scale, static_cast<float>(mass_bins - 1)));
}

/* Tells whether a row draws, as far as its parameters say. A row that does not has work for one block alone. */
__device__ __forceinline__ bool may_draw(const row_params &r) {
  return is_legal(r) && r.temperature != 0.0f;
}

__device__ __forceinline__ bool cuts_to_k(const row_params &r, int32_t V) {
  return r.top_k > 0 && r.top_k < V;
}

/* Called by all threads of the block; facts: shared memory. */
__device__ __forceinline__ row_view view_of_row(const scan_params &p, int64_t row, chunk_facts *facts) {
  row_view view = {params_of_row(p.s, row), row_broken, status_parameter, 0, 0.0f, 0.0f};
  if (!is_legal(view.r)) return view;
  if (threadIdx.x == 0) *facts = {0, 0xFFFFFFFFu, 0};
  __syncthreads(); /* the facts are empty */
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < p.chunks; c += scan_threads) {
    const chunk_facts of_chunk = p.facts[row * p.chunks + c];
    atomicMax(&facts->best, of_chunk.best);
    atomicMin(&facts->smallest, of_chunk.smallest);
    atomicOr(&facts->flags, of_chunk.flags);
  }
  __syncthreads(); /* the row's facts are written */
  const uint32_t flags = facts->flags;
  if ((flags & seen_bad_token) != 0)
    view.status = status_history;
  else if ((flags & seen_not_finite) != 0)
    view.status = status_not_finite;
  else if ((flags & seen_finite) == 0)
    view.status = status_all_banned;
  else
    view.mode = view.r.temperature == 0.0f ? row_greedy
                : cuts_to_k(view.r, p.s.V) ? row_top_k
                : view.r.top_p < 1.0f      ? row_top_p
                                           : row_all;
  view.best = facts->best;
  view.largest = key_order(p.s.V).value_of(view.best);
  view.scale = bins_a_unit(view.r.temperature, view.largest - float_of(value_bits(facts->smallest)));
  return view;
}

/* Returns the mass of a value in its row, kept or not. */
__device__ __forceinline__ wide mass_in_row(const row_view &view, float value, float edge) {
  return mass_of_value(value, view.largest, view.r.temperature, edge);
}

/* ---- weigh ------------------------------------------------------------------------------------------- */

/* weigh: sums the masses of a chunk by bins; rows that do not need the bins are skipped.
 * Grid:   (B * chunks). Block: 256 threads, as scan.
 * Shared: 8 KB.
 * Align:  as scan.
 * Arch:   any.
 * Limit:  atomics in shared memory, one per logit; bytes: V * sizeof(T) from the L2. */
template <class T, int steps> __global__ void __launch_bounds__(scan_threads) weigh(scan_params p) {
  take_turn();
  ASSAY_SHARED(chunk_facts, facts, 1);
  ASSAY_SHARED(wide, bins, mass_bins);
  const int64_t row = static_cast<int64_t>(blockIdx.x) / p.chunks;
  const int32_t chunk = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.chunks);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), first = chunk * steps * scan_step;
  const row_params r = params_of_row(p.s, row);
  if (!may_draw(r) || cuts_to_k(r, p.s.V) || r.top_p >= 1.0f) return;
  const row_view view = view_of_row(p, row, facts);
  if (view.mode != row_top_p) return;
  for (int32_t i = thread; i < mass_bins; i += scan_threads)
    bins[i] = 0;
  __syncthreads(); /* bins are 0 */
  const T *const source = static_cast<const T *>(p.source) + row * p.source_row;
  ASSAY_UNROLL
  for (int step = 0; step < steps; ++step) {
    float v[scan_run];
    load_run(source, first + step * scan_step + thread * scan_run, p.s.V, p.aligned, v);
    ASSAY_UNROLL
    for (int e = 0; e < scan_run; ++e) {
      const wide mass = mass_in_row(view, v[e], 0.0f);
      if (mass != 0) atomicAdd(&bins[bin_of(view, v[e])], mass);
    }
  }
  __syncthreads(); /* the chunk's masses are written */
  for (int32_t i = thread; i < mass_bins; i += scan_threads)
    if (bins[i] != 0) atomicAdd(&p.rows[row].bins[i], bins[i]);
}

/* ---- choose ------------------------------------------------------------------------------------------ */

struct choose_shared {
  chunk_facts facts;
  row_shared row;
  found_place found;
  wide sums[digits], scan[scan_warps];
  uint32_t counts[digits];
  uint32_t last;
};

/* Reads the bits of penalised logits, for draw_row. */
template <class T> struct source_words {
  const T *row;
  __device__ __forceinline__ uint32_t operator[](int32_t i) const { return bits_of(to_float(row[i]) + 0.0f); }
};

/* Sums of a pass that every thread has to itself: 16 digits of four bits. Thousands of equal logits have one digit, and
 * would wait for each other at one sum of the block. */
struct own_sums {
  static constexpr int bits = 4;
  static_assert(8 * scan_threads <= list_capacity, "a list holds the sums of eight digits");
  wide *low, *high; /* [8, threads] each: digits below 8, and the others */
  wide *whole;      /* [16] */

  __device__ __forceinline__ wide *of_digit(int digit) const {
    return (digit < 8 ? low : high) + digit % 8 * scan_threads;
  }
  __device__ __forceinline__ void clear() const {
    ASSAY_UNROLL
    for (int digit = 0; digit < 1 << bits; ++digit)
      of_digit(digit)[threadIdx.x] = 0;
  }
  __device__ __forceinline__ void add(int digit, wide weight) const { of_digit(digit)[threadIdx.x] += weight; }

  /* Adds up two digits by each warp. It ends with a barrier. */
  __device__ __forceinline__ void finish() const {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, warp = static_cast<int32_t>(threadIdx.x) / 32;
    ASSAY_UNROLL
    for (int digit = 2 * warp; digit < 2 * warp + 2; ++digit) {
      wide sum = 0;
      for (int32_t i = lane; i < scan_threads; i += 32)
        sum += of_digit(digit)[i];
      ASSAY_UNROLL
      for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane == 0) whole[digit] = sum;
    }
    __syncthreads(); /* the digits' sums are written */
  }
  __device__ __forceinline__ wide of(int digit) const { return whole[digit]; }
};

/* Returns a lower bound of the k-th largest of the ordered bits, by their upper 16; 0 if there are fewer than k. */
__device__ uint32_t kth_group(const uint32_t *groups, int32_t count, int32_t k, choose_shared *shared) {
  if (k > count) return 0;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  uint32_t prefix = 0;
  wide left = static_cast<wide>(k);
  ASSAY_UNROLL
  for (int shift = 24; shift >= 16; shift -= 8) {
    shared->counts[thread] = 0;
    __syncthreads(); /* counts are 0 */
    for (int32_t i = thread; i < count; i += scan_threads)
      if (shift == 24 || groups[i] >> 24 == prefix >> 24) atomicAdd(&shared->counts[groups[i] >> shift & 0xFFu], 1u);
    __syncthreads(); /* counts are written */
    const found_place at = locate(digits, left, shared->scan, &shared->found,
                                  [&](int32_t i) { return static_cast<wide>(shared->counts[digits - 1 - i]); });
    prefix |= static_cast<uint32_t>(digits - 1 - at.index) << shift;
    left = at.left;
  }
  return prefix;
}

/* Ranks and cuts the list of a row and draws; the last block of the row runs it. */
template <class T>
__device__ int32_t finish_row(const scan_params &p, int64_t row, const row_view &view, const key_order &key_of,
                              int32_t chunk_size, wide left, choose_shared *shared, wide *list, wide *ranked,
                              wide *chunk_mass) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const row_work *const work = p.rows + row;
  const T *const source = static_cast<const T *>(p.source) + row * p.source_row;
  const int32_t listed = static_cast<int32_t>(min(work->listed, static_cast<uint32_t>(list_capacity) + 1u));
  if (listed > list_capacity)
    return draw_row(p.s, view.r, row, key_of, view.best, source_words<T>{source}, &shared->row,
                    own_sums{list, ranked, shared->sums});

  for (int32_t i = thread; i < listed; i += scan_threads)
    list[i] = work->list[i];
  for (int32_t c = thread; c < p.chunks; c += scan_threads)
    chunk_mass[c] = p.sure[row * p.chunks + c];
  __syncthreads(); /* the list and the mass that is kept for sure are written */
  for (int32_t i = thread; i < listed; i += scan_threads) {
    const wide key = list[i];
    int32_t rank = 0;
    for (int32_t j = 0; j < listed; ++j)
      rank += list[j] > key ? 1 : 0;
    ranked[rank] = key;
  }
  __syncthreads(); /* the list is ranked */

  const auto mass_of = [&](int32_t i) { return mass_in_row(view, key_of.value_of(ranked[i]), 0.0f); };
  int32_t kept = listed;
  if (view.mode == row_top_k) {
    kept = min(view.r.top_k, listed);
    if (view.r.top_p < 1.0f) {
      wide own = 0, whole;
      for (int32_t i = thread; i < kept; i += scan_threads)
        own += mass_of(i);
      (void)block_scan(own, shared->scan, &whole);
      left = share_of(view.r.top_p, whole);
    }
  }
  if (view.r.top_p < 1.0f) kept = locate(kept, left, shared->scan, &shared->found, mass_of).index + 1;
  const wide least = view.mode == row_all ? 0 : ranked[kept - 1]; /* keys below it are out */

  for (int32_t i = thread; i < kept; i += scan_threads)
    atomicAdd(&chunk_mass[key_of.id_of(ranked[i]) / chunk_size],
              mass_in_row(view, key_of.value_of(ranked[i]), view.r.min_p));
  __syncthreads(); /* every chunk's kept mass is written */
  wide own = 0, whole;
  for (int32_t c = thread; c < p.chunks; c += scan_threads)
    own += chunk_mass[c];
  (void)block_scan(own, shared->scan, &whole);
  const found_place in = locate(p.chunks, draw_target(p.s, row, whole), shared->scan, &shared->found,
                                [&](int32_t c) { return chunk_mass[c]; });
  const int32_t first = in.index * chunk_size;
  const found_place at = locate(min(chunk_size, p.s.V - first), in.left, shared->scan, &shared->found, [&](int32_t i) {
    const float value = to_float(source[first + i]) + 0.0f;
    return key_of(bits_of(value), first + i) >= least ? mass_in_row(view, value, view.r.min_p) : 0;
  });
  return first + at.index;
}

/* choose: a chunk of a row. Keys that may be kept go to the list, masses that are kept for sure are summed. The last
 * block of the row ends it. Grid:   (B * chunks). Block: 256 threads, as scan. Shared: 40 KB. Align:  as scan. Arch:
 * any. Limit:  bytes: V * sizeof(T) from the L2; the last block's work. */
template <class T, int steps> __global__ void __launch_bounds__(scan_threads, 4) choose(scan_params p) {
  take_turn();
  ASSAY_SHARED(choose_shared, shared_word, 1);
  ASSAY_SHARED(wide, list, list_capacity);
  ASSAY_SHARED(wide, ranked, list_capacity);
  ASSAY_SHARED(wide, chunk_mass, most_chunks);
  choose_shared *const shared = shared_word;
  const int64_t row = static_cast<int64_t>(blockIdx.x) / p.chunks;
  const int32_t chunk = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) % p.chunks), V = p.s.V;
  const int32_t thread = static_cast<int32_t>(threadIdx.x), first = chunk * steps * scan_step;
  const key_order key_of(V);
  if (chunk > 0 && !may_draw(params_of_row(p.s, row))) return;
  const row_view view = view_of_row(p, row, &shared->facts);
  if (view.mode == row_broken || view.mode == row_greedy) {
    if (chunk == 0 && thread == 0) {
      p.s.token[row] = view.mode == row_greedy ? key_of.id_of(view.best) : -1;
      p.s.status[row] = view.mode == row_greedy ? static_cast<int32_t>(status_ok) : view.status;
    }
    return;
  }

  row_work *const work = p.rows + row;
  uint32_t low = 0;
  found_place bin = {0, 0};
  if (view.mode == row_top_k) {
    low = kth_group(p.groups + row * p.chunks * scan_groups, p.chunks * scan_groups, view.r.top_k, shared);
  } else if (view.mode == row_top_p) {
    wide own = 0, whole;
    for (int32_t i = thread; i < mass_bins; i += scan_threads)
      own += work->bins[i];
    (void)block_scan(own, shared->scan, &whole);
    bin = locate(mass_bins, share_of(view.r.top_p, whole), shared->scan, &shared->found,
                 [&](int32_t i) { return work->bins[i]; });
  }

  const T *const source = static_cast<const T *>(p.source) + row * p.source_row;
  wide sure = 0;
  ASSAY_UNROLL
  for (int step = 0; step < steps; ++step) {
    const int32_t i = first + step * scan_step + thread * scan_run;
    float v[scan_run];
    load_run(source, i, V, p.aligned, v);
    ASSAY_UNROLL
    for (int e = 0; e < scan_run; ++e) {
      if (view.mode == row_top_k && ordered(bits_of(v[e])) < low) continue;
      const wide mass = mass_in_row(view, v[e], 0.0f);
      if (mass == 0) continue; /* changes nothing, wherever it ranks */
      const int32_t in = view.mode == row_top_p ? bin_of(view, v[e]) : bin.index;
      if (view.mode == row_all || in < bin.index) {
        sure += mass_in_row(view, v[e], view.r.min_p);
      } else if (in == bin.index) {
        const uint32_t place = atomicAdd(&work->listed, 1u);
        if (place < list_capacity) work->list[place] = key_of(bits_of(v[e]), i + e);
      }
    }
  }
  wide whole;
  (void)block_scan(sure, shared->scan, &whole);
  if (thread == 0) p.sure[row * p.chunks + chunk] = whole;
  /* The list is older than the scan's barriers: thread 0's fence orders it before the arrival, with the sum. */
  if (thread == 0) {
    __threadfence();
    shared->last = atomicAdd(&work->arrived, 1u) + 1u == static_cast<uint32_t>(p.chunks) ? 1u : 0u;
    __threadfence(); /* data of the other blocks are read after their arrivals, and after the barrier */
  }
  __syncthreads(); /* whether this is the last block */
  if (shared->last == 0) return;
  const int32_t token =
      finish_row<T>(p, row, view, key_of, steps * scan_step, bin.left, shared, list, ranked, chunk_mass);
  if (thread == 0) {
    p.s.token[row] = token;
    p.s.status[row] = status_ok;
  }
}

/* ---- launcher ---------------------------------------------------------------------------------------- */

constexpr int64_t most_rows = 1024; /* 25 KB of workspace each */
constexpr int64_t fewest_ids = 32;  /* fewer are one small block's work */

struct threshold_plan {
  scan_params p;
  assay_dtype type;
  int64_t B, bytes;
  int32_t steps;
};

/* Sizes come from the shapes, never from data that a pointer leads to. */
assay_status read_call(const assay_call *call, void *workspace, threshold_plan *plan, assay_error *error) {
  sampler_plan plain;
  ASSAY_TRY(read_sampler(call, &plain, error));
  *plan = threshold_plan();
  plan->B = plain.B;
  plan->type = plain.type;
  if (plan->B > most_rows)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "B: found %" PRId64 ", taken here: up to %" PRId64, plan->B,
                      most_rows);
  if (plain.p.V < fewest_ids)
    return assay_fail(error, ASSAY_ERR_UNSUPPORTED, "V: found %d, taken here: %" PRId64 " and more", plain.p.V,
                      fewest_ids);
  scan_params *const p = &plan->p;
  const int64_t V = plain.p.V, size = assay_dtype_size(plan->type);
  const bool history = plain.p.prompt != NULL || plain.p.output != NULL;
  plan->steps = plan->B * ((V + 4 * scan_step - 1) / (4 * scan_step)) >= 264 ? 4 : 1;
  p->s = plain.p;
  p->chunks = static_cast<int32_t>((V + plan->steps * scan_step - 1) / (plan->steps * scan_step));

  const auto take = [&](int64_t bytes) {
    unsigned char *const at = workspace != NULL ? static_cast<unsigned char *>(workspace) + plan->bytes : NULL;
    plan->bytes += (bytes + 255) / 256 * 256;
    return static_cast<void *>(at);
  };
  p->rows = static_cast<row_work *>(take(plan->B * static_cast<int64_t>(sizeof(row_work))));
  p->facts = static_cast<chunk_facts *>(take(plan->B * p->chunks * static_cast<int64_t>(sizeof(chunk_facts))));
  p->groups = static_cast<uint32_t *>(take(plan->B * p->chunks * scan_groups * 4));
  p->sure = static_cast<wide *>(take(plan->B * p->chunks * 8));
  p->values = history ? static_cast<float *>(take(plan->B * V * 4)) : NULL;

  p->aligned = reinterpret_cast<uintptr_t>(p->s.logits) % 16 == 0 && p->s.logits_row * size % 16 == 0;
  p->values_aligned = V % 4 == 0;
  p->source = history ? static_cast<const void *>(p->values) : p->s.logits;
  p->source_row = history ? V : p->s.logits_row;
  return ASSAY_OK;
}

assay_status supports(const assay_call *call, assay_error *error) {
  threshold_plan plan;
  return read_call(call, NULL, &plan, error);
}

assay_status workspace(const assay_call *call, int64_t *bytes, assay_error *error) {
  threshold_plan plan;
  *bytes = 0;
  ASSAY_TRY(read_call(call, NULL, &plan, error));
  *bytes = plan.bytes;
  return ASSAY_OK;
}

template <class T, int steps>
assay_status launch_passes(const threshold_plan &plan, assay_env *env, assay_error *error) {
  scan_params p = plan.p;
  const int64_t blocks = plan.B * p.chunks;
  const bool weighed = p.s.top_p != NULL, history = p.values != NULL;
  const auto rest = [&](auto source) {
    using S = typename decltype(source)::type;
    if (weighed)
      ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (weigh<S, steps>), blocks, scan_threads, 0, in_turn(), env->stream, p));
    return ASSAY_LAUNCH_WITH(error, (choose<S, steps>), blocks, scan_threads, 0, in_turn(), env->stream, p);
  };
  if (!history) {
    ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (scan<T, steps, false>), blocks, scan_threads, 0, in_turn(), env->stream, p));
    return rest(type_tag<T>());
  }
  ASSAY_TRY(ASSAY_LAUNCH_WITH(error, (scan<T, steps, true>), blocks, scan_threads, 0, in_turn(), env->stream, p));
  p.aligned = p.values_aligned;
  return rest(type_tag<float>());
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  threshold_plan plan;
  ASSAY_TRY(read_call(call, env->workspace, &plan, error));
  ASSAY_TRY(expect_workspace(env, plan.bytes, error));
  (void)snprintf(env->path, sizeof env->path, "threshold steps=%d history=%d aligned=%d", plan.steps,
                 plan.p.values != NULL ? 1 : 0, plan.p.aligned ? 1 : 0);
  return with_type(plan.type, [&](auto type) {
    using T = typename decltype(type)::type;
    return plan.steps == 4 ? launch_passes<T, 4>(plan, env, error) : launch_passes<T, 1>(plan, env, error);
  });
}

} // namespace
} // namespace ASSAY_NS

#define THRESHOLD                                                                                                      \
  {                                                                                                                    \
    sizeof(assay_variant), "sampler", "threshold" ASSAY_VARIANT_SUFFIX,                                                \
        "a row over many blocks, read twice or three times; a short list ranked", ASSAY_DEVICE_NAME, "any",            \
        PLAIN_TYPE_CLAIMS, ::ASSAY_NS::sampler_contract, ::ASSAY_NS::supports, ::ASSAY_NS::workspace,                  \
        ::ASSAY_NS::launch                                                                                             \
  }

ASSAY_VARIANTS(sampler_threshold, THRESHOLD)
