/* fake.h: an operator, a device and a variant small enough to be wrong in one way at a time. They test the judge, the
 * generator and the executor.
 *
 * fake_gate: visible keys are 0 … last. p_t = 1 where the first channel of k_t is above 0, else 0;
 * out[n, h, d] = Σ p_t v_t[h / G, d], count[n, h] = Σ p_t (f32). */
#ifndef ASSAY_SELFTEST_FAKE_H
#define ASSAY_SELFTEST_FAKE_H

#include "conformance/case/types.h"
#include "core/registry_add.h"

typedef enum fake_fault {
  FAULT_NONE,
  FAULT_UNWRITTEN,       /* the last element of out is left alone */
  FAULT_GUARD_AFTER,     /* writes beyond out */
  FAULT_GUARD_BEFORE,    /* writes before out */
  FAULT_GUARD_WORKSPACE, /* writes beyond its workspace */
  FAULT_INPUT,           /* changes a length */
  FAULT_LAST_KEY,        /* drops the last key */
  FAULT_NAN,             /* one NaN */
  FAULT_ROW_BIAS,        /* every element off by a little: each in bounds, their mean not */
  FAULT_DEAD_TAIL,       /* adds 0 · v of the slot after the last key */
  FAULT_ZERO_P,          /* adds p · v where p is 0 */
  FAULT_WORKSPACE,       /* adds 0 · workspace */
  FAULT_RUN_TO_RUN,      /* last bit differs from call to call */
  FAULT_RENUMBERING,     /* last bit differs by physical block */
  FAULT_PERMUTATION,     /* last bit differs by place in the batch */
  FAULT_HANG,            /* the launch reports a hang */
  FAULT_LAUNCH,          /* the launch fails */
  FAULT_DEVICE,          /* the device faults */
  FAULT_SPIN,            /* never returns */
  FAULT_SLOW_LAST_KEY,   /* takes 500 ms, and drops the last key */
  FAULT_SEGV,
  FAULT_EXIT,    /* ends the process */
  FAULT_ACCEPTS, /* runs what it must refuse */
  FAULT_WRITES_THEN_REFUSES,
  FAULT_REFUSES_MUTELY, /* the message names nothing */
  FAULT_COUNT
} fake_fault;

extern fake_fault fake_broken;
/* Only in calls whose first length is this; negative: all. */
extern int32_t fake_broken_length;
/* The launch takes this long. */
extern double fake_delay_ms;

extern const assay_op fake_op;
extern const assay_variant fake_variant;
extern const assay_device fake_device;

/* Into the registry; once per process. */
void fake_register(void);

enum {
  FAKE_ARG_Q,
  FAKE_ARG_K,
  FAKE_ARG_V,
  FAKE_ARG_TABLE = 5,
  FAKE_ARG_KV_LEN,
  FAKE_ARG_CU_Q,
  FAKE_ARG_OUT,
  FAKE_ARG_COUNT
};

/* Four requests of lengths 5, 16, 0, 37; H = 4, H_kv = 2, D = 16, blocks of 8, f32, decode, nhd. case_free it. */
assay_case fake_case(case_tier tier);
void fake_set_dim(assay_case *one, const char *name, int64_t value);
void fake_set_param(assay_case *one, const char *name, double value);

#endif
