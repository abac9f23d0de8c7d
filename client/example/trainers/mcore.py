"""A GPT with megatron.core's pipeline schedules, saved every 5 steps.

torchrun --nproc-per-node 4 mcore.py STEPS TP. Started again, with other numbers too, it resumes.
"""

import gc
import sys
from pathlib import Path

import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from tokend.integrations.megatron import TokendControl, TokendIterator

SEQ, VOCAB, MICRO, GLOBAL = 32, 2048, 2, 8
STAGES, CHUNKS = 2, 2  # of the pipeline; of a stage


def part_of_model(config, chunk):
    ends = {"ignore_virtual": False, "vp_stage": chunk}
    part = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        VOCAB,
        SEQ,
        pre_process=parallel_state.is_pipeline_first_stage(**ends),
        post_process=parallel_state.is_pipeline_last_stage(**ends),
        vp_stage=chunk,
    )
    return DistributedDataParallel(config, DistributedDataParallelConfig(), part)


def forward(iterator, chunk):
    """Tensor-parallel rank 0 reads and broadcasts. Only the first and the last chunk of the
    pipeline need rows.
    """
    part, rows = chunk.module, {}
    if part.pre_process or part.post_process:
        batch = next(iterator) if parallel_state.get_tensor_model_parallel_rank() == 0 else None
        keys = ["tokens", "labels", "position_ids"]
        rows = tensor_parallel.broadcast_data(keys, batch, torch.int64)
        rows |= tensor_parallel.broadcast_data(["loss_mask"], batch, torch.float32)
    first = (rows["tokens"], rows["position_ids"]) if part.pre_process else (None, None)
    output = chunk(*first, None, labels=rows["labels"] if part.post_process else None)

    def loss_of(losses):
        loss = (losses * rows["loss_mask"]).sum() / rows["loss_mask"].sum()
        return loss, {"loss": loss.item()}

    return output, loss_of


def main(steps, tp):
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tp, STAGES, CHUNKS)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=4,
        hidden_size=64,
        num_attention_heads=4,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=STAGES,
        virtual_pipeline_model_parallel_size=CHUNKS,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        finalize_model_grads_func=finalize_model_grads,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
    )
    model = [part_of_model(config, chunk) for chunk in range(CHUNKS)]
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-3, clip_grad=0.0), model)

    def state(loading=False):
        parts = {f"model{i}": chunk.module.sharded_state_dict() for i, chunk in enumerate(model)}
        return parts | {"optimizer": optimizer.sharded_state_dict(parts, is_loading=loading)}

    saved = sorted(Path("checkpoint").glob("*/metadata.json"))
    done, start = 0, "begin"
    if saved:
        loaded = dist_checkpointing.load(state(loading=True), str(saved[-1].parent))
        for i, chunk in enumerate(model):
            chunk.module.load_state_dict(loaded[f"model{i}"])
        optimizer.load_state_dict(loaded["optimizer"])
        done, start = loaded["step"], loaded["data"]  # tokend: data
    iterators = [TokendIterator("train", MICRO, start=start) for _ in model]
    control = TokendControl(iterators)
    train = get_forward_backward_func()
    for step in range(done + 1, steps + 1):
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        train(
            forward_step_func=forward,
            data_iterator=iterators,
            model=model,
            num_microbatches=GLOBAL // MICRO // parallel_state.get_data_parallel_world_size(),
            seq_length=SEQ,
            micro_batch_size=MICRO,
            forward_only=False,
        )
        optimizer.step()
        request = control()  # tokend: from tokctl
        if step % 5 == 0 or (request and request.save):  # tokend
            Path(f"checkpoint/{step:08}").mkdir(parents=True, exist_ok=True)
            # the first process saves unsharded entries, and it reads
            first = torch.distributed.get_rank() == 0
            cursor = iterators[0].save_state() if first else None  # tokend
            everything = state() | {"step": step, "data": cursor}  # tokend: data
            dist_checkpointing.save(everything, f"checkpoint/{step:08}")
            if request:  # tokend
                request.done(f"checkpoint of step {step}")  # tokend
        if control.should_stop:  # tokend
            break  # tokend


if __name__ == "__main__":  # saving starts processes, which import this file
    main(*map(int, sys.argv[1:]))
    parallel_state.destroy_model_parallel()  # it keeps process groups alive, as the model did
    gc.collect()
    # joins gloo's threads: otherwise a process that exits right after a save may abort
    torch.distributed.destroy_process_group()
