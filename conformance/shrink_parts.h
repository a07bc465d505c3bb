/* shrink_parts.h: the shrinker's own pieces. */
#ifndef ASSAY_CONFORMANCE_SHRINK_PARTS_H
#define ASSAY_CONFORMANCE_SHRINK_PARTS_H

#include "keys.h"
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
  case_result target; /* the reason */
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

/* Runs what is not known yet; answers [count]. */
void shrink_ask(shrinker *s, const assay_case *list, int32_t count, answer *answers);
/* The same, with a few seeds each: SAME if one of them fails. */
void shrink_ask_seeds(shrinker *s, const assay_case *list, int32_t count, answer *answers);
/* Takes the first candidate that fails for the same reason; frees all the others. */
bool shrink_try(shrinker *s, assay_case *list, int32_t count);

/* ---- shrink_moves.c: edits that keep a case whole ---- */

/* A number of the case, by what it means. index: the request, the dimension or the parameter. */
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
/* Everything that has a number. Lengths first. Gives the count. */
int32_t quantity_list(const assay_case *one, quantity *list, int32_t room);
/* Numbers below `value` that a kernel may care about, ascending, without repetition. */
int32_t quantity_steps(const assay_case *one, const quantity *what, int64_t value, int64_t split, int64_t *steps,
                       int32_t room);

/* The plainest value of a key; false: the key is no matter of taste. */
bool plain_value(const assay_case *one, const case_key *key, double *value);
void drop_requests(assay_case *one, int32_t first, int32_t count);
/* Sets mode and what follows from it. */
void set_mode(assay_case *one, case_mode mode);
/* After lengths have changed: shared prefixes are cut to what is allowed. */
void mend_shares(assay_case *one);

/* ---- shrink_difference.c ---- */
void shrink_difference(shrinker *s, char *text, size_t size);

#endif
