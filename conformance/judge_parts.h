/* judge_parts.h: the judge's own pieces. */
#ifndef ASSAY_CONFORMANCE_JUDGE_PARTS_H
#define ASSAY_CONFORMANCE_JUDGE_PARTS_H

#include "judge.h"

typedef struct outputs {
  unsigned char *bits[ASSAY_MAX_OUTPUTS];
} outputs;

/* Every row of every output, in the case's own order, dense. */
typedef enum output_kind {
  OUTPUT_ROWS,  /* its rows are the rows of the case */
  OUTPUT_WHOLE, /* it has rows of its own */
  OUTPUT_CACHE  /* its rows are the new tokens' keys or values, in a cache, where slots say */
} output_kind;

typedef struct trial_output {
  int32_t arg; /* index of the argument */
  output_kind kind;
  int64_t rows;  /* of the output */
  int64_t width; /* elements of a row (one query token) */
  int64_t group; /* elements judged together: one head's output; of [N, H] all heads */
  assay_dtype dtype;
  bool exact; /* judged by tier 1 */
  bool inout; /* it held something before the call */
} trial_output;

/* What a launcher is told of the device. */
typedef struct device_facts {
  int32_t multiprocessors, memory_rate;
} device_facts;

/* A case, a variant, what the reference says. */
typedef struct trial {
  const assay_case *one;
  const assay_variant *variant;
  const assay_device *device;
  image first;
  int32_t count;
  trial_output output[ASSAY_MAX_OUTPUTS];
  int64_t workspace_bytes;
  device_facts facts;
  outputs initial;    /* what in-out arguments hold before the call */
  assay_rows rows;    /* judged ones */
  int64_t *row_index; /* owned; NULL: all */
  assay_expected expected[ASSAY_MAX_OUTPUTS];
  assay_seen seen;
} trial;

/* ---- judge_device.c ---- */

/* Calls that may be under way at once, each with memory of its own. */
enum { DEVICE_PLACES = 3 };

/* What the launcher sees: addresses on the device, and a workspace between guards. */
typedef struct device_call {
  assay_tensor arg[ASSAY_MAX_ARGS];
  assay_call call;
  assay_env env;
  int32_t place;
  double launch_ms;
  bool fetched; /* what to look at is on its way */
} device_call;

