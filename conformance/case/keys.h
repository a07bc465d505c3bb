/* keys.h: the one table of the keys of a case. The YAML checker, the descriptor and the docs read it. An operator's
 * dimensions, parameters and optional arguments are keys by their own names. */
#ifndef ASSAY_CONFORMANCE_CASE_KEYS_H
#define ASSAY_CONFORMANCE_CASE_KEYS_H

#include "types.h"

enum { KEY_MAX_LENGTH = 1 << 20, KEY_MAX_REFUSED_DIM = 4096 };

typedef enum key_kind {
  KEY_INTEGER,
  KEY_REAL,
  KEY_BOOL,
  KEY_ENUM,    /* names; the value is the index */
  KEY_TEXT,    /* letters, digits and _@.:/+- */
  KEY_SEED,    /* 64 bits, decimal or 0x */
  KEY_LENGTHS, /* kv_len, new: one integer per request */
  KEY_SHARE    /* one `-` or `earlier:tokens` per request */
} key_kind;

typedef enum key_store {
  STORE_I32,
  STORE_F64,
  STORE_TEXT,
  STORE_U64,
  STORE_DIM,
  STORE_PARAM,
  STORE_PRESENT,
  STORE_DTYPE,
  STORE_KV_DTYPE,
  STORE_OUT_DTYPE,
  STORE_LIST
} key_store;

/* The operators that have the key. */
typedef enum key_shown {
  SHOWN_ALWAYS,
  SHOWN_ARGUMENTS, /* its values are the operator's arguments */
  SHOWN_PAGED,
  SHOWN_ROWS, /* whose rows can be judged one by one */
  SHOWN_TAPS,
  SHOWN_Q_PAD, /* paged, rows that may lie apart */
  SHOWN_ROW_PAD,
  SHOWN_OUT_DTYPE,
  SHOWN_PLAIN_VALUES,
  SHOWN_SPECIAL_VALUES
} key_shown;

typedef struct case_key {
  const char *name;
  key_kind kind;
  double min, max, fallback;
  int64_t multiple;
  const char *names; /* KEY_ENUM: separated by commas */
  key_store store;
  size_t at;   /* offset into assay_case; for DIM, PARAM and PRESENT the index */
  size_t size; /* KEY_TEXT: bytes of the field */
  bool always; /* printed even at its default */
  const char *doc;
  key_shown shown;
} case_key;

/* Returns the number of keys; key_at returns them in the order in which a descriptor prints them. */
int32_t key_count(const assay_op *op);
case_key key_at(const assay_op *op, int32_t index);
/* Returns the index of a key, or -1. */
int32_t key_find(const assay_op *op, const char *name);
/* Writes all names, "a, b, c". */
void key_list(const assay_op *op, char *text, size_t size);

/* Reads one value. `relaxed` (section refuse) lets an operator's dimensions and parameters leave their range. Fails
 * with ASSAY_ERR_INPUT, "key: found X, allowed Y". Not for KEY_TEXT, KEY_SEED, KEY_LENGTHS, KEY_SHARE. */
assay_status key_from_text(const case_key *key, const char *text, bool relaxed, double *value, assay_error *error);
assay_status key_seed_from_text(const char *name, const char *text, uint64_t *value, assay_error *error);
assay_status key_text_check(const case_key *key, const char *text, assay_error *error);
/* key_set and key_get do nothing, or return 0, for keys whose value is a text, a seed or a list. */
void key_set(assay_case *one, const case_key *key, double value);
double key_get(const assay_case *one, const case_key *key);
/* Returns the name of enum value `index` as a string that stays valid on this thread, or NULL. */
const char *key_name_of(const case_key *key, int64_t index);
/* Writes the allowed values: "8 to 256, multiples of 8", "nhd, hnd, x" or "true, false". */
void key_allowed(const case_key *key, bool relaxed, char *text, size_t size);
/* Writes the shortest decimal that reads back as the same f64. */
void key_print_real(double value, char *text, size_t size);

#endif
