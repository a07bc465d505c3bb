/* campaign.h: one run spread over hosts (shards) and over time (a run that was interrupted, continued). */
#ifndef ASSAY_CONFORMANCE_CAMPAIGN_H
#define ASSAY_CONFORMANCE_CAMPAIGN_H

#include "judge.h"

/* Work of a case in units of its own fixed part; a guess from its lengths and dimensions, good to a factor of 2. */
double campaign_cost(const assay_case *one);

/* Keeps shard `index` of `of` (1 <= index <= of), in the order of the list. Every case falls into exactly one
 * shard; which one depends on the list and `of` alone. Dearest first, each to the shard with the least work. */
assay_status campaign_shard(assay_case *cases, int64_t *count, int32_t index, int32_t of, assay_error *error);

/* A hash of all cases of a run in their order, made before it is cut into shards: which shards belong together. */
uint64_t campaign_plan(const assay_case *cases, int64_t count);

/* What a run is, for its file's header; a run is continued only by one that is the same. */
typedef struct campaign_id {
  const char *device, *device_name, *commit;
  uint64_t seed;
  int64_t cases;
  int32_t shard, shards; /* 0, 0: not sharded */
  const char *power;     /* how planted errors are tried */
  uint64_t plan;         /* campaign_plan */
} campaign_id;

/* A run's file, whole ("F") or as far as it came ("F.partial"). */
typedef struct campaign_past {
  case_result *results; /* of the first `count` cases */
  int64_t count;
  int64_t keep_bytes; /* of the file: whole lines of those cases; what follows is cut off */
  bool complete;      /* "F" itself: nothing is left to do */
} campaign_past;

/* Reads what is there of the run whose report is `path`. Neither file: count 0, and the run starts from nothing.
 * Refused: a file of another run (message: what differs), a case that is not this list's at its place. */
assay_status campaign_resume(const char *path, const campaign_id *id, const assay_case *cases, campaign_past *past,
                             assay_error *error);
void campaign_free(campaign_past *past);

#endif
