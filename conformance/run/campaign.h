/* campaign.h: one run spread over hosts (shards) and over time (an interrupted run, continued). */
#ifndef ASSAY_CONFORMANCE_RUN_CAMPAIGN_H
#define ASSAY_CONFORMANCE_RUN_CAMPAIGN_H

#include "conformance/judge/judge.h"

/* Returns the work of a case in units of its own fixed part. It is a guess from lengths and dimensions, good to a
 * factor of 2. */
double campaign_cost(const assay_case *one);

/* Keeps shard `index` of `of` (1 <= index <= of), in the order of the list; other cases leave the list without being
 * freed. Every case falls into exactly one shard, which depends on the list and `of` alone. The dearest cases come
 * first, each to the shard with the least work. Fails with ASSAY_ERR_INPUT or ASSAY_ERR_MEMORY. */
assay_status campaign_shard(assay_case *cases, int64_t *count, int32_t index, int32_t of, assay_error *error);

/* Returns a hash of all cases of a run in their order, made before the run is cut into shards. Shards with equal hashes
 * belong together. */
uint64_t campaign_plan(const assay_case *cases, int64_t count);

/* The identity of a run, for its file's header. Only a run with the same identity continues it. */
typedef struct campaign_id {
  const char *device, *device_name, *commit;
  uint64_t seed;
  int64_t cases;
  int32_t shard, shards; /* 0, 0: not sharded */
  const char *power;     /* the way in which planted errors are tried */
  uint64_t plan;         /* campaign_plan */
  const char *binary;    /* hash of the program's file */
  int32_t schema;        /* RESULTS_SCHEMA */
} campaign_id;

/* The file of an earlier run, whole ("F") or partial ("F.partial"). */
typedef struct campaign_past {
  case_result *results; /* results of the first `count` cases */
  int64_t count;
  int64_t keep_bytes; /* bytes of the file: whole lines of those cases; the rest is cut off */
  bool complete;      /* "F" itself is present: nothing is left to do */
  bool asks_again;    /* it ends before a case that the host or a signal from outside has decided */
} campaign_past;

/* Reads the file of the run whose report is `path`. If neither file exists, count is 0 and the run starts from nothing.
 * Refuses a file of another run (the message says what differs) and a case that is not this list's at its place. The
 * caller frees `past`. */
assay_status campaign_resume(const char *path, const campaign_id *id, const assay_case *cases, campaign_past *past,
                             assay_error *error);
void campaign_free(campaign_past *past);

#endif
