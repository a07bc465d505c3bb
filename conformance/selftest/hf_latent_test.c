/* hf_latent_test.c: configurations of models with latent attention, as they are published. Every field that Kimi K2 has
 * otherwise than DeepSeek-V3 is followed, and what would change the result otherwise is refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/hf_config.h"

static assay_error error;

/* Fields of Kimi K2's config.json, in its order. Its quantization_config is left out. */
static const char kimi[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
    "\"aux_loss_alpha\": 0.001, \"bos_token_id\": 163584, \"eos_token_id\": 163585, \"ep_size\": 1, "
    "\"first_k_dense_replace\": 1, \"hidden_act\": \"silu\", \"hidden_size\": 7168, \"initializer_range\": 0.02, "
    "\"intermediate_size\": 18432, \"kv_lora_rank\": 512, \"max_position_embeddings\": 131072, "
    "\"model_type\": \"kimi_k2\", \"moe_intermediate_size\": 2048, \"moe_layer_freq\": 1, \"n_group\": 1, "
    "\"n_routed_experts\": 384, \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"num_attention_heads\": 64, "
    "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 61, \"num_key_value_heads\": 64, "
    "\"num_nextn_predict_layers\": 0, \"pretraining_tp\": 1, \"q_lora_rank\": 1536, \"qk_nope_head_dim\": 128, "
    "\"qk_rope_head_dim\": 64, \"rms_norm_eps\": 1e-06, \"rope_scaling\": {\"beta_fast\": 1.0, \"beta_slow\": 1.0, "
    "\"factor\": 32.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096, "
    "\"type\": \"yarn\"}, \"rope_theta\": 50000.0, \"routed_scaling_factor\": 2.827, \"scoring_func\": \"sigmoid\", "
    "\"seq_aux\": true, \"tie_word_embeddings\": false, \"topk_group\": 1, \"topk_method\": \"noaux_tc\", "
    "\"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"v_head_dim\": 128, \"vocab_size\": 163840}";

/* Reads kimi with `from` replaced by `to`; NULL: as it is. */
static assay_status read_kimi(const char *from, const char *to, assay_model_config *c) {
  char text[3000];
  const char *at = from != NULL ? strstr(kimi, from) : kimi;
  const json_value *root = NULL;
  hf_kind kind;
  json_reader *reader = json_open();
  cr_assert_not_null(at, "%s", from);
  (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - kimi), kimi, from != NULL ? to : "",
                 at + (from != NULL ? strlen(from) : 0));
  error.text[0] = '\0';
  cr_assert_eq(json_parse(reader, text, strlen(text), &root, &error), ASSAY_OK, "%s", error.text);
  assay_status status = hf_config_read(root, &kind, c, &error);
  if (status == ASSAY_OK) {
    cr_expect_eq((int)kind, (int)HF_DEEPSEEK_V3);
    c->weight_dtype = c->act_dtype = c->kv_dtype = ASSAY_BF16;
    status = assay_model_check(c, &error);
  }
  json_close(reader);
  return status;
}

