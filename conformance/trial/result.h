/* result.h: the result of judging a case. */
#ifndef ASSAY_CONFORMANCE_TRIAL_RESULT_H
#define ASSAY_CONFORMANCE_TRIAL_RESULT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum verdict {
  VERDICT_PASS,
  VERDICT_FAIL,
  VERDICT_HANG,
  VERDICT_CRASH,
  VERDICT_STATE,       /* it changed the modes of the thread, or left threads or processes running */
  VERDICT_HOST,        /* nothing is known of the kernel: the host had no memory, no process, or no time */
  VERDICT_REFUSED,     /* expected, counts as good */
  VERDICT_UNSUPPORTED, /* with the variant's reason */
  VERDICT_WEAK
} verdict;

enum { RESULT_MAX_RMS = 96 };

/* The result of judging a case: plain data, which crosses a pipe. The check that decided it is a law, or one of these:
 * exact element rounding row request predicted unwritten guard input dead_bytes zero_p_v; run_to_run renumbering
 * permutation refusal hang crash deadline admission launch state host. */
typedef struct case_result {
  verdict verdict;
  char check[24];
  char message[1600]; /* first wrong element in the problem's own terms, or the reason */
  char path[96];
  double ratio_element, ratio_row, ratio_request; /* observed over allowed; 0 where not judged */
  float rms[RESULT_MAX_RMS]; /* largest RMS of the error over RMS of sigma, for each limit of the table in kappa.c */
  int64_t rows_judged, elements_judged, visible_keys, live_keys;
  double reference_ms, run_ms;
  char laws[192];     /* laws checked, by name */
  int32_t batch_size; /* rows or requests of the call that the law `batch` made; 0: none */
  bool batch_differs; /* its bits were others */
  /* Planted errors by number, one bit each (power.h). weak: unseen ones that the exact tier does not see either. */
  uint32_t spoils_seen, spoils_unseen, spoils_void, spoils_weak;
  char kind[8];          /* the kind of a wrong value: nan, inf, value; else empty */
  char explanation[240]; /* the known mistake that gives what was found; only where it was asked for */
  bool device_lost;      /* a kernel faulted: nothing more can be run in this process */
  bool spent;            /* the process is no longer as it was before the case: another one takes the next */
} case_result;

const char *verdict_name(verdict v);
bool verdict_is_good(verdict v); /* PASS, REFUSED, UNSUPPORTED */
/* Tells whether lists of counts leave the verdict out where none has it: STATE, HOST. */
bool verdict_is_rare(verdict v);

#endif
