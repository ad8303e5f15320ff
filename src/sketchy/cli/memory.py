"""`sketchy memory`: how much optimizer state will my model need?"""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import UseAppendAction

from sketchy.cli.mistakes import user_mistakes


def memory(
    shape: UseAppendAction[tuple[str, ...]] = (),
    model: str | None = None,
    file: UseAppendAction[tuple[Path, ...]] = (),
    ranks: tuple[int, ...] = (4, 16, 64, 256),
    budget: str | None = None,
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
    plot: Path | None = None,
    json: bool = False,
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = None,
    momentum_dtype: Literal["float32", "bfloat16", "int8", "int4"] | None = None,
    adam_dtype: Literal["float32", "int8"] | None = None,
    shards: int = 1,
    replicas: int = 1,
) -> None:
    """Count the bytes of optimizer state that a model needs, for our optimizers and for others.

    Example: sketchy memory --model sketchy.experiments.architectures:gpt2_xl

    Example: sketchy memory --shape 4096x1024 --shape 1024x1024 --budget 40MiB

    Example: sketchy memory --file net.pt --budget 1.5GiB --from spectra.jsonl

    Args:
        shape: Shape of a weight, such as 4096x1024; may be repeated.
        model: Function that builds a torch module, as package.module:function; it runs on the meta device.
        file: A safetensors file or a saved state_dict, of which only the header is read; may be repeated.
        ranks: Ranks of the sketches, the paper's l.
        budget: Memory for the state, such as 8GiB or 500MB. Also finds the ranks that fit.
        from_: Spectra that SpectrumMonitor has recorded of this model; gives each axis a rank under --budget.
        plot: PNG file for the paper's memory figure of these weights.
        json: Print only JSON.
        dtype: Type of all weights; if not given, their own (float32 for --shape).
        momentum_dtype: Type of our optimizers' momentum, as in their options; float32 if not given.
        adam_dtype: The same for Adam's path (embeddings, heads, vectors); int8 from 4096 entries on.
        shards: Ranks that divide the weights, as FSDP2 does; a budget is for all. Shows what each sends.
        replicas: Number of copies of the sharded weights (HSDP).
    """
    from sketchy.cli import memory_report as report

    with user_mistakes("sketchy memory"):
        options = {"momentum_dtype": momentum_dtype, "adam_dtype": adam_dtype}
        weights = report.gather(shape, model, file, dtype)
        result = report.Report(weights, ranks, budget, options, shards, replicas, from_)
        if plot is not None:
            report.draw(result, plot)
    if json:
        report.print_json(result)
    else:
        report.print_tables(result, plot)
