"""What a prediction costs: time and memory of this process for `article`, and for Llamas of 8 and 70 billion parameters."""

import resource
import sys
import time
from collections.abc import Callable

import torch

from labkit.memory.prediction import predict
from labkit.workload import Workload


def llama(*, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int, sequence: int) -> Workload:
    """A Hugging Face Llama of these sizes, randomly initialised, with its own next-token loss."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=sequence,
        use_cache=False,
    )
    return Workload(
        model=lambda: LlamaForCausalLM(config),
        batch=lambda n: torch.zeros(n, sequence, dtype=torch.long),
        loss=lambda model, batch: model(input_ids=batch, labels=batch).loss,
        name="llama",
    )


def llama_8b() -> Workload:
    """Llama 3 8B's sizes (8.0 billion parameters) at 2,048 tokens."""
    return llama(hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, vocab=128_256, sequence=2048)


def llama_70b() -> Workload:
    """Llama 3 70B's sizes (70.6 billion parameters) at 2,048 tokens."""
    return llama(hidden=8192, intermediate=28672, layers=80, heads=64, kv_heads=8, vocab=128_256, sequence=2048)


def timed(workload: Workload, precision: str = "bf16-true") -> tuple[float, float, float]:
    """Seconds of processor time, allocated peak in GB, and the process's peak resident memory in GB."""
    start = time.process_time()
    found = predict(workload, 1, precision=precision)
    unit = 1 if sys.platform == "darwin" else 1024
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    return time.process_time() - start, found.allocated_peak / 1e9, resident


def bench() -> list[tuple[str, float, str]]:
    """Rows (what, value, target) for the two Llamas."""
    rows = []
    cases: list[tuple[str, Callable[[], Workload], int]] = [("8B", llama_8b, 12), ("70B", llama_70b, 45)]
    for name, make, limit in cases:
        seconds, peak, resident = timed(make())
        rows.append((f"prediction of a Llama {name}: processor seconds", seconds, f"at most {limit}"))
        rows.append((f"prediction of a Llama {name}: resident memory, GB", resident, "at most 1"))
        rows.append((f"prediction of a Llama {name}: its peak, GB", peak, "for information"))
    return rows


if __name__ == "__main__":
    for what, value, target in bench():
        print(f"{what:<55} {value:10.2f}   {target}")
