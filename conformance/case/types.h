/* types.h: one concrete case. All that is known of it is in its descriptor (one line), seed included. */
#ifndef ASSAY_CONFORMANCE_CASE_TYPES_H
#define ASSAY_CONFORMANCE_CASE_TYPES_H

#include "assay/op.h"
#include "assay/variant.h"

/* The usual split-K kernels divide a row into splits of so many keys: draws favour lengths next to its multiples. */
enum { CASE_SPLIT_KEYS = 256 };
/* CASE_LISTED: a longer list is written in runs, "1*70000", so that it fits the line. */
enum { CASE_MAX_BATCH = 1 << 17, CASE_LISTED = 1024, CASE_MAX_LINE = 32768 };

/* The sections of a suite (sections.h has their names). */
typedef enum case_section { SECTION_CHECK, SECTION_EDGE, SECTION_REFUSE, SECTION_BENCH } case_section;
typedef enum case_tier { TIER_EXACT, TIER_CALIBRATED } case_tier;
enum { CASE_ON_SIMT = 1, CASE_ON_CUDA = 2, CASE_ON_ANY = 3 }; /* bits of assay_case.devices */
/* The shape of the batch. decode: one row per request, no cu_q, L = 0 is a pad row. prefill: T = L. chunked: 1 <= T <=
 * L. mixed: decode rows, whole prompts, chunks and T = 0 in one batch. */
typedef enum case_mode { MODE_DECODE, MODE_PREFILL, MODE_CHUNKED, MODE_MIXED } case_mode;
typedef enum case_tables { TABLES_IDENTITY, TABLES_SHUFFLED, TABLES_HUGE, TABLES_LAST } case_tables;
typedef enum case_dead { DEAD_NAN, DEAD_INF, DEAD_LARGEST, DEAD_STALE, DEAD_ZERO } case_dead;
/* The thing that a refuse case breaks, beyond illegal dimensions and parameters. It is done to the argument that the
 * case names. Without a name it is done to q (without a q: to the first argument), or to the argument named below. */
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
  bool thinned;     /* the suite leaves it out of a thinned run (run --thin) */
  bool whole;       /* a thinned run asks it all that a whole run asks it */
  char night[96];   /* variants that a thinned run does not ask, separated by commas */
  uint32_t devices; /* where the suite lets it run; a descriptor names one device instead */
  case_mode mode;
  assay_dtype dtype, kv_dtype; /* dtype: q and out; kv_dtype: the caches */
  assay_dtype out_dtype;       /* the result, where the operator leaves a choice */
  int64_t dim[ASSAY_MAX_DIMS]; /* settable ones from the case, derived ones filled by the generator */
  double param[ASSAY_MAX_PARAMS];
  uint32_t present; /* bit i: optional argument i is given (cu_q and fp8 scales follow from mode and dtype, the block
                     * table from cu_k) */
  int32_t batch;
  int32_t *kv_len, *new_len;          /* [batch] L_i, T_i; owned */
  int32_t *share_with, *share_tokens; /* [batch] an earlier request (-1: none), first tokens shared with it */
  case_tables tables;
  assay_values values;
  assay_magnitude magnitude;
  double sigma;    /* gate: taps_from_sigma(sigma, F): w_0 = 1 - sigma/F, the others -sigma/F; fallback 0.75 */
  double tap_skew; /* gate: w_j += tap_skew * j, so that no two taps are equal; fallback 0 */
  double density;  /* wanted share of live keys; negative: chance */
  int32_t cluster; /* with a density: so many keys side by side live or die together; at least 1 */
  case_dead dead;
  int32_t q_pad;   /* extra elements between rows of q, new k and new v: they are slices of a fused buffer */
  int32_t row_pad; /* plain: extra elements between rows of the arguments whose rows may lie apart */
  int32_t kv_pad;  /* extra elements after every block of the pool, contiguous: after every row; -1: K and V interleaved
                    * block by block */
  int32_t rows;    /* rows judged; 0: all */
  case_break broken;
  int32_t argument; /* 1 + the index of the argument that is broken; 0: case_break says which */
  char expect[32];  /* refuse: the name that the message must contain */
  uint64_t seed;
} assay_case;

/* Sets every key to its default: the operator's fallbacks, no requests. */
void case_init(assay_case *one, const assay_op *op);
/* Frees the lists; the case then has no requests. */
void case_free(assay_case *one);
/* Makes a plain case's lists, which the case owns: one request of one row stands in. Fails with ASSAY_ERR_MEMORY. */
assay_status case_plain_lists(assay_case *one, assay_error *error);
/* Returns the keys by whose values the operator's claims are made, separated by commas: "dtype,kv_dtype,layout,mode"
 * for a paged one. */
const char *case_axes(const assay_op *op);
/* Writes the name of axis number `index`. Returns false after the last. */
bool case_axis_name(const assay_op *op, int32_t index, char *name, size_t size);
/* Fills the name that a refusal must contain, where the case gives none: the argument that is broken. */
void case_imply_expect(assay_case *one);
/* Copies a case deeply. `to` is overwritten, not freed. Fails with ASSAY_ERR_MEMORY; `to` then owns nothing. */
assay_status case_copy(const assay_case *from, assay_case *to, assay_error *error);
/* Checks rules over several keys: H % H_kv, lengths against the mode, shared prefixes, the exact tier's needs. Section
 * refuse is relaxed. Parsed and expanded cases have passed. Fails with ASSAY_ERR_INPUT. */
assay_status case_check(const assay_case *one, assay_error *error);
/* Tells whether K and V come without a block table, by cu_k. */
bool case_is_contiguous(const assay_case *one);
/* Returns the most tokens that request i may share with the earlier request j (check.c says why). */
int32_t case_shareable(const assay_case *one, int32_t i, int32_t j);
/* Tells whether the case may run on this device ("simt", "cuda"). */
bool case_runs_on(const assay_case *one, const char *device);
/* Returns the value of a coverage axis ("dtype", "kv_dtype", "layout", "mode") or of another key with names
 * ("section", "tier", "values", "tables", "dead", "break", "argument"). kv_dtype is "same" where it equals dtype.
 * Returns NULL where there is no such key. */
const char *case_axis(const assay_case *one, const char *axis);

/* Writes the descriptor: op key=value ...; parse(print(c)) == c. Writes at most `size` bytes, terminator included.
 * Fails with ASSAY_ERR_INPUT where the line is longer. */
assay_status case_print(const assay_case *one, char *text, size_t size, assay_error *error);
/* Reads a descriptor and checks every value against the operator. The caller frees the case; after a failure it is
 * empty. Errors name the key, the value found and the values allowed. */
assay_status case_parse(const char *text, assay_case *one, assay_error *error);

/* Reads "-" or "EARLIER:TOKENS". */
assay_status case_share_from_text(const char *text, int32_t *with, int32_t *tokens, assay_error *error);
/* Writes the names of all operators, "gate_attention, softmax_attention", for messages. */
void case_op_list(char *text, size_t size);

#endif
