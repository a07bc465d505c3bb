/* fake_plain.h: operators that the judge's laws on plain and appending calls are tested with; each variant can be wrong
 * in one way at a time.
 *
 * fake_mix (plain): y[n, c] = x[n, c] · g[c], in place or into y_out; top[n] = a channel where |x[n, .]| is largest;
 *   pool[m, .] = what pool[from[m], .] was.
 * fake_code (plain, special values): code[n, c] = x[n, c] as e4m3; its rows stay in place.
 * fake_append (paged): the new tokens' keys and values go to their slots. */
#ifndef ASSAY_SELFTEST_FAKE_PLAIN_H
#define ASSAY_SELFTEST_FAKE_PLAIN_H

#include "conformance/case/types.h"
#include "core/registry_add.h"

typedef enum plain_fault {
  PLAIN_NONE,
  PLAIN_BETWEEN_ROWS,    /* writes after a row of a strided output */
  PLAIN_CHANGES_X,       /* x changes although y_out takes the result */
  PLAIN_LOSES_NAN_BITS,  /* x keeps its values, but one bit of a zero's sign */
  PLAIN_MOVES_NEIGHBOUR, /* pool rows come from the row beside */
  PLAIN_MOVES_LATE,      /* pool rows that were moved already are moved on */
  PLAIN_PLACE_SHOWS,     /* last bit differs by the place of the row */
  PLAIN_ROWS_IN_PLACE,   /* g by the parity of the row's place */
  PLAIN_OTHER_TOP,       /* the other one of two equal channels */
  PLAIN_WRONG_TOP,       /* a channel that is not the largest */
  PLAIN_GAIN_LOST,       /* y = x */
  PLAIN_LAST_DROPPED,    /* the last channel is left alone */
  PLAIN_WIDE_ONLY,       /* y = x, in channels from 32 on */
  PLAIN_ROW_BEFORE,      /* fake_code: takes the code of the row before */
  PLAIN_TOP_UNWRITTEN,   /* leaves the last row's top unwritten */
  PLAIN_NUMBER_FOR_NAN,  /* 0 where the code is that of NaN */
  PLAIN_NAN_FOR_NUMBER,  /* NaN where there is a number */
  PLAIN_NAN_SIGN,        /* 0xFF instead of 0x7F */
  PLAIN_WRAPS,           /* no saturation: NaN above the largest number */
  PLAIN_OTHER_SLOT,      /* the token goes to the slot after its own */
  PLAIN_SECOND_SLOT,     /* the token goes to its own slot and to the next */
  PLAIN_PAD_WRITTEN,     /* a pad row goes to slot 0 of the pool */
  PLAIN_KEYS_AS_VALUES,  /* V holds K */
  PLAIN_HEADS_SWAPPED,
  PLAIN_STALE_BYTE /* one byte of a block that no request owns */
} plain_fault;

extern plain_fault plain_broken;
extern const assay_op plain_mix_op, plain_code_op, plain_append_op;
extern const assay_variant plain_mix, plain_code, plain_append;

/* Operators and variants into the registry, with fake_device; once per process. */
void plain_register(void);
/* "fake_mix tier=… N=… C=…" with the defaults for what is not said; case_free it. Fails the test where it is none. */
assay_case plain_case(const char *descriptor);

#endif
