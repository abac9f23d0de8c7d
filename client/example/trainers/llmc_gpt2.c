/*
 * A model so small that the example runs anywhere: an embedding and a linear layer. Its functions
 * have the names and arguments of those in llm.c's train_gpt2.c.
 */
#include "llmc_gpt2.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t n, size_t size)
{
	void *memory = calloc(n, size);

	if (!memory)
		abort();
	return memory;
}

void gpt2_build(GPT2 *model, size_t vocab_size, size_t channels, size_t B, size_t T)
{
	size_t n = 2 * vocab_size * channels;

	*model = (GPT2){.vocab_size = vocab_size, .channels = channels, .num_parameters = n};
	model->params_memory = allocate(n, sizeof(float));
	model->grads_memory = allocate(n, sizeof(float));
	model->m_memory = allocate(n, sizeof(float));
	model->v_memory = allocate(n, sizeof(float));
	model->wte = model->params_memory;
	model->head = model->params_memory + n / 2;
	model->probs = allocate(B * T * vocab_size, sizeof(float));
	model->inputs = allocate(B * T, sizeof(int));
	model->targets = allocate(B * T, sizeof(int));
	model->batch_size = B;
	model->seq_len = T;
	srand(42);
	for (size_t i = 0; i < n; i++)
		model->params_memory[i] = 0.2f * ((float)rand() / (float)RAND_MAX - 0.5f);
}

static void softmax(float *probs, size_t n)
{
	float sum = 0, greatest = probs[0];

	for (size_t v = 1; v < n; v++)
		greatest = fmaxf(greatest, probs[v]);
	for (size_t v = 0; v < n; v++)
		sum += probs[v] = expf(probs[v] - greatest);
	for (size_t v = 0; v < n; v++)
		probs[v] /= sum;
}

void gpt2_forward(GPT2 *model, const int *inputs, const int *targets, size_t B, size_t T)
{
	size_t C = model->channels, V = model->vocab_size;
	float loss = 0;

	assert(B == model->batch_size && T == model->seq_len);
	memcpy(model->inputs, inputs, B * T * sizeof(int));
	memcpy(model->targets, targets, B * T * sizeof(int));
	for (size_t i = 0; i < B * T; i++) {
		float *probs = model->probs + i * V, *h = model->wte + (size_t)inputs[i] * C;

		assert(inputs[i] >= 0 && (size_t)inputs[i] < V);
		assert(targets[i] >= 0 && (size_t)targets[i] < V);
		for (size_t v = 0; v < V; v++) {
			probs[v] = 0;
			for (size_t c = 0; c < C; c++)
				probs[v] += h[c] * model->head[v * C + c];
		}
		softmax(probs, V);
		loss -= logf(probs[targets[i]]);
	}
	model->mean_loss = loss / (float)(B * T);
}

void gpt2_zero_grad(GPT2 *model)
{
	memset(model->grads_memory, 0, model->num_parameters * sizeof(float));
}

void gpt2_backward(GPT2 *model)
{
	size_t C = model->channels, V = model->vocab_size, n = model->batch_size * model->seq_len;
	float *dwte = model->grads_memory, *dhead = dwte + V * C;

	for (size_t i = 0; i < n; i++) {
		size_t input = (size_t)model->inputs[i], target = (size_t)model->targets[i];

		for (size_t v = 0; v < V; v++) {
			float d = (model->probs[i * V + v] - (float)(v == target)) / (float)n;

			for (size_t c = 0; c < C; c++) {
				dhead[v * C + c] += d * model->wte[input * C + c];
				dwte[input * C + c] += d * model->head[v * C + c];
			}
		}
	}
}

void gpt2_update(GPT2 *model, float learning_rate, float beta1, float beta2, float eps,
	float weight_decay, int t)
{
	for (size_t i = 0; i < model->num_parameters; i++) {
		float param = model->params_memory[i], grad = model->grads_memory[i];
		float m = beta1 * model->m_memory[i] + (1.0f - beta1) * grad;
		float v = beta2 * model->v_memory[i] + (1.0f - beta2) * grad * grad;
		float m_hat = m / (1.0f - powf(beta1, (float)t));
		float v_hat = v / (1.0f - powf(beta2, (float)t));

		model->m_memory[i] = m;
		model->v_memory[i] = v;
		model->params_memory[i] -=
			learning_rate * (m_hat / (sqrtf(v_hat) + eps) + weight_decay * param);
	}
}

void gpt2_free(GPT2 *model)
{
	free(model->params_memory);
	free(model->grads_memory);
	free(model->m_memory);
	free(model->v_memory);
	free(model->probs);
	free(model->inputs);
	free(model->targets);
}
