/* engine_mistakes.h: mistakes that simt_engine_mutant_test.c and simt_engine_states_test.c plant in the engine and in
 * the forward passes, one at a time. It is included before the sources of gpu/models, whose places MISTAKE(which) it
 * switches. */
#ifndef ASSAY_SELFTEST_ENGINE_MISTAKES_H
#define ASSAY_SELFTEST_ENGINE_MISTAKES_H

enum {
  ENGINE_NO_MISTAKE,
  ENGINE_SLOT_OF_NEIGHBOUR,
  ENGINE_STALE_LENGTH,
  ENGINE_STALE_TABLE,
  ENGINE_PAD_WRITES,
  ENGINE_UPLOAD_TOO_EARLY,
  ENGINE_STEP_TOO_EARLY,
  ENGINE_PINNED_TOO_EARLY,
  ENGINE_TOKENS_OVERWRITTEN,
  ENGINE_ARRANGED_TOO_EARLY,
  ENGINE_NOT_ARRANGED,
  ENGINE_NOT_CARRIED,
  ENGINE_OTHER_HALF,
  ENGINE_COPIES_LOST,
  ENGINE_STEP_NUMBER_STALE,
  ENGINE_TOKEN_OF_NEIGHBOUR,
  ENGINE_GRAPH_OF_OTHER_HALF,
  ENGINE_RESIDUAL_AFTER_NORM,
  ENGINE_APPENDED_AGAIN, /* keys that are not rotated are written over those that are */
  ENGINE_NORMED_AGAIN,   /* heads that are normed and rotated are normed once more */
  ENGINE_TAIL_SEES_ALL,
  ENGINE_TAIL_OF_FIRST,
  ENGINE_LIST_OF_ONE,            /* the second forced variant is never tried */
  ENGINE_FORCE_FORGOTTEN,        /* whether a forced variant was taken is not checked */
  ENGINE_INVARIANT_ANY_VARIANT,  /* an invariant step takes variants whose rows depend on the batch */
  ENGINE_INVARIANT_BY_ROWS,      /* an invariant step takes a variant that leaves many rows to another */
  ENGINE_INVARIANT_BY_DECODE,    /* in an invariant step, single tokens attend by decode's variants */
  ENGINE_INVARIANT_BY_FORM,      /* in an invariant step, few rows have their products with the activation */
  ENGINE_CHAIN_BESIDE_FORCED,    /* few rows have their products with the activation, more rows a forced product */
  ENGINE_WAITS_FOR_DEVICE,       /* each step waits until the device has nothing to do */
  ENGINE_WAITS_FOR_TOKENS,       /* each step waits for the tokens of the one before */
  ENGINE_READS_BACK,             /* each step fetches something */
  ENGINE_OTHER_ACTIVATION,       /* a product with gates is activated as another family's */
  ENGINE_OFFSET_LOST,            /* the norm in the call of a product and its seam has no offset */
  ENGINE_DIVISION_LOST,          /* a product takes rows as they are whose norm has yet to be divided */
  ENGINE_EMBED_UNSCALED,         /* the embedding of gemma2 is not scaled */
  ENGINE_ONE_PLUS_LOST,          /* norms of gemma2 and qwen3_next multiply by g, not by 1 + g */
  ENGINE_CUBIC_LOST,             /* the gate of gemma2 is a sigmoid without its cubic term */
  ENGINE_LOGITS_UNCAPPED,        /* logits of gemma2 have no cap */
  ENGINE_SETTLED_LOST,           /* calls do not learn what of theirs is settled */
  ENGINE_NEVER_EVEN,             /* no step attends in even shares */
  ENGINE_ALWAYS_GREEDY,          /* rows that draw take the largest logit beside rows that do not */
  ENGINE_GREEDY_STAYS,           /* tokens of a greedy step go to its own half's ids */
  ENGINE_LOGITS_OLD,             /* the logits of a step that wrote none are those of an earlier one */
  ENGINE_LOGITS_NOT_GIVEN,       /* the tap of logits is left out */
  ENGINE_INVARIANT_BUT_FOR_FIVE, /* an invariant step of four to six rows takes variants that depend on the batch */
  ENGINE_ROLES_FORGOTTEN,        /* by role, generated tokens beside prompts go operator by operator */
  ENGINE_ONE_IS_GENERATED,       /* by role, a chunk of one token is taken for a generated one */
  ENGINE_LOGITS_TURNED,          /* by role, rows of logits come in the order of the passes */
  ENGINE_ROLES_SHARE,            /* by role, a prompt finds keys and values of generated tokens */
  /* Those that drawn traffic alone shows (days_of_traffic_show_them). */
  ENGINE_COPIES_APART,          /* the second pair of two shared blocks in one step is written elsewhere */
  ENGINE_ONE_COPY,              /* one of a step's pairs is copied */
  ENGINE_SAMPLING_OF_PART,      /* beside a prompt that goes on, rows draw by another request's parameters */
  ENGINE_GIVEN_IDS_LOST,        /* an id that is given is not taken where the chosen one is in place */
  ENGINE_FORK_KEEPS_SAMPLING,   /* a fork draws as its parent */
  ENGINE_LAST_POSITION_REFUSED, /* a request ends one token too early */
  ENGINE_SERIAL_FORGOTTEN,      /* tokens of a request that is gone come to the one in its place */
  /* From here on mistakes of engines whose requests have states (simt_engine_states_test.c). */
  ENGINE_STATE_OF_FIRST,     /* all rows have the first row's state */
  ENGINE_STATE_NEVER_FRESH,  /* a new request goes on from what its slot holds */
  ENGINE_STATE_FRESH_CHUNKS, /* each chunk of a prompt begins with zeros */
  ENGINE_PAD_HAS_STATE,      /* pad rows write the first row's state */
  ENGINE_STATE_COPIES_LOST,  /* forks, hits and kept states are not copied */
  /* Those of engines with a latent cache (simt_engine_latent_test.c). */
  ENGINE_RUNS_STAY,          /* a step of single tokens attends by the runs of the step before */
  ENGINE_RUNS_OF_OTHER_HALF, /* a step attends by the lists of the other half */
  ENGINE_RUNS_OF_ONE_STEP,   /* lists are uploaded for the first steps alone */
  ENGINE_MISTAKES
};

/* The planted one. */
static int engine_mutant = ENGINE_NO_MISTAKE;
#define MISTAKE(which) (engine_mutant == (which))

#endif
