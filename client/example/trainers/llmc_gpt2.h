/* The functions of llm.c's model, of which llmc_gpt2.c has a tiny one. */
#ifndef GPT2_H
#define GPT2_H

#include <stddef.h>

typedef struct {
	size_t vocab_size, channels, num_parameters;
	float *params_memory, *grads_memory, *m_memory, *v_memory; /* [num_parameters] */
	float *wte, *head;					   /* [vocab_size][channels] */
	float *probs;						   /* [B][T][vocab_size] */
	int *inputs, *targets;					   /* [B][T], of the last forward */
	size_t batch_size, seq_len;				   /* B and T */
	float mean_loss;
} GPT2;

void gpt2_build(GPT2 *model, size_t vocab_size, size_t channels, size_t B, size_t T);
void gpt2_forward(GPT2 *model, const int *inputs, const int *targets, size_t B, size_t T);
void gpt2_zero_grad(GPT2 *model);
void gpt2_backward(GPT2 *model);
void gpt2_update(GPT2 *model, float learning_rate, float beta1, float beta2, float eps,
	float weight_decay, int t);
void gpt2_free(GPT2 *model);

#endif
