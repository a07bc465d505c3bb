/* simt_ask_test.cpp: what the streamed decode asks for before it is its turn (stream_ask_first). Blocks of the pool
 * are pages, of which only those that a warp may ask for can be read: any other is a fault. */
#include <criterion/criterion.h>

#include <signal.h>
#include <sys/mman.h>

#include "simt_fixture.h"

#include "gpu/lib/stream.cuh"

TestSuite(simt_ask, .init = open_simt, .timeout = 60);

constexpr int32_t page = 4096, before = 64, blocks = 8, behind = 64, warps = 2, capacity = 128;

template <bool apart> __global__ static void ask(attention_params a, int32_t cluster) {
  stream_ask_first<bf16, 128, apart>(a, stream_place_of(a, cluster));
}

/* A pool of one kv head and blocks of 16 keys, 256 bytes each, amid blocks that cannot be read. */
struct pool {
  char *k;
  attention_params a = {};
  std::vector<int32_t> length, table;

  static char *reserve() {
    void *const all =
        mmap(nullptr, (before + blocks + behind) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(all, MAP_FAILED);
    return static_cast<char *>(all) + before * page;
  }
  void open(int32_t block) const { cr_assert_eq(mprotect(k + block * page, page, PROT_READ), 0); }

  pool(int32_t keys, std::vector<int32_t> entries) : k(reserve()), length{keys}, table(entries) {
    table.resize(capacity / stream_keys, -1);
    paged_cache &cache = a.cache;
    cache.k = k;
    cache.k_block = cache.k_head = page / 2;
    cache.k_token = 128;
    cache.table = table.data();
    cache.table_row = capacity / stream_keys;
    cache.blocks = blocks;
    cache.block_shift = 4;
    a.length = length.data();
    a.capacity = capacity;
    a.N = a.B = a.H = a.H_kv = a.G = 1;
    a.D = 128;
  }
  template <bool apart> void run(int32_t splits = 1) const {
    RUN((ask<apart>), launch_extent(1, splits), 32 * warps, 0, a, 1);
  }
  template <bool apart> void run_cluster(int32_t splits) const {
    launch_options options;
    options.cluster = splits;
    RUN_WITH((ask<apart>), splits, 32 * warps, 0, options, a, splits);
  }
};

/* 5 blocks of keys for two warps: every second block each, or three and two. */
Test(simt_ask, asks_for_the_first_block_of_each_warp) {
  schedule(1);
  pool p(5 * 16 - 3, {3, 1, 6, 7, 2});
  for (const int32_t block : {3, 1})
    p.open(block);
  p.run<true>();

  pool shares(5 * 16 - 3, {3, 1, 6, 7, 2});
  shares.open(3);
  shares.open(7);
  shares.run<false>();
}

/* A window of 20 keys begins in block 3. Two splits have four warps. They take the first four blocks, or shares of two,
 * one, one and one, whether or not a cluster joins them. */
Test(simt_ask, windows_and_splits) {
  pool window(5 * 16, {3, 1, 6, 7, 2});
  window.a.window = 20;
  for (const int32_t block : {7, 2})
    window.open(block);
  window.run<true>();

  pool splits(5 * 16, {3, 1, 6, 7, 2});
  for (const int32_t block : {3, 1, 6, 7})
    splits.open(block);
  splits.run<true>(2);
  splits.run_cluster<true>(2);

  pool shares(5 * 16, {3, 1, 6, 7, 2});
  for (const int32_t block : {3, 6, 7, 2})
    shares.open(block);
  shares.run<false>(2);
  shares.run_cluster<false>(2);
}

/* One warp has keys: the other asks for nothing. */
Test(simt_ask, short_rows) {
  pool p(1, {5, 1});
  p.open(5);
  p.run<true>();
  p.run<false>();
}

Test(simt_ask, keys_are_asked_for, .signal = SIGSEGV) {
  pool(16, {4}).run<false>();
}

/* Two rows of two kv heads, a page each of a block: the first has no keys, the second one block, number 2. */
struct rows : pool {
  explicit rows(std::initializer_list<int32_t> pages) : pool(0, {3}) {
    length.push_back(16);
    table.resize(2 * capacity / stream_keys, -1);
    table[capacity / stream_keys] = 2;
    a.length = length.data();
    a.cache.table = table.data();
    a.cache.k_block = page;
    a.cache.blocks = blocks / 2;
    a.N = a.B = a.H = a.H_kv = 2;
    for (const int32_t key_page : pages)
      open(key_page);
  }
  void ask_all() const { RUN(ask<false>, launch_extent(4), 32 * warps, 0, a, 1); }
};

Test(simt_ask, rows_and_heads) {
  rows({4, 5}).ask_all();
}

Test(simt_ask, every_head_is_asked_for, .signal = SIGSEGV) {
  rows({4}).ask_all();
}

/* Memory that the launch before has not written yet may hold anything. */
Test(simt_ask, old_lengths_and_tables_ask_for_nothing) {
  for (const int32_t length : {INT32_MIN, -1, 0, capacity + 1, INT32_MAX}) {
    pool p(length, {4, 4, 4, 4, 4, 4, 4, 4});
    p.run<true>();
    p.run<false>();
  }
  for (const int32_t entry : {INT32_MIN, -1, -before, blocks, blocks + 5, INT32_MAX})
    for (const int32_t length : {1, 40, capacity}) {
      pool p(length, std::vector<int32_t>(capacity / stream_keys, entry));
      p.run<true>();
      p.run<false>();
    }
}

/* Contiguous keys: the pool's pages are 16 rows each, and the table has the row that the request begins with. */
struct packed : pool {
  packed(int32_t keys, int32_t start) : pool(keys, {start}) {
    a.cache.k_block = a.cache.k_token;
    a.cache.table_row = 1;
    a.cache.block_shift = contiguous_shift;
    a.cache.blocks = a.capacity = blocks * stream_keys;
  }
};

/* Rows 40 to 47 are half of page 2, and the request has no others. Rows 40 to 71 lie in three pages. One warp begins in
 * the first two of them, another in the last two. */
Test(simt_ask, contiguous_keys_up_to_the_last) {
  packed p(8, 40);
  p.open(2);
  p.run<true>();
  p.run<false>();

  packed longer(32, 40);
  for (const int32_t block : {2, 3, 4})
    longer.open(block);
  longer.run<true>();
  longer.run<false>();

  packed end(8, blocks * stream_keys - 8);
  end.open(blocks - 1);
  end.run<true>();
}

Test(simt_ask, contiguous_keys_are_asked_for, .signal = SIGSEGV) {
  packed(8, 40).run<false>();
}

Test(simt_ask, old_starts_ask_for_nothing) {
  for (const int32_t start : {INT32_MIN, -1, blocks * stream_keys - 39, blocks * stream_keys, INT32_MAX}) {
    packed p(40, start);
    p.run<true>();
    p.run<false>();
  }
}
