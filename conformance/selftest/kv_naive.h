/* kv_naive.h: the naive block manager: whole prefixes as keys, looked for in a row, and a pool of its own. */
#ifndef ASSAY_SELFTEST_KV_NAIVE_H
#define ASSAY_SELFTEST_KV_NAIVE_H

#include <stdbool.h>

#include "core/rng.h"
#include "kv_model.h"

enum { MAX_POOL = 8, MAX_SIZE = 4, MAX_OPEN = 6, MAX_TOKENS = MAX_POOL * MAX_SIZE, MAX_COPIES = 64, REMEMBERED = 4 };

typedef struct naive_block {
  int64_t tables;
  int64_t key_length; /* 0: no key */
  int32_t key[MAX_TOKENS];
  int64_t left, busy; /* time its last table went; last step that uses it */
  bool copied;        /* in a pair of the step that is being put together */
  uint64_t content[MAX_SIZE];
} naive_block;

typedef struct naive_request {
  bool open;
  int64_t length, queued, committed;
  int32_t token[MAX_TOKENS];
  uint64_t written[MAX_TOKENS];
  int32_t table[MAX_POOL];
} naive_request;

typedef struct naive_model {
  assay_kv_config c;
  assay_kv *kv;
  assay_rng rng;
  kv_run *run;
  uint32_t rules; /* that count */
  bool different; /* any rule at all was broken */
  bool astray;    /* a call succeeded, or failed, and should not have; nothing after it means anything */
  int32_t vocabulary;
  naive_block block[MAX_POOL];
  naive_request request[MAX_OPEN];
  int64_t clock, begun, done, copy_count;
  assay_kv_copy copies[MAX_COPIES];
  int32_t prompt[REMEMBERED][MAX_TOKENS];
  int64_t prompt_length[REMEMBERED];
} naive_model;

/* Notes a broken rule, if it counts; the words of the first one are kept. */
void naive_broken(naive_model *m, kv_rule rule, const char *format, ...);
int64_t naive_draw(naive_model *m, int64_t low, int64_t high); /* both included */

int64_t naive_blocks(const naive_model *m, int64_t tokens);
int64_t naive_longest(const naive_model *m); /* tokens of a request */
bool naive_has(const naive_model *m, int64_t block);
/* Returns the value that token t of a request writes: a number for the whole prefix. */
uint64_t naive_content(const int32_t *tokens, int64_t t);

/* Count 0, and in no step that is queued or being put together. */
bool naive_reusable(const naive_model *m, const naive_block *b);
int64_t naive_reusable_count(const naive_model *m, bool free_only);
int naive_least_recent(const naive_model *m); /* the reusable idle block that was left first; -1: none */
int naive_holder(const naive_model *m, const int32_t *tokens, int64_t length); /* block with this key; -1: none */

void naive_erase(naive_model *m, int b); /* the key goes, and all that it is a prefix of */
/* The manager put block b into a table as a new one; one table less names it. */
void naive_allocated(naive_model *m, int64_t b);
void naive_left(naive_model *m, int b);

/* Everything that can be seen from outside. */
void naive_compare(naive_model *m);

#endif
