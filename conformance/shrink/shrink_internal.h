/* shrink_internal.h: the parts of the shrinker. */
#ifndef ASSAY_CONFORMANCE_SHRINK_SHRINK_PARTS_H
#define ASSAY_CONFORMANCE_SHRINK_SHRINK_PARTS_H

#include "conformance/case/case.h"
#include "shrink.h"

typedef enum answer {
  ANSWER_SAME = 1, /* fails for the same reason */
  ANSWER_PASS,
  ANSWER_OTHER, /* not a case, unsupported, inadmissible, or fails otherwise */
  ANSWER_NONE   /* the budget is spent */
} answer;

enum { SHRINK_BATCH = 4, SHRINK_LIST = 64, SHRINK_SEEDS = 4 };

typedef struct shrinker {
  const shrink_options *options;
  case_result target; /* the reason for which candidates must fail */
  assay_case now;     /* the smallest so far */
  int64_t split;      /* keys of a split, 0: none */
  int64_t ran, most;
  double stop_ms;
  uint64_t *known; /* hashes of descriptors with their answers in the low 3 bits */
  int64_t known_count, known_room;
  char *line; /* [CASE_MAX_LINE] */
  assay_status status;
  assay_error *error;
} shrinker;

/* Returns how many seeds a candidate is tried with. */
uint64_t shrink_seeds(const shrinker *s);
/* Runs the cases whose answers are not known yet; answers [count]. */
void shrink_ask(shrinker *s, const assay_case *list, int32_t count, answer *answers);
/* Does the same with a few seeds per case: SAME if one of them fails. */
void shrink_ask_seeds(shrinker *s, const assay_case *list, int32_t count, answer *answers);
/* Keeps the first candidate that fails for the same reason and frees all others. Returns false if there is none. */
bool shrink_try(shrinker *s, assay_case *list, int32_t count);

/* ---- moves.c: edits that keep a case whole ---- */

/* A number of the case, by its meaning. index: the request, the dimension or the parameter. */
typedef enum quantity_kind {
  QUANTITY_LENGTHS, /* kv_len of all requests at once */
  QUANTITY_LENGTH,
  QUANTITY_NEW,
  QUANTITY_HEADS, /* H_kv, with as many query heads for each */
  QUANTITY_GROUP, /* H / H_kv */
  QUANTITY_DIM,
  QUANTITY_PARAM
} quantity_kind;
typedef struct quantity {
  quantity_kind kind;
  int32_t index;
  int64_t least, most, step;
  char name[48];
} quantity;

int64_t quantity_get(const assay_case *one, const quantity *what);
void quantity_set(assay_case *one, const quantity *what, int64_t value);
/* Lists every quantity that has a number, lengths first. Returns the count. */
int32_t quantity_list(const assay_case *one, quantity *list, int32_t room);
/* Lists the numbers below `value` that a kernel may care about, ascending, without repetition. Returns the count. */
int32_t quantity_steps(const assay_case *one, const quantity *what, int64_t value, int64_t split, int64_t *steps,
                       int32_t room);

/* Gives the plainest value of a key. Returns false where no value of the key is plainer than another. */
bool plain_value(const assay_case *one, const case_key *key, double *value);
void drop_requests(assay_case *one, int32_t first, int32_t count);
/* Sets the mode and everything that follows from it. */
void set_mode(assay_case *one, case_mode mode);
/* Cuts shared prefixes to the allowed length after lengths have changed. */
void mend_shares(assay_case *one);

/* ---- difference.c ---- */
/* Writes the condition under which the smallest case fails. */
void shrink_difference(shrinker *s, char *text, size_t size);

#endif