Test(hf_latent, kimi_k2) {
  assay_model_config c;
  cr_assert_eq(read_kimi(NULL, NULL, &c), ASSAY_OK, "%s", error.text);
  const struct {
    const char *name;
    int64_t found, wanted;
  } sizes[] = {{"arch", c.arch, ASSAY_DEEPSEEK_V3},
               {"layers", c.layers, 61},
               {"hidden", c.hidden, 7168},
               {"heads", c.heads, 64},
               {"kv_heads", c.kv_heads, 1},
               {"head_size", c.head_size, 192},
               {"rotated", c.rotated, 64},
               {"q_rank", c.q_rank, 1536},
               {"kv_rank", c.kv_rank, 512},
               {"value_size", c.value_size, 128},
               {"intermediate", c.intermediate, 18432},
               {"vocab", c.vocab, 163840},
               {"max_pos", c.max_pos, 131072},
               {"experts", c.experts, 384},
               {"experts_used", c.experts_used, 8},
               {"expert_size", c.expert_size, 2048},
               {"groups", c.groups, 1},
               {"groups_used", c.groups_used, 1},
               {"shared_size", c.shared_size, 2048},
               {"renormalise", c.renormalise, true},
               {"tied_head", c.tied_head, false},
               {"qk_norm", c.qk_norm, false},
               {"rope_kind", c.rope_kind, ASSAY_ROPE_YARN},
               {"rope_style", c.rope_style, ASSAY_ROPE_INTERLEAVED},
               {"rope_truncate", c.rope_truncate, true}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
    cr_expect_eq(sizes[i].found, sizes[i].wanted, "%s: %d", sizes[i].name, (int)sizes[i].found);
  const double m = 0.1 * log(32.0) + 1;
  const struct {
    const char *name;
    double found, wanted;
  } numbers[] = {{"eps", c.eps, 1e-6},
                 {"rope_base", c.rope_base, 50000},
                 {"rope_factor", c.rope_factor, 32},
                 {"rope_original", c.rope_original, 4096},
                 {"rope_beta_fast", c.rope_beta_fast, 1},
                 {"rope_beta_slow", c.rope_beta_slow, 1},
                 {"rope_concentration", c.rope_concentration, 1},
                 {"score_scale", c.score_scale, m * m / sqrt(192.0)},
                 {"route_scale", c.route_scale, 2.827}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    cr_expect(fabs(numbers[i].found - numbers[i].wanted) <= 1e-15 * fabs(numbers[i].wanted), "%s: %.17g",
              numbers[i].name, numbers[i].found);
  for (int64_t l = 0; l < 61; ++l)
    cr_expect_eq(assay_model_is_sparse(&c, l), l > 0, "layer %d", (int)l);
}

/* One field at a time shows in the configuration, so that none of them is DeepSeek-V3's by chance. */
Test(hf_latent, each_field_is_followed) {
  assay_model_config c;
  cr_assert_eq(read_kimi("\"n_group\": 1", "\"n_group\": 8", &c), ASSAY_OK, "%s", error.text);
  cr_expect_eq(c.groups, 8);
  cr_assert_eq(read_kimi("\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 3", &c), ASSAY_OK);
  cr_expect(!assay_model_is_sparse(&c, 2) && assay_model_is_sparse(&c, 3));
  cr_assert_eq(read_kimi("\"n_shared_experts\": 1", "\"n_shared_experts\": 2", &c), ASSAY_OK);
  cr_expect_eq(c.shared_size, 4096);
  cr_assert_eq(read_kimi("\"factor\": 32.0", "\"factor\": 64.0", &c), ASSAY_OK);
  cr_expect(c.rope_factor == 64 && c.score_scale > (0.1 * log(32.0) + 1) * (0.1 * log(32.0) + 1) / sqrt(192.0));
  cr_assert_eq(read_kimi("\"q_lora_rank\": 1536", "\"q_lora_rank\": null", &c), ASSAY_OK);
  cr_expect_eq(c.q_rank, 0);
}

/* Without a stretch the table is plain, and scores have 1 / sqrt(D). */
Test(hf_latent, a_plain_table) {
  static const char yarn[] =
      "{\"beta_fast\": 1.0, \"beta_slow\": 1.0, \"factor\": 32.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
      "\"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}";
  assay_model_config c;
  cr_assert_eq(read_kimi(yarn, "null", &c), ASSAY_OK, "%s", error.text);
  cr_expect_eq((int)c.rope_kind, (int)ASSAY_ROPE_PLAIN);
  cr_expect(c.score_scale == 0 && c.rope_base == 50000);
}

Test(hf_latent, what_is_not_followed_is_refused) {
  static const struct {
    const char *from, *to, *says;
  } wrong[] = {
      {"\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"softmax\"",
       "scoring_func: found 'softmax', allowed sigmoid"},
      {"\"topk_method\": \"noaux_tc\"", "\"topk_method\": \"greedy\"", "topk_method: found 'greedy', allowed noaux_tc"},
      {"\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2", "moe_layer_freq: found '2', allowed 1"},
      {"\"use_cache\": true", "\"quantization_config\": {\"quant_method\": \"fp8\"}",
       "weight_block_size: found 'none', allowed [128, 128]"},
      {"\"topk_group\": 1", "\"topk_group\": 2", "groups_used: found 2, allowed 1 to 1"},
      {"\"mscale\": 1.0", "\"mscale\": 0.0", "mscale: found '0.0', allowed above 0"},
      {"\"beta_slow\": 1.0", "\"beta_slow\": 2.0", "rope_beta_fast: found 1, allowed from rope_beta_slow = 2 on"},
      {"\"kimi_k2\"", "\"kimi_k3\"", "model_type: found 'kimi_k3', allowed llama"}};
  assay_model_config c;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    cr_expect_neq(read_kimi(wrong[i].from, wrong[i].to, &c), ASSAY_OK, "%s: taken", wrong[i].says);
    cr_expect_not_null(strstr(error.text, wrong[i].says), "wanted %s: %s", wrong[i].says, error.text);
  }
}
