/* case.h: one concrete case. All that is known of it is in its descriptor (one line), seed included. */
#ifndef ASSAY_CONFORMANCE_CASE_H
#define ASSAY_CONFORMANCE_CASE_H

#include "assay/op.h"
#include "assay/variant.h"

/* LISTED: lists of more values are written in runs, "1*70000", and must fit the line so. */
enum { CASE_MAX_BATCH = 1 << 17, CASE_LISTED = 1024, CASE_MAX_LINE = 32768 };

typedef enum case_section { SECTION_CHECK, SECTION_EDGE, SECTION_REFUSE, SECTION_BENCH } case_section;
typedef enum case_tier { TIER_EXACT, TIER_CALIBRATED } case_tier;
enum { CASE_ON_SIMT = 1, CASE_ON_CUDA = 2, CASE_ON_ANY = 3 }; /* bits of assay_case.devices */
/* decode: one row per request, no cu_q, L = 0 is a pad row. prefill: T = L. chunked: 1 <= T <= L.
 * mixed: decode rows, whole prompts, chunks and T = 0 in one batch. */
typedef enum case_mode { MODE_DECODE, MODE_PREFILL, MODE_CHUNKED, MODE_MIXED } case_mode;
typedef enum case_tables { TABLES_IDENTITY, TABLES_SHUFFLED, TABLES_HUGE } case_tables;
typedef enum case_dead { DEAD_NAN, DEAD_INF, DEAD_LARGEST, DEAD_STALE, DEAD_ZERO } case_dead;
/* What a refuse case breaks, beyond illegal dimensions and parameters; of the argument that the case names, else of q
 * (without one: of the first argument), or of the one that stands here. */
typedef enum case_break {
  BREAK_NOTHING,
  BREAK_NULL,          /* no data */
  BREAK_MISALIGNED,    /* data half an element off */
  BREAK_DTYPE,         /* k_cache: declared i32, or f32 if it is an integer */
  BREAK_SHAPE,         /* out, else what is written first: one row short */
  BREAK_STRIDE,        /* last axis not contiguous */
  BREAK_NEGATIVE,      /* -1 rows */
  BREAK_OVERFLOW,      /* rows so far apart that 63 bits do not hold an offset */
  BREAK_EXTRA,         /* given, where the case has none */
  BREAK_WORKSPACE,     /* one byte too small; variants without workspace: UNSUPPORTED */
  BREAK_WORKSPACE_NULL /* as many bytes as asked for, at NULL */
} case_break;

typedef struct assay_case {
  const assay_op *op;
  char suite[48], name[64];
  case_section section;
  case_tier tier;
  char variant[64], device[16];
  uint32_t devices; /* where a suite wants it run; a descriptor names one device instead */
  case_mode mode;
  assay_dtype dtype, kv_dtype; /* of q and out; of the caches */
  int64_t dim[ASSAY_MAX_DIMS]; /* settable ones from the case, derived ones filled by the generator */
  double param[ASSAY_MAX_PARAMS];
  uint32_t present; /* bit i: optional argument i is given (cu_q and fp8 scales follow from mode and dtype, the block
                     * table from cu_k) */
  int32_t batch;
  int32_t *kv_len, *new_len;          /* [batch] L_i, T_i; owned */
  int32_t *share_with, *share_tokens; /* [batch] first tokens shared with an earlier request; -1: none */
  case_tables tables;
  assay_values values;
  double sigma;    /* gate: taps_from_sigma(sigma, F): w_0 = 1 - sigma/F, the others -sigma/F; fallback 0.75 */
  double tap_skew; /* gate: w_j += tap_skew * j, so that no two taps are equal; fallback 0 */
  double density;  /* wanted share of live keys; negative: chance */
  int32_t cluster; /* with a density: so many keys side by side live or die together; at least 1 */
  case_dead dead;
  int32_t q_pad;  /* extra elements between rows of q: q is a slice of a fused buffer */
  int32_t kv_pad; /* extra elements after every block of the pool, contiguous: after every row; -1: K and V interleaved
                   * block by block */
  int32_t rows;   /* rows judged; 0: all */
  case_break broken;
  int32_t argument; /* 1 + the index of the argument that is broken; 0: case_break says which */
  char expect[32];  /* refuse: the name that the message must contain */
  uint64_t seed;
} assay_case;

/* Everything at its default: op's fallbacks, no requests. */
void case_init(assay_case *one, const assay_op *op);
void case_free(assay_case *one);
/* A plain case's lists: one request of one row stands for what has no requests. */
assay_status case_plain_lists(assay_case *one, assay_error *error);
/* The keys that claims of the operator are made over, separated by commas: dtype,kv_dtype,layout,mode for paged ones.
 */
const char *case_axes(const assay_op *op);
/* Number `index` of them; false behind the last. */
bool case_axis_name(const assay_op *op, int32_t index, char *name, size_t size);
/* The name that a refusal must contain, where the case is silent: the argument that is broken. */
void case_imply_expect(assay_case *one);
/* Deep copy; `to` is overwritten, not freed. */
assay_status case_copy(const assay_case *from, assay_case *to, assay_error *error);
/* What one key alone cannot show: H % H_kv, lengths against the mode, shared prefixes, the exact tier's needs.
 * Parsed and expanded cases have passed it. Relaxed in section refuse. */
assay_status case_check(const assay_case *one, assay_error *error);
/* Are K and V without a block table, by cu_k? */
bool case_is_contiguous(const assay_case *one);
/* The most tokens that request i may have in common with the earlier request j (case_check.c says why). */
int32_t case_shareable(const assay_case *one, int32_t i, int32_t j);
/* May it run on this device ("simt", "cuda")? */
bool case_runs_on(const assay_case *one, const char *device);
/* The value of a coverage axis: "dtype", "kv_dtype" ("same" when equal), "layout", "mode"; or of any other key
 * that has names: "section", "tier", "values", "tables", "dead", "break", "argument". NULL: no such key. */
const char *case_axis(const assay_case *one, const char *axis);

/* Descriptor: op key=value …; parse(print(c)) == c. print writes at most size bytes, terminator included. */
assay_status case_print(const assay_case *one, char *text, size_t size, assay_error *error);
/* Errors name the key, what was found, what is allowed. Checks every value against assay_op. */
assay_status case_parse(const char *text, assay_case *one, assay_error *error);

/* "-" or "EARLIER:TOKENS". */
assay_status case_share_from_text(const char *text, int32_t *with, int32_t *tokens, assay_error *error);
/* "gate_attention, softmax_attention", for messages. */
void case_op_list(char *text, size_t size);

#endif
