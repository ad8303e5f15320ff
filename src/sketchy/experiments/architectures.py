"""The weights of published architectures, as modules without a forward pass.

Use them to count memory: ``sketchy memory --model sketchy.experiments.architectures:gpt2_xl``. Names and
shapes are those of the published checkpoints. Matrices are (outputs, inputs).
"""

from torch import nn


def gpt2_xl() -> nn.Module:
    """GPT-2 XL, 1,557,611,200 weights; the output head shares the token embedding."""
    return _gpt2(layers=48, width=1600)


def llama2_7b() -> nn.Module:
    """Llama-2-7B, 6,738,415,616 weights."""
    return _llama2(layers=32, width=4096, hidden=11008, keys=4096)


def llama2_70b() -> nn.Module:
    """Llama-2-70B, 68,976,648,192 weights; eight query heads share a key."""
    return _llama2(layers=80, width=8192, hidden=28672, keys=1024)


def _gpt2(*, layers: int, width: int) -> nn.Module:
    def block() -> nn.Module:
        attention = {"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)}
        mlp = {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
        return nn.ModuleDict(
            {
                "ln_1": nn.LayerNorm(width),
                "attn": nn.ModuleDict(attention),
                "ln_2": nn.LayerNorm(width),
                "mlp": nn.ModuleDict(mlp),
            }
        )

    tokens, head = nn.Embedding(50257, width), nn.Linear(width, 50257, bias=False)
    head.weight = tokens.weight
    body = {
        "wte": tokens,
        "wpe": nn.Embedding(1024, width),
        "h": nn.ModuleList(block() for _ in range(layers)),
        "ln_f": nn.LayerNorm(width),
    }
    return nn.ModuleDict({"transformer": nn.ModuleDict(body), "lm_head": head})


def _llama2(*, layers: int, width: int, hidden: int, keys: int) -> nn.Module:
    def linear(inputs: int, outputs: int) -> nn.Module:
        return nn.Linear(inputs, outputs, bias=False)

    def block() -> nn.Module:
        attention = {
            "q_proj": linear(width, width),
            "k_proj": linear(width, keys),
            "v_proj": linear(width, keys),
            "o_proj": linear(width, width),
        }
        mlp = {
            "gate_proj": linear(width, hidden),
            "up_proj": linear(width, hidden),
            "down_proj": linear(hidden, width),
        }
        return nn.ModuleDict(
            {
                "self_attn": nn.ModuleDict(attention),
                "mlp": nn.ModuleDict(mlp),
                "input_layernorm": nn.RMSNorm(width),
                "post_attention_layernorm": nn.RMSNorm(width),
            }
        )

    body = {
        "embed_tokens": nn.Embedding(32000, width),
        "layers": nn.ModuleList(block() for _ in range(layers)),
        "norm": nn.RMSNorm(width),
    }
    return nn.ModuleDict({"model": nn.ModuleDict(body), "lm_head": linear(width, 32000)})
