/* trial.h: one case on one variant: its tensors, what the reference says of it, runs on the device, and how outputs
 * are judged. The only header of this folder that others include. Functions that take a case_result set its verdict
 * when they return false. */
#ifndef ASSAY_CONFORMANCE_TRIAL_TRIAL_H
#define ASSAY_CONFORMANCE_TRIAL_TRIAL_H

#include "assay/device.h"
#include "core/calls.h"
#include "core/modes.h"
#include "core/row_rule.h"
#include "core/shared_reference.h"
#include "conformance/generate/generate.h"
#include "foreign.h"
#include "kappa.h"
#include "predicted.h"
#include "result.h"
#include "thinned.h"
#include "tier2.h"

/* Outputs of a run: every row of every output, dense, in the case's own order. */
typedef struct outputs {
  unsigned char *bits[ASSAY_MAX_OUTPUTS];
} outputs;

/* How the rows of an output belong to the case. */
typedef enum output_kind {
  OUTPUT_ROWS,  /* the rows of the case */
  OUTPUT_WHOLE, /* rows of its own */
  OUTPUT_CACHE  /* the new tokens' keys or values, in a cache at the slots given */
} output_kind;

typedef struct trial_output {
  int32_t arg; /* index of the argument */
  output_kind kind;
  int64_t rows;  /* rows of the output */
  int64_t width; /* elements of a row (one query token) */
  int64_t group; /* elements judged together: one head's output; all heads for an output of shape [N, H] */
  assay_dtype dtype;
  bool exact; /* judged by tier 1 */
  bool inout; /* held contents before the call */
} trial_output;

/* Facts about the device that a launcher is told. */
typedef struct device_facts {
  int32_t multiprocessors, memory_rate;
} device_facts;

/* A case, a variant, and the reference's answer. */
typedef struct trial {
  const assay_case *one;
  const assay_variant *variant;
  const assay_device *device;
  image first; /* the draw of the first run */
  int32_t count;
  trial_output output[ASSAY_MAX_OUTPUTS];
  int64_t workspace_bytes;
  assay_sums sums; /* the variant's sum contract of this call; unit NONE: it declares none */
  device_facts facts;
  outputs initial;    /* contents of in-out arguments before the call */
  assay_rows rows;    /* the rows that are judged */
  int64_t *row_index; /* owned; NULL: all rows */
  assay_expected expected[ASSAY_MAX_OUTPUTS];
  assay_seen seen;
} trial;

/* ---- verdict.c ---- */

