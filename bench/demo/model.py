"""Writes the small model the demo and the engine tests serve.

A Llama of 8 layers, hidden size 512 and 4 KV heads with random weights from a fixed seed: 16 KiB of
KV per token in float32, so that a prompt of 4,000 tokens is about 64 MB of KV. The initializer
range of 0.06 makes greedy output vary with the prompt; smaller ones repeat one token, which would
hide a wrong reload. The tokenizer is its own: one word per id; prompts are sent as token ids.

Must not know: engines, servers, the store. Imports torch and transformers only when it writes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

DONE_MARK = "COMPLETE.json"


class ModelError(Exception):
    """The model could not be written."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What determines every byte of the model; two equal specs give equal files."""

    seed: int = 1
    layers: int = 8
    hidden: int = 512
    heads: int = 8
    kv_heads: int = 4
    intermediate: int = 1024
    vocab: int = 4096
    positions_max: int = 16384
    initializer_range: float = 0.06


def ensure_model(directory: Path, spec: ModelSpec | None = None) -> Path:
    """Returns a directory that holds the model of `spec`, writing it if it is not there whole."""
    spec = spec or ModelSpec()
    mark = directory / DONE_MARK
    if mark.is_file() and json.loads(mark.read_text()) == asdict(spec):
        return directory
    staging = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    _write_weights(staging, spec)
    _write_tokenizer(staging, spec)
    (staging / DONE_MARK).write_text(json.dumps(asdict(spec)))
    shutil.rmtree(directory, ignore_errors=True)
    staging.rename(directory)
    return directory


def ensure_model_apart(directory: Path) -> Path:
    """As `ensure_model`, in a process of its own: torch would take 300 MB of the caller's."""
    command = [sys.executable, "-m", "bench.demo.model", str(directory)]
    repository = Path(__file__).resolve().parents[2]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ModelError(f"the model could not be written:\n{result.stdout}{result.stderr}")
    return directory


def _write_weights(directory: Path, spec: ModelSpec) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        max_position_embeddings=spec.positions_max,
        initializer_range=spec.initializer_range,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(spec.seed)
        LlamaForCausalLM(config).to(torch.float32).save_pretrained(directory)


def _write_tokenizer(directory: Path, spec: ModelSpec) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    words = special + [f"w{i}" for i in range(len(special), spec.vocab)]
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    ).save_pretrained(directory)


if __name__ == "__main__":
    ensure_model(Path(sys.argv[1]))
