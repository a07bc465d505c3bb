/* rope_table.cu: cosines and sines of rotary positions. The definition is in ref/rope_table.c's head and in
 * docs/definitions.md, section 4.
 *
 * angles: a thread per frequency and piece of positions; frequencies and angles are f64. docs/kernels/rope_table.md has
 * the arithmetic. */
#include "gpu/lib/launch.h"
#include "gpu/lib/plain.h"

namespace ASSAY_NS {
namespace {

constexpr int table_threads = 128, table_positions = 16;

constexpr double pi = 3.14159265358979323846;

enum table_kind { table_plain, table_yarn, table_llama3 };

struct table_params {
  float *cos, *sin;
  int64_t cos_row, sin_row, positions;
  int32_t R, kind;
  double base, factor, original, lo, hi, concentration, low, high;
};

/* Return the cosine and the sine of an angle in units of pi. The CUDA functions take such an angle without the stack
 * that cos() needs for large ones. */
__device__ __forceinline__ double cos_of(double angle) {
#ifdef ASSAY_SIMT
  return cos(pi * (angle - 2.0 * floor(0.5 * angle)));
#else
  return cospi(angle);
#endif
}

__device__ __forceinline__ double sin_of(double angle) {
#ifdef ASSAY_SIMT
  return sin(pi * (angle - 2.0 * floor(0.5 * angle)));
#else
  return sinpi(angle);
#endif
}

/* Returns the inverse of the stretched frequency i. */
__device__ __forceinline__ double table_inverse(const table_params &p, int32_t i) {
  const double inverse = 1.0 / pow(p.base, 2.0 * i / p.R), stretched = inverse / p.factor;
  if (p.kind == table_yarn) {
    const double r = fmin(fmax((i - p.lo) / (p.hi - p.lo), 0.0), 1.0);
    return (1.0 - r) * inverse + r * stretched;
  }
  const double turns = p.original * inverse / (2.0 * pi); /* original / wavelength */
  if (p.kind == table_plain || turns > p.high) return inverse;
  if (turns < p.low) return stretched;
  const double s = (turns - p.low) / (p.high - p.low);
  return (1.0 - s) * stretched + s * inverse;
}

/* table_angles: 16 positions of a frequency per thread.
 * Grid:   (ceil(positions / 16), ceil(R / 2 / 128)). Block: 32 to 128 threads.
 * Shared: none.
 * Align:  by element.
 * Arch:   any.
 * Limit:  arithmetic: a sincos in f64 per element. */
__global__ void __launch_bounds__(table_threads) table_angles(table_params p) {
  const int32_t i = static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * table_positions;
  if (i >= p.R / 2) return;
  const double inverse = table_inverse(p, i) / pi;
  for (int64_t n = first; n < first + table_positions && n < p.positions; ++n) {
    const double angle = static_cast<double>(n) * inverse; /* in units of pi */
    p.cos[n * p.cos_row + i] = static_cast<float>(p.concentration * cos_of(angle));
    p.sin[n * p.sin_row + i] = static_cast<float>(p.concentration * sin_of(angle));
  }
}

/* Returns the place of a frequency with `beta` rotations, rounded by `round` if the ramp is truncated. */
double ramp_end(const table_params &p, double beta, bool truncate, double (*round)(double)) {
  const double place = p.R * log(p.original / (2.0 * pi * beta)) / (2.0 * log(p.base));
  return fmin(fmax(truncate ? round(place) : place, 0.0), p.R - 1.0);
}

assay_status read_call(const assay_call *call, table_params *p, assay_error *error) {
  plain_call c;
  *p = table_params();
  ASSAY_TRY(plain_read(call, &c, error));
  p->cos = c.data<float>("cos");
  p->sin = c.data<float>("sin");
  p->cos_row = c.row("cos");
  p->sin_row = c.row("sin");
  p->positions = c.dim("max_pos");
  p->R = c.dim32("R");
  p->kind = static_cast<int32_t>(c.integer("kind"));
  p->base = c.number("base");
  p->factor = c.number("factor");
  p->original = c.number("original");
  p->low = c.number("low");
  p->high = c.number("high");
  if (p->kind == table_llama3 && !(p->low < p->high))
    return assay_fail(error, ASSAY_ERR_INPUT, "high: found %g, allowed more than low = %g", p->high, p->low);
  if (p->kind == table_yarn && !(c.number("beta_slow") <= c.number("beta_fast")))
    return assay_fail(error, ASSAY_ERR_INPUT, "beta_fast: found %g, allowed from beta_slow = %g on",
                      c.number("beta_fast"), c.number("beta_slow"));
  p->lo = ramp_end(*p, c.number("beta_fast"), c.flag("truncate"), floor);
  p->hi = ramp_end(*p, c.number("beta_slow"), c.flag("truncate"), ceil);
  if (p->lo == p->hi) p->hi += 0.001;
  p->concentration = 1.0;
  if (p->kind == table_yarn)
    p->concentration = c.number("concentration") > 0.0 ? c.number("concentration") : 0.1 * log(p->factor) + 1.0;
  return ASSAY_OK;
}

assay_status launch(const assay_call *call, assay_env *env, assay_error *error) {
  table_params p;
  ASSAY_TRY(read_call(call, &p, error));
  (void)snprintf(env->path, sizeof env->path, "angles");
  if (p.positions == 0) return ASSAY_OK;
  const int32_t half = p.R / 2, threads = half < table_threads ? (half + 31) / 32 * 32 : table_threads;
  const launch_extent grid((p.positions + table_positions - 1) / table_positions, (half + threads - 1) / threads);
  return ASSAY_LAUNCH(error, table_angles, grid, threads, 0, env->stream, p);
}

constexpr assay_contract contract = {
    .qk_lanes = 1, .pv_lanes = 1, .run_to_run = true, .renumbering = true, .alone = true};

} // namespace
} // namespace ASSAY_NS

#define ANGLES                                                                                                         \
  PLAIN_VARIANT("rope_table", "angles", "angles in f64, 16 positions of a frequency a thread", "plain,yarn,llama3",    \
                contract, table_params, read_call, launch)

ASSAY_VARIANTS(rope_table, ANGLES)
