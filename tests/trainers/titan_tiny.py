"""The example's config with a model for CPUs: `--module titan_tiny --config tiny`."""

import os
from dataclasses import dataclass, replace

import titan
from tokend.integrations.torchtitan import TokendDataLoader
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.config import TrainingConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import (
    _EMBEDDING_INIT,
    _NORM_INIT,
    ComplexRoPE,
    Embedding,
    Linear,
    Llama3Model,
    RMSNorm,
    _build_llama3_layers,
    _output_linear_init,
    model_registry,
)

DIM, LAYERS, HEADS, VOCAB, SEQ = 64, 2, 4, 2048, 32


class NoTokenizer(BaseTokenizer):
    """The stream has tokens, so none is needed."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config=None, *, tokenizer_path=""):
        super().__init__()
        self.eos_id = 0

    def encode(self, *_, **__):
        return []

    def decode(self, *_, **__):
        return ""

    def get_vocab_size(self):
        return VOCAB


def model():
    attention = os.environ.get("ATTENTION", "flex")
    base = model_registry("debugmodel", attn_backend=attention)
    config = Llama3Model.Config(
        dim=DIM,
        vocab_size=VOCAB,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB, embedding_dim=DIM, param_init=_EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=DIM, param_init=_NORM_INIT),
        lm_head=Linear.Config(
            in_features=DIM, out_features=VOCAB, param_init=_output_linear_init(DIM)
        ),
        layers=_build_llama3_layers(
            fuse_qkv=True,
            n_layers=LAYERS,
            dim=DIM,
            n_heads=HEADS,
            hidden_dim=128,
            rope=ComplexRoPE.Config(dim=DIM // HEADS, max_seq_len=SEQ, theta=10000),
            attn_backend=attention,
        ),
    )
    for layer in config.layers:
        layer.attention.inner_attention = (
            ScaledDotProductAttention.Config()
        )  # flex needs a compiler

    def parallelize(model, **keys):
        model = base.parallelize_fn(model, **keys)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
        return model

    return replace(base, model=config, parallelize_fn=parallelize)


def tiny():
    config = titan.llama3()
    return replace(
        config,
        model_spec=model(),
        tokenizer=NoTokenizer.Config(),
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB),
        hf_assets_path="",
        validator=Validator.Config(
            enable=bool(os.environ.get("VALIDATE")),
            freq=5,
            steps=-1,
            dataloader=TokendDataLoader.Config(stream="finite"),
        ),
        training=TrainingConfig(
            local_batch_size=2,
            seq_len=SEQ,
            steps=15,
            disable_cuda_graphs=True,
            mixed_precision_param="float32",
            global_batch_size=int(os.environ.get("GLOBAL_BATCH", -1)),
        ),
        parallelism=replace(config.parallelism, spmd_backend="partial_dtensor"),
    )
