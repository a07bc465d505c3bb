/* judge.h: one case, run and judged. */
#ifndef ASSAY_CONFORMANCE_JUDGE_H
#define ASSAY_CONFORMANCE_JUDGE_H

#include "assay/device.h"
#include "generate.h"

typedef enum verdict {
  VERDICT_PASS,
  VERDICT_FAIL,
  VERDICT_HANG,
  VERDICT_CRASH,
  VERDICT_REFUSED,     /* expected, counts as good */
  VERDICT_UNSUPPORTED, /* with the variant's reason */
  VERDICT_WEAK
} verdict;

enum { RESULT_MAX_RMS = 96 };

/* check: which one decided: exact element row request unwritten guard input dead_bytes zero_p_v run_to_run
 * renumbering permutation refusal hang crash deadline admission launch. Plain data: it crosses a pipe. */
typedef struct case_result {
  verdict verdict;
  char check[24];
  char message[1600]; /* first wrong element in the problem's own terms, or the reason */
  char path[96];
  double ratio_element, ratio_row, ratio_request; /* observed over allowed; 0 where not judged */
  float rms[RESULT_MAX_RMS]; /* largest RMS of the error over RMS of sigma, for each limit of the table in kappa.c */
  int64_t rows_judged, elements_judged, visible_keys, live_keys;
  double reference_ms, run_ms;
  char laws[160]; /* laws checked, by name */
  /* Planted errors by number, a bit each (power.h); weak: of the unseen ones, those that the exact tier does not see
   * either. */
  uint32_t spoils_seen, spoils_unseen, spoils_void, spoils_weak;
  char kind[8];          /* of wrong values: nan, inf, value; else empty */
  char explanation[240]; /* the known mistake that gives what was found; only where it was asked for */
  bool device_lost;      /* a kernel faulted: nothing more can be run in this process */
} case_result;

const char *verdict_name(verdict v);
bool verdict_is_good(verdict v); /* PASS, REFUSED, UNSUPPORTED */

/* Generates, computes the reference, runs the variant as often as the laws need, judges. Never fails itself:
 * whatever goes wrong is a verdict. The device is open. Its memory is kept for the next case. */
void judge_case(const assay_case *one, const assay_variant *variant, const assay_device *device, case_result *result);
/* Gives back the memory that judge_case keeps between cases. */
void judge_release(void);

#endif