double judge_now_ms(void);
device_facts device_facts_of(const assay_device *device);
void judge_verdict(case_result *result, verdict v, const char *check, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;
/* A status other than OK as a verdict. Only what the device says when waited for is a fault of the kernel. */
bool device_status(assay_status status, const char *step, bool waited, const assay_error *error, case_result *result);
/* Device memory for the image and the workspace, in place `number`; addresses in `made`. False: the verdict is set. */
bool device_place(const trial *t, const image *img, int32_t number, device_call *made, case_result *result);
/* The image, and poison in the workspace and around it; device_upload_arena: the image alone. */
bool device_upload(const trial *t, const image *img, const device_call *on, case_result *result);
bool device_upload_arena(const trial *t, const image *img, const device_call *on, case_result *result);
/* Waits, fetches what is needed, and looks at guards and inputs. `untouched`: at the outputs as well. `after`: what
 * the outputs hold, where the image has them; the rest of it is not filled everywhere. */
bool device_collect(const trial *t, const image *img, bool untouched, device_call *on, const unsigned char **after,
                    case_result *result);
/* A run in two steps: upload and launch; collect, and outputs in the case's order. What is begun in several places is
 * under way at once, and `img` stays as it is until the end. */
bool device_begin(const trial *t, const image *img, uint64_t schedule, int32_t number, device_call *on,
                  case_result *result);
bool device_end(const trial *t, const image *img, device_call *on, outputs *made, case_result *result);
/* Both. */
bool device_run(const trial *t, const image *img, uint64_t schedule, outputs *made, case_result *result);

/* ---- judge_outputs.c ---- */

/* What the call writes, in the operator's order. */
void outputs_list(trial *t);
bool outputs_make(const trial *t, outputs *made);
void outputs_free(outputs *made);
/* Out of an image's bytes after the call, to where the case's own order has the rows. */
void outputs_gather(const trial *t, const image *img, const unsigned char *after, outputs *made);
/* In-out and strided outputs: is every byte that is no element of theirs (of a cache: of a new token) as it was? */
bool outputs_rest(const trial *t, const image *img, const unsigned char *after, case_result *result);
/* Rows of an output that are judged, and which row of it is the r-th of them. */
int64_t outputs_judged(const trial *t, int32_t output);
int64_t outputs_row(const trial *t, int32_t output, int64_t r);

/* ---- judge_values.c ---- */

typedef struct place {
  int32_t output;
  int64_t row, element; /* row in the case's order */
} place;

typedef struct finding {
  bool wrong;
  const char *check; /* exact, element, row, request */
  place first;       /* first wrong element */
  int64_t wrong_elements, elements;
  double ratio_element, ratio_row, ratio_request;
  float rms[RESULT_MAX_RMS];
  char message[1200];
} finding;

/* Tier 1 or 2, over the rows the reference computed. */
void values_judge(const trial *t, const outputs *got, finding *found);
/* Same bits? False: `first` is the first place that differs, `count` the number of elements that do. */
bool values_equal(const trial *t, const outputs *a, const outputs *b, place *first, int64_t *count);
bool values_poisoned(const trial *t, const outputs *got, place where, uint8_t poison);
double values_load(const trial *t, const outputs *got, place where);
/* "out, request 1, row 0 of 1 (position 36), head 2, channel 5; kv_len 37, …" */
void values_describe(const trial *t, place where, char *text, size_t size);

/* ---- judge.c: what is known of a case before any run. False: the verdict is set. ---- */
bool trial_shape(trial *t, case_result *result);     /* tensors without contents, the outputs */
bool trial_contents(trial *t, case_result *result);  /* contents, the rows judged */
bool trial_reference(trial *t, case_result *result); /* these, and what the reference says */
bool trial_again(trial *t, case_result *result);     /* what it says under the contract of t->variant, once more */
void trial_free(trial *t);

/* ---- power.c: planted errors on a case that passed ---- */
void power_judge(const trial *t, case_result *result);

/* ---- explain.c ---- */

/* Looks for a known mistake that gives the first wrong row, if that is asked for (explain.h). */
void explain_values(const trial *t, const outputs *got, const finding *found, case_result *result);

/* ---- judge_laws.c, judge_pages.c, judge_graph.c, judge_streams.c, judge_alone.c, judge_far.c, judge_forms.c,
 * judge_contiguous.c: laws with runs of their own ---- */

/* Those that this case is asked. False: one does not hold, and the verdict is set. */
bool laws_further(const trial *t, const outputs *plain, case_result *result);
bool laws_launch(const trial *t, device_call *on, uint64_t schedule, const char *step, case_result *result);
bool pages_check(const trial *t, const outputs *plain, case_result *result);
void pages_release(void); /* memory kept between cases */
bool contiguous_check(const trial *t, const outputs *plain, case_result *result);
bool graph_check(const trial *t, const outputs *plain, case_result *result);
bool workspace_check(const trial *t, const outputs *plain, case_result *result);
bool streams_check(const trial *t, const outputs *plain, case_result *result);
bool busy_check(const trial *t, const outputs *plain, case_result *result);
bool alone_check(const trial *t, const outputs *plain, case_result *result);
bool in_place_check(const trial *t, const outputs *plain, case_result *result);
bool parts_check(const trial *t, const outputs *plain, case_result *result);
bool far_check(const trial *t, const outputs *plain, case_result *result);

/* ---- judge.c, for these ---- */

void judge_add_law(case_result *result, const char *law);
/* Does the operator list it? */
bool judge_has_law(const trial *t, const char *law);
/* Are these the bits of run 1, or, where that is not promised, within the bounds? If not: run_to_run, if calling
 * again shows it, else `check`. */
bool judge_same(const trial *t, const outputs *plain, const outputs *got, const char *check, const char *changed,
                case_result *result);

/* ---- judge_refuse.c ---- */
void refuse_judge(trial *t, case_result *result);

#endif
