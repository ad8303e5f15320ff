"""The paper's second workload: a Conformer that writes down what is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from sketchy.experiments.workloads.conformer import chapters, digits, librispeech, pieces, takes
from sketchy.experiments.workloads.conformer.ctc import ctc_losses, greedy, word_errors
from sketchy.experiments.workloads.conformer.front_end import LogMel, Masks
from sketchy.experiments.workloads.conformer.network import ConformerNetwork
from sketchy.experiments.workloads.conformer.recordings import text
from sketchy.experiments.workloads.scale import GiveUp, Preset, Range, Ranges, Scale, Tuning
from sketchy.experiments.workloads.workload import Batch, Metric, Score, Sizes, Source, Workload


@dataclass(frozen=True, kw_only=True)
class ConformerScale(Scale):
    """`Scale`, and the sizes of the Conformer and of SpecAugment."""

    width: int = 512
    layers: int = 16
    heads: int = 8
    channels: int = 512  # of the convolutions that shorten an utterance
    kernel: int = 5  # frames that the convolution of a layer sees
    bins: int = 80  # of a frame
    input_dropout: float = 0.1
    keep: float = 0.999  # of the running averages of batch norms, a step
    band_masks: int = 2
    most_bins: int = 27  # of such a mask
    gap_masks: int = 10
    most_time: float = 0.05  # of such a mask, as a share of the utterance
    noise: float = 15.0  # dB from strings of digits down to the noise

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads}: must divide the width, which is {self.width}")
        if self.most_bins > self.bins:
            raise ValueError(f"most_bins={self.most_bins}: there are {self.bins} bins")

    @property
    def masks(self) -> Masks:
        return Masks(self.band_masks, self.most_bins, self.gap_masks, self.most_time)


Look = tuple[float, int, int, int]  # sum of losses, pieces, errors, words

_SEARCHED: Ranges = {
    "lr": Range(1e-5, 1e-3),
    "weight_decay": Range(1e-4, 1e-2),
    "beta1": Range(1e-3, 0.1, one_minus=True),
    "beta2": Range(1e-3, 0.1, one_minus=True),
}
_OWN: Mapping[str, Ranges] = {"adamw": {"lr": Range(1e-4, 1e-2)}}
_DROPOUT: Ranges = {"dropout": Range(0.0, 0.2, log=False)}
_WARMUP: Mapping[str, Ranges] = {"adamw": {**_OWN["adamw"], "warmup": Range(0.02, 0.1, log=False)}}
_PAPER = ConformerScale(
    batch=1024,
    micro_batch=16,
    steps=25_700,  # 100 epochs of 257
    tuning_steps=25_700,
    look_every=257,
    lr=5e-4,
    weight_decay=1e-3,
    clip=10.0,
    dropout=0.1,
    block_size=1024,
    rank=256,
)
_QUARTER = _PAPER.changed(
    {"batch": 16, "micro_batch": 16, "steps": 1000, "tuning_steps": 800, "look_every": 100, "lr": 1e-3}
    | {"width": 128, "layers": 4, "heads": 4, "channels": 128, "bins": 40, "most_bins": 8, "keep": 0.98}
    | {"block_size": 256, "rank": 64, "graft": "rmsprop_normalized"}
)
_TINY = _QUARTER.changed(
    {"batch": 8, "micro_batch": 4, "steps": 20, "tuning_steps": 10, "look_every": 5, "start_step": 5}
    | {"width": 16, "layers": 1, "heads": 2, "channels": 8, "bins": 16, "most_bins": 4, "keep": 0.9}
    | {"block_size": 32, "rank": 8}
)


class Conformer(Workload[ConformerScale]):
    """CTC; the word error rate of greedy decoding."""

    name: ClassVar[str] = "conformer"
    metric: ClassVar[Metric] = Metric("word error rate", higher_is_better=False, short="WER")
    loss_name: ClassVar[str] = "CTC of a piece"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            _PAPER,
            Tuning({**_SEARCHED, **_DROPOUT}, trials=100, own=_WARMUP, give_up=GiveUp(5000 / 25_700, 0.875)),
            "librispeech",
        ),
        "quarter": Preset(
            _QUARTER,
            Tuning(_SEARCHED, trials=12, own=_OWN, give_up=GiveUp(0.5, 0.875)),
            "fsdd",
            "strings of 2 to 4 digits of the Free Spoken Digit Dataset (8 kHz, under noise, validated and "
            "tested with two speakers that are not in training) instead of LibriSpeech, so a word is a "
            "digit; width 128 and 128 channels, 4 layers instead of 16, 4 heads, 40 bins, band masks of "
            "up to 8 of them instead of 27, blocks of 256 and rank 64; batches of 16 instead of 1024; 800 "
            "steps to tune and 1,000 to report instead of 25,700; running averages keep 0.98 instead of "
            "0.999; the graft is RMSProp-normalized; dropout 0.1 is fixed; a trial ends at half of its "
            "steps, not at a fifth, if its word error rate is not below 0.875",
        ),
        "tiny": Preset(
            _TINY, Tuning(_SEARCHED, trials=2), "synthetic", "a test of the program, not a result"
        ),
    }
    sources: ClassVar[Mapping[str, Source]] = {
        "synthetic": Source(
            {"pieces": 11, "rate": takes.RATE},
            lambda _, scale: digits.open_tones(numbers=scale.masks.numbers),
            "strings of tones",
        ),
        "fsdd": Source(
            {"pieces": 11, "rate": takes.RATE},
            lambda directory, scale: digits.open_digits(
                directory, noise=scale.noise, numbers=scale.masks.numbers
            ),
            "strings of spoken digits under noise",
        ),
        "librispeech": Source(
            {"pieces": pieces.PIECES, "rate": chapters.RATE},
            lambda directory, scale: librispeech.open_librispeech(directory, numbers=scale.masks.numbers),
            "960 hours of read books",
        ),
    }

    def network(self, scale: ConformerScale, sizes: Sizes) -> nn.Module:
        return ConformerNetwork(
            LogMel(sizes["rate"], scale.bins, scale.masks),
            sizes["pieces"],
            width=scale.width,
            layers=scale.layers,
            heads=scale.heads,
            channels=scale.channels,
            kernel=scale.kernel,
            dropout=scale.dropout,
            input_dropout=scale.input_dropout,
            keep=scale.keep,
            batch=scale.batch,
        )

    def loss(self, network: nn.Module, batch: Batch, scale: ConformerScale) -> tuple[Tensor, Tensor]:
        logits, lengths = network(batch)
        return _losses(logits, lengths, batch).sum(), batch["target_counts"].sum()

    def look(self, network: nn.Module, batch: Batch, scale: ConformerScale) -> Look:
        logits, lengths = network(batch)
        loss = float(_losses(logits, lengths, batch).detach().double().sum())
        targets, counts, spelling = (batch[name].cpu() for name in ("targets", "target_counts", "spelling"))
        expected = [row[:count].tolist() for row, count in zip(targets, counts, strict=True)]
        found = ([text(ids, spelling) for ids in some] for some in (greedy(logits, lengths), expected))
        return loss, int(counts.sum()), *word_errors(*found)

    def score(self, looks: Sequence[Look], scale: ConformerScale) -> Score:
        loss, count, errors, words = (sum(column) for column in zip(*looks, strict=True))
        return Score(loss / count, errors / words)


def _losses(logits: Tensor, lengths: Tensor, batch: Batch) -> Tensor:
    return ctc_losses(logits, lengths, batch["targets"], batch["target_counts"])