/* Sets the verdict, the check that decided it and the message. */
void verdict_set(case_result *result, verdict v, const char *check, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;
/* Sets HOST: the judge has no memory. Returns false. */
bool verdict_no_memory(case_result *result);
/* Makes HOST of a result that was set because of `status`, if that is a lack of memory. */
void verdict_blame_host(case_result *result, assay_status status);
/* Takes HOST over from a result that is otherwise not used. Returns false if there was one. */
bool verdict_take_host(case_result *result, const case_result *unused);
/* Makes STATE of a result, whose verdict is named in the message, if `change` is not NULL. CRASH, HANG and HOST stay.
 */
void verdict_note_state(case_result *result, const char *change);
/* Appends a law to the list of laws that the case was asked. */
void result_add_law(case_result *result, const char *law);

/* ---- shared_reference.c ---- */

/* Returns the parts of an operator's reference; NULL if it has none. The table lives as long as the program. */
const assay_shared_reference *trial_shared_reference(const assay_op *op);

/* ---- row_rule.c ---- */

/* Returns what results of a row must have in common; NULL if nothing. The table lives as long as the program. */
const assay_row_rule *trial_row_rule(const assay_op *op);

/* ---- trial.c: what is known of a case before any run ---- */

/* Makes the tensors without contents and lists the outputs. */
bool trial_shape(trial *t, case_result *result);
/* Fills the tensors and chooses the rows that are judged. */
bool trial_contents(trial *t, case_result *result);
/* Fills the tensors, chooses rows and asks the reference. */
bool trial_reference(trial *t, case_result *result);
/* Asks the reference once more, under the contract of t->variant as it is now. */
bool trial_again(trial *t, case_result *result);
void trial_free(trial *t);
/* Tells whether the operator lists the law. */
bool trial_has_law(const trial *t, const char *law);
/* Tells whether rows of a plain operator may be put in another order, or left out: not where an argument says which
 * rows belong together. */
bool trial_rows_move(const trial *t);
/* Tells whether NaN may stand in V of keys whose weight is 0: the contract allows it and all rows are judged. */
bool trial_may_skip_v(const trial *t);
/* Places `img` and asks the variant whether it takes that call; sets t->workspace_bytes if so. Returns false with an
 * untouched verdict where the variant declines. */
bool trial_takes(trial *t, const image *img, case_result *result);

/* ---- device.c: runs ---- */

/* The number of calls that may be under way at once, each in device memory of its own. */
enum { DEVICE_PLACES = 3 };

/* A call as the launcher sees it: addresses on the device, and a workspace between guards. */
typedef struct device_call {
  assay_tensor arg[ASSAY_MAX_ARGS];
  assay_call call;
  assay_env env;
  int32_t place;
  double launch_ms;
  bool fetched; /* outputs are on their way to the host */
} device_call;

/* Returns a monotonic time in milliseconds. */
double device_now_ms(void);
device_facts device_facts_of(const assay_device *device);
/* Turns a status other than OK into a verdict. Only a status that the device gives when waited for (`waited`) is a
 * fault of the kernel: a CRASH. */
bool device_status(assay_status status, const char *step, bool waited, const assay_error *error, case_result *result);
/* Takes device memory for the image and the workspace, in place `number`; writes addresses into `on`. */
bool device_place(const trial *t, const image *img, int32_t number, device_call *on, case_result *result);
/* Uploads the image, and poison into the workspace and around it. */
bool device_upload(const trial *t, const image *img, const device_call *on, case_result *result);
/* Uploads the image alone; the workspace keeps its contents. */
bool device_upload_arena(const trial *t, const image *img, const device_call *on, case_result *result);
/* Does the host's work for an uploaded call that doors need, before clock and capture (core/calls.h). */
bool device_plan(const trial *t, device_call *on, case_result *result);
/* Plans and launches an uploaded call under the given order of threads. `step` names it in messages. */
bool device_launch(const trial *t, device_call *on, uint64_t schedule, const char *step, case_result *result);
/* Waits, fetches outputs, and looks at guards and inputs; with `untouched` at the outputs as well. `after` receives the
 * bytes of the outputs at the image's offsets; other offsets are not all filled. */
bool device_collect(const trial *t, const image *img, bool untouched, device_call *on, const unsigned char **after,
                    case_result *result);
/* A run in two steps. device_begin uploads and launches; device_end collects, and gathers outputs in the case's order.
 * Calls begun in several places are under way together; `img` must not change until device_end. */
bool device_begin(const trial *t, const image *img, uint64_t schedule, int32_t number, device_call *on,
                  case_result *result);
bool device_end(const trial *t, const image *img, device_call *on, outputs *got, case_result *result);
/* Begins and ends a run in place 0. */
bool device_run(const trial *t, const image *img, uint64_t schedule, outputs *got, case_result *result);
/* Gives back the memory that runs keep between cases: images, device memory and its copies on the host. The judge calls
 * it when a device is lost or another device takes its place. Laws that keep device memory of their own free it when
 * the epoch has changed. */
void device_release(void);
/* Returns how often this thread has released its device memory. */
uint64_t device_epoch(void);

/* ---- outputs.c ---- */

/* Lists the arguments that the call writes, in the operator's order. */
void outputs_list(trial *t);
/* Returns false where memory is short. */
bool outputs_make(const trial *t, outputs *buffers);
void outputs_free(outputs *buffers);
/* Copies outputs from the bytes of an image after the call to dense rows in the case's own order. */
void outputs_gather(const trial *t, const image *img, const unsigned char *after, outputs *got);
/* Writes the dense rows of one output into the image: row r gets the bits of row r + shift, counted around. */
void outputs_scatter(const trial *t, const image *img, int32_t o, const unsigned char *bits, int64_t shift);
/* Checks that every byte of in-out and strided outputs that is no element of theirs (in a cache: of no new token) is
 * unchanged. */
bool outputs_rest(const trial *t, const image *img, const unsigned char *after, case_result *result);
/* Returns the number of judged rows of an output. */
int64_t outputs_judged(const trial *t, int32_t output);
/* Returns the r-th judged row of an output. */
int64_t outputs_row(const trial *t, int32_t output, int64_t r);

/* ---- values.c ---- */

/* An element of an output; the row counts in the case's order. */
typedef struct output_place {
  int32_t output;
  int64_t row, element;
} output_place;

/* The result of judging values. */
typedef struct finding {
  bool wrong;
  bool no_memory;     /* nothing is known, and `wrong` is true */
  const char *check;  /* exact, element, rounding, row, request */
  output_place first; /* first wrong element */
  int64_t wrong_elements, elements;
  double ratio_element, ratio_row, ratio_request;
  float rms[RESULT_MAX_RMS];
  char message[1200];
} finding;

/* Judges the rows that the reference computed, by tier 1 or 2. */
void values_judge(const trial *t, const outputs *got, finding *found);
/* Does the same up to the first thing that is wrong: of `found`, only `wrong` and `no_memory` are complete. */
void values_ask(const trial *t, const outputs *got, finding *found);
/* Compares bits. If they differ, `first` is the first different place and `count` the number of different elements. */
bool values_equal(const trial *t, const outputs *a, const outputs *b, output_place *first, int64_t *count);
bool values_poisoned(const trial *t, const outputs *got, output_place where, uint8_t poison);
double values_load(const trial *t, const outputs *got, output_place where);
/* Writes "out, request 1, row 0 of 1 (position 36), head 2, channel 5; kv_len 37, ...". */
void values_describe(const trial *t, output_place where, char *text, size_t size);

/* ---- rerun.c: further runs of a trial, and the cause of a difference ---- */

/* One further run with a draw of its own, begun early. A failure to begin counts only when the run's turn comes. */
typedef struct draw_run {
  draw choice;
  uint64_t schedule;
  bool same_bits; /* must have the bits of the first run */
  bool left_out;  /* a thinned run has the other one alone */
  bool tried, begun;
  image img;
  device_call on;
  case_result failure;
} draw_run;

/* Returns the seed of thread order number `run` of the case. */
uint64_t rerun_schedule(const trial *t, uint64_t run);
void rerun_begin(const trial *t, int32_t number, draw_run *run);
bool rerun_end(const trial *t, draw_run *run, outputs *got, case_result *result);
/* Runs the case once more with another draw. */
bool rerun(const trial *t, const draw *choice, uint64_t schedule, outputs *got, case_result *result);
/* Reports two runs that differ although they must not: the first place, both values, and what was changed. */
void rerun_set_difference(const trial *t, const outputs *before, const outputs *after, output_place first,
                          int64_t count, const char *check, const char *changed, case_result *result);
/* Runs the case with a single change. Returns true, and sets the verdict, if the result differs from `base`. */
bool rerun_blame(const trial *t, const outputs *base, const draw *choice, uint64_t schedule, const char *check,
                 const char *changed, case_result *result);
/* Repeats the call unchanged under other orders of its threads, three times: two runs may agree by chance. Returns
 * true, and sets the verdict, if one differs. */
bool rerun_blame_repetition(const trial *t, const outputs *base, uint64_t schedule, case_result *result);
/* Checks `got` against the tier's limits. */
bool rerun_within(const trial *t, const outputs *got, const char *check, const char *changed, case_result *result);
/* Checks that `got` has the bits of `base`, or, where the contract does not promise that, is within the limits. The
 * verdict names run_to_run if repeating the call shows a difference too, else `check`. */
bool rerun_same(const trial *t, const outputs *base, const outputs *got, const char *check, const char *changed,
                case_result *result);
/* Checks that one output has the same bits in two dense copies. */
bool rerun_same_output(const trial *t, int32_t o, const unsigned char *base, const unsigned char *got,
                       const char *check, const char *changed, case_result *result);

/* ---- dump.c: tensors of the cases judged from here on, as .npy files; workers inherit the setting.
 * Inputs are DIR/<argument>.<dtype>.npy. Outputs are DIR/<output>.got.<dtype>.npy, .expected.f64.npy and
 * .sigma.f64.npy. With DIR/manifest.json, `assay judge DIR` judges them again (docs/truth.md). ---- */

#define DUMP_MANIFEST "manifest.json"

/* Makes the folder and dumps into it from here on. */
assay_status trial_dump_to(const char *folder, assay_error *error);
/* Dumps inputs and expectation if `got` is NULL (before the first run, so that they outlive a crash), else outputs.
 * Does nothing where no folder was named. */
bool trial_dump(const trial *t, const outputs *got, case_result *result);

#endif
